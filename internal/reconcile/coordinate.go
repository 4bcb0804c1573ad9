package reconcile

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

const (
	// placers is how many placements are written at once.
	placers = 16
	// placeTimeout bounds all writes of one pass. What is left is decided anew.
	placeTimeout = 30 * time.Second
)

// coordinate decides the placements when this node holds the lease, and writes
// those that differ from the ones in force.
func (l *Loop) coordinate(ctx context.Context, v *view) error {
	if h, ok := l.c.Lease.Last(); ok && !v.held {
		if m, known := v.machine(h.Node); known && m.Draining || v.snap.Nodes[h.Node].Removed != nil {
			l.c.Lease.HolderSuspect() // it says that it goes, or has to
		}
	}
	if !v.held {
		return nil
	}
	l.orphans(v)
	res := plan.Place(plan.PlaceInput{Applications: v.decidable(), Placements: v.placements, Machines: v.machines})
	v.unplaced = res.Unplaced
	if len(res.Decisions) == 0 {
		return nil
	}
	err := l.decide(ctx, v, res.Decisions)
	l.mu.Lock()
	v.placements = l.inForce(v.snap, v.held, v.fence)
	l.mu.Unlock()
	v.fleet = v.fleetNow()
	return err
}

// decide writes decisions, each only while the lease is held under the fence that
// it was made under.
func (l *Loop) decide(ctx context.Context, v *view, decisions []plan.Decision) error {
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	var (
		mu      sync.Mutex
		written []scafo.Placement // guarded by mu
	)
	held := func() bool {
		fence, ok := l.c.Lease.Held()
		return ok && fence == v.fence
	}
	var g errgroup.Group // one decision that cannot be written keeps no other back
	g.SetLimit(placers)
	now := time.Now().UTC().Truncate(time.Millisecond)
	for _, d := range decisions {
		g.Go(func() error {
			if !held() {
				return errLost
			}
			p, err := l.c.Store.PutPlacement(ctx, scafo.Placement{
				Application: d.Application, UID: d.UID, Nodes: d.Nodes, Fence: v.fence,
				DeploySeq: d.DeploySeq, DecidedAt: now, Reason: d.Reason,
			}, held)
			if errors.Is(err, registry.ErrFenced) {
				return errLost
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			written = append(written, p)
			return nil
		})
	}
	err := g.Wait()
	if errors.Is(err, errLost) {
		// What stands there, or who coordinates, is not what this pass knew.
		l.log.Warn("decisions were given up", "event", "placement.fenced", "fence", v.fence)
		l.c.Store.Relist()
		l.Kick()
		err = nil
	}
	l.noteDecided(v, written)
	return err
}

var errLost = errors.New("the lease is not held any more")

// noteDecided keeps what was written until it is read back, and tells the fleet.
func (l *Loop) noteDecided(v *view, written []scafo.Placement) {
	l.placed += len(written)
	if len(written) == 0 {
		return
	}
	keys := make([]string, 0, len(written))
	l.mu.Lock()
	for _, p := range written {
		l.decided[p.Application] = decision{placement: p, seen: v.snap.Placements[p.Application].Write}
		keys = append(keys, registry.PlacementKey(p.Application, p.UID))
		l.log.Info("placed", "event", "application.placed", "application", p.Application, "nodes", p.Nodes, "reason", p.Reason)
	}
	l.mu.Unlock()
	slices.Sort(keys)
	l.announce(keys...)
}

// announce tells the other nodes at once, and the fleet by the revision. The pass
// does not wait for it: the registry keeps what it could not announce for the next
// time.
func (l *Loop) announce(keys ...string) {
	l.tell(keys...)
	l.tasks.start(func(ctx context.Context) {
		if err := l.c.Store.Announce(ctx, keys...); err != nil && ctx.Err() == nil {
			l.log.Warn("changes could not be announced yet", "event", "announce.failed", "err", err)
		}
	})
}
