// Package publish is `celld-workerd deploy`: it reads a Wrangler project, builds
// it, tries the result, and publishes it in the bucket.
package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/s3"
	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/workerd/project"
	"github.com/scafo/scafo/internal/workerd/server"
	"github.com/scafo/scafo/internal/workerd/trial"
)

// Result is what --json prints.
type Result struct {
	Worker   string `json:"worker"`
	Version  string `json:"version"`
	Location string `json:"location"` // s3://NAME[/PREFIX]/deploy/<script>/<version>/
	DryRun   bool   `json:"dry_run"`
}

// Options are a deploy.
type Options struct {
	Project string                 // a directory, or a configuration
	Workerd func() (string, error) // finds the program to try it with
	// Bucket opens the bucket under the application's prefix; not called in a dry
	// run.
	Bucket func(context.Context) (bucket.Bucket, error)
	// Memory is how much the Worker may take while it is tried, in bytes; 0: as much as
	// is usual.
	Memory int64
	Where  string // the bucket and its prefix for people, s3://NAME[/PREFIX]
	DryRun bool
	Say    func(format string, args ...any) // prose, a line each
}

// Main runs `celld-workerd deploy` with the arguments after `deploy` and returns
// the exit code, 0 or 1. Prose and errors go to stderr; with --json, one object
// goes to stdout.
func Main(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	if err := run(ctx, args, env, stdout, stderr); err != nil {
		writeError(stderr, err)
		return server.ExitFailed
	}
	return server.ExitOK
}

// collectLater is how much the heap may grow, in percent, before it is collected: a
// deploy is over soon, and most of what it takes it needs to its end. liveMemory is
// where that thrift with time ends.
const (
	collectLater = 800
	liveMemory   = 256 << 20
)

func run(ctx context.Context, args, env []string, stdout, stderr io.Writer) error {
	debug.SetGCPercent(collectLater)
	debug.SetMemoryLimit(liveMemory)
	f, err := parseFlags(args)
	if err != nil {
		return err
	}
	if f.help {
		_, err := io.WriteString(stdout, server.Usage)
		return err
	}
	e, err := server.ParseEnv(env)
	if err != nil {
		return err
	}
	o := Options{
		Project: f.project, DryRun: f.dryRun, Where: f.where(),
		Workerd: func() (string, error) { return server.Locate(e, executable()) },
		Say:     func(format string, args ...any) { _, _ = fmt.Fprintf(stderr, format+"\n", args...) },
	}
	if e.MaxRSS > 0 {
		o.Memory = e.HardMemory
	}
	var store *s3.Store
	o.Bucket = func(ctx context.Context) (bucket.Bucket, error) {
		region := f.region
		if region == "" {
			region = e.Region
		}
		var err error
		store, err = s3.Open(ctx, s3.Config{
			Bucket: f.bucket, Prefix: f.prefix, Endpoint: f.endpoint, Region: region, PathStyle: f.endpoint != "",
		})
		return store, err
	}
	defer func() {
		if store != nil {
			store.Close()
		}
	}()
	r, err := Deploy(ctx, o)
	if err != nil {
		return err
	}
	if f.json {
		return json.NewEncoder(stdout).Encode(r)
	}
	return nil
}

// executable is this program, links followed; empty when that cannot be said.
func executable() string {
	name, err := os.Executable()
	if err != nil {
		return ""
	}
	if real, err := filepath.EvalSymlinks(name); err == nil {
		return real
	}
	return name
}

// Deploy builds, tries and publishes a project.
func Deploy(ctx context.Context, o Options) (Result, error) {
	p, err := project.Open(o.Project)
	if err != nil {
		return Result{}, fmt.Errorf("read the configuration: %w", err)
	}
	built, t, err := prepare(ctx, p, o)
	if err != nil {
		return Result{}, err
	}
	m := built.Bundle.Manifest
	r := Result{
		Worker: m.ScriptName, Version: m.Version, DryRun: o.DryRun,
		Location: strings.TrimSuffix(o.Where, "/") + "/" + layout.Prefix(m.ScriptName, m.Version),
	}
	if o.DryRun {
		o.Say("%s version %s would be published (dry run)", r.Worker, r.Version)
		return r, nil
	}
	if err = t.unread; err == nil {
		err = layout.PublishAfter(ctx, t.bucket, t.before, built.Bundle)
	}
	if err != nil {
		return Result{}, fmt.Errorf("publish %s version %s: %w", r.Worker, r.Version, err)
	}
	o.Say("published %s version %s", r.Worker, r.Version)
	return r, nil
}

// target is where a deploy goes, and what was there before.
type target struct {
	bucket bucket.Bucket
	before layout.Before
	unread error // why before is not known: worse news of the project comes first
}

// prepare builds a project and tries it, while its assets are read and the bucket
// is opened and looked at.
func prepare(ctx context.Context, p *project.Project, o Options) (*project.Built, target, error) {
	var built *project.Built
	var assets *project.CollectedAssets
	var t target
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		if assets, err = p.CollectAssets(ctx); err != nil {
			return fmt.Errorf("read the assets: %w", err)
		}
		return nil
	})
	g.Go(func() (err error) {
		built, err = try(ctx, p, o)
		return err
	})
	if !o.DryRun {
		g.Go(func() (err error) {
			if t.bucket, err = o.Bucket(ctx); err != nil {
				return fmt.Errorf("open the bucket: %w", err)
			}
			t.before, t.unread = layout.Look(ctx, t.bucket)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, target{}, err
	}
	if err := built.Seal(assets); err != nil {
		return nil, target{}, err
	}
	m := built.Bundle.Manifest
	size := int64(0)
	for _, mod := range m.Modules {
		size += mod.Bytes
	}
	o.Say("built %s: %d modules, %d bytes%s", m.ScriptName, len(m.Modules), size, assetsLine(m))
	return built, t, nil
}

// try builds a project and starts the result.
func try(ctx context.Context, p *project.Project, o Options) (*project.Built, error) {
	built, err := p.Build(ctx)
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	for _, w := range built.Warnings {
		o.Say("warning: %s", w)
	}
	workerd, err := o.Workerd()
	if err != nil {
		return nil, err
	}
	memory := o.Memory
	if memory == 0 {
		memory = trial.Memory
	}
	warnings, err := trial.RunWithin(ctx, workerd, built.Bundle, memory)
	for _, w := range warnings {
		o.Say("warning: %s", built.Map.Rewrite(w))
	}
	var refused *trial.Error
	switch {
	case errors.As(err, &refused):
		return nil, fmt.Errorf("the Worker does not start: %s", built.Map.Rewrite(refused.Sentence))
	case err != nil:
		return nil, fmt.Errorf("try the Worker: %w", err)
	}
	return built, nil
}

func assetsLine(m *layout.Manifest) string {
	if m.Assets == nil {
		return ""
	}
	return fmt.Sprintf("; %d assets, %d bytes", m.Assets.Files, m.Assets.Bytes)
}

// writeError prints an error as `Error: …`, its further lines indented.
func writeError(w io.Writer, err error) {
	_, _ = fmt.Fprintf(w, "Error: %s\n", strings.ReplaceAll(strings.TrimRight(err.Error(), "\n"), "\n", "\n  "))
}
