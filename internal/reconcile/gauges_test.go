package reconcile

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
)

// What a node counts of the fleet is what is so, on every node; passes are told once
// each, with the placements that they wrote.
func TestGauges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		var mu sync.Mutex
		var passes, placed int
		watch := func(c *Config, _ *fakeSupervisor, _ *scafo.Node) {
			c.Passed = func(p Pass) {
				mu.Lock()
				defer mu.Unlock()
				passes++
				placed += p.Placed
				if p.Failed || p.Took < 0 {
					t.Errorf("a pass is told as %+v", p)
				}
			}
		}
		a := w.start("a", watch)
		b := w.start("b", watch)
		w.until(time.Minute, "both know each other", func() bool { return a.knows() == 2 && b.knows() == 2 })
		for i := range 5 {
			w.deploy("", fmt.Sprintf("app-%d", i), "v1")
		}
		if _, _, err := w.reg.CreateApplication(t.Context(), "empty", "test", nil); err != nil {
			t.Fatal(err)
		}
		w.update("app-0", func(a *scafo.Application) { a.Blocked = &scafo.Stamp{By: "test"} })
		w.update("app-1", func(a *scafo.Application) { a.Retired = &scafo.Stamp{By: "test"} })
		w.update("app-2", func(a *scafo.Application) { a.Replicas = scafo.Replicas{Count: 3} })
		if _, err := w.reg.RegisterNode(t.Context(), scafo.Node{ID: "n", PublicKey: publicKey("n"), Version: "x"}); err != nil {
			t.Fatal(err)
		}
		w.until(time.Minute, "all is placed", func() bool { return len(w.serving("app-2")) == 2 && len(a.routes()) == 3 && len(b.routes()) == 3 })
		time.Sleep(time.Minute)
		total, coordinators := 0, 0
		for _, n := range []*testNode{a, b} {
			g, ok := n.loop.Gauges()
			if !ok {
				t.Fatal("nothing is known")
			}
			if want := map[string]int{"deployed": 3, "undeployed": 1, "blocked": 1, "retired": 1}; !maps.Equal(g.Applications, want) {
				t.Errorf("%s counts applications %v, want %v", n.id, g.Applications, want)
			}
			if want := map[string]int{"live": 2, "new": 1}; !maps.Equal(g.Nodes, want) {
				t.Errorf("%s counts nodes %v, want %v", n.id, g.Nodes, want)
			}
			if g.Placed != len(g.Processes) {
				t.Errorf("%s has %d placed and %d processes", n.id, g.Placed, len(g.Processes))
			}
			total += g.Placed
			if _, held := n.lease.Held(); held != g.Coordinate || held && g.Unplaced != 1 || !held && g.Unplaced != 0 {
				t.Errorf("%s (coordinates: %v) says %v, %d unplaced", n.id, held, g.Coordinate, g.Unplaced)
			} else if held {
				coordinators++
			}
		}
		if total != 4 || coordinators != 1 {
			t.Errorf("%d placed, %d coordinators", total, coordinators)
		}
		mu.Lock()
		// One decision at least for each that may be placed, and one for what stopped at most.
		if int64(passes) != a.loop.Status().Passes+b.loop.Status().Passes || placed < 3 || placed > 10 {
			t.Errorf("%d passes and %d placements were told", passes, placed)
		}
		mu.Unlock()
		w.kill("b")
		w.until(time.Minute, "b counts as gone", func() bool {
			g, _ := a.loop.Gauges()
			return g.Nodes["gone"] == 1 && g.Nodes["live"] == 1 && g.Placed == 3
		})
	})
}
