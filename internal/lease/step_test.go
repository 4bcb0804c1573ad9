package lease

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
)

const (
	ttl    = 15 * time.Second
	second = time.Second
)

// expiry is later than every time of day in these tests unless one says so.
var expiry = time.Unix(1000, 0)

func lease(node, process string, fence, seq int64) scafo.Lease {
	return scafo.Lease{Node: node, Process: process, Fence: fence, Seq: seq, ExpiresAt: expiry}
}

func saw(sent time.Duration, l scafo.Lease) Event {
	return Event{ReadDone: true, Saw: &Saw{Sent: sent, Exists: true, Lease: l}}
}

func wrote(sent time.Duration, o Outcome, l scafo.Lease) Event {
	return Event{Wrote: &Wrote{Sent: sent, Outcome: o, Lease: l}}
}

// script drives a State through events and checks what each one asks for.
type script struct {
	t *testing.T
	s State
}

func begin(t *testing.T) *script { return &script{t, Start("a", "pa", ttl, 0)} }

func (c *script) idle(at time.Duration, e Event) {
	c.t.Helper()
	var a Action
	if c.s, a = Step(c.s, e, at); a.Read || a.Write != nil {
		c.t.Fatalf("at %v: asks for %+v, want nothing", at, a)
	}
}

func (c *script) reads(at time.Duration, e Event) {
	c.t.Helper()
	var a Action
	if c.s, a = Step(c.s, e, at); !a.Read || a.Write != nil {
		c.t.Fatalf("at %v: asks for %+v, want a read", at, a)
	}
}

func (c *script) writes(at time.Duration, e Event, node string, fence, seq int64) scafo.Lease {
	c.t.Helper()
	var a Action
	c.s, a = Step(c.s, e, at)
	if a.Write == nil || a.Read {
		c.t.Fatalf("at %v: asks for %+v, want a write", at, a)
	}
	if w := a.Write; w.Node != node || w.Fence != fence || w.Seq != seq {
		c.t.Fatalf("at %v: writes node %q fence %d seq %d, want %q %d %d", at, w.Node, w.Fence, w.Seq, node, fence, seq)
	}
	return *a.Write
}

func (c *script) held(at time.Duration, want bool) {
	c.t.Helper()
	if got := c.s.Held(at); got != want {
		c.t.Fatalf("at %v: held %v, want %v", at, got, want)
	}
}

func (c *script) wakes(now, want time.Duration) {
	c.t.Helper()
	if got := c.s.Wake(now); got != want {
		c.t.Fatalf("at %v: wakes at %v, want %v", now, got, want)
	}
}

// A bucket without a lease, and one with a released lease, have no TTL to wait.
func TestFirstAcquisitionIsImmediate(t *testing.T) {
	c := begin(t)
	c.reads(0, Event{})
	l := c.writes(20*time.Millisecond, Event{ReadDone: true, Saw: &Saw{Sent: 0}}, "a", 1, 1)
	c.idle(40*time.Millisecond, wrote(20*time.Millisecond, Applied, l))
	c.held(40*time.Millisecond, true)

	c = begin(t)
	c.reads(0, Event{})
	l = c.writes(second, saw(0, lease("", "", 7, 90)), "a", 8, 91)
	c.idle(second, wrote(second, Applied, l))
	c.held(second, true)
}

func TestRenewedEachThirdAndHeldFromWhenItWasSent(t *testing.T) {
	c := begin(t)
	c.reads(0, Event{})
	l := c.writes(second, Event{ReadDone: true, Saw: &Saw{}}, "a", 1, 1)
	c.idle(3*second, wrote(second, Applied, l)) // the answer took two seconds
	c.wakes(3*second, 6*second)                 // a third after it was sent
	c.held(14*second, true)
	c.held(16*second, false) // others may begin at 1 s + TTL
	if c.s.Until >= second+ttl {
		t.Fatalf("acts until %v, others may begin at %v", c.s.Until, second+ttl)
	}
	l = c.writes(6*second, Event{}, "a", 1, 2)
	c.idle(6*second, wrote(6*second, Failed, l)) // a failure is tried again soon
	c.wakes(6*second, 7*second)
	l = c.writes(7*second, Event{}, "a", 1, 2)
	c.idle(7*second, wrote(7*second, Applied, l))
	c.wakes(7*second, 12*second)
}

func TestLapsesByItsOwnClock(t *testing.T) {
	c := begin(t)
	c.reads(0, Event{})
	l := c.writes(0, Event{ReadDone: true, Saw: &Saw{}}, "a", 1, 1)
	c.idle(0, wrote(0, Applied, l))
	// The machine slept for an hour: the lease is over before anything else.
	c.held(time.Hour, false)
	l = c.writes(time.Hour, Event{}, "a", 2, 2) // its own record, so that no TTL is to wait
	c.reads(time.Hour, wrote(time.Hour, Refused, l))
	c.idle(time.Hour, saw(time.Hour, lease("b", "pb", 2, 700)))
	c.held(time.Hour, false)
}

func TestAWriteThatAnswersTooLateHoldsNothing(t *testing.T) {
	c := begin(t)
	c.reads(0, Event{})
	l := c.writes(0, Event{ReadDone: true, Saw: &Saw{}}, "a", 1, 1)
	c.s, _ = Step(c.s, wrote(0, Applied, l), 20*second)
	c.held(20*second, false)
}

// A record with the node's own id but another process is a rival's.
func TestProcessExecutedAnewIsAChallenger(t *testing.T) {
	c := begin(t)
	c.reads(0, Event{})
	c.idle(0, saw(0, lease("a", "earlier", 3, 10)))
	c.held(0, false)
	c.wakes(0, second) // nobody knows whether its holder lives: it is looked at closely
	c.reads(second, Event{})
	c.idle(second, saw(second, lease("a", "earlier", 3, 11)))
	c.wakes(second, 31*second)
}

func TestChallengerWatchesAWholeTTL(t *testing.T) {
	c := begin(t)
	old := lease("b", "pb", 3, 10)
	old.ExpiresAt = time.Unix(0, 0) // another machine's clock says that it is long over
	c.reads(0, Event{})
	c.idle(2*second, saw(0, old)) // the answer came at 2 s: watched from then
	c.idle(2*second, Event{Suspect: true})
	for at := 3 * second; at < 17*second; at += second {
		c.reads(at, Event{})
		c.idle(at, saw(at, old))
	}
	c.wakes(16*second, 17*second)
	c.reads(17*second, Event{})
	l := c.writes(17*second, saw(17*second, old), "a", 4, 11)
	c.idle(17*second, wrote(17*second, Applied, l))
	c.held(17*second, true)
}

func TestARenewalStartsTheWatchAgain(t *testing.T) {
	c := begin(t)
	c.reads(0, Event{})
	c.idle(0, saw(0, lease("b", "pb", 3, 10)))
	c.idle(0, Event{Suspect: true})
	c.reads(14*second, Event{})
	c.idle(14*second, saw(14*second, lease("b", "pb", 3, 11)))
	c.wakes(14*second, 44*second) // no suspicion any more: each 30 s again
	c.reads(44*second, Event{})
	// Nothing moved for 30 s: that is a whole TTL, watched.
	c.writes(44*second, saw(44*second, lease("b", "pb", 3, 11)), "a", 4, 12)
}

func TestAReadThatWasOvertakenIsIgnored(t *testing.T) {
	c := begin(t)
	c.reads(0, Event{})
	c.idle(5*second, saw(4*second, lease("b", "pb", 3, 11)))
	first := c.s.FirstSeen
	c.s = Observe(c.s, saw(second, lease("b", "pb", 3, 10)), 6*second)
	if c.s.Lease.Seq != 11 || c.s.FirstSeen != first {
		t.Fatalf("an older answer replaced a newer one: %+v", c.s)
	}
	// One that was sent later shows that the record was set back: it counts.
	c.s = Observe(c.s, saw(6*second, lease("c", "pc", 1, 1)), 7*second)
	if c.s.Lease.Node != "c" || c.s.Free() {
		t.Fatalf("a record that was set back is not watched anew: %+v", c.s)
	}
}

// The answer of a renewal is lost, and so is the reading back: the next renewal
// is refused by the process's own write.
func TestLostRenewalIsFoundAgain(t *testing.T) {
	c := begin(t)
	c.reads(0, Event{})
	l := c.writes(0, Event{ReadDone: true, Saw: &Saw{}}, "a", 1, 1)
	c.idle(0, wrote(0, Applied, l))
	lost := c.writes(5*second, Event{}, "a", 1, 2)
	c.idle(5*second, wrote(5*second, Failed, lost))
	again := c.writes(6*second, Event{}, "a", 1, 2)
	c.reads(6*second, wrote(6*second, Refused, again))
	c.held(6*second, true)
	l = c.writes(6*second, saw(6*second, lost), "a", 1, 3)
	c.idle(6*second, wrote(6*second, Applied, l))
	c.held(19*second, true)
}

// A store may refuse a write although its condition holds (409).
func TestRefusedForNothing(t *testing.T) {
	c := begin(t)
	c.reads(0, Event{})
	l := c.writes(0, Event{ReadDone: true, Saw: &Saw{}}, "a", 1, 1)
	c.reads(0, wrote(0, Refused, l))
	l = c.writes(0, Event{ReadDone: true, Saw: &Saw{}}, "a", 1, 1)
	c.idle(0, wrote(0, Applied, l))
	again := c.writes(5*second, Event{}, "a", 1, 2)
	c.reads(5*second, wrote(5*second, Refused, again))
	c.writes(5*second, saw(5*second, l), "a", 1, 2)
}

func TestResignKeepsTheRecordAndTheFence(t *testing.T) {
	c := begin(t)
	c.reads(0, Event{})
	l := c.writes(0, Event{ReadDone: true, Saw: &Saw{}}, "a", 1, 1)
	c.idle(0, wrote(0, Applied, l))
	r := c.writes(second, Event{Resign: true}, "", 1, 2)
	c.held(second, false) // stops acting before the record says so
	c.idle(second, wrote(second, Applied, r))
	c.reads(20*second, Event{Want: true}) // it looks on, and leaves the lease alone
	c.idle(20*second, saw(20*second, r))
	c.held(20*second, false)

	// A write in flight: its end is given back too.
	c = begin(t)
	c.reads(0, Event{})
	l = c.writes(0, Event{ReadDone: true, Saw: &Saw{}}, "a", 1, 1)
	c.idle(second, Event{Resign: true})
	c.writes(2*second, wrote(0, Applied, l), "", 1, 2)
	c.held(2*second, false)
}

func TestEffective(t *testing.T) {
	early, late := expiry.Add(-second), expiry.Add(second)
	read := func(wall time.Time, events ...Event) State {
		s := Start("a", "pa", ttl, 0)
		for _, e := range events {
			e.Saw.Wall = wall
			s = Observe(s, e, e.Saw.Sent)
		}
		return s
	}
	b := func(seq int64) scafo.Lease { return lease("b", "pb", 1, seq) }
	for name, c := range map[string]struct {
		s    State
		want bool
	}{
		"nothing read":               {Start("a", "pa", ttl, 0), false},
		"no record":                  {read(early, Event{Saw: &Saw{}}), false},
		"released":                   {read(early, saw(0, lease("", "", 1, 2))), false},
		"unwatched, not expired":     {read(early, saw(0, b(1))), true},
		"unwatched, expired":         {read(late, saw(0, b(1))), false},
		"renewed while watched":      {read(late, saw(0, b(1)), saw(5*second, b(2))), true},
		"renewed long after":         {read(late, saw(0, b(1)), saw(40*second, b(2))), false},
		"still for a TTL":            {read(early, saw(0, b(1)), saw(ttl, b(1))), false},
		"still for nearly a TTL":     {read(early, saw(0, b(1)), saw(ttl-1, b(1))), true},
		"its own, which has lapsed":  {read(early, saw(0, lease("a", "pa", 1, 2))), false},
		"its node's earlier process": {read(early, saw(0, lease("a", "px", 1, 2))), true},
	} {
		if got := c.s.Effective(c.s.LastSeen); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Whatever happens: at most one request of a kind at a time, a write only over
// what was seen, fences that only grow, no hold beyond the TTL since a write was
// sent, and a wake-up that is never in the past and never lost.
func TestStepProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Start("a", "pa", ttl, 0)
		now := time.Duration(0)
		var sent time.Duration // of the last write that was applied
		var fence int64
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			now += time.Duration(rapid.IntRange(0, 9000).Draw(t, "ms")) * time.Millisecond
			before := s
			e := drawEvent(t, s, now)
			var a Action
			s, a = Step(s, e, now)
			if a.Read && before.Reading && !e.ReadDone {
				t.Fatal("two reads at once")
			}
			if e.Wrote != nil && e.Wrote.Outcome == Applied && e.Wrote.Lease.Node != "" {
				sent = e.Wrote.Sent
			}
			if w := a.Write; w != nil {
				if before.Writing && e.Wrote == nil {
					t.Fatal("two writes at once")
				}
				if w.Seq != s.Lease.Seq+1 || w.Fence < s.Lease.Fence || w.Fence > s.Lease.Fence+1 {
					t.Fatalf("writes %+v over %+v", w, s.Lease)
				}
				if w.Node != "" && w.Node != "a" || s.Resigned && w.Node != "" {
					t.Fatalf("writes %+v", w)
				}
				fence = max(fence, w.Fence)
			}
			if s.Held(now) && now >= sent+ttl {
				t.Fatalf("held at %v, sent at %v", now, sent)
			}
			if s.Held(now) && s.Resigned {
				t.Fatal("held after it resigned")
			}
			wake := s.Wake(now)
			if wake < now {
				t.Fatalf("wakes at %v, now is %v", wake, now)
			}
			if wake == never && !s.Reading && !s.Writing {
				t.Fatalf("never wakes: %+v", s)
			}
		}
	})
}

func drawEvent(t *rapid.T, s State, now time.Duration) Event {
	sent := now - time.Duration(rapid.IntRange(0, int(min(now, 20*second)/time.Millisecond)).Draw(t, "ago"))*time.Millisecond
	switch k := rapid.IntRange(0, 7).Draw(t, "kind"); {
	case k == 0:
		return Event{}
	case k == 1:
		return Event{Suspect: true}
	case k == 2:
		return Event{Want: true}
	case k == 3 && rapid.IntRange(0, 9).Draw(t, "resign") == 0:
		return Event{Resign: true}
	case k == 4 && s.Reading && rapid.Bool().Draw(t, "fails"):
		return Event{ReadDone: true, ReadFailed: true}
	case k <= 5 && s.Reading:
		l := s.Lease
		if rapid.Bool().Draw(t, "moved") {
			who := rapid.SampledFrom([][2]string{{"", ""}, {"a", "pa"}, {"a", "earlier"}, {"b", "pb"}}).Draw(t, "who")
			l = lease(who[0], who[1], s.Lease.Fence+1, s.Lease.Seq+1)
		}
		return Event{ReadDone: true, Saw: &Saw{Sent: sent, Exists: s.Exists || l.Seq > 0, Lease: l}}
	case s.Writing:
		l := lease("a", "pa", s.Lease.Fence+1, s.Lease.Seq+1)
		if s.Resigned {
			l = lease("", "", s.Lease.Fence, s.Lease.Seq+1)
		}
		return wrote(sent, Outcome(rapid.IntRange(0, 2).Draw(t, "outcome")), l)
	}
	return Event{}
}
