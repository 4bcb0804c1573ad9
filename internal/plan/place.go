package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/scafo/scafo"
)

// MovesPerNode bounds how many applications one pass moves to a node for the sake
// of balance alone, and how many such moves may be under way to it at once: a
// machine that comes back is not stampeded.
const MovesPerNode = 10

// PlaceInput is what a placement is decided from.
type PlaceInput struct {
	Applications map[string]scafo.Application
	// Placements are the decisions in force, by application.
	Placements map[string]scafo.Placement
	Machines   []Machine
}

// Decision is a placement that shall be written: the nodes for one life of an
// application, and why they are fewer than wanted.
type Decision struct {
	Application string
	UID         string
	Nodes       []string
	DeploySeq   int64
	Reason      string
	// Balance is set when nothing but the balance of load asks for it.
	Balance bool
}

// PlaceResult is what a placement decided.
type PlaceResult struct {
	// Decisions are the placements that differ from those in force, in the order
	// of names.
	Decisions []Decision
	// Unplaced are the applications that are placed on fewer nodes than they want,
	// in the order of names; never nil.
	Unplaced []scafo.Unplaced
}

// placer is one run of Place.
type placer struct {
	machines []Machine      // in the order of ids
	index    map[string]int // by id
	load     []int          // applications on each, as decided so far
	ready    []map[string]bool
	out      PlaceResult
	// settled are the applications whose decision is in force and answers: those
	// that may be moved for balance.
	settled []settled
	moving  []int // moves under way to each machine
}

type settled struct {
	app   scafo.Application
	nodes []string
}

// Place decides where applications run.
//
// An application stays where it is while its nodes qualify. What is missing goes
// to the node with the fewest applications, ties broken by a fixed ranking of the
// pair. A node that is merely gone keeps its place in the list until another
// takes it over, since giving it up would gain nothing. When a node carries much
// less than its share, a bounded number of applications that are ready move to
// it.
func Place(in PlaceInput) PlaceResult {
	p := newPlacer(in)
	names := slices.Sorted(maps.Keys(in.Applications))
	// What stays counts as load before anything new is placed, so that the result
	// does not depend on the order of names.
	kept := make([][]string, len(names))
	for i, name := range names {
		app := in.Applications[name]
		if !Servable(app) {
			continue
		}
		kept[i] = p.keep(app, current(in.Placements, app))
		p.count(kept[i], 1)
	}
	for i, name := range names {
		app := in.Applications[name]
		old, exists := in.Placements[name]
		exists = exists && old.UID == app.UID
		if why := unservable(app); why != "" {
			// Whoever deletes an application removes its placement too; writing one
			// could outlive that.
			if exists && len(old.Nodes) > 0 && app.Deleting == nil {
				p.decide(app, nil, why, old, exists)
			}
			continue
		}
		p.place(app, kept[i], old, exists)
	}
	p.balance(in)
	slices.SortFunc(p.out.Decisions, func(a, b Decision) int { return strings.Compare(a.Application, b.Application) })
	return p.out
}

func newPlacer(in PlaceInput) *placer {
	p := &placer{
		machines: slices.Clone(in.Machines),
		index:    make(map[string]int, len(in.Machines)),
		load:     make([]int, len(in.Machines)),
		ready:    make([]map[string]bool, len(in.Machines)),
		moving:   make([]int, len(in.Machines)),
		out:      PlaceResult{Unplaced: []scafo.Unplaced{}},
	}
	slices.SortFunc(p.machines, func(a, b Machine) int { return strings.Compare(a.ID, b.ID) })
	for i, m := range p.machines {
		p.index[m.ID] = i
		p.ready[i] = make(map[string]bool, len(m.Processes))
		for _, s := range m.Processes {
			if m.Live && s.State == scafo.ProcessReady {
				p.ready[i][s.UID] = true
			}
		}
	}
	return p
}

// current are the nodes in force for this life of the application.
func current(placements map[string]scafo.Placement, app scafo.Application) []string {
	if old, ok := placements[app.Name]; ok && old.UID == app.UID {
		return old.Nodes
	}
	return nil
}

func (p *placer) count(nodes []string, by int) {
	for _, id := range nodes {
		if i, ok := p.index[id]; ok {
			p.load[i] += by
		}
	}
}

// keep are those of the nodes that the application may stay on, the live ones
// first and otherwise in their order.
func (p *placer) keep(app scafo.Application, nodes []string) []string {
	var live, gone []string
	for _, id := range nodes {
		i, ok := p.index[id]
		if !ok || !p.machines[i].suits(app) || slices.Contains(live, id) || slices.Contains(gone, id) {
			continue
		}
		if p.machines[i].Live {
			live = append(live, id)
		} else {
			gone = append(gone, id)
		}
	}
	if want := app.Replicas; !want.All && len(live) > wanted(want) {
		// Scaled down: those that serve stay, then those that came first.
		slices.SortStableFunc(live, func(a, b string) int {
			return cmp.Compare(p.rank(app.UID, a), p.rank(app.UID, b))
		})
		live = live[:wanted(want)]
	}
	return append(live, gone...)
}

// rank is 0 for a node that serves the application and 1 for others.
func (p *placer) rank(uid, node string) int {
	if p.ready[p.index[node]][uid] {
		return 0
	}
	return 1
}

func wanted(r scafo.Replicas) int { return max(r.Count, 1) }

func (p *placer) live(id string) bool {
	i, ok := p.index[id]
	return ok && p.machines[i].Live
}

// place decides for one application of which kept has been counted as load.
func (p *placer) place(app scafo.Application, kept []string, old scafo.Placement, exists bool) {
	nodes := slices.Clone(kept)
	live := 0
	for _, id := range nodes {
		if p.live(id) {
			live++
		}
	}
	want := wanted(app.Replicas)
	for app.Replicas.All || live < want {
		best := p.best(app, nodes)
		if best < 0 {
			break
		}
		// Before those that are gone, which only stay while they are needed.
		nodes = slices.Insert(nodes, live, p.machines[best].ID)
		p.load[best]++
		live++
	}
	if !app.Replicas.All && len(nodes) > want {
		p.count(nodes[want:], -1)
		nodes = nodes[:want]
	}
	reason := ""
	if app.Replicas.All && live == 0 || !app.Replicas.All && live < want {
		reason = p.why(app, nodes)
		p.out.Unplaced = append(p.out.Unplaced, scafo.Unplaced{
			Application: app.Name, Wanted: app.Replicas.String(), Placed: live, Reason: reason,
		})
	}
	if exists && sameSet(nodes, old.Nodes) {
		nodes = old.Nodes // a new order alone is no decision
	}
	p.decide(app, nodes, reason, old, exists)
}

func sameSet(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for _, s := range a {
		if !slices.Contains(b, s) {
			return false
		}
	}
	return true
}

// best is the machine to place the application on next, or -1: one that is known
// to live before one that may, then the one with the least load.
func (p *placer) best(app scafo.Application, taken []string) int {
	best, bestScore := -1, uint64(0)
	for i := range p.machines {
		m := &p.machines[i]
		if !m.Qualifies(app) || slices.Contains(taken, m.ID) {
			continue
		}
		if best < 0 {
			best, bestScore = i, score(app.UID, m.ID)
			continue
		}
		order := p.compare(i, best)
		if order > 0 {
			continue
		}
		if s := score(app.UID, m.ID); order < 0 || s > bestScore {
			best, bestScore = i, s
		}
	}
	return best
}

// compare is negative when the first machine is to be preferred, whatever the
// application.
func (p *placer) compare(i, j int) int {
	if a, b := p.machines[i].Unsure, p.machines[j].Unsure; a != b {
		if b {
			return -1
		}
		return 1
	}
	return p.load[i] - p.load[j]
}

// decide notes the decision, unless it is the one in force; then it notes whether
// the application is settled there.
func (p *placer) decide(app scafo.Application, nodes []string, reason string, old scafo.Placement, exists bool) {
	if exists && slices.Equal(old.Nodes, nodes) && old.Reason == reason && old.DeploySeq >= app.DeploySeq {
		if p.answers(app, nodes) {
			p.settled = append(p.settled, settled{app, nodes})
		}
		return
	}
	if nodes == nil {
		nodes = []string{}
	}
	p.out.Decisions = append(p.out.Decisions, Decision{
		Application: app.Name, UID: app.UID, Nodes: nodes,
		DeploySeq: max(app.DeploySeq, old.DeploySeq), Reason: reason,
	})
}

// answers is whether the application is ready on all of the nodes. Where it is
// not, a move to the node may be under way.
func (p *placer) answers(app scafo.Application, nodes []string) bool {
	all := len(nodes) > 0
	for _, id := range nodes {
		i, ok := p.index[id]
		if !ok || !p.ready[i][app.UID] {
			all = false
			if ok {
				p.moving[i]++
			}
		}
	}
	return all
}

// why says why the application is on fewer nodes than it wants, by the first step
// at which the nodes ran out. It names no numbers that change by themselves, so
// that a placement is not written again for its reason alone.
func (p *placer) why(app scafo.Application, nodes []string) string {
	var gone []string
	for _, id := range nodes {
		if !p.live(id) {
			gone = append(gone, id)
		}
	}
	var suited, draining, runners int
	for i := range p.machines {
		m := &p.machines[i]
		if m.NoRunner {
			continue
		}
		runners++
		if !Matches(m.Labels, app.Selector) {
			continue
		}
		suited++
		if m.Draining {
			draining++
		}
	}
	switch {
	case len(gone) > 0:
		return fmt.Sprintf("node %s is gone, and no other node qualifies", strings.Join(gone, ", "))
	case runners == 0:
		return "no node runs applications"
	case suited == 0:
		return "no node has the labels " + labels(app.Selector)
	case draining == suited:
		return "every node that qualifies is draining"
	case len(nodes) == 0:
		return "every node that qualifies is gone"
	case len(app.Selector) > 0:
		return "too few nodes have the labels " + labels(app.Selector)
	}
	return "the fleet has too few nodes"
}

func labels(selector map[string]string) string {
	parts := make([]string, 0, len(selector))
	for _, k := range slices.Sorted(maps.Keys(selector)) {
		parts = append(parts, k+"="+selector[k])
	}
	return strings.Join(parts, ",")
}
