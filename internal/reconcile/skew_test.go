package reconcile

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// rewrite changes a document as another release does, and announces it.
func (w *world) rewrite(key string, change func(map[string]any)) {
	w.t.Helper()
	o, err := w.store.Get(w.t.Context(), key)
	if err != nil {
		w.t.Fatal(key, err)
	}
	var v map[string]any
	if err := json.Unmarshal(o.Body, &v); err != nil {
		w.t.Fatal(err)
	}
	change(v)
	body, err := json.Marshal(v)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.store.Put(w.t.Context(), key, body); err != nil {
		w.t.Fatal(err)
	}
	if err := w.reg.Announce(w.t.Context(), key); err != nil {
		w.t.Fatal(err)
	}
}

func newerFormat(v map[string]any) { v["v"] = scafo.FormatVersion + 1 }

// A newer release has written some documents in a form that this one does not know.
// Whatever node starts anew, or coordinates, leaves alone what they are about, and
// the rest of the fleet goes on.
func TestWhatANewerReleaseWroteIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		for _, id := range []string{"a", "b", "c"} {
			w.start(id)
		}
		w.until(time.Minute, "all know each other", func() bool {
			return w.node("a").knows() == 3 && w.node("b").knows() == 3 && w.node("c").knows() == 3
		})
		names := []string{"app-0", "app-1", "app-2", "app-3"}
		apps := map[string]scafo.Application{}
		for _, name := range names {
			apps[name] = w.deploy("", name, "v1")
			w.until(time.Minute, name+" runs", func() bool { return len(w.serving(name)) == 1 })
		}
		// The node that the coordinator will not be able to read.
		elsewhere := slices.IndexFunc(names, func(name string) bool { return w.serving(name)[0] != w.coordinators()[0] })
		if elsewhere < 0 {
			t.Fatal("everything runs on one node")
		}
		newer := w.serving(names[elsewhere])[0]
		names[0], names[elsewhere] = names[elsewhere], names[0]
		record, placed := names[1], names[2]
		before := map[string]string{}
		left := []string{
			registry.ApplicationKey(record), registry.PlacementKey(placed, apps[placed].UID), registry.NodeKey(newer), registry.HeartbeatKey(newer),
		}
		where := map[string]string{}
		for _, name := range names {
			where[name] = w.serving(name)[0]
		}
		// The newer node goes on by itself; what it writes is not what this test reads.
		w.node(newer).bucket.SetDown(true)
		time.Sleep(time.Second)
		for _, key := range left {
			w.rewrite(key, newerFormat)
			o, err := w.store.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			before[key] = o.ETag
		}
		// Every other node is executed anew: it knows nothing from before, and finds its
		// processes running.
		for _, id := range []string{"a", "b", "c"} {
			if id == newer {
				continue
			}
			n := w.node(id)
			n.cancel()
			n.wg.Wait()
			w.mu.Lock()
			delete(w.nodes, id)
			w.mu.Unlock()
			sup := n.sup
			w.start(id, func(c *Config, _ *fakeSupervisor, _ *scafo.Node) { c.Supervisor = sup })
		}
		w.deploy("", "later", "v1") // the fleet goes on
		w.until(2*time.Minute, "what comes later is served", func() bool { return len(w.serving("later")) == 1 })
		time.Sleep(5 * time.Minute)
		for _, name := range names {
			if got := w.serving(name); !slices.Equal(got, []string{where[name]}) {
				t.Errorf("%s ran on %s and now runs on %v", name, where[name], got)
			}
		}
		for _, key := range left {
			if o, err := w.store.Get(t.Context(), key); err != nil || o.ETag != before[key] {
				t.Errorf("%s was written over: %v", key, err)
			}
		}
		for _, id := range w.ids() {
			if id == newer {
				continue
			}
			n := w.node(id)
			s, err := n.loop.State(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Unreadable) != len(left) || !strings.Contains(s.Unreadable[left[0]], "newer release") {
				t.Errorf("%s reports %v", id, s.Unreadable)
			}
			if !s.Reconcile.OK {
				t.Errorf("%s cannot pass: %s", id, s.Reconcile.Error)
			}
			if g, ok := n.loop.Gauges(); !ok || g.Unreadable != len(left) {
				t.Errorf("%s counts %d", id, g.Unreadable)
			}
		}
	})
}

// Fields of a later release are no news and no hindrance: the fleet of this one goes
// on, and what it writes keeps them.
func TestAMixedFleetKeepsWorking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		a, b := w.start("a"), w.start("b")
		w.until(time.Minute, "both know each other", func() bool { return a.knows() == 2 && b.knows() == 2 })
		app := w.deploy("", "shop", "v1")
		w.until(time.Minute, "it runs", func() bool { return len(w.serving("shop")) == 1 })
		later := func(v map[string]any) { v["fromLater"] = map[string]any{"x": 1.5} }
		keys := []string{
			registry.ApplicationKey("shop"), registry.PlacementKey("shop", app.UID), registry.NodeKey("a"), registry.NodeKey("b"),
			registry.HeartbeatKey("a"), registry.HeartbeatKey("b"), registry.CoordinatorKey,
		}
		for _, key := range keys {
			w.rewrite(key, later)
		}
		w.update("shop", func(a *scafo.Application) { a.Replicas = scafo.Replicas{All: true} })
		w.until(time.Minute, "it runs on both", func() bool { return len(w.serving("shop")) == 2 })
		time.Sleep(2 * time.Minute)
		if _, _, err := w.reg.DrainNode(t.Context(), "b", "test"); err != nil {
			t.Fatal(err)
		}
		w.until(2*time.Minute, "b is drained", func() bool { return slices.Equal(w.serving("shop"), []string{"a"}) })
		for _, key := range keys {
			o, err := w.store.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(o.Body), `"fromLater":{"x":1.5}`) {
				t.Errorf("%s lost what a later release had written: %s", key, o.Body)
			}
		}
	})
}
