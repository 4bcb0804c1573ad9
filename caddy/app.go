package caddy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

func init() {
	caddy.RegisterModule(App{})
}

// App follows the routing documents of fleets.
type App struct {
	// Fleets in the order of their precedence: where two of them name one host, the
	// first one has it.
	Fleets []Fleet `json:"fleets,omitempty"`

	pollers  []*poller
	keys     []string
	log      *zap.Logger
	renewals *renewals // nil without a permission module
	counted  *counters
	stop     func()
}

// pollers are shared between the configurations of one process, so that a reload
// keeps every table.
var pollers = caddy.NewUsagePool()

// CaddyModule returns the module's information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "scafo", New: func() caddy.Module { return new(App) }}
}

// Provision begins to follow the fleets.
func (a *App) Provision(ctx caddy.Context) error {
	a.log = ctx.Logger()
	repl := caddy.NewReplacer()
	seen := map[string]bool{}
	for _, f := range a.Fleets {
		if seen[f.Name] {
			return fmt.Errorf("two fleets are named %q", f.Name)
		}
		seen[f.Name] = true
		f.Token = repl.ReplaceAll(f.Token, "")
		f.Cache = repl.ReplaceAll(f.Cache, "")
		f.Prefer = repl.ReplaceAll(f.Prefer, "")
		nodes := make([]string, len(f.Nodes))
		for i, n := range f.Nodes {
			nodes[i] = repl.ReplaceAll(n, "")
		}
		f.Nodes = nodes
		if err := f.validate(); err != nil {
			return err
		}
		v, _, err := pollers.LoadOrNew(f.key(), func() (caddy.Destructor, error) {
			return newPoller(f, a.log), nil
		})
		if err != nil {
			return err
		}
		a.keys = append(a.keys, f.key())
		a.pollers = append(a.pollers, v.(*poller))
	}
	registry := ctx.GetMetricsRegistry()
	var err error
	if a.counted, err = newCounters(registry); err != nil {
		return err
	}
	return registry.Register(documents{a.pollers})
}

// firstWait bounds how long a start waits for the fleets' first documents.
const firstWait = 2 * time.Second

// Start waits until every fleet was asked once, so that the first visitor of a new
// ingress is not refused for want of a document. A fleet that does not answer holds
// the start up for a moment only.
func (a *App) Start() error {
	ctx, cancel := context.WithTimeout(context.Background(), firstWait)
	defer cancel()
	a.awaitFirst(ctx)
	if a.renewals == nil {
		return nil
	}
	following, end := context.WithCancel(context.Background())
	changed, done := make(chan struct{}, 1), make(chan struct{})
	for _, p := range a.pollers {
		p.subscribe(changed)
	}
	a.stop = func() {
		for _, p := range a.pollers {
			p.unsubscribe(changed)
		}
		end()
		<-done
	}
	// The first visitor may come for a host that is away.
	if err := a.lookForCertificates(ctx); err != nil {
		a.log.Debug("certificates of hosts that nobody serves", zap.Error(err))
	}
	go func() {
		defer close(done)
		a.followRenewals(following, changed)
	}()
	return nil
}

// Stop ends what Start began; Cleanup gives the pollers back.
func (a *App) Stop() error {
	if a.stop != nil {
		a.stop()
	}
	return nil
}

// Cleanup gives the pollers back; those that no other configuration uses end.
func (a *App) Cleanup() error {
	var errs []error
	for _, k := range a.keys {
		_, err := pollers.Delete(k)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lookup finds who answers for a host. known is false while no fleet has given a
// document, when nothing can be said about any host.
func (a *App) lookup(host string) (e *entry, known bool) {
	var unserved *entry
	known = true
	for _, p := range a.pollers {
		t := p.table.Load()
		if t == nil {
			known = false
			continue
		}
		found := t.lookup(host)
		switch {
		case found == nil:
		case found.unserved == "":
			return found, true
		case unserved == nil:
			unserved = found
		}
	}
	return unserved, known || unserved != nil
}

// issuable reports whether some fleet's document names the host exactly.
func (a *App) issuable(host string) bool {
	for _, p := range a.pollers {
		if t := p.table.Load(); t != nil && t.issuable(host) {
			return true
		}
	}
	return false
}

// unserved reports whether some fleet's document names the host exactly, as one that
// nobody serves at the moment.
func (a *App) unserved(host string) bool {
	for _, p := range a.pollers {
		if t := p.table.Load(); t != nil && t.waits(host) {
			return true
		}
	}
	return false
}

// awaitFirst waits until every fleet was asked once.
func (a *App) awaitFirst(ctx context.Context) {
	for _, p := range a.pollers {
		select {
		case <-p.first:
		case <-ctx.Done():
			return
		}
	}
}

// appOf finds the app of a configuration.
func appOf(ctx caddy.Context) (*App, error) {
	v, err := ctx.App("scafo")
	if err != nil {
		return nil, err
	}
	app, ok := v.(*App)
	if !ok {
		return nil, fmt.Errorf("the app scafo is a %T", v)
	}
	return app, nil
}

var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
