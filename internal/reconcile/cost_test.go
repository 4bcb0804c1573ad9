package reconcile

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/registry"
)

// idle counts a node's requests in ten minutes in which nothing happens.
func idle(t *testing.T, apps int) (passes int64, counts meter.Counts, last int64) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		var m *meter.Bucket
		n := w.start("a", func(c *Config, _ *fakeSupervisor, _ *scafo.Node) {
			m = meter.New(w.store)
			reg := registry.New(m, registry.Options{Node: "a"})
			c.Store = RegistryStore(reg, registry.NewFollower(reg))
		})
		for i := range apps {
			w.deploy("", fmt.Sprintf("app-%d", i), "v1")
		}
		w.until(time.Minute, "all are routed", func() bool { return len(n.routes()) == apps })
		time.Sleep(time.Minute)
		before, began := m.Counts(), n.loop.Status().Passes
		time.Sleep(10 * time.Minute)
		counts, passes = m.Counts().Since(before), n.loop.Status().Passes-began
		last = n.loop.Status().Requests
	})
	return passes, counts, last
}

func TestWhatIdleCosts(t *testing.T) {
	var first meter.Counts
	for _, apps := range []int{1, 100} {
		passes, counts, last := idle(t, apps)
		t.Logf("%d applications: %d passes, %v", apps, passes, counts)
		// An idle pass is one conditional read of the revision, each ten seconds.
		if last != 1 {
			t.Errorf("%d applications: an idle pass made %d requests", apps, last)
		}
		if got := counts.For("revision").Total(meter.Get); got != 60 || counts.For("revision").Total() != 60 {
			t.Errorf("%d applications: the revision was asked for %d times in ten minutes", apps, got)
		}
		// A heartbeat each 45 seconds is one request.
		if got := counts.For("heartbeat").Total(); got < 13 || got > 14 {
			t.Errorf("%d applications: %d requests for heartbeats", apps, got)
		}
		// The sweep of used tokens is a listing each ten minutes.
		if rest := counts.Total() - counts.For("revision").Total() - counts.For("heartbeat").Total(); rest > 2 {
			t.Errorf("%d applications: %d other requests: %v", apps, rest, counts)
		}
		if first == nil {
			first = counts
		} else if first.Total() != counts.Total() {
			t.Errorf("%d applications cost %d requests, one costs %d", apps, counts.Total(), first.Total())
		}
	}
}
