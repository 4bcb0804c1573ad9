package plan

import (
	"testing"
	"time"

	"github.com/scafo/scafo"
)

func TestStandingOf(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const stale = 3 * time.Minute
	stamp := &scafo.Stamp{At: now, By: "root"}
	runs := []scafo.ProcessStatus{{Application: "shop", State: scafo.ProcessReady}}
	over := []scafo.ProcessStatus{{Application: "shop", State: scafo.ProcessStopped}}
	for name, c := range map[string]struct {
		drain, removed *scafo.Stamp
		draining       bool
		age            time.Duration
		unknown        bool
		processes      []scafo.ProcessStatus
		want           Standing
		interrupts     bool
	}{
		"serves":                        {processes: runs, want: StandingLive, interrupts: true},
		"idles":                         {want: StandingLive},
		"at the end of the window":      {age: stale, processes: runs, want: StandingLive, interrupts: true},
		"silent":                        {age: stale + 1, processes: runs, want: StandingSilent},
		"its clock is ahead":            {age: -time.Hour, want: StandingLive},
		"told to drain, not heard yet":  {drain: stamp, want: StandingDraining},
		"drains":                        {drain: stamp, draining: true, processes: runs, want: StandingDraining, interrupts: true},
		"drained":                       {drain: stamp, draining: true, processes: over, want: StandingDrained},
		"stops":                         {draining: true, want: StandingDraining},
		"undrained, not heard yet":      {draining: true, processes: runs, want: StandingDraining, interrupts: true},
		"drained, and silent":           {drain: stamp, draining: true, age: time.Hour, want: StandingSilent},
		"never ran":                     {unknown: true, want: StandingNew},
		"removed":                       {removed: stamp, processes: runs, want: StandingRemoved},
		"removed, and never ran at all": {removed: stamp, drain: stamp, unknown: true, want: StandingRemoved},
	} {
		n := scafo.Node{ID: "n1", Drain: c.drain, Removed: c.removed}
		h := scafo.Heartbeat{Node: "n1", At: now.Add(-c.age), Draining: c.draining, Processes: c.processes}
		got := StandingOf(n, h, !c.unknown, now, stale)
		if got != c.want || Interrupts(got, h) != c.interrupts {
			t.Errorf("%s: %s, interrupts %v; want %s, %v", name, got, Interrupts(got, h), c.want, c.interrupts)
		}
	}
}
