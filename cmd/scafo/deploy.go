package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/pack"
	"github.com/scafo/scafo/internal/pipeline"
	"github.com/scafo/scafo/internal/profile"
)

const (
	// overloadPatience is how long a deploy waits for a place in a node's queue.
	overloadPatience = 10 * time.Minute
	// overloadPause is waited where a node does not say how long.
	overloadPause = time.Second
)

// deployFlags are the flags of `scafo deploy`.
type deployFlags struct {
	name, env, replicas       string
	vars, selector            []string
	noBundle, noBuild, noWait bool
	strict, dryRun, oidc      bool
	audience                  string
	packed                    pack.Options
	metadata                  scafo.DeployMetadata
}

func newDeploy(g *globals) *cobra.Command {
	f := new(deployFlags)
	c := &cobra.Command{
		Use: "deploy [DIR]", Short: "Deploy a Wrangler project and wait until it answers",
		Long: `Deploy the Wrangler project in DIR (default: here). The application is called as the
project is. Only what the build reads is sent; .dev.vars, .env files and keys never are.

The last line of standard output is the application's address. Where none is known (the
application has no domain yet, and no ` + "`scafo up`" + ` serves it), and where no node runs the
application, it is the deployment's version, and with --no-wait the deploy's id.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			f.packed.Path = "."
			if len(args) > 0 {
				f.packed.Path = args[0]
			}
			if err := f.parse(); err != nil {
				return err
			}
			d := &deployRun{g: g, f: f, out: c.OutOrStdout(), progress: newProgress(c.ErrOrStderr())}
			defer d.progress.end()
			err := d.run(c.Context())
			if errors.Is(err, context.Canceled) {
				err = errors.New("interrupted")
			}
			return err
		},
	}
	g.addTarget(c)
	fl := c.Flags()
	fl.StringVar(&f.name, "name", "", "name of the application (default: the project's)")
	fl.StringVar(&f.env, "env", "", "environment of the configuration")
	fl.StringArrayVar(&f.vars, "var", nil, "K=V: set a variable of the Worker, repeatable")
	fl.BoolVar(&f.noBundle, "no-bundle", false, "send the modules as they are")
	fl.BoolVar(&f.noBuild, "no-build", false, "do not run the configuration's build.command")
	fl.BoolVar(&f.packed.NoMigrations, "no-migrations", false, "send no migrations of D1 databases")
	fl.BoolVar(&f.strict, "strict", false, "refuse keys that would be left out")
	fl.BoolVar(&f.dryRun, "dry-run", false, "list what would be sent, and send nothing")
	fl.BoolVar(&f.noWait, "no-wait", false, "wait neither for a place in the node's queue nor for the deploy's end")
	fl.BoolVar(&f.oidc, "oidc", false, "deploy with the workload token of this job and no key: GitHub Actions', else "+pipeline.TokenVariable+", else that of "+pipeline.FileVariable)
	fl.StringVar(&f.audience, "oidc-audience", scafo.DefaultAudience, "audience that GitHub Actions is asked for")
	fl.StringVar(&f.replicas, "replicas", "", `on how many nodes it runs, or "all" (default: as it is)`)
	fl.StringArrayVar(&f.selector, "selector", nil, "K=V: run only on nodes with this label, repeatable; none lifts it (default: as it is)")
	return c
}

// parse reads the flags; what is wrong with them is a usage error.
func (f *deployFlags) parse() error {
	if f.name != "" {
		if _, err := scafo.ParseApplicationName(f.name); err != nil {
			return usagef("--name %s: %s", f.name, explain(err))
		}
	}
	f.packed.Name, f.packed.Env, f.packed.Strict = f.name, f.env, f.strict
	f.packed.NoBundle, f.packed.NoBuild = f.noBundle, f.noBuild
	var err error
	if f.packed.Vars, err = keyValues("--var", f.vars); err != nil {
		return err
	}
	switch {
	case len(f.selector) == 1 && f.selector[0] == "none":
		f.metadata.NodeSelector = map[string]string{}
	case len(f.selector) > 0:
		if f.metadata.NodeSelector, err = keyValues("--selector", f.selector); err != nil {
			return err
		}
	}
	if f.replicas != "" {
		r := scafo.Replicas{All: f.replicas == "all"}
		if n, err := strconv.Atoi(f.replicas); err == nil && n > 0 {
			r.Count = n
		} else if !r.All {
			return usagef(`--replicas %s: want "all" or a whole number of at least 1`, f.replicas)
		}
		f.metadata.Replicas = &r
	}
	return nil
}

// keyValues reads the values of a repeated K=V flag.
func keyValues(flag string, list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, s := range list {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, usagef("%s %s: want K=V", flag, s)
		}
		if _, twice := out[k]; twice {
			return nil, usagef("%s %s stands twice", flag, k)
		}
		out[k] = v
	}
	return out, nil
}

// deployRun is one deploy.
type deployRun struct {
	g        *globals
	f        *deployFlags
	out      io.Writer
	progress *progress

	client *client.Client
	fleet  profile.Fleet
	pkg    *pack.Package

	mu        sync.Mutex // guards presented
	presented presented
}

// deployResult is what --json prints.
type deployResult struct {
	scafo.DeployStatus
	URL      string         `json:"url,omitempty"`
	Source   *scafo.Source  `json:"source,omitempty"`
	Artifact deployArtifact `json:"artifact"`
	Notes    []string       `json:"notes,omitempty"`
}

// deployArtifact is what was sent.
type deployArtifact struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`          // of the files
	Sent  int64 `json:"sent,omitempty"` // of the archive
}

func (d *deployRun) run(ctx context.Context) error {
	d.f.packed.Output, d.f.packed.Progress = d.progress.output(), d.progress.step
	p, err := pack.Load(d.f.packed)
	var env *pack.NoEnvironment
	if errors.As(err, &env) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	if !d.f.dryRun {
		if d.client, d.fleet, err = d.caller(); err != nil {
			return err
		}
		defer d.client.Close()
	}
	source := findSource(ctx, p.Dir())
	d.progress.step("packing")
	if d.pkg, err = p.Pack(ctx); err != nil {
		return err
	}
	d.tell()
	if d.f.dryRun {
		return d.list()
	}
	d.f.metadata.Source = <-source
	artifact, size, err := d.write()
	if err != nil {
		return err
	}
	defer artifact.Close()
	d.progress.done(fmt.Sprintf("packed %s (%s)", count(len(d.pkg.Files), "file"), pack.Size(d.pkg.Bytes)))
	s, err := d.upload(ctx, artifact, size)
	if err != nil {
		return d.advise(err)
	}
	r := deployResult{
		DeployStatus: s, Source: d.f.metadata.Source, Notes: d.pkg.Notes,
		Artifact: deployArtifact{Files: len(d.pkg.Files), Bytes: d.pkg.Bytes, Sent: size},
	}
	if d.f.noWait {
		return d.print(r, s.ID)
	}
	if r.DeployStatus, err = d.follow(ctx, s); err != nil {
		return d.advise(err)
	}
	if s = r.DeployStatus; s.State == scafo.DeployFailed {
		r.Detail = d.pkg.Explain(s.Detail)
		d.progress.end()
		if d.g.json {
			if err := printJSON(d.out, r); err != nil {
				return err
			}
		}
		return &scafo.Error{Code: s.Code, Detail: r.Detail}
	}
	r.URL = d.address(ctx, s)
	last := r.URL
	if last == "" {
		last = s.Deployment
	}
	return d.print(r, last)
}

// tell says what was done differently than the project says.
func (d *deployRun) tell() {
	for _, n := range d.pkg.Notes {
		d.progress.note(n)
	}
	for _, w := range d.pkg.Warnings {
		d.progress.note("warning: " + w)
	}
}

// print prints the answer: the last line is the address, or the best there is.
func (d *deployRun) print(r deployResult, last string) error {
	d.progress.end()
	if d.g.json {
		return printJSON(d.out, r)
	}
	if isTerminal(d.out) {
		last = "  " + last
	}
	_, err := fmt.Fprintln(d.out, last)
	return err
}

// list prints what would be sent.
func (d *deployRun) list() error {
	d.progress.end()
	if d.g.json {
		type file struct {
			Path  string `json:"path"`
			Bytes int64  `json:"bytes"`
		}
		files := []file{}
		for _, f := range d.pkg.Files {
			files = append(files, file{f.Path, f.Size})
		}
		return printJSON(d.out, map[string]any{
			"application": d.pkg.Name, "dryRun": true, "files": files, "bytes": d.pkg.Bytes, "notes": d.pkg.Notes,
		})
	}
	err := table(d.out, "FILE\tSIZE", func(row func(string, ...any)) {
		for _, f := range d.pkg.Files {
			row("%s\t%s", f.Path, pack.Size(f.Size))
		}
	})
	if err == nil {
		_, err = fmt.Fprintf(d.out, "%s (%s) for %s; nothing was sent\n", count(len(d.pkg.Files), "file"), pack.Size(d.pkg.Bytes), d.pkg.Name)
	}
	return err
}

// write writes the artifact into a file that has no name any more.
func (d *deployRun) write() (*os.File, int64, error) {
	f, err := os.CreateTemp("", "scafo-deploy-*") // made with mode 0600
	if err != nil {
		return nil, 0, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, 0, err
	}
	n, err := d.pkg.WriteTo(f)
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, n, nil
}

// upload sends the artifact. A node whose queue is full says when to come back.
func (d *deployRun) upload(ctx context.Context, artifact io.ReaderAt, size int64) (scafo.DeployStatus, error) {
	start := time.Now()
	for {
		d.progress.step("uploading")
		s, err := d.client.Deploy(ctx, d.pkg.Name, d.f.metadata, client.Upload{
			Body: io.NewSectionReader(artifact, 0, size), Size: size, Progress: d.progress.upload,
		})
		if err == nil {
			d.progress.done("uploaded " + pack.Size(size))
			return s, nil
		}
		if scafo.CodeOf(err) != scafo.CodeDeployOverloaded || d.f.noWait || time.Since(start) > overloadPatience {
			return s, err
		}
		pause := overloadPause
		if a, ok := client.AnswerOf(err); ok && a.RetryAfter > 0 {
			pause = a.RetryAfter
		}
		d.progress.step("waiting for a place in the queue")
		if err := sleep(ctx, pause); err != nil {
			return s, err
		}
	}
}

// sleep waits for d, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// count is a number of things.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
