package reconcile

import (
	"context"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
)

// drainPhase is how far a node is on its way out.
type drainPhase int

const (
	drainNone drainPhase = iota
	// drainReplacing: it said so, and its applications become ready elsewhere.
	drainReplacing
	// drainLeaving: its routes are gone, and the ingress gets the time to see it.
	drainLeaving
	// drainGone: nothing is left to wait for; its processes may stop.
	drainGone
)

const (
	// releaseWithin is how long the lease may take to be given back.
	releaseWithin = 3 * time.Second
	// drainSlack is what the passes of a drain may take beyond its phases.
	drainSlack = 4 * time.Second
)

// drainState is the way out of this node, by its own time.
type drainState struct {
	phase drainPhase
	since time.Time // when the phase began
}

// step moves on as far as it can. The caller holds the loop's mu.
func (d *drainState) step(l *Loop, v *view, now time.Time) drainPhase {
	if n := v.snap.Nodes[l.c.Node]; !l.going && n.Drain == nil && n.Removed == nil {
		*d = drainState{}
		return d.phase
	}
	if d.phase == drainNone {
		d.phase, d.since = drainReplacing, now
		l.log.Info("this node drains", "event", "node.draining")
	}
	if d.phase == drainReplacing && (now.Sub(d.since) >= l.c.Times.DrainReplace || v.replaced(l.c.Node)) {
		d.phase, d.since = drainLeaving, now
	}
	if d.phase == drainLeaving && (now.Sub(d.since) >= l.c.Times.DrainRoute || len(v.running) == 0) {
		d.phase, d.since = drainGone, now
	}
	return d.phase
}

// wake is when the phase ends by time alone; zero for never.
func (d drainState) wake(t Times) time.Time {
	switch d.phase {
	case drainReplacing:
		return d.since.Add(t.DrainReplace)
	case drainLeaving:
		return d.since.Add(t.DrainRoute)
	}
	return time.Time{}
}

// replaced is whether every application that answers on the node answers
// elsewhere, or has nowhere else to go.
func (v *view) replaced(node string) bool {
	for _, p := range v.running {
		if p.State != scafo.ProcessReady {
			continue
		}
		switch v.fleet.RoleOf(node, p.Application, p.UID) {
		case plan.RoleReplaced, plan.RoleStopped:
			continue
		}
		app := v.snap.Applications[p.Application]
		for _, m := range v.machines {
			if m.ID != node && m.Qualifies(app) {
				return false
			}
		}
	}
	return true
}

// Drain says that this node goes, waits until its applications answer elsewhere
// where another node qualifies, takes it out of the routes, gives the ingress the
// time to see that, and stops its processes. A node that coordinates gives the
// lease back first. When ctx ends it hurries: what runs is stopped at once.
func (l *Loop) Drain(ctx context.Context) error {
	l.mu.Lock()
	l.going = true
	l.mu.Unlock()
	// The bucket may be away: then nobody can be told, and nobody takes over.
	bound := l.c.Times.DrainReplace + l.c.Times.DrainRoute + drainSlack
	waiting, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	releasing, released := context.WithTimeout(waiting, releaseWithin)
	err := l.c.Lease.Release(releasing)
	released()
	if err != nil && ctx.Err() == nil {
		l.log.Warn("the lease could not be given back", "event", "lease.release", "err", err)
	}
	l.Kick()
	for l.tasks.running() {
		l.mu.Lock()
		v, passed := l.view, l.passed
		l.mu.Unlock()
		if v != nil && v.phase == drainGone {
			break
		}
		if v == nil {
			break // the bucket was never read: nobody knows of this node's processes
		}
		select {
		case <-waiting.Done():
			if ctx.Err() == nil {
				l.log.Warn("the drain is over its time; what runs is stopped", "event", "node.draining", "after", bound.String())
			}
		case <-passed:
			continue
		}
		break
	}
	if l.c.Supervisor == nil {
		return nil
	}
	return l.c.Supervisor.StopAll(ctx)
}
