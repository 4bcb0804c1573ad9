package reconcile

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	now := time.Unix(0, 0)
	p := pace{saved: passSaved, counted: now}
	pass := func(after, took, rest time.Duration) {
		t.Helper()
		now = now.Add(after + took)
		if got := p.spend(now, took); got != rest {
			t.Errorf("a pass of %s: rests for %s, want %s", took, got, rest)
		}
	}
	// A deploy's passes, one after another, wait for nothing.
	for range 4 {
		pass(0, 25*time.Millisecond, 0)
	}
	// Then they take a quarter of the time.
	pass(0, 20*time.Millisecond, 0)
	pass(0, 20*time.Millisecond, 45*time.Millisecond)
	pass(45*time.Millisecond, 20*time.Millisecond, 60*time.Millisecond)
	// What is idle saves, and not more than there is to save.
	pass(time.Hour, 100*time.Millisecond, 0)
	pass(0, 40*time.Millisecond, 120*time.Millisecond)
	// A rest is bounded, and nothing is owed beyond it.
	pass(time.Hour, time.Second, passRestMost)
	pass(passRestMost, 0, 0)
	// In the long run passes that are asked for all the time take their share.
	var took, total time.Duration
	for range 1000 {
		now = now.Add(10 * time.Millisecond)
		rest := p.spend(now, 10*time.Millisecond)
		now = now.Add(rest)
		took, total = took+10*time.Millisecond, total+10*time.Millisecond+rest
	}
	if share := float64(took) / float64(total); share < 0.2 || share > 1.0/passShare {
		t.Errorf("passes take %.2f of the time", share)
	}
}
