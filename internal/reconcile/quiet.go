package reconcile

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

const (
	// askAgain is the pause between two questions whether a process is gone.
	askAgain = 200 * time.Millisecond
	// runtimeTimeout bounds one request to another node's runtime.
	runtimeTimeout = 3 * time.Second
	// stopWithin is how long processes that have to go may drain before they are
	// killed; orphansWithin how long those of a dead node may take to be gone.
	stopWithin    = 15 * time.Second
	orphansWithin = stopWithin
)

// Runtimes reaches runtimes directly, where the node that started them is gone.
type Runtimes interface {
	// Serves is the version that the runtime at that internal address serves.
	Serves(ctx context.Context, internal string) (version string, err error)
	// Shutdown asks it to drain and to end.
	Shutdown(ctx context.Context, internal string) error
}

// Quiet waits until no node runs a process of that life of the application, which
// nobody is to serve any more, and returns the nodes that did not confirm it within
// that time. A living node says so itself. The processes of a dead one are asked to
// shut down at the addresses that it last told.
func (l *Loop) Quiet(ctx context.Context, application, uid string, within time.Duration) (unconfirmed []string) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	// A pass that begins now knows that it is to go, and every earlier one has written
	// what it decided.
	v, _ := l.fresh(ctx)
	if v == nil {
		return nil
	}
	var (
		wg sync.WaitGroup
		mu sync.Mutex
	)
	for _, id := range v.mayRun(application, uid) {
		wg.Go(func() {
			if !l.quietNode(ctx, v, id, application, uid) {
				mu.Lock()
				defer mu.Unlock()
				unconfirmed = append(unconfirmed, id)
			}
		})
	}
	if l.c.Supervisor != nil && !slices.Contains(v.mayRun(application, uid), l.c.Node) {
		wg.Go(func() {
			if !l.quietHere(ctx, uid) {
				mu.Lock()
				defer mu.Unlock()
				unconfirmed = append(unconfirmed, l.c.Node)
			}
		})
	}
	wg.Wait()
	slices.Sort(unconfirmed)
	return unconfirmed
}

// mayRun are the nodes that have, or may come to have, a process of that life: those
// that said so, removed ones too, and those where it is placed.
func (v *view) mayRun(application, uid string) []string {
	var out []string
	for id, h := range v.snap.Heartbeats {
		if slices.ContainsFunc(h.Processes, func(p scafo.ProcessStatus) bool { return p.UID == uid }) {
			out = append(out, id)
		}
	}
	if p, ok := v.placements[application]; ok && p.UID == uid {
		out = append(out, p.Nodes...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// quietNode waits until a node has no process of that life.
func (l *Loop) quietNode(ctx context.Context, v *view, id, application, uid string) bool {
	if id == l.c.Node {
		return l.quietHere(ctx, uid)
	}
	n, known := v.snap.Nodes[id]
	last := v.snap.Heartbeats[id].Processes
	at := slices.IndexFunc(last, func(p scafo.ProcessStatus) bool { return p.UID == uid && p.PID != 0 })
	for known && n.Removed == nil && n.Address != "" && l.c.Peers != nil && ctx.Err() == nil {
		hctx, cancel := context.WithTimeout(ctx, hintTimeout)
		a, err := l.c.Peers.Hint(hctx, n, scafo.PeerHint{Keys: []string{registry.ApplicationKey(application)}})
		cancel()
		l.mu.Lock()
		live := l.live.Live(id)
		l.mu.Unlock()
		switch {
		case err == nil && !runs(a.Processes, uid):
			return true
		case err == nil:
		case at >= 0 && l.quietOrphan(ctx, last[at]):
			// Whether the node is dead or only silent: nobody is to serve the application.
			return true
		case !live:
			return at < 0
		}
		sleep(ctx, askAgain)
	}
	return ctx.Err() == nil && (at < 0 || l.quietOrphan(ctx, last[at]))
}

func (l *Loop) quietHere(ctx context.Context, uid string) bool {
	for runs(l.statuses(), uid) {
		if !sleep(ctx, askAgain) {
			return false
		}
	}
	return true
}

func runs(processes []scafo.ProcessStatus, uid string) bool {
	return slices.ContainsFunc(processes, func(p scafo.ProcessStatus) bool {
		return p.UID == uid && p.State != scafo.ProcessStopped
	})
}

// quietOrphan asks one process. The address may be another's by now, so that who
// serves another version there is not asked. Silence is no proof: a machine that
// cannot be reached is as silent as a process that has ended.
func (l *Loop) quietOrphan(ctx context.Context, p scafo.ProcessStatus) bool {
	if l.c.Runtimes == nil || p.Internal == "" {
		return false
	}
	asked := false
	for {
		rctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
		version, err := l.c.Runtimes.Serves(rctx, p.Internal)
		switch {
		case err != nil:
			cancel()
			return asked && ctx.Err() == nil
		case version == "" || version != p.Deployment && version != p.Wanted:
			cancel()
			return false
		case !asked:
			asked = l.c.Runtimes.Shutdown(rctx, p.Internal) == nil
		}
		cancel()
		if !sleep(ctx, askAgain) {
			return false
		}
	}
}

// Remains are the hosts that this life claims and the deploys that have not ended,
// as far as the fleet has heard of them.
func (l *Loop) Remains(ctx context.Context, application, uid string) (hosts []string, deploys []scafo.DeployID, err error) {
	if _, err := l.c.Store.Refresh(ctx); err != nil {
		return nil, nil, err
	}
	snap := l.c.Store.Snapshot()
	for host, c := range snap.Claims {
		if c.UID == uid && c.State != scafo.ClaimReleased {
			hosts = append(hosts, host)
		}
	}
	for id, d := range snap.Deploys {
		if parsed, ok := scafo.ParseDeployID(id); ok && d.Application == application {
			deploys = append(deploys, parsed)
		}
	}
	slices.Sort(hosts)
	slices.SortFunc(deploys, func(a, b scafo.DeployID) int { return strings.Compare(a.Hex, b.Hex) })
	return hosts, deploys, nil
}

// orphan is a process that a dead node left behind, of an application that nobody is
// to serve.
type orphan struct{ node, uid string }

// orphans asks the processes that dead nodes left behind to end, where their
// application is blocked or retired. A deletion asks by itself.
func (l *Loop) orphans(v *view) {
	seen := map[orphan]bool{}
	for id, h := range v.snap.Heartbeats {
		if m, ok := v.machine(id); id == l.c.Node || ok && m.Live {
			continue
		}
		for _, p := range h.Processes {
			app, ok := v.snap.Applications[p.Application]
			if !ok || app.UID != p.UID || app.Deleting != nil || app.Blocked == nil && app.Retired == nil || plan.Servable(app) || p.PID == 0 {
				continue
			}
			o := orphan{id, p.UID}
			if seen[o] = true; l.orphaned[o] {
				continue
			}
			l.tasks.start(func(ctx context.Context) {
				ctx, cancel := context.WithTimeout(ctx, orphansWithin)
				defer cancel()
				if l.quietOrphan(ctx, p) {
					l.log.Info("a process that a dead node left was ended", "event", "application.orphan-stopped", "application", p.Application, "node", id)
					return
				}
				l.log.Warn("nodes did not confirm that an application's processes are gone", "event", "application.unconfirmed",
					"application", p.Application, "uid", p.UID, "nodes", []string{id})
			})
		}
	}
	l.orphaned = seen
}
