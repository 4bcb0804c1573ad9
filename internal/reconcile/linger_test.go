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

// A process that no daemon knows of any more, of an application that lives and is
// placed elsewhere, is found at the next start of the daemon, and ended.
func TestAForgottenProcessOfAnApplicationThatLivesIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		w.start("a")
		app := w.deploy("", "shop", "v1")
		w.until(time.Minute, "it is served", func() bool { return len(w.serving("shop")) == 1 })
		b := w.start("b", func(_ *Config, s *fakeSupervisor, _ *scafo.Node) {
			s.procs[app.UID] = &scafo.ProcessStatus{Application: "shop", UID: app.UID, State: scafo.ProcessReady, Deployment: "v1", Wanted: "v1"}
			s.hidden[app.UID] = true
		})
		w.until(time.Minute, "the other one is ended", func() bool {
			left := 1
			b.sup.settings(func(s *fakeSupervisor) { left = len(s.procs) })
			return left == 0
		})
		// Should it become this node's later, it runs there.
		w.update("shop", func(a *scafo.Application) { a.Replicas = scafo.Replicas{Count: 2} })
		w.until(time.Minute, "both serve it", func() bool { return len(w.serving("shop")) == 2 })
	})
}
