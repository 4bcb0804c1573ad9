package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/artifact"
	"github.com/scafo/scafo/internal/pack"
	"github.com/scafo/scafo/internal/route"
)

const (
	routesGoal = 3
	routesApps = 10_000
	// routesBatch is how often each is done in a round.
	routesBatch = 20
	intakeGoal  = 1.25
	unpackGoal  = 1.5
	intakeSize  = 100_000_000
	packFiles   = 2000
	packBytes   = 16 << 10 // of each
)

// manyRoutes is a fleet of three nodes with ten thousand applications on two each.
func manyRoutes() route.Input {
	in := route.Input{
		Fleet: "f1", Node: "a", Applications: map[string]scafo.Application{}, Placements: map[string]scafo.Placement{},
		Claims: map[string]scafo.Claim{}, PlatformDomains: []string{"apps.example"},
		Serves: func(a scafo.Application) bool { return a.Deployment != "" },
	}
	for _, id := range []string{"a", "b", "c"} {
		in.Nodes = append(in.Nodes, route.Node{ID: id, API: "http://" + id + ":7420", Live: true})
	}
	for i := range routesApps {
		name := fmt.Sprintf("app-%d", i)
		uid := "u-" + name
		in.Applications[name] = scafo.Application{Name: name, UID: uid, Deployment: "v2"}
		on := []int{i % 3, (i + 1) % 3}
		var ids []string
		for _, n := range on {
			node := &in.Nodes[n]
			ids = append(ids, node.ID)
			node.Processes = append(node.Processes, scafo.ProcessStatus{
				Application: name, UID: uid, State: scafo.ProcessReady, Deployment: "v2",
				URL: fmt.Sprintf("http://%s:%d", node.ID, 20000+i%20000),
			})
		}
		in.Placements[name] = scafo.Placement{Application: name, UID: uid, Nodes: ids}
	}
	for i := range in.Nodes { // as heartbeats have them
		slices.SortFunc(in.Nodes[i].Processes, func(x, y scafo.ProcessStatus) int { return strings.Compare(x.Application, y.Application) })
	}
	return in
}

// benchRoutes builds and encodes the routing document of ten thousand applications,
// in turns with encoding its values alone.
func benchRoutes(_ context.Context, b *bench) error {
	in := manyRoutes()
	doc, problems := route.Build(in)
	if len(problems) > 0 || len(doc.Routes) != routesApps {
		return fmt.Errorf("%d routes, %v", len(doc.Routes), problems)
	}
	var whole, base []time.Duration
	for range b.rounds {
		began := time.Now()
		for range routesBatch {
			var p route.Publisher
			built, _ := route.Build(in)
			if _, err := p.Publish(built, time.Now()); err != nil {
				return err
			}
		}
		whole = append(whole, time.Since(began)/routesBatch)
		began = time.Now()
		for range routesBatch {
			if _, err := json.Marshal(doc); err != nil {
				return err
			}
		}
		base = append(base, time.Since(began)/routesBatch)
	}
	b.ratio(fmt.Sprintf("the routes of %d applications, built and encoded, against encoding/json on the same values", routesApps),
		ms(median(whole)), ms(median(base)), median(ratios(whole, base)), routesGoal)
	return nil
}

// benchIntake takes an artifact of 100 MB in, in turns with copying and hashing the
// same file, and unpacks it, in turns with `tar -x`.
func benchIntake(ctx context.Context, b *bench) error {
	tar, err := exec.LookPath("tar")
	if err != nil {
		return err
	}
	dir, err := b.sub("intake")
	if err != nil {
		return err
	}
	from := filepath.Join(dir, "artifact.tar")
	if err := largeTar(from, intakeSize); err != nil {
		return err
	}
	defer os.Remove(from)
	limits := artifact.Limits{Bytes: 2 * intakeSize, Entries: 1000}
	var whole, base, unpack, untar []time.Duration
	for range b.rounds {
		t, err := timedCopy(from, filepath.Join(dir, "received"), func(dst *os.File, src io.Reader) error {
			_, err := artifact.Receive(ctx, dst, src, limits)
			return err
		})
		if err != nil {
			return err
		}
		z, err := timedCopy(from, filepath.Join(dir, "copied"), func(dst *os.File, src io.Reader) error {
			_, err := io.Copy(io.MultiWriter(dst, sha256.New()), src)
			return err
		})
		if err != nil {
			return err
		}
		u, err := timedUnpack(ctx, from, filepath.Join(dir, "tree"), limits)
		if err != nil {
			return err
		}
		x, err := timedUntar(ctx, tar, from, filepath.Join(dir, "tree"))
		if err != nil {
			return err
		}
		whole, base, unpack, untar = append(whole, t), append(base, z), append(unpack, u), append(untar, x)
	}
	b.ratio("100 MB received and hashed, against copying and hashing the same file", ms(median(whole)), ms(median(base)), median(ratios(whole, base)), intakeGoal)
	b.ratio("100 MB unpacked, against `tar -x`", ms(median(unpack)), ms(median(untar)), median(ratios(unpack, untar)), unpackGoal)
	return b.aboveIdleHere("memory that receiving and unpacking 100 MB takes", func() error {
		_, err := timedCopy(from, filepath.Join(dir, "received"), func(dst *os.File, src io.Reader) error {
			_, err := artifact.Receive(ctx, dst, src, limits)
			return err
		})
		if err != nil {
			return err
		}
		_, err = timedUnpack(ctx, from, filepath.Join(dir, "tree"), limits)
		return err
	})
}

func largeTar(name string, size int) error {
	body, err := largeArtifact(size)
	if err != nil {
		return err
	}
	return os.WriteFile(name, body, 0o600)
}

// timedCopy runs a copy from one file to a new one, which it removes again.
func timedCopy(from, to string, run func(dst *os.File, src io.Reader) error) (time.Duration, error) {
	src, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	// The source is read as a connection is: in pieces, and by nothing faster.
	err = errors.Join(run(dst, struct{ io.Reader }{src}), dst.Close())
	took := time.Since(began)
	return took, errors.Join(err, os.Remove(to))
}

func timedUnpack(ctx context.Context, from, to string, l artifact.Limits) (time.Duration, error) {
	src, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer src.Close()
	if err := os.Mkdir(to, 0o700); err != nil {
		return 0, err
	}
	began := time.Now()
	_, err = artifact.Unpack(ctx, src, to, l)
	took := time.Since(began)
	return took, errors.Join(err, os.RemoveAll(to))
}

func timedUntar(ctx context.Context, tar, from, to string) (time.Duration, error) {
	if err := os.Mkdir(to, 0o700); err != nil {
		return 0, err
	}
	began := time.Now()
	err := exec.CommandContext(ctx, tar, "-x", "-f", from, "-C", to).Run()
	took := time.Since(began)
	return took, errors.Join(err, os.RemoveAll(to))
}

// benchPack packs a site of many files, in turns with `tar` under zstd on the same
// folder.
func benchPack(ctx context.Context, b *bench) error {
	tar, err := exec.LookPath("tar")
	if err != nil {
		return err
	}
	dir, err := b.sub("pack")
	if err != nil {
		return err
	}
	site := filepath.Join(dir, "site")
	if err := manyFiles(site); err != nil {
		return err
	}
	compress := "-z"
	if _, err := exec.LookPath("zstd"); err == nil {
		compress = "--zstd"
	}
	var whole, base []time.Duration
	for range b.rounds {
		began := time.Now()
		pkg, err := pack.Run(ctx, pack.Options{Path: site})
		if err != nil {
			return err
		}
		out, err := os.Create(filepath.Join(dir, "packed"))
		if err != nil {
			return err
		}
		_, err = pkg.WriteTo(out)
		if err = errors.Join(err, out.Close()); err != nil {
			return err
		}
		whole = append(whole, time.Since(began))
		began = time.Now()
		cmd := exec.CommandContext(ctx, tar, compress, "-cf", filepath.Join(dir, "tarred"), "-C", site, ".")
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("tar: %w: %s", err, said)
		}
		base = append(base, time.Since(began))
	}
	b.ratio(fmt.Sprintf("a folder of %d files packed, against tar %s", packFiles, compress), ms(median(whole)), ms(median(base)), median(ratios(whole, base)), 0)
	return nil
}

// manyFiles makes a site whose files compress about as text does.
func manyFiles(site string) error {
	if err := os.MkdirAll(filepath.Join(site, "public"), 0o700); err != nil {
		return err
	}
	for i := range packFiles {
		noise := make([]byte, packBytes/4)
		if _, err := rand.Read(noise); err != nil {
			return err
		}
		body := append(fmt.Appendf(nil, "<!-- %d -->", i), bytes.Repeat([]byte("<p>text</p>"), packBytes/16)...)
		body = append(body, noise...)
		if err := os.WriteFile(filepath.Join(site, "public", fmt.Sprintf("%d.html", i)), body, 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(site, "wrangler.json"), []byte(`{"name":"site","compatibility_date":"2026-11-01","assets":{"directory":"public"}}`), 0o600)
}
