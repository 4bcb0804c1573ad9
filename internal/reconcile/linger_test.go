package reconcile

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
)

// A process whose application moved away and that takes its time to go is not wanted
// anew meanwhile: it would be started again where it has no business.
func TestAProcessThatWasReplacedIsNotStartedAgainWhileItDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		for _, id := range []string{"a", "b"} {
			w.start(id, func(_ *Config, s *fakeSupervisor, _ *scafo.Node) { s.stops = 4 * time.Second })
		}
		w.deploy("", "shop", "v1")
		w.update("shop", func(a *scafo.Application) { a.Replicas = scafo.Replicas{Count: 2} })
		w.until(time.Minute, "both serve it", func() bool { return len(w.serving("shop")) == 2 })
		w.update("shop", func(a *scafo.Application) { a.Replicas = scafo.Replicas{Count: 1} })
		starts := func() int { return w.node("a").sup.started + w.node("b").sup.started }
		w.until(time.Minute, "one process is gone", func() bool {
			if starts() != 2 {
				t.Fatalf("%d processes were started for two places", starts())
			}
			return len(w.node("a").sup.Statuses())+len(w.node("b").sup.Statuses()) == 1
		})
		for range 60 {
			time.Sleep(time.Second)
			if starts() != 2 {
				t.Fatalf("%d processes were started for two places", starts())
			}
		}
	})
}
