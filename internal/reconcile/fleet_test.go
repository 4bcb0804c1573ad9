package reconcile

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
)

func TestOneNodeServesWhatIsDeployed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		n := w.start("a")
		w.until(2*time.Second, "a node coordinates", func() bool { return len(w.coordinators()) == 1 })
		if _, _, ready := n.loop.Routing(""); !ready {
			t.Error("no routing document after the first pass")
		}
		w.deploy("a", "shop", "v1")
		// A start takes 200 ms here; nothing beside it waits for a timer.
		took := w.until(5*time.Second, "the host is routed", func() bool { return slices.Equal(n.routes()["shop.apps.example"], []string{"a"}) })
		if took > 250*time.Millisecond {
			t.Errorf("it took %s", took)
		}
		w.deploy("a", "shop", "v2")
		took = w.until(5*time.Second, "the new version serves", func() bool {
			s := n.sup.Statuses()
			return len(s) == 1 && s[0].Deployment == "v2"
		})
		if took > 50*time.Millisecond {
			t.Errorf("the new version took %s", took)
		}
		w.update("shop", func(a *scafo.Application) { a.Blocked = &scafo.Stamp{By: "op"} })
		w.until(11*time.Second, "a blocked application stops", func() bool { return len(n.sup.Statuses()) == 0 && len(n.routes()) == 0 })
	})
}

func TestTwoNodesElectOneAndSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		a, b := w.start("a"), w.start("b")
		w.until(20*time.Second, "both know each other", func() bool {
			return len(w.coordinators()) == 1 && a.knows() == 2 && b.knows() == 2
		})
		for i := range 10 {
			w.deploy([]string{"a", "b"}[i%2], fmt.Sprintf("app-%d", i), "v1")
		}
		w.until(5*time.Second, "all are ready", func() bool {
			return len(a.sup.Statuses())+len(b.sup.Statuses()) == 10 && len(a.routes()) == 10 && len(b.routes()) == 10
		})
		if na, nb := len(a.sup.Statuses()), len(b.sup.Statuses()); na != 5 || nb != 5 {
			t.Errorf("a runs %d, b runs %d", na, nb)
		}
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			if c := w.coordinators(); len(c) != 1 {
				t.Fatalf("coordinators: %v", c)
			}
		}
		if na, nb := len(a.sup.Statuses()), len(b.sup.Statuses()); na != 5 || nb != 5 {
			t.Errorf("a minute later a runs %d, b runs %d", na, nb)
		}
	})
}

func TestASecondNodeTakesItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		a := w.start("a")
		for i := range 8 {
			w.deploy("a", fmt.Sprintf("app-%d", i), "v1")
		}
		w.until(5*time.Second, "all are ready on a", func() bool { return len(a.routes()) == 8 })
		b := w.start("b")
		// Make before break: whatever moves, each host keeps an upstream throughout.
		begin := time.Now()
		for len(b.sup.Statuses()) < 4 {
			if len(a.routes()) != 8 {
				t.Fatalf("a host lost its upstreams: %v", a.routes())
			}
			if time.Since(begin) > plan.SteadyAfter+time.Second {
				t.Fatalf("in time b did not take its share: it runs %d\n%s", len(b.sup.Statuses()), w.dump())
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Logf("b has its share after %s", time.Since(begin))
		w.until(20*time.Second, "a gives up what moved", func() bool { return len(a.sup.Statuses()) == 4 })
		time.Sleep(2 * time.Minute)
		if na, nb := len(a.sup.Statuses()), len(b.sup.Statuses()); na != 4 || nb != 4 {
			t.Errorf("later a runs %d, b runs %d", na, nb)
		}
	})
}

// settled starts nodes that all know each other, with that many applications.
func settled(t *testing.T, w *world, apps int, ids ...string) {
	t.Helper()
	for _, id := range ids {
		w.start(id)
	}
	w.until(30*time.Second, "all nodes know each other", func() bool {
		for _, id := range ids {
			if w.node(id).knows() != len(ids) {
				return false
			}
		}
		return len(w.coordinators()) == 1
	})
	for i := range apps {
		w.deploy("", fmt.Sprintf("app-%d", i), "v1")
	}
	w.until(30*time.Second, "all applications are routed everywhere", func() bool {
		for _, id := range ids {
			if len(w.node(id).routes()) != apps {
				return false
			}
		}
		return true
	})
	time.Sleep(time.Minute)
}

func TestAMachineDies(t *testing.T) {
	for _, victim := range []string{"the coordinator", "another"} {
		t.Run(victim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.end()
				settled(t, w, 9, "a", "b", "c")
				dead := w.coordinators()[0]
				if victim == "another" {
					dead = w.ids()[(slices.Index(w.ids(), dead)+1)%3]
				}
				w.kill(dead)
				took := w.until(25*time.Second, "all applications answer elsewhere", func() bool {
					for i := range 9 {
						if len(w.serving(fmt.Sprintf("app-%d", i))) == 0 {
							return false
						}
					}
					return true
				})
				t.Logf("took %s", took)
				for _, id := range w.ids() {
					n := w.node(id)
					w.until(5*time.Second, "the routes name living nodes", func() bool {
						r := n.routes()
						for _, up := range r {
							if slices.Contains(up, dead) {
								return false
							}
						}
						return len(r) == 9
					})
				}
			})
		})
	}
}

func TestNodesThatCannotReachEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 6, "a", "b", "c")
		before := map[string][]string{}
		for i := range 6 {
			name := fmt.Sprintf("app-%d", i)
			before[name] = w.serving(name)
		}
		for _, p := range [][2]string{{"a", "b"}, {"a", "c"}, {"b", "c"}} {
			w.isolate(p[0], p[1], true)
		}
		// The bucket decides: nobody is gone, nothing moves.
		for range 600 {
			time.Sleep(time.Second)
			for name, nodes := range before {
				if got := w.serving(name); !slices.Equal(got, nodes) {
					t.Fatalf("%s moved from %v to %v\n%s", name, nodes, got, w.dump())
				}
			}
		}
		dead := w.coordinators()[0]
		w.kill(dead)
		took := w.until(35*time.Second, "all applications answer elsewhere", func() bool {
			for name := range before {
				if len(w.serving(name)) == 0 {
					return false
				}
			}
			return true
		})
		t.Logf("took %s", took)
	})
}

func TestWhoCannotReadTheBucketRemovesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 4, "a", "b")
		w.isolate("a", "b", true)
		for _, id := range w.ids() {
			w.node(id).bucket.SetDown(true)
		}
		routes := w.node("a").routes()
		for range 300 {
			time.Sleep(time.Second)
			for _, id := range w.ids() {
				n := w.node(id)
				if got := n.routes(); fmt.Sprint(got) != fmt.Sprint(routes) {
					t.Fatalf("the routes of %s changed: %v, were %v", id, got, routes)
				}
			}
		}
		if s := w.node("a").loop.Status(); s.OK || s.Error == "" {
			t.Errorf("status %+v", s)
		}
		for _, id := range w.ids() {
			w.node(id).bucket.SetDown(false)
		}
		w.isolate("a", "b", false)
		w.until(30*time.Second, "it recovers by itself", func() bool {
			return w.node("a").loop.Status().OK && w.node("b").loop.Status().OK && len(w.coordinators()) == 1
		})
		time.Sleep(time.Minute)
		if got := w.node("b").routes(); fmt.Sprint(got) != fmt.Sprint(routes) {
			t.Errorf("afterwards the routes are %v, were %v", got, routes)
		}
	})
}

func TestABucketThatIsAwayAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		n := w.start("a")
		w.deploy("a", "shop", "v1")
		w.until(5*time.Second, "it serves", func() bool { return len(n.routes()) == 1 })
		// The daemon is killed and starts again; the process goes on, the bucket is away.
		sup := n.sup
		n.cancel()
		n.wg.Wait()
		w.mu.Lock()
		delete(w.nodes, "a")
		w.mu.Unlock()
		sets := func() (k int) { sup.settings(func(s *fakeSupervisor) { k = s.sets }); return k }
		before := sets()
		w.down = true
		n = w.start("a", func(c *Config, _ *fakeSupervisor, _ *scafo.Node) { c.Supervisor = sup })
		time.Sleep(time.Minute)
		if sets() != before || len(sup.Statuses()) != 1 {
			t.Errorf("the supervisor was told %d times without a look at the bucket; processes %v", sets()-before, sup.Statuses())
		}
		if _, _, ready := n.loop.Routing(""); ready {
			t.Error("a routing document before the first pass")
		}
		n.bucket.SetDown(false)
		w.until(5*time.Second, "it goes on when the bucket is back", func() bool { return len(n.routes()) == 1 })
		if got := sup.Statuses(); len(got) != 1 || got[0].Restarts != 0 {
			t.Errorf("processes %v", got)
		}
	})
}
