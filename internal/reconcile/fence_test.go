package reconcile

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/registry"
)

// fakeLease is held, or not, as the test says.
type fakeLease struct {
	mu      sync.Mutex
	fence   int64 // guarded by mu
	held    bool  // guarded by mu
	changed chan struct{}
	asked   func(n int) // guarded by mu; called with how often Held was asked
	count   int         // guarded by mu
}

func (f *fakeLease) Held() (int64, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if f.asked != nil {
		f.asked(f.count)
	}
	return f.fence, f.held
}

func (f *fakeLease) Current(context.Context) (scafo.Lease, bool, error) {
	l, ok := f.Last()
	return l, ok, nil
}

func (f *fakeLease) Last() (scafo.Lease, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return scafo.Lease{Node: "a", Fence: f.fence}, f.held
}

func (f *fakeLease) Release(context.Context) error { return nil }
func (f *fakeLease) HolderSuspect()                {}
func (f *fakeLease) Changed() <-chan struct{}      { return f.changed }

func holding(fence int64) *fakeLease {
	return &fakeLease{fence: fence, held: true, changed: make(chan struct{}, 1)}
}

func (w *world) placement(app scafo.Application) (scafo.Placement, bool) {
	w.t.Helper()
	d, err := registry.Load[scafo.Placement](w.t.Context(), w.reg, registry.PlacementKey(app.Name, app.UID))
	if err != nil {
		w.t.Fatal(err)
	}
	return d.Value, d.Exists
}

func TestADecisionNeverReplacesOneOfAHigherFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		app := w.deploy("", "shop", "v1")
		// The next coordinator, whom this one has not heard of, has decided already.
		theirs := scafo.Placement{Application: "shop", UID: app.UID, Nodes: []string{"b"}, Fence: 7}
		if _, err := w.reg.PutPlacement(t.Context(), theirs); err != nil {
			t.Fatal(err)
		}
		n := w.start("a", func(c *Config, _ *fakeSupervisor, _ *scafo.Node) { c.Lease = holding(5) })
		time.Sleep(2 * time.Minute)
		if p, _ := w.placement(app); p.Fence != 7 || len(p.Nodes) != 1 || p.Nodes[0] != "b" {
			t.Errorf("the placement is %+v", p)
		}
		if got := n.sup.Statuses(); len(got) != 0 {
			t.Errorf("it runs %+v", got)
		}
	})
}

func TestAnOlderFenceIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		app := w.deploy("", "shop", "v1")
		lease := holding(5)
		n := w.start("a", func(c *Config, _ *fakeSupervisor, _ *scafo.Node) { c.Lease = lease })
		w.until(5*time.Second, "it serves", func() bool { return len(n.routes()) == 1 })
		// A late write of a former coordinator lands, and nobody announces it. The new
		// one lists everything again two TTLs after it took over.
		late := scafo.Placement{Application: "shop", UID: app.UID, Nodes: []string{"gone"}, Fence: 4}
		_, err := registry.Update(t.Context(), w.reg, registry.PlacementKey("shop", app.UID), func(d *registry.Doc[scafo.Placement]) error {
			d.Value = late
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		w.until(31*time.Second, "it is repaired", func() bool {
			p, _ := w.placement(app)
			return p.Fence == 5 && len(p.Nodes) == 1 && p.Nodes[0] == "a"
		})
		if len(w.serving("shop")) != 1 {
			t.Error("it is not served any more")
		}
	})
}

func TestNothingIsWrittenOnceTheLeaseIsGone(t *testing.T) {
	for stop := 1; stop <= 12; stop++ {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer w.end()
			var apps []scafo.Application
			for _, name := range []string{"p", "q", "r"} {
				apps = append(apps, w.deploy("", name, "v1"))
			}
			lease := holding(5)
			lease.asked = func(n int) {
				if n == stop {
					lease.held = false
				}
			}
			w.start("a", func(c *Config, _ *fakeSupervisor, _ *scafo.Node) { c.Lease = lease })
			time.Sleep(time.Minute)
			before := map[string]scafo.Placement{}
			for _, app := range apps {
				before[app.Name], _ = w.placement(app)
			}
			for _, app := range apps {
				w.deploy("", app.Name, "v2")
			}
			time.Sleep(time.Minute)
			for _, app := range apps {
				if p, _ := w.placement(app); p.Write != before[app.Name].Write {
					t.Errorf("stopped at %d: %s was decided afterwards: %+v", stop, app.Name, p)
				}
			}
		})
	}
}

func TestOneDecisionThatCannotBeWrittenKeepsNoOtherBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		n := w.start("a")
		w.until(5*time.Second, "it coordinates", func() bool { return len(w.coordinators()) == 1 })
		bad := w.deploy("", "bad", "v1")
		armed := n.bucket.Inject(fault.Rule{Kind: fault.Unavailable, Key: registry.PlacementKey("bad", bad.UID)})
		for _, name := range []string{"p", "q", "zoo"} {
			w.deploy("", name, "v1")
		}
		w.until(15*time.Second, "the others are served", func() bool { return len(n.routes()) == 3 })
		if s := n.loop.Status(); s.OK || s.Error == "" {
			w.until(40*time.Second, "the failure shows", func() bool { return !n.loop.Status().OK })
		}
		armed.Remove()
		w.until(45*time.Second, "the last one follows", func() bool { return len(n.routes()) == 4 && n.loop.Status().OK })
	})
}
