package node

import (
	"context"
	"log/slog"
	"os"
	"sync"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/celld"
	"github.com/scafo/scafo/internal/confine"
	"github.com/scafo/scafo/internal/deploy"
)

// publisher runs the runtime's deploy command, confined: what it reads is somebody
// else's project, and a Worker that could import the node's files would publish
// them.
type publisher struct {
	command string // an absolute path
	store   *Store
	env     map[string]string // celld.env
	log     *slog.Logger

	version func(ctx context.Context) (string, error)
}

func newPublisher(command string, store *Store, env map[string]string, log *slog.Logger) *publisher {
	p := &publisher{command: command, store: store, env: env, log: log}
	p.version = onceGood(func(ctx context.Context) (string, error) { return celld.Version(ctx, command, celld.Pairs(env)...) })
	return p
}

// onceGood keeps the first answer that is no error.
func onceGood(f func(context.Context) (string, error)) func(context.Context) (string, error) {
	var mu sync.Mutex
	var known string
	return func(ctx context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if known != "" {
			return known, nil
		}
		v, err := f(ctx)
		if err == nil {
			known = v
		}
		return v, err
	}
}

// Version is what the runtime prints for --version. An upgrade of the runtime
// restarts the node, so one answer is good for its life.
func (p *publisher) Version(ctx context.Context) (string, error) { return p.version(ctx) }

// Publish runs `celld deploy` on an unpacked project.
func (p *publisher) Publish(ctx context.Context, app scafo.Application, project, config, scratch string) (deploy.Published, error) {
	creds, err := p.store.Credentials(ctx)
	if err != nil {
		return deploy.Published{}, scafo.Wrap(err, scafo.CodeStoreUnavailable, "the bucket's credentials cannot be resolved")
	}
	env := celld.Env(creds, celld.EnvParams{Extra: p.env, Inherit: os.LookupEnv})
	env = append(env, "TMPDIR="+scratch, "HOME="+scratch)
	d := celld.Deploy{
		Command: p.command, Project: config, Target: p.store.Target(app.Name, app.UID), Env: env, Dir: project,
		Retrying: func(err error) {
			p.log.Warn("the deploy command runs again", "application", app.Name, "cause", err)
		},
	}
	if confine.Supported() == nil { // otherwise it was said at start-up, and by `scafo doctor`
		rules := confine.Rules{Read: append(confine.Toolchain(p.command, env), project), Write: []string{scratch, os.DevNull}}
		d.Confine = func(run func() error) error { return confine.Do(rules, run) }
	}
	r, err := d.Run(ctx)
	if err != nil {
		return deploy.Published{}, err
	}
	return deploy.Published{Version: r.Version}, nil
}
