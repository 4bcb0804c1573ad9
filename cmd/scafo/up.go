package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/node"
	"github.com/scafo/scafo/internal/profile"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/token/keyfile"
)

const (
	defaultHTTPPort = 8080
	// upFleet is the name of the fleet of `scafo up` in the profile.
	upFleet = "local"
	// upHost is the domain under which applications answer: every resolver leads
	// names below it to this machine (RFC 6761, section 6.3).
	upHost = "localhost"
)

func newUp(g *globals) *cobra.Command {
	var listen, state string
	var httpPort int
	c := &cobra.Command{
		Use: "up", Short: "Run a whole fleet on this machine: store, node, runtime and ingress",
		Long: "Run everything that one machine needs, in the foreground: an embedded store, a node, the\nruntime beside this program, and an ingress on *.localhost. It needs no root. What was deployed\nis there again at the next start. Ctrl-C stops everything.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("this program cannot find itself: %w", err)
			}
			presets := map[string]string{
				"celld.command":    filepath.Join(filepath.Dir(exe), "celld-workerd"),
				"platform.domains": upHost,
				// One machine: nobody takes over, and the ingress ends first.
				"drain.replaceSeconds": "0",
				"drain.routeSeconds":   "0",
				"log.level":            "warn",
				"log.format":           "text",
			}
			for flag, key := range map[string]string{listen: "node.listen", state: "node.state"} {
				if flag != "" {
					presets[key] = flag
				}
			}
			l, err := loadConfig(c, presets)
			if err != nil {
				return err
			}
			u := &upRun{g: g, c: l, exe: exe, httpPort: httpPort, out: c.OutOrStdout(), log: node.Logger(l.Log, os.Stderr)}
			if l.Log.Format == "text" {
				u.log = newUpLog(u.log.Handler(), os.Stderr)
			}
			// The terminal that goes away is a Ctrl-C here.
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGHUP)
			defer stop()
			return u.run(ctx)
		},
	}
	addConfig(c)
	c.Flags().StringVar(&listen, "listen", "", "where the API listens (node.listen)")
	c.Flags().StringVar(&state, "state", "", "directory for everything that is kept (node.state)")
	c.Flags().IntVar(&httpPort, "http-port", defaultHTTPPort, "port of the ingress")
	return c
}

// upRun is one run of `scafo up`.
type upRun struct {
	g        *globals
	c        *config.Loaded
	exe      string
	httpPort int
	out      io.Writer
	log      *slog.Logger
}

func (u *upRun) run(ctx context.Context) (err error) {
	if u.httpPort < 1 || u.httpPort > 65535 {
		return usagef("--http-port %d is no port", u.httpPort)
	}
	for _, p := range []string{u.c.Celld.Command, u.caddy()} {
		if _, err := os.Stat(p); err != nil && filepath.IsAbs(p) {
			return fmt.Errorf("%s is missing: `make build` makes it beside this program", filepath.Base(p))
		}
	}
	// The most likely mistake first, before anything is started.
	for _, at := range []struct{ addr, flag string }{
		{u.c.Node.Listen, "--listen"}, {net.JoinHostPort("127.0.0.1", strconv.Itoa(u.httpPort)), "--http-port"},
	} {
		probe, err := net.Listen("tcp", at.addr)
		if err != nil {
			return fmt.Errorf("%s is taken: %w; choose another one with %s", at.addr, err, at.flag)
		}
		probe.Close()
	}
	lock, err := node.LockState(ctx, u.c.Node.State)
	if err != nil {
		return err
	}
	defer lock.Close()
	store, err := u.ensureFleet(ctx)
	if store != nil {
		// The node ends it last of all, but it may not come to that.
		defer func() {
			err = errors.Join(err, store.StopEmbedded(context.WithoutCancel(ctx), context.Background()))
		}()
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil // it was told to stop
		}
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Objects take a few seconds to come to rest.
	said := context.AfterFunc(ctx, func() { fmt.Fprintln(os.Stderr, "  stopping; Ctrl-C again kills what still drains") })
	defer said()
	var g errgroup.Group
	err = node.Run(ctx, u.c, node.Options{
		Executable: u.exe, Log: u.log, Hurry: hurry(ctx),
		Ready: func(n *node.Node) {
			g.Go(func() error {
				err := u.ingress(ctx, n)
				if err != nil {
					cancel(err)
				}
				return nil
			})
		},
	})
	_ = g.Wait() // its failure is the context's cause
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}

// caddy is the ingress's program, beside this one.
func (u *upRun) caddy() string { return filepath.Join(filepath.Dir(u.exe), "scafo-caddy") }

// ensureFleet makes the fleet at the first start, and leaves the way to it in the
// profile at each. The store that it opened stays open, also after an error.
func (u *upRun) ensureFleet(ctx context.Context) (*node.Store, error) {
	store, err := node.OpenStore(ctx, u.c, u.exe, u.log)
	if err != nil {
		return nil, err
	}
	if err := store.Prove(ctx, u.log, nil); err != nil {
		return store, err
	}
	r := registry.New(store.Bucket, registry.Options{Log: u.log, Node: u.c.Node.ID})
	keyPath := filepath.Join(u.c.Node.State, "admin.jwk")
	m := madeFleet{keyFile: keyPath}
	m.fleet, err = r.Fleet(ctx)
	switch {
	case scafo.CodeOf(err) == scafo.CodeNotFound:
		m, err = createFleet(ctx, r, defaultOperator, keyPath)
	case err == nil:
		if m.key, _, err = keyfile.Load(keyPath); err != nil {
			// Somebody else's fleet: its admin has the key, and their profile the way.
			u.log.Warn("this fleet was not made by `scafo up`; the profile stays as it is", "cause", err)
			return store, nil
		}
	}
	if err != nil {
		return store, err
	}
	return store, remember(upFleet, m, profile.Fleet{Nodes: []string{u.c.Node.Advertise}, Workers: u.workers(), State: u.c.Node.State})
}

// workers is where applications answer, with <name> for the application's.
func (u *upRun) workers() string {
	return "http://<name>." + net.JoinHostPort(upHost, strconv.Itoa(u.httpPort))
}

// ingress runs scafo-caddy until ctx ends, and says once that everything is there.
func (u *upRun) ingress(ctx context.Context, n *node.Node) error {
	args := []string{
		"run", "--node", u.c.Node.Advertise, "--ingress-token-file", node.IngressTokenFile(u.c.Node.State),
		"--listen", "127.0.0.1", "--http-port", strconv.Itoa(u.httpPort), "--http-only", "--prefer", "self",
		"--state", filepath.Join(u.c.Node.State, "ingress"), "--log-level", "ERROR", "--grace-period", "1s",
	}
	return keepChild(ctx, u.log, func(ready func()) error {
		return runChild(ctx, u.caddy(), args, ready)
	}, func() { u.greet(n) })
}

func (u *upRun) greet(n *node.Node) {
	runtime := engine(n.CelldVersion)
	where := u.c.Bucket.URL
	if n.Store.Embedded() {
		where = "embedded (" + filepath.Join(u.c.Node.State, "bucket") + ")"
	}
	if u.g.json {
		_ = printJSON(u.out, map[string]string{ // the user's terminal may be gone
			"version": scafo.Version, "node": n.ID, "bucket": where, "runtime": runtime,
			"api": u.c.Node.Advertise, "workers": u.workers(),
		})
		return
	}
	fmt.Fprintf(u.out, "  scafo %s · node %s · bucket %s · runtime %s\n", scafo.Version, n.ID, where, runtime)
	fmt.Fprintf(u.out, "  API      %s\n", u.c.Node.Advertise)
	fmt.Fprintf(u.out, "  Workers  %s\n", u.workers())
	fmt.Fprintf(u.out, "  Deploy   %s deploy examples/counter\n", nearName(u.exe))
}

// engine is what runs the Workers, of a runtime's version line: an adapter names the
// engine behind it in brackets.
func engine(version string) string {
	if _, rest, ok := strings.Cut(version, " ("); ok {
		if name, ok := strings.CutSuffix(rest, ")"); ok && strings.Contains(name, " ") {
			return name
		}
	}
	return version
}

// nearName is a path as one would type it from here.
func nearName(path string) string {
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(wd, path); err == nil && !strings.HasPrefix(rel, "..") {
			return rel
		}
	}
	return path
}
