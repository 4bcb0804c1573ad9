package plan

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
)

func node(id string, change ...func(*Machine)) Machine {
	m := Machine{ID: id, Live: true, Steady: true}
	for _, c := range change {
		c(&m)
	}
	return m
}

func gone(m *Machine)     { m.Live = false }
func draining(m *Machine) { m.Draining = true }
func norunner(m *Machine) { m.NoRunner = true }
func unsure(m *Machine)   { m.Unsure = true }
func with(k, v string) func(*Machine) {
	return func(m *Machine) { m.Labels = map[string]string{k: v} }
}

func runs(uids ...string) func(*Machine) {
	return func(m *Machine) {
		for _, u := range uids {
			m.Processes = append(m.Processes, scafo.ProcessStatus{UID: u, State: scafo.ProcessReady})
		}
	}
}

func app(name string, change ...func(*scafo.Application)) scafo.Application {
	a := scafo.Application{Name: name, UID: "u-" + name, Replicas: scafo.Replicas{Count: 1}, Deployment: "v1", DeploySeq: 1}
	for _, c := range change {
		c(&a)
	}
	return a
}

func replicas(n int) func(*scafo.Application) {
	return func(a *scafo.Application) { a.Replicas = scafo.Replicas{Count: n, All: n == 0} }
}

func placed(a scafo.Application, nodes ...string) scafo.Placement {
	return scafo.Placement{Application: a.Name, UID: a.UID, Nodes: nodes, DeploySeq: a.DeploySeq, Fence: 1}
}

func input(machines []Machine, apps []scafo.Application, placements ...scafo.Placement) PlaceInput {
	in := PlaceInput{Machines: machines, Applications: map[string]scafo.Application{}, Placements: map[string]scafo.Placement{}}
	for _, a := range apps {
		in.Applications[a.Name] = a
	}
	for _, p := range placements {
		in.Placements[p.Application] = p
	}
	return in
}

// apply carries the decisions out, as the loop does.
func apply(in *PlaceInput, r PlaceResult) {
	for _, d := range r.Decisions {
		in.Placements[d.Application] = scafo.Placement{
			Application: d.Application, UID: d.UID, Nodes: d.Nodes, DeploySeq: d.DeploySeq, Reason: d.Reason, Fence: 1,
		}
	}
}

func TestPlace(t *testing.T) {
	stamp := &scafo.Stamp{By: "op"}
	shop := app("shop")
	for _, c := range []struct {
		name     string
		machines []Machine
		app      scafo.Application
		was      *scafo.Placement
		nodes    []string // of the decision; nil for none
		unplaced string   // the reason; empty for none
		count    int      // placed, where unplaced
	}{
		{name: "nothing is deployed", machines: []Machine{node("a")}, app: app("shop", func(a *scafo.Application) { a.Deployment = "" })},
		{name: "blocked before it was placed", machines: []Machine{node("a")}, app: app("shop", func(a *scafo.Application) { a.Blocked = stamp })},
		{name: "blocked", machines: []Machine{node("a")}, app: app("shop", func(a *scafo.Application) { a.Blocked = stamp }), was: ptr(placed(shop, "a")), nodes: []string{}},
		{name: "retired", machines: []Machine{node("a")}, app: app("shop", func(a *scafo.Application) { a.Retired = stamp }), was: ptr(placed(shop, "a")), nodes: []string{}},
		{name: "deleting", machines: []Machine{node("a")}, app: app("shop", func(a *scafo.Application) { a.Deleting = &scafo.Deleting{} }), was: ptr(placed(shop, "a"))},
		{name: "one node", machines: []Machine{node("a")}, app: shop, nodes: []string{"a"}},
		{name: "it stays", machines: []Machine{node("a"), node("b")}, app: shop, was: ptr(placed(shop, "b"))},
		{name: "another life of the name counts for nothing", machines: []Machine{node("a")}, app: shop, was: &scafo.Placement{Application: "shop", UID: "old", Nodes: []string{"b"}, DeploySeq: 9}, nodes: []string{"a"}},
		{name: "a deploy is seen", machines: []Machine{node("a")}, app: app("shop", func(a *scafo.Application) { a.DeploySeq = 2 }), was: ptr(placed(shop, "a")), nodes: []string{"a"}},
		{name: "gone and replaced", machines: []Machine{node("a", gone), node("b")}, app: shop, was: ptr(placed(shop, "a")), nodes: []string{"b"}},
		{name: "gone and nowhere to go", machines: []Machine{node("a", gone), node("b", with("x", "y"))}, app: app("shop", func(a *scafo.Application) { a.Selector = map[string]string{"x": "z"} }), was: ptr(placed(shop, "a")), nodes: []string{}, unplaced: "no node has the labels x=z"},
		{name: "gone, alone", machines: []Machine{node("a", gone)}, app: shop, was: ptr(placed(shop, "a")), nodes: []string{"a"}, unplaced: "node a is gone, and no other node qualifies"},
		{name: "draining and replaced", machines: []Machine{node("a", draining), node("b")}, app: shop, was: ptr(placed(shop, "a")), nodes: []string{"b"}},
		{name: "draining, alone", machines: []Machine{node("a", draining)}, app: shop, was: ptr(placed(shop, "a")), nodes: []string{}, unplaced: "every node that qualifies is draining"},
		{name: "removed", machines: []Machine{node("b")}, app: shop, was: ptr(placed(shop, "a")), nodes: []string{"b"}},
		{name: "no runner", machines: []Machine{node("a", norunner)}, app: shop, nodes: []string{}, unplaced: "no node runs applications"},
		{name: "known to live before unsure", machines: []Machine{node("a", unsure), node("b", runs("x", "y")), node("c", unsure)}, app: shop, nodes: []string{"b"}},
		{name: "all", machines: []Machine{node("a"), node("b"), node("c", draining), node("d", gone)}, app: app("shop", replicas(0)), nodes: []string{"a", "b"}},
		{name: "all, one comes", machines: []Machine{node("a"), node("b")}, app: app("shop", replicas(0)), was: ptr(placed(shop, "b")), nodes: []string{"a", "b"}},
		{name: "all, one is gone", machines: []Machine{node("a"), node("b", gone)}, app: app("shop", replicas(0)), was: ptr(placed(shop, "a", "b"))},
		{name: "all of nothing", machines: []Machine{node("a", norunner)}, app: app("shop", replicas(0)), nodes: []string{}, unplaced: "no node runs applications"},
		{name: "too many replicas", machines: []Machine{node("a"), node("b")}, app: app("shop", replicas(3)), nodes: []string{"a", "b"}, unplaced: "the fleet has too few nodes", count: 2},
		{name: "scaled down", machines: []Machine{node("a"), node("b", runs("u-shop"))}, app: shop, was: ptr(placed(shop, "a", "b")), nodes: []string{"b"}},
		{name: "one of two is gone, no third", machines: []Machine{node("a", gone), node("b")}, app: app("shop", replicas(2)), was: ptr(scafo.Placement{Application: "shop", UID: "u-shop", Nodes: []string{"a", "b"}, DeploySeq: 1}), nodes: []string{"a", "b"}, unplaced: "node a is gone, and no other node qualifies", count: 1},
		{name: "selector", machines: []Machine{node("a"), node("b", with("x", "y"))}, app: app("shop", func(a *scafo.Application) { a.Selector = map[string]string{"x": "y"} }), nodes: []string{"b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := input(c.machines, []scafo.Application{c.app})
			if c.was != nil {
				in.Placements[c.was.Application] = *c.was
			}
			r := Place(in)
			switch {
			case c.nodes == nil && len(r.Decisions) != 0:
				t.Errorf("decisions %+v", r.Decisions)
			case c.nodes != nil && (len(r.Decisions) != 1 || !sameSet(r.Decisions[0].Nodes, c.nodes) || r.Decisions[0].Nodes == nil):
				t.Errorf("decisions %+v, want nodes %v", r.Decisions, c.nodes)
			case c.nodes != nil && len(c.nodes) == 0 && r.Decisions[0].Reason == "":
				t.Error("an empty list without a reason")
			}
			if r.Unplaced == nil {
				t.Error("the list of the unplaced is nil")
			}
			if c.unplaced == "" {
				if len(r.Unplaced) != 0 {
					t.Errorf("unplaced %+v", r.Unplaced)
				}
				return
			}
			want := []scafo.Unplaced{{Application: "shop", Wanted: c.app.Replicas.String(), Placed: c.count, Reason: c.unplaced}}
			if !slices.Equal(r.Unplaced, want) {
				t.Errorf("unplaced %+v, want %+v", r.Unplaced, want)
			}
			apply(&in, r)
			if again := Place(in); len(again.Decisions) != 0 {
				t.Errorf("decided again: %+v", again.Decisions)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

func loads(in PlaceInput) map[string]int {
	out := map[string]int{}
	for _, p := range in.Placements {
		for _, n := range p.Nodes {
			out[n]++
		}
	}
	return out
}

func TestPlacementSpreadsByLoad(t *testing.T) {
	var apps []scafo.Application
	for i := range 100 {
		apps = append(apps, app(fmt.Sprintf("app-%d", i)))
	}
	in := input([]Machine{node("a"), node("b"), node("c"), node("d")}, apps)
	apply(&in, Place(in))
	if got := loads(in); !maps.Equal(got, map[string]int{"a": 25, "b": 25, "c": 25, "d": 25}) {
		t.Errorf("loads %v", got)
	}
	// One dies: only what was there moves, and it spreads.
	before := maps.Clone(in.Placements)
	in.Machines[2].Live = false
	r := Place(in)
	if len(r.Decisions) != 25 {
		t.Errorf("%d moved", len(r.Decisions))
	}
	for _, d := range r.Decisions {
		if !slices.Equal(before[d.Application].Nodes, []string{"c"}) {
			t.Errorf("%s moved from %v", d.Application, before[d.Application].Nodes)
		}
	}
	apply(&in, r)
	got := loads(in)
	if got["a"]+got["b"]+got["d"] != 100 || max(got["a"], got["b"], got["d"])-min(got["a"], got["b"], got["d"]) > 1 {
		t.Errorf("loads %v", got)
	}
}

// settle plays passes in which whatever is placed becomes ready, until nothing is
// decided any more.
func settlePasses(t *testing.T, in *PlaceInput, most int, each func(PlaceResult)) {
	t.Helper()
	for range most {
		for i := range in.Machines {
			in.Machines[i].Processes = nil
			for _, p := range in.Placements {
				if in.Machines[i].Live && slices.Contains(p.Nodes, in.Machines[i].ID) {
					in.Machines[i].Processes = append(in.Machines[i].Processes, scafo.ProcessStatus{UID: p.UID, State: scafo.ProcessReady})
				}
			}
		}
		r := Place(*in)
		if each != nil {
			each(r)
		}
		if len(r.Decisions) == 0 {
			return
		}
		apply(in, r)
	}
	t.Fatalf("it did not come to rest in %d passes", most)
}

func TestAMachineThatComesBackIsNotStampeded(t *testing.T) {
	var apps []scafo.Application
	for i := range 300 {
		apps = append(apps, app(fmt.Sprintf("app-%d", i)))
	}
	in := input([]Machine{node("a"), node("b"), node("c", gone)}, apps)
	settlePasses(t, &in, 3, nil)
	in.Machines[2].Live, in.Machines[2].Steady = true, false
	if r := Place(in); len(r.Decisions) != 0 {
		t.Errorf("%d moves to a machine that has just come back", len(r.Decisions))
	}
	in.Machines[2].Steady = true
	first := 0
	settlePasses(t, &in, 20, func(r PlaceResult) {
		if len(r.Decisions) > MovesPerNode {
			t.Errorf("%d moves in one pass", len(r.Decisions))
		}
		first = max(first, len(r.Decisions))
	})
	if got := loads(in); first != MovesPerNode || got["c"] < 75 || got["c"] > 100 {
		t.Errorf("the loads are %v", got)
	}
	// Nothing answers on the machine: no more goes there than may be under way.
	for i := range in.Machines {
		if in.Machines[i].ID == "c" {
			in.Machines[i].Processes = nil
		}
	}
	if r := Place(in); len(r.Decisions) != 0 {
		t.Errorf("%d moves while none answers there", len(r.Decisions))
	}
}

func TestSmallDifferencesMoveNothing(t *testing.T) {
	apps := []scafo.Application{app("x"), app("y"), app("z")}
	in := input([]Machine{node("a", runs("u-x", "u-y", "u-z")), node("b")}, apps[:1], placed(apps[0], "a"))
	if r := Place(in); len(r.Decisions) != 0 {
		t.Errorf("one application moved to an empty machine: %+v", r.Decisions)
	}
	in = input([]Machine{node("a", runs("u-x", "u-y")), node("b", runs("u-z"))}, apps, placed(apps[0], "a"), placed(apps[1], "a"), placed(apps[2], "b"))
	if r := Place(in); len(r.Decisions) != 0 {
		t.Errorf("two to one, and something moved: %+v", r.Decisions)
	}
}

// fleet draws a fleet of some machines and applications in any condition.
func fleet(t *rapid.T) PlaceInput {
	in := PlaceInput{Applications: map[string]scafo.Application{}, Placements: map[string]scafo.Placement{}}
	n := rapid.IntRange(0, 6).Draw(t, "machines")
	for i := range n {
		m := node(fmt.Sprintf("n%d", i))
		m.Live = rapid.Float64Range(0, 1).Draw(t, "live") < 0.8
		m.Draining = rapid.Float64Range(0, 1).Draw(t, "draining") < 0.2
		m.NoRunner = rapid.Float64Range(0, 1).Draw(t, "no runner") < 0.1
		m.Steady = rapid.Bool().Draw(t, "steady")
		m.Unsure = rapid.Float64Range(0, 1).Draw(t, "unsure") < 0.2
		m.Labels = map[string]string{"zone": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "zone")}
		in.Machines = append(in.Machines, m)
	}
	for i := range rapid.IntRange(0, 12).Draw(t, "applications") {
		a := app(fmt.Sprintf("app-%d", i))
		a.Replicas = rapid.SampledFrom([]scafo.Replicas{{Count: 1}, {Count: 1}, {Count: 2}, {Count: 3}, {All: true}}).Draw(t, "replicas")
		if rapid.Float64Range(0, 1).Draw(t, "selects") < 0.3 {
			a.Selector = map[string]string{"zone": rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "selector")}
		}
		switch rapid.IntRange(0, 9).Draw(t, "state") {
		case 0:
			a.Blocked = &scafo.Stamp{}
		case 1:
			a.Retired = &scafo.Stamp{}
		case 2:
			a.Deleting = &scafo.Deleting{}
		case 3:
			a.Deployment = ""
		}
		in.Applications[a.Name] = a
		if rapid.Bool().Draw(t, "placed") {
			p := placed(a)
			for j := range 7 {
				if rapid.Float64Range(0, 1).Draw(t, "on") < 0.3 {
					p.Nodes = append(p.Nodes, fmt.Sprintf("n%d", j))
				}
			}
			if rapid.Float64Range(0, 1).Draw(t, "old life") < 0.1 {
				p.UID = "former"
			}
			in.Placements[a.Name] = p
			for i := range in.Machines {
				if slices.Contains(p.Nodes, in.Machines[i].ID) && rapid.Bool().Draw(t, "ready") {
					in.Machines[i].Processes = append(in.Machines[i].Processes, scafo.ProcessStatus{Application: a.Name, UID: a.UID, State: scafo.ProcessReady})
				}
			}
		}
	}
	return in
}

func TestPlaceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := fleet(t)
		r := Place(in)
		byID := map[string]Machine{}
		for _, m := range in.Machines {
			byID[m.ID] = m
		}
		if !slices.IsSortedFunc(r.Decisions, func(a, b Decision) int { return strings.Compare(a.Application, b.Application) }) {
			t.Fatalf("decisions out of order: %+v", r.Decisions)
		}
		seen := map[string]bool{}
		for _, d := range r.Decisions {
			if seen[d.Application] {
				t.Fatalf("two decisions for %s", d.Application)
			}
			seen[d.Application] = true
			checkDecision(t, in, byID, d)
		}
		// In force is now what was decided; everything that could be placed is, and a
		// second look finds nothing to do but the balance of what is ready.
		next := PlaceInput{Applications: in.Applications, Machines: in.Machines, Placements: maps.Clone(in.Placements)}
		apply(&next, r)
		for _, a := range next.Applications {
			checkPlaced(t, next, r, a)
		}
		if again := Place(next); slices.ContainsFunc(again.Decisions, func(d Decision) bool { return !d.Balance }) {
			t.Fatalf("decided again: %+v", again.Decisions)
		}
		// The order in which the machines are given is no input.
		slices.Reverse(in.Machines)
		if other := Place(in); !reflect.DeepEqual(other, r) {
			t.Fatalf("in another order: %+v\nwas: %+v", other, r)
		}
	})
}

func checkDecision(t *rapid.T, in PlaceInput, machines map[string]Machine, d Decision) {
	a := in.Applications[d.Application]
	old := current(in.Placements, a)
	if d.UID != a.UID || d.DeploySeq < a.DeploySeq {
		t.Fatalf("%+v for %+v", d, a)
	}
	if a.Deleting != nil {
		t.Fatalf("a decision for what is being deleted: %+v", d)
	}
	if len(d.Nodes) == 0 && d.Reason == "" {
		t.Fatalf("empty without a reason: %+v", d)
	}
	if !Servable(a) && len(d.Nodes) > 0 {
		t.Fatalf("%+v for what is not to be served", d)
	}
	if !a.Replicas.All && len(d.Nodes) > max(a.Replicas.Count, 1) {
		t.Fatalf("too many: %+v", d)
	}
	for i, id := range d.Nodes {
		m, ok := machines[id]
		if !ok || slices.Contains(d.Nodes[:i], id) || m.Draining || m.NoRunner || !Matches(m.Labels, a.Selector) {
			t.Fatalf("%s does not qualify for %+v: %+v", id, a, d)
		}
		if !m.Live && !slices.Contains(old, id) {
			t.Fatalf("newly placed on a node that is gone: %+v", d)
		}
	}
	// It stays where it is while that qualifies, unless there are too many or it is
	// moved for balance.
	dropped := 0
	for _, id := range old {
		if m, ok := machines[id]; ok && m.Qualifies(a) && Servable(a) && !slices.Contains(d.Nodes, id) {
			dropped++
		}
	}
	live := 0
	for _, id := range d.Nodes {
		if machines[id].Live {
			live++
		}
	}
	if dropped > 0 && !d.Balance && (a.Replicas.All || live < max(a.Replicas.Count, 1)) {
		t.Fatalf("it left a node that qualifies: %+v, was %v", d, old)
	}
}

func checkPlaced(t *rapid.T, in PlaceInput, r PlaceResult, a scafo.Application) {
	if !Servable(a) {
		return
	}
	nodes := current(in.Placements, a)
	qualify, live := 0, 0
	for _, m := range in.Machines {
		if m.Qualifies(a) {
			qualify++
			if slices.Contains(nodes, m.ID) {
				live++
			}
		}
	}
	want := qualify
	if !a.Replicas.All {
		want = min(qualify, max(a.Replicas.Count, 1))
	}
	if live != want {
		t.Fatalf("%s is on %v, %d nodes qualify", a.Name, nodes, qualify)
	}
	short := a.Replicas.All && live == 0 || !a.Replicas.All && live < max(a.Replicas.Count, 1)
	listed := slices.ContainsFunc(r.Unplaced, func(u scafo.Unplaced) bool {
		return u.Application == a.Name && u.Placed == live && u.Reason != ""
	})
	if short != listed {
		t.Fatalf("%s: short %v, listed %v in %+v", a.Name, short, listed, r.Unplaced)
	}
}

// Whatever state a fleet is in, passes come to rest.
func TestPassesComeToRest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := fleet(rt)
		settlePasses(t, &in, 12, nil)
	})
}

func BenchmarkPlace(b *testing.B) {
	in := PlaceInput{Applications: map[string]scafo.Application{}, Placements: map[string]scafo.Placement{}}
	for i := range 100 {
		in.Machines = append(in.Machines, node(fmt.Sprintf("node-%02d", i)))
	}
	for i := range 10000 {
		a := app(fmt.Sprintf("app-%d", i))
		in.Applications[a.Name] = a
	}
	// The baseline: scoring every pair once.
	begin := time.Now()
	var best uint64
	for range b.N {
		for _, a := range in.Applications {
			for i := range in.Machines {
				best = max(best, score(a.UID, in.Machines[i].ID))
			}
		}
	}
	bare := time.Since(begin)
	b.ResetTimer()
	begin = time.Now()
	for range b.N {
		Place(in)
	}
	b.ReportMetric(float64(time.Since(begin))/float64(bare), "of-bare-scoring")
}
