package reconcile

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

// view is the fleet as one pass saw it, and what the pass made of it. Nobody
// changes it after the pass.
type view struct {
	snap       *registry.Snapshot
	placements map[string]scafo.Placement // those in force
	machines   []plan.Machine             // in the order of ids
	fleet      plan.Fleet
	// running is what the supervisor said; own is the same as this node tells it.
	running, own []scafo.ProcessStatus
	fence        int64
	held         bool
	phase        drainPhase

	// What the pass made of it.
	unplaced []scafo.Unplaced // nil unless this node coordinates
	wants    []plan.Want
}

func (v *view) machine(id string) (plan.Machine, bool) {
	i, ok := slices.BinarySearchFunc(v.machines, id, func(m plan.Machine, id string) int { return strings.Compare(m.ID, id) })
	if !ok {
		return plan.Machine{}, false
	}
	return v.machines[i], true
}

// look makes the view that the pass works on. It is nil until the bucket has been
// read once: before that nothing is known, and nothing follows.
func (l *Loop) look() *view {
	snap := l.c.Store.Snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.lookedAt = now
	if !l.readOnce {
		return nil
	}
	v := &view{snap: snap}
	v.fence, v.held = l.c.Lease.Held()
	if l.c.Supervisor != nil {
		v.running = l.c.Supervisor.Statuses()
	}
	v.placements = l.inForce(snap, v.held, v.fence)
	v.machines = l.machines(now, snap, v.running)
	v.fleet = v.fleetNow()
	v.phase = l.drain.step(l, v, now)
	v.own = disguise(v.running, v.phase)
	for i := range v.machines {
		if v.machines[i].ID == l.c.Node {
			v.machines[i].Processes = v.own
			v.machines[i].Draining = v.phase != drainNone
		}
	}
	v.fleet = v.fleetNow()
	l.noteGone(v, now)
	l.noteRemoved(snap.Nodes[l.c.Node])
	return v
}

// disguise is what the processes are to others: once a node has left the routes
// they count as draining, though they still answer whoever has not seen it.
func disguise(running []scafo.ProcessStatus, phase drainPhase) []scafo.ProcessStatus {
	if phase < drainLeaving {
		return running
	}
	out := slices.Clone(running)
	for i := range out {
		if out[i].State == scafo.ProcessReady {
			out[i].State = scafo.ProcessDraining
		}
	}
	return out
}

// decision is one that this node wrote, and which write stood in the snapshot at
// that time.
type decision struct {
	placement scafo.Placement
	seen      string
}

// inForce are the placements with those decisions of this node's own that the
// snapshot has not caught up with. Whatever the snapshot shows anew, be it that
// decision or what came after it, is newer than the decision. The caller holds mu.
func (l *Loop) inForce(snap *registry.Snapshot, held bool, fence int64) map[string]scafo.Placement {
	for name, d := range l.decided {
		app := snap.Applications[name]
		if !held || fence != d.placement.Fence || app.UID != d.placement.UID || snap.Placements[name].Write != d.seen {
			delete(l.decided, name)
		}
	}
	if len(l.decided) == 0 {
		return snap.Placements
	}
	out := maps.Clone(snap.Placements)
	if out == nil {
		out = map[string]scafo.Placement{}
	}
	for name, d := range l.decided {
		out[name] = d.placement
	}
	return out
}

// machines are the nodes of the fleet. The caller holds mu.
func (l *Loop) machines(now time.Time, snap *registry.Snapshot, running []scafo.ProcessStatus) []plan.Machine {
	out := make([]plan.Machine, 0, len(snap.Nodes))
	for id, n := range snap.Nodes {
		if n.Removed != nil {
			continue
		}
		if id == l.c.Node {
			out = append(out, plan.Machine{
				ID: id, Labels: n.Labels, Live: true, Steady: l.live.Steady(now, id),
				Draining: n.Drain != nil || l.going, NoRunner: l.c.Supervisor == nil, Processes: running,
			})
			continue
		}
		h, ok := snap.Heartbeats[id]
		if !ok {
			continue // it has registered, and never ran
		}
		out = append(out, plan.Machine{
			ID: id, Labels: n.Labels, Live: l.live.Live(id), Steady: l.live.Steady(now, id), Unsure: l.live.Unsure(id),
			Draining: n.Drain != nil || h.Draining, NoRunner: h.NoRunner, Processes: h.Processes,
		})
	}
	slices.SortFunc(out, func(a, b plan.Machine) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// fleetNow is what the roles of processes follow from.
func (v *view) fleetNow() plan.Fleet {
	f := fleetOf(v.snap.Applications, v.placements, v.machines)
	f.Unreadable = v.unreadable(registry.ApplicationPrefix)
	return f
}

func fleetOf(apps map[string]scafo.Application, placements map[string]scafo.Placement, machines []plan.Machine) plan.Fleet {
	type state struct{ live, draining bool }
	states := make(map[string]state, len(machines))
	ready := make(map[[2]string]bool)
	for _, m := range machines {
		states[m.ID] = state{m.Live, m.Draining}
		for _, p := range m.Processes {
			if m.Live && p.State == scafo.ProcessReady {
				ready[[2]string{m.ID, p.UID}] = true
			}
		}
	}
	return plan.Fleet{
		Applications: apps, Placements: placements,
		Ready:    func(node, uid string) bool { return ready[[2]string{node, uid}] },
		Live:     func(node string) bool { return states[node].live },
		Draining: func(node string) bool { return states[node].draining },
	}
}

// noteGone notes which nodes count as gone, and has the reaper look when what one
// of them left behind may be judged. The caller holds mu.
func (l *Loop) noteGone(v *view, now time.Time) {
	for _, m := range v.machines {
		_, was := l.gone[m.ID]
		switch {
		case !m.Live && !was:
			l.gone[m.ID] = now
			l.log.Warn("a node counts as gone", "event", "node.gone", "node", m.ID)
			signal(l.reap)
		case m.Live && was:
			delete(l.gone, m.ID)
			l.log.Info("a node is back", "event", "node.back", "node", m.ID)
		}
	}
	for id := range l.gone {
		if _, ok := v.machine(id); !ok {
			delete(l.gone, id)
		}
	}
}
