package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
)

// settle waits for the version from that node, as a deploy does.
func settle(t *testing.T, n *testNode, app scafo.Application, within time.Duration) (took time.Duration, nodes []scafo.DeployNode, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	begin := time.Now()
	err = n.loop.Settle(ctx, app, app.DeploySeq, app.Deployment, func(_ string, d []scafo.DeployNode) { nodes = d })
	return time.Since(begin), nodes, err
}

func TestADeployIsDeployedWhenEveryNodeServesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 0, "a", "b", "c")
		for _, via := range []string{"a", "b", "c"} {
			name := "app-" + via
			w.deploy(via, name, "v1")
			w.update(name, func(a *scafo.Application) { a.Replicas = scafo.Replicas{All: true} })
			app := w.deploy(via, name, "v1")
			took, nodes, err := settle(t, w.node(via), app, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			// A start takes 200 ms, and no step waits for a timer.
			if took > 300*time.Millisecond {
				t.Errorf("through %s the first deploy took %s", via, took)
			}
			if len(nodes) != 3 {
				t.Errorf("reported %+v", nodes)
			}
			app = w.deploy(via, name, "v2")
			took, _, err = settle(t, w.node(via), app, time.Minute)
			if err != nil || took > 50*time.Millisecond {
				t.Errorf("through %s the second deploy took %s: %v", via, took, err)
			}
			for _, id := range w.ids() {
				for _, p := range w.node(id).sup.Statuses() {
					if p.Application == name && p.Deployment != "v2" {
						t.Errorf("deployed, and %s serves %s", id, p.Deployment)
					}
				}
			}
		}
	})
}

func TestADeployThatANodeRefusesFails(t *testing.T) {
	for _, kind := range []string{"at a reload", "at its first start"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.end()
				settled(t, w, 0, "a", "b")
				w.deploy("a", "shop", "v1")
				w.update("shop", func(a *scafo.Application) { a.Replicas = scafo.Replicas{Count: 2} })
				if kind == "at a reload" {
					w.until(15*time.Second, "both serve v1", func() bool { return len(w.serving("shop")) == 2 })
				}
				w.node("b").sup.settings(func(s *fakeSupervisor) {
					s.refuse["v2"] = "Error: boom at worker.js:3"
					s.crash["v2"] = "Error: boom at worker.js:3"
				})
				if kind != "at a reload" {
					w.update("shop", func(a *scafo.Application) { a.Blocked = &scafo.Stamp{By: "op"} })
					w.until(15*time.Second, "it stopped", func() bool { return len(w.node("b").sup.Statuses()) == 0 })
					w.update("shop", func(a *scafo.Application) { a.Blocked = nil })
				}
				app := w.deploy("a", "shop", "v2")
				took, nodes, err := settle(t, w.node("a"), app, time.Minute)
				var e *scafo.Error
				if !errors.As(err, &e) || e.Code != scafo.CodePublishFailed || !strings.Contains(e.Detail, "node b") || !strings.Contains(e.Detail, "boom at worker.js:3") {
					t.Fatalf("the error is %v, the nodes %+v", err, nodes)
				}
				if took > 500*time.Millisecond {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

func TestASilentNodeHoldsNoDeployUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 0, "a", "b")
		w.deploy("a", "shop", "v1")
		w.update("shop", func(a *scafo.Application) { a.Replicas = scafo.Replicas{Count: 2} })
		w.until(15*time.Second, "both serve v1", func() bool { return len(w.serving("shop")) == 2 })
		w.isolate("a", "b", true)
		app := w.deploy("a", "shop", "v2")
		took, _, err := settle(t, w.node("a"), app, time.Minute)
		if err != nil || took < 10*time.Second || took > 12*time.Second {
			t.Errorf("took %s: %v", took, err)
		}
	})
}

func TestANodeThatStartsHoldsADeployUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 0, "a", "b")
		w.node("b").sup.settings(func(s *fakeSupervisor) { s.starts = 40 * time.Second })
		w.deploy("a", "shop", "v1")
		w.update("shop", func(a *scafo.Application) { a.Replicas = scafo.Replicas{Count: 2} })
		app := w.deploy("a", "shop", "v1")
		took, _, err := settle(t, w.node("a"), app, 5*time.Minute)
		if err != nil || took < 39*time.Second {
			t.Errorf("took %s: %v", took, err)
		}
		w.deploy("a", "shop", "v2")
		w.node("b").sup.settings(func(s *fakeSupervisor) { s.reloads = time.Hour })
		app = w.deploy("a", "shop", "v3")
		_, _, err = settle(t, w.node("a"), app, 20*time.Second)
		if scafo.CodeOf(err) != scafo.CodeDeployTimeout {
			t.Errorf("the error is %v", err)
		}
	})
}

func TestWhatNothingCanTakeIsDeployedOnceRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 0, "a")
		if _, _, err := w.reg.CreateApplication(t.Context(), "shop", "test", func(a *scafo.Application) {
			a.Selector = map[string]string{"region": "mars"}
		}); err != nil {
			t.Fatal(err)
		}
		n := w.node("a")
		app := w.deploy("a", "shop", "v1")
		if took, _, err := settle(t, n, app, time.Minute); err != nil || took > time.Second {
			t.Errorf("took %s: %v", took, err)
		}
		s, err := n.loop.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := []scafo.Unplaced{{Application: "shop", Wanted: "1", Placed: 0, Reason: "no node has the labels region=mars"}}
		if s.Coordinator == nil || !s.Coordinator.Self || s.Coordinator.Unplaced == nil || !slices.Equal(*s.Coordinator.Unplaced, want) {
			t.Errorf("coordinator %+v", s.Coordinator)
		}
		if len(s.Placements) != 1 || len(s.Placements[0].Nodes) != 0 || s.Placements[0].Reason == "" {
			t.Errorf("placements %+v", s.Placements)
		}
		doc, _, _ := n.loop.Routing("")
		if len(doc.Routes) != 0 || len(doc.Unserved) != 1 || doc.Unserved[0].Host != "shop.apps.example" {
			t.Errorf("routes %+v, unserved %+v", doc.Routes, doc.Unserved)
		}
		w.update("shop", func(a *scafo.Application) { a.Selector = nil })
		w.until(15*time.Second, "it is placed once the selector is gone", func() bool { return len(w.serving("shop")) == 1 })
	})
}

func TestARetiredApplicationIsDeployedOnceRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 0, "a")
		w.deploy("a", "shop", "v1")
		w.update("shop", func(a *scafo.Application) { a.Retired = &scafo.Stamp{By: "op"} })
		app := w.deploy("a", "shop", "v2")
		if _, _, err := settle(t, w.node("a"), app, time.Minute); err != nil {
			t.Error(err)
		}
	})
}
