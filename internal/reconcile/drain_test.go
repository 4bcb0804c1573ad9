package reconcile

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/registry"
)

// whole fails when some application has no process that answers, or when a node's
// document names, longer than the ingress needs to see it, none that does.
func whole(t *testing.T, w *world, apps int, documents ...string) {
	t.Helper()
	for i := range apps {
		name := fmt.Sprintf("app-%d", i)
		serving := w.serving(name)
		if len(serving) == 0 {
			t.Fatalf("nobody serves %s\n%s", name, w.dump())
		}
		for _, id := range documents {
			n := w.node(id)
			if n == nil {
				continue
			}
			ups := n.routes()[name+".apps.example"]
			if !slices.ContainsFunc(ups, func(up string) bool { return slices.Contains(serving, up) }) {
				t.Fatalf("%s routes %s to %v, served by %v\n%s", id, name, ups, serving, w.dump())
			}
		}
	}
}

func TestSIGTERMOfANode(t *testing.T) {
	for _, who := range []string{"the coordinator", "another"} {
		t.Run(who, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.end()
				settled(t, w, 6, "a", "b", "c")
				goes := w.coordinators()[0]
				if who == "another" {
					goes = w.ids()[(slices.Index(w.ids(), goes)+1)%3]
				}
				n := w.node(goes)
				mine := len(n.sup.Statuses())
				if mine != 2 {
					t.Fatalf("%s runs %d", goes, mine)
				}
				var stay []string
				for _, id := range w.ids() {
					if id != goes {
						stay = append(stay, id)
					}
				}
				done := make(chan error, 1)
				begin := time.Now()
				go func() { done <- n.loop.Drain(t.Context()) }()
				lastRouted, stopped := begin, time.Time{}
				for running := true; running; {
					whole(t, w, 6, stay...)
					if slices.ContainsFunc(stay, func(id string) bool {
						for _, ups := range w.node(id).routes() {
							if slices.Contains(ups, goes) {
								return true
							}
						}
						return false
					}) {
						lastRouted = time.Now()
					}
					if len(n.sup.Statuses()) < mine && stopped.IsZero() {
						stopped = time.Now()
					}
					select {
					case err := <-done:
						if err != nil {
							t.Error(err)
						}
						running = false
					default:
						time.Sleep(5 * time.Millisecond)
					}
					if time.Since(begin) > time.Minute {
						t.Fatalf("it drains for a minute\n%s", w.dump())
					}
				}
				// Its processes stay until every ingress had the time to see that its routes
				// are gone.
				if gap := stopped.Sub(lastRouted); gap < 7900*time.Millisecond {
					t.Errorf("its processes stopped %s after its routes left", gap)
				}
				t.Logf("%s drained in %s", goes, time.Since(begin))
				w.kill(goes)
				w.until(5*time.Second, "another one coordinates", func() bool { return len(w.coordinators()) == 1 })
				whole(t, w, 6, stay...)
			})
		})
	}
}

func TestADrainThatAnOperatorAsksFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 6, "a", "b")
		goes := w.ids()[0]
		setDrain := func(to *scafo.Stamp) {
			_, err := registry.Update(t.Context(), w.reg, registry.NodeKey(goes), func(d *registry.Doc[scafo.Node]) error {
				d.Value.Drain = to
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.reg.Announce(t.Context(), registry.NodeKey(goes)); err != nil {
				t.Fatal(err)
			}
		}
		setDrain(&scafo.Stamp{At: time.Now(), By: "op"})
		begin := time.Now()
		for len(w.node(goes).sup.Statuses()) > 0 {
			whole(t, w, 6, "a", "b")
			if time.Since(begin) > time.Minute {
				t.Fatalf("it drains for a minute\n%s", w.dump())
			}
			time.Sleep(5 * time.Millisecond)
		}
		if h := w.node("b").loop.Snapshot().Heartbeats[goes]; !h.Draining {
			t.Errorf("heartbeat %+v", h)
		}
		setDrain(nil)
		w.until(3*time.Minute, "it takes its share again", func() bool { return len(w.node(goes).sup.Statuses()) == 3 })
	})
}

func TestADrainWithNowhereToGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 2, "a")
		begin := time.Now()
		if err := w.node("a").loop.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Nobody can replace it: it waits for the ingress alone.
		if took := time.Since(begin); took < 8*time.Second || took > 9*time.Second {
			t.Errorf("it took %s", took)
		}
		// Its placements stay, so that the next start serves at once.
		w.kill("a")
		n := w.start("a")
		took := w.until(5*time.Second, "it serves again", func() bool { return len(n.routes()) == 2 })
		if took > 300*time.Millisecond {
			t.Errorf("the next start took %s", took)
		}
	})
}

func TestADrainWaitsForNoReplacementForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 2, "a", "b")
		w.node("b").sup.settings(func(s *fakeSupervisor) { s.starts = time.Hour })
		begin := time.Now()
		if err := w.node("a").loop.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		// At most 30 s for a replacement, and 8 s for the ingress.
		if took := time.Since(begin); took < 37*time.Second || took > 40*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestASecondSignalHurries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 2, "a", "b")
		w.node("b").sup.settings(func(s *fakeSupervisor) { s.starts = time.Hour })
		ctx, hurry := context.WithTimeout(t.Context(), 3*time.Second)
		defer hurry()
		begin := time.Now()
		if err := w.node("a").loop.Drain(ctx); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != 3*time.Second || len(w.node("a").sup.Statuses()) != 0 {
			t.Errorf("it took %s, and %d processes are left", took, len(w.node("a").sup.Statuses()))
		}
	})
}

// Without the bucket nobody can be told that the node goes: its own times bound it.
func TestADrainWithoutTheBucket(t *testing.T) {
	for name, rule := range map[string]fault.Rule{
		"refuses": {Kind: fault.Unavailable},
		"hangs":   {Latency: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.end()
				settled(t, w, 2, "a", "b")
				n := w.node("a")
				n.bucket.Inject(rule)
				time.Sleep(time.Second)
				begin := time.Now()
				if err := n.loop.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				// 30 s for a replacement, 8 s for the ingress, and 4 s of slack.
				if took := time.Since(begin); took > 43*time.Second || len(n.sup.Statuses()) != 0 {
					t.Errorf("it took %s, and %d processes are left", took, len(n.sup.Statuses()))
				}
			})
		})
	}
}
