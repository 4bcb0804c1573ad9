package reconcile

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
)

// The bounds of mixed code that docs/explanation/deploys.md names, without the poll of
// the ingress: how long after the first process serves a new version the routes of some
// node still name one that lags, and how long after that one caught up they lack it.
const (
	mixedReached   = 2 * time.Second
	mixedUnreached = DefaultInterval + 2*time.Second
)

// A process that lags behind a new version leaves every node's routes, for as long as
// it lags, and the record of the deploy says why the deploy waits for it.
func TestAProcessThatLagsLeavesTheRoutes(t *testing.T) {
	for name, c := range map[string]struct {
		cut   bool
		bound time.Duration
	}{"nodes reach each other": {false, mixedReached}, "the bucket alone tells": {true, mixedUnreached}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.end()
				for _, id := range []string{"a", "b", "c"} {
					w.start(id)
				}
				w.deploy("a", "shop", "v1")
				w.update("shop", func(a *scafo.Application) { a.Replicas = scafo.Replicas{All: true} })
				const host = "shop.apps.example"
				named := func(want ...string) func() bool {
					return func() bool {
						for _, id := range w.ids() {
							if got := slices.Sorted(slices.Values(w.node(id).routes()[host])); !slices.Equal(got, want) {
								return false
							}
						}
						return true
					}
				}
				w.until(time.Minute, "all serve it", named("a", "b", "c"))
				if c.cut {
					for _, p := range [][2]string{{"a", "b"}, {"a", "c"}, {"b", "c"}} {
						w.isolate(p[0], p[1], true)
					}
				}
				time.Sleep(time.Minute)
				const lags = 40 * time.Second
				w.node("c").sup.settings(func(s *fakeSupervisor) { s.reloads = lags })
				app := w.deploy("a", "shop", "v2")
				var said [][]scafo.DeployNode
				done := make(chan error, 1)
				go func() {
					ctx, cancel := contextFor(t, 2*time.Minute)
					defer cancel()
					done <- w.node("a").loop.Settle(ctx, app, app.DeploySeq, "v2", func(_ string, nodes []scafo.DeployNode) {
						said = append(said, slices.SortedFunc(slices.Values(nodes), func(a, b scafo.DeployNode) int { return strings.Compare(a.Node, b.Node) }))
					})
				}()
				serves := func(id, version string) bool {
					return slices.ContainsFunc(w.node(id).sup.Statuses(), func(p scafo.ProcessStatus) bool { return p.Deployment == version })
				}
				w.until(time.Minute, "the first serves v2", func() bool { return serves("a", "v2") || serves("b", "v2") })
				out := w.until(time.Minute, "what lags is in no routes", func() bool {
					for _, id := range w.ids() {
						if slices.Contains(w.node(id).routes()[host], "c") {
							return false
						}
					}
					return true
				})
				w.until(time.Minute, "c serves v2", func() bool { return serves("c", "v2") })
				back := w.until(time.Minute, "all are routed again", named("a", "b", "c"))
				t.Logf("mixed for %s; lacking for %s", out, back)
				if out > c.bound || back > c.bound {
					t.Errorf("mixed code for %s, and lacking for %s after it caught up; both may take %s", out, back, c.bound)
				}
				if c.cut {
					<-done // it does not wait for whom it cannot reach
					return
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				// While it lagged the deploy said of every node what it serves, and why c lags.
				told := slices.ContainsFunc(said, func(nodes []scafo.DeployNode) bool {
					return slices.Equal(nodes, []scafo.DeployNode{
						{Node: "a", Version: "v2"}, {Node: "b", Version: "v2"}, {Node: "c", Version: "v1", Detail: "the process still serves v1"},
					})
				})
				if last := said[len(said)-1]; !told || !slices.Equal(last, []scafo.DeployNode{{Node: "a", Version: "v2"}, {Node: "b", Version: "v2"}, {Node: "c", Version: "v2"}}) {
					t.Errorf("the deploy said %+v", said)
				}
			})
		})
	}
}
