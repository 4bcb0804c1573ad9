package reconcile

import (
	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
)

// Gauges are the fleet in numbers, as the last pass saw it.
type Gauges struct {
	// Applications are counted by what they are: deployed, undeployed, blocked,
	// retired or deleting.
	Applications map[string]int
	// Nodes are counted by what they are: live, draining, gone, new (registered,
	// and never ran) or removed.
	Nodes map[string]int
	// Placed is how many applications are placed on this node.
	Placed int
	// Unplaced is how many could not be placed in full; only the coordinator knows.
	Unplaced   int
	Coordinate bool
	// Unreadable is how many documents are left alone.
	Unreadable int
	// Processes are this node's own.
	Processes []scafo.ProcessStatus
}

// What Gauges counts applications and nodes by.
var (
	ApplicationKinds = []string{"deployed", "undeployed", "blocked", "retired", "deleting"}
	NodeKinds        = []string{"live", "draining", "gone", "new", "removed"}
)

// Gauges counts; ok is false before the bucket was read.
func (l *Loop) Gauges() (g Gauges, ok bool) {
	l.mu.Lock()
	v := l.view
	l.mu.Unlock()
	g.Processes = l.statuses()
	if v == nil {
		return g, false
	}
	g.Unreadable = len(v.snap.Unreadable)
	g.Applications, g.Nodes = map[string]int{}, map[string]int{}
	for _, a := range v.snap.Applications {
		g.Applications[kindOf(a)]++
	}
	for name, p := range v.placements {
		if a, known := v.snap.Applications[name]; !known || a.UID != p.UID || !plan.Servable(a) {
			continue
		}
		for _, n := range p.Nodes {
			if n == l.c.Node {
				g.Placed++
			}
		}
	}
	for id, n := range v.snap.Nodes {
		m, ran := v.machine(id)
		switch {
		case n.Removed != nil:
			g.Nodes["removed"]++
		case !ran:
			g.Nodes["new"]++
		case !m.Live:
			g.Nodes["gone"]++
		case m.Draining:
			g.Nodes["draining"]++
		default:
			g.Nodes["live"]++
		}
	}
	if fence, held := l.c.Lease.Held(); held && v.held && v.fence == fence {
		g.Coordinate, g.Unplaced = true, len(v.unplaced)
	}
	return g, true
}

// kindOf is what an application counts as.
func kindOf(a scafo.Application) string {
	switch {
	case a.Deleting != nil:
		return "deleting"
	case a.Retired != nil:
		return "retired"
	case a.Blocked != nil:
		return "blocked"
	case a.Deployment == "":
		return "undeployed"
	default:
		return "deployed"
	}
}
