package reconcile

import (
	"context"
	"maps"
	"slices"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/route"
)

// Status is the last pass; nil before the first one.
func (l *Loop) Status() *scafo.ReconcileStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.status == nil {
		return nil
	}
	s := *l.status
	return &s
}

// Snapshot is the registry as the last pass saw it; nil before the bucket was
// read. Nobody may change it.
func (l *Loop) Snapshot() *registry.Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.view == nil {
		return nil
	}
	return l.view.snap
}

// State is the whole document of GET /v1/state. The lease in it is read afresh.
func (l *Loop) State(ctx context.Context) (scafo.DaemonState, error) {
	lease, held, err := l.c.Lease.Current(ctx)
	if err != nil {
		return scafo.DaemonState{}, err
	}
	l.mu.Lock()
	v := l.view
	l.mu.Unlock()
	s := scafo.DaemonState{Processes: l.statuses(), Placements: []scafo.PlacementView{}, Reconcile: l.Status()}
	if held {
		s.Lease = &lease
		s.Coordinator = &scafo.CoordinatorView{Node: lease.Node, Fence: lease.Fence}
		if fence, own := l.c.Lease.Held(); own && fence == lease.Fence {
			s.Coordinator.Self = true
			unplaced := []scafo.Unplaced{}
			if v != nil && v.held && v.fence == fence {
				unplaced = append(unplaced, v.unplaced...)
			}
			s.Coordinator.Unplaced = &unplaced
		}
	}
	if v == nil {
		return s, nil
	}
	if n, ok := v.snap.Nodes[l.c.Node]; ok {
		s.Node = &n
	}
	s.Unreadable = v.snap.Unreadable
	if l.c.Used != nil {
		use := l.c.Used()
		use.Nodes = []scafo.FleetNode{}
		for _, m := range v.machines {
			if m.Live {
				use.Nodes = append(use.Nodes, scafo.FleetNode{Node: m.ID, Address: v.snap.Nodes[m.ID].Address})
			}
		}
		s.Bucket = &use
	}
	for _, name := range slices.Sorted(maps.Keys(v.placements)) {
		p := v.placements[name]
		if app, ok := v.snap.Applications[name]; !ok || app.UID != p.UID {
			continue
		}
		nodes := p.Nodes
		if nodes == nil {
			nodes = []string{}
		}
		s.Placements = append(s.Placements, scafo.PlacementView{
			Application: name, Nodes: nodes, Fence: p.Fence, DecidedAt: p.DecidedAt, Reason: p.Reason,
		})
	}
	return s, nil
}

// Routing is the routing document with one node's upstreams first; "self" is this
// node, and empty the fleet's own order. ready is false until the first pass is
// complete. Nobody may change what it returns.
func (l *Loop) Routing(prefer string) (doc scafo.FleetRouting, etag string, ready bool) {
	e := l.routing(prefer)
	if e == nil {
		return scafo.FleetRouting{}, "", false
	}
	return e.Doc, e.ETag, true
}

// RoutingBody is Routing, encoded once for each change.
func (l *Loop) RoutingBody(prefer string) (body []byte, etag string, ready bool) {
	e := l.routing(prefer)
	if e == nil {
		return nil, "", false
	}
	return e.Body, e.ETag, true
}

// RoutingChanged is closed when the routing document is another one than at the time
// of the call.
func (l *Loop) RoutingChanged() <-chan struct{} { return l.pub.Changed() }

func (l *Loop) routing(prefer string) *route.Encoded {
	if prefer == "self" {
		prefer = l.c.Node
	}
	return l.pub.Get(prefer)
}
