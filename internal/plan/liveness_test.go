package plan

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds float64) time.Time { return t0.Add(time.Duration(seconds * float64(time.Second))) }

func watch(nodes ...string) *Liveness {
	l := NewLiveness("self", t0, DefaultLivenessTimes(45*time.Second, 100*time.Second))
	l.Known(t0, nodes)
	return l
}

// run ticks each second up to that moment and answers every read that is due
// with what stamp says; an empty stamp fails the read.
func run(l *Liveness, from, to float64, stamp func(s float64) string) (reads int) {
	for s := from; s <= to; s++ {
		l.Tick(at(s))
		for _, id := range l.Due(at(s)) {
			reads++
			if v := stamp(s); v != "" {
				l.Looked(at(s), id, v)
			} else {
				l.Unread(at(s), id)
			}
		}
	}
	return reads
}

func constant(v string) func(float64) string { return func(float64) string { return v } }

func TestAPeerIsGoneFifteenSecondsAfterItsLastAnswer(t *testing.T) {
	l := watch("b")
	l.Looked(at(-1), "b", "w1")
	l.Answered(at(0), "b")
	// Its heartbeat may have been renewed before it answered last: that nobody has
	// read it until now makes it no sign.
	run(l, 1, 14, constant("w2"))
	if !l.Live("b") {
		t.Fatal("gone before 15 s")
	}
	run(l, 15, 15, constant("w2"))
	if l.Live("b") {
		t.Fatal("still live after 15 s")
	}
	l.Answered(at(20), "b")
	if !l.Live("b") || l.Steady(at(30), "b") || !l.Steady(at(35), "b") {
		t.Error("an answer brings it back, and after 15 s it is steady")
	}
}

func TestAnswersKeepAPeerWithoutReadingAnything(t *testing.T) {
	l := watch("b")
	reads := 0
	for s := 0.0; s < 600; s += 5 {
		l.Answered(at(s), "b")
		reads += run(l, s+1, s+4, constant("w"))
	}
	if reads != 0 || !l.Live("b") {
		t.Errorf("%d reads, live %v", reads, l.Live("b"))
	}
}

func TestAChangingHeartbeatKeepsASilentPeer(t *testing.T) {
	l := watch("b")
	l.Answered(at(0), "b")
	// From 10 s on nobody asked it, and it writes each 5 s.
	beat := func(s float64) string {
		if s > 300 {
			s = 300
		}
		if s < 10 {
			return "before"
		}
		return at(float64(int(s)/5) * 5).String()
	}
	run(l, 1, 300, beat)
	if !l.Live("b") {
		t.Fatal("gone though its heartbeat changed all the time")
	}
	run(l, 301, 330, beat)
	if l.Live("b") {
		t.Fatal("live 30 s after its last heartbeat")
	}
}

func TestAPeerThatWasNeverReached(t *testing.T) {
	l := watch("b")
	run(l, 0, 99, constant("w1"))
	if !l.Live("b") || !l.Unsure("b") {
		t.Fatal("whoever has just started grants the whole window of 100 s")
	}
	run(l, 100, 101, constant("w1"))
	if l.Live("b") {
		t.Fatal("live after 100 s without any sign")
	}
	run(l, 102, 200, constant("w2"))
	if !l.Live("b") || l.Unsure("b") {
		t.Fatal("a changed heartbeat is a sign")
	}
}

func TestWhoCannotReadTheBucketRemovesNobody(t *testing.T) {
	l := watch("b")
	l.Answered(at(0), "b")
	run(l, 1, 3600, constant(""))
	if !l.Live("b") {
		t.Fatal("gone though nothing could be read")
	}
	// The bucket is back: one look is not enough for a verdict.
	run(l, 3601, 3603, constant("w9"))
	if !l.Live("b") {
		t.Fatal("gone after one look")
	}
	run(l, 3604, 3620, constant("w9"))
	if l.Live("b") {
		t.Fatal("live though its heartbeat stands still")
	}
}

func TestAnObserverThatSlept(t *testing.T) {
	l := watch("b")
	l.Answered(at(0), "b")
	l.Looked(at(0), "b", "w1")
	run(l, 1, 3, constant("w1"))
	l.Tick(at(1000)) // it was stopped for a quarter of an hour
	l.Looked(at(1000), "b", "w1")
	if !l.Live("b") {
		t.Fatal("the observer counted its own sleep")
	}
	run(l, 1001, 1025, constant("w1"))
	if l.Live("b") {
		t.Fatal("a peer that stays silent is gone all the same")
	}
}

func TestNobodyElseIsKnown(t *testing.T) {
	l := watch("b")
	if !l.Live("self") || l.Live("stranger") {
		t.Error("the observer lives, strangers do not")
	}
	l.Known(at(1), nil)
	if l.Live("b") || len(l.Due(at(1000))) != 0 {
		t.Error("a removed node is still watched")
	}
	if _, ok := l.Next(); ok {
		t.Error("nothing can be due")
	}
}

// A node that answers, or whose heartbeat changes as the design says, is never
// gone; one that died is, within bounds; and nothing is ever concluded without a
// successful read.
func TestLivenessProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := watch("b")
		reachableUntil := rapid.IntRange(0, 200).Draw(t, "reachable until")
		diesAt := rapid.IntRange(1, 400).Draw(t, "dies at")
		readable := rapid.Bool().Draw(t, "bucket readable")
		asks := rapid.IntRange(0, 4).Draw(t, "phase of the probes")
		lastAsked, lastBeat, stamp := -1000, -1000, 0
		reached := false
		for s := 0; s <= diesAt+130; s++ {
			if s <= reachableUntil && s < diesAt && s%5 == asks {
				l.Answered(at(float64(s)), "b")
				lastAsked, reached = s, true
			}
			// The peer itself: each 45 s, each 5 s when it was not asked for 10 s.
			every := 45
			if s-lastAsked >= 10 {
				every = 5
			}
			if s < diesAt && s-lastBeat >= every {
				lastBeat, stamp = s, stamp+1
			}
			l.Tick(at(float64(s)))
			for _, id := range l.Due(at(float64(s))) {
				if readable {
					l.Looked(at(float64(s)), id, time.Duration(stamp).String())
				} else {
					l.Unread(at(float64(s)), id)
				}
			}
			if s <= diesAt && !l.Live("b") {
				t.Fatalf("at %d it counts as gone, and dies at %d", s, diesAt)
			}
			if !readable && !l.Live("b") {
				t.Fatalf("at %d it counts as gone without a read", s)
			}
		}
		if readable && l.Live("b") {
			t.Fatalf("130 s after its death it counts as alive (reached %v)", reached)
		}
	})
}

func TestDueIsSortedAndNextAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfDistinct(rapid.StringMatching(`[a-z]{1,3}`), func(s string) string { return s }).Draw(t, "nodes")
		l := watch(names...)
		now := at(float64(rapid.IntRange(0, 50).Draw(t, "now")))
		for _, id := range names {
			if rapid.Bool().Draw(t, "answered") {
				l.Answered(now, id)
			}
		}
		later := now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "later")) * time.Second)
		due := l.Due(later)
		if !slices.IsSorted(due) {
			t.Fatalf("due %v", due)
		}
		next, ok := l.Next()
		if (ok && !next.After(later)) != (len(due) > 0) {
			t.Fatalf("next %v %v, due %v at %v", next, ok, due, later)
		}
	})
}

// Whoever waits for Steadies finds a node steady that was not before.
func TestSteadies(t *testing.T) {
	l := watch("b")
	l.Known(at(4), []string{"b", "c"})
	now, steady := at(4), 0
	for {
		next, ok := l.Steadies(now)
		if !ok {
			break
		}
		before, after := 0, 0
		for _, id := range []string{"self", "b", "c"} {
			if l.Steady(next.Add(-time.Nanosecond), id) {
				before++
			}
			if l.Steady(next, id) {
				after++
			}
		}
		if !next.After(now) || before != steady || after <= before {
			t.Fatalf("at %s: %d were steady before, %d are, %d were counted", next.Sub(at(0)), before, after, steady)
		}
		now, steady = next, after
	}
	if steady != 3 {
		t.Errorf("%d of three nodes become steady", steady)
	}
}
