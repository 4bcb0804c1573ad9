package lease

import (
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/mistake"
)

// How the lease is timed, as parts of its TTL, and how often it is looked at.
const (
	renewPart  = 3  // renewed each TTL/3
	marginPart = 10 // the holder stops acting TTL/10 before others may begin

	// WatchEvery is how often a node that does not hold the lease reads it, and
	// SuspectEvery how often once the holder was seen to miss an answer. Both are
	// shorter where the TTL is.
	WatchEvery   = 30 * time.Second
	SuspectEvery = time.Second
	// retryEvery is the pause after a request that failed; also shorter then.
	retryEvery = time.Second

	watchTTLs   = 2
	suspectPart = 5
	retryPart   = 10
)

// Outcome is how a write of the lease ended.
type Outcome int

// The outcomes of a write. A failed one may have happened, or may happen yet.
const (
	Applied Outcome = iota
	Refused
	Failed
)

// Event is something that happened to a runner. One of its members is set; an
// event without any is the passing of time.
type Event struct {
	Saw        *Saw
	ReadFailed bool
	ReadDone   bool // beside Saw or ReadFailed: the read was one that an action asked for
	Wrote      *Wrote
	Suspect    bool // the holder missed an answer, or said that it goes
	Want       bool // somebody needs a coordinator: look now
	Resign     bool // give the lease back, and do not run for it any more
}

// Saw is the record as a read showed it.
type Saw struct {
	Sent   time.Duration // own time when the read was sent
	Exists bool
	Lease  scafo.Lease
	// Wall is this machine's time of day. It decides nothing but what Effective
	// says of a record that was not watched.
	Wall time.Time
}

// Wrote is the end of a write.
type Wrote struct {
	Sent    time.Duration // own time when the write was sent
	Outcome Outcome
	Lease   scafo.Lease // what was sent
}

// Action is what the runner has to do: at most one read, at most one write.
type Action struct {
	Read bool
	// Write is the record to write over the one that was seen last, whose nonce it
	// carries and whose seq is one less; nil for none. The runner adds the times.
	Write *scafo.Lease
}

// State is what one process knows of the lease. Times are its own, from a clock
// that runs through suspend; no other machine's time is in it.
type State struct {
	Node, Process string
	TTL           time.Duration

	Observed bool        // the record was read or written at least once
	Exists   bool        // there is a record
	Lease    scafo.Lease // the newest record that was seen

	// FirstSeen is when an answer first showed this seq, LastSeen when the latest
	// read that still showed it was sent. What lies between is how long this
	// process has itself watched the record stand still.
	FirstSeen, LastSeen time.Duration
	// Younger is whether the record was certainly renewed within a TTL before
	// FirstSeen, since an earlier one was seen less than a TTL before.
	Younger bool
	// Expired is whether the record's expiresAt had passed when it was last read, by
	// this machine's time of day.
	Expired bool

	Holding bool
	Until   time.Duration // the holder acts no longer than this
	RenewAt time.Duration

	ReadAt   time.Duration // when to read next
	RetryAt  time.Duration // no acquisition is tried before
	Resigned bool
	// Suspects is whether the holder may be gone, since SuspectAt: the record is
	// looked at closely until it has moved after that.
	Suspects  bool
	SuspectAt time.Duration

	Reading, Writing bool
	// Stale is whether the store has refused a write over Lease, at StaleAt: nothing
	// is written before a read that was sent later.
	Stale   bool
	StaleAt time.Duration
}

// Start is the state of a process that was just executed: a challenger, also
// when the record names its node.
func Start(node, process string, ttl time.Duration, now time.Duration) State {
	return State{Node: node, Process: process, TTL: ttl, ReadAt: now}
}

// Held is whether the process may act as coordinator.
func (s State) Held(now time.Duration) bool { return s.Holding && !s.Resigned && now < s.Until }

// Free is whether the record may be taken over: there is none, it was released,
// it is this process's own, or this process has watched it stand still for a
// whole TTL.
func (s State) Free() bool {
	if !s.Observed || s.Stale {
		return false
	}
	watch := s.TTL
	if mistake.Made(mistake.TakeoverTooEarly) {
		watch /= 4
	}
	return !s.Exists || s.Lease.Node == "" || s.mine() || s.LastSeen-s.FirstSeen >= watch || mistake.Made(mistake.ForeignClockTrusted) && s.Expired
}

// mine is whether the record names this very process.
func (s State) mine() bool {
	return s.Exists && s.Lease.Node != "" && s.Lease.Process == s.Process
}

// Effective is whether somebody held the lease at the last read, as far as this
// process can tell.
func (s State) Effective(now time.Duration) bool {
	switch {
	case !s.Observed || !s.Exists || s.Lease.Node == "":
		return false
	case s.mine():
		return s.Held(now)
	case s.LastSeen-s.FirstSeen >= s.TTL:
		return false
	default:
		return s.Younger || !s.Expired
	}
}

// Step is what follows from an event at a time.
func Step(s State, e Event, now time.Duration) (State, Action) {
	return Observe(s, e, now).act(now)
}

// Observe is Step without an action: the next Step finds what is to be done.
func Observe(s State, e Event, now time.Duration) State {
	switch {
	case e.Saw != nil:
		s = s.saw(*e.Saw, now)
	case e.ReadFailed:
		s.ReadAt = now + s.every(retryEvery, retryPart)
	case e.Wrote != nil:
		s.Writing = false
		s = s.wrote(*e.Wrote, now)
	case e.Suspect && !s.Holding:
		s = s.suspect(now)
		s.ReadAt = min(s.ReadAt, s.LastSeen+s.every(SuspectEvery, suspectPart))
	case e.Want && !s.Holding:
		s = s.suspect(now)
		s.ReadAt = min(s.ReadAt, s.LastSeen+s.every(SuspectEvery, suspectPart))
		s.RetryAt = now
	case e.Resign:
		s.Resigned, s.Holding = true, false
	}
	if e.ReadDone {
		s.Reading = false
	}
	if s.Holding && now >= s.Until {
		s.Holding = false
		s.ReadAt = now
	}
	return s
}

// suspect begins to look at the holder closely.
func (s State) suspect(now time.Duration) State {
	if !s.Suspects {
		s.Suspects, s.SuspectAt = true, now
	}
	return s
}

// every is an interval, or a part of the TTL where that is shorter.
func (s State) every(d time.Duration, part time.Duration) time.Duration {
	return min(d, s.TTL/part)
}

func (s State) watchEvery() time.Duration { return min(WatchEvery, watchTTLs*s.TTL) }

func (s State) act(now time.Duration) (State, Action) {
	var a Action
	switch {
	case s.Writing, s.Stale:
	case s.Resigned:
		if s.mine() && now >= s.RetryAt {
			// The record stays, so that the fence only ever grows.
			a.Write = &scafo.Lease{Header: s.Lease.Header, Fence: s.Lease.Fence, Seq: s.Lease.Seq + 1, AcquiredAt: s.Lease.AcquiredAt}
		}
	case s.Holding:
		if now >= s.RenewAt {
			l := s.Lease
			l.Seq++
			a.Write = &l
		}
	case s.Free() && now >= s.RetryAt:
		a.Write = &scafo.Lease{
			Header: s.Lease.Header, Node: s.Node, Process: s.Process,
			Fence: s.Lease.Fence + 1, Seq: s.Lease.Seq + 1,
		}
	}
	if a.Write != nil && mistake.Made(mistake.SeqLeftOut) {
		a.Write.Seq = max(s.Lease.Seq, 1)
	}
	if a.Write != nil && mistake.Made(mistake.FenceNotGrown) {
		a.Write.Fence = max(s.Lease.Fence, 1)
	}
	switch {
	case a.Write != nil:
		s.Writing = true
	case !s.Reading && !s.Writing && now >= s.ReadAt:
		a.Read, s.Reading = true, true
	}
	return s, a
}

// never is a time that does not come: the holder does not read what it wrote.
const never = time.Duration(1<<63 - 1)

func (s State) saw(e Saw, now time.Duration) State {
	if s.Observed && e.Lease.Seq < s.Lease.Seq && e.Sent < s.FirstSeen {
		return s // it was overtaken by a newer answer
	}
	if s.Stale && e.Sent >= s.StaleAt {
		s.Stale = false
	}
	changed := !s.Observed || e.Exists != s.Exists || e.Lease.Seq != s.Lease.Seq
	if !changed {
		s.LastSeen = max(s.LastSeen, e.Sent)
	} else {
		s.Younger = s.Observed && now-s.LastSeen < s.TTL
		// A record that moved since the suspicion has a holder that lives. Of the first
		// one that is seen nobody knows: it is looked at closely until it moves.
		s.Suspects = s.Suspects && s.LastSeen < s.SuspectAt
		if !s.Observed {
			s = s.suspect(now)
		}
		s.Observed, s.Exists, s.Lease = true, e.Exists, e.Lease
		s.FirstSeen, s.LastSeen = now, now
		// Nobody takes the lease from a holder before its time is over: another name
		// in the record means that it is. Its own name is a renewal whose answer was
		// lost, and it goes on from there.
		s.Holding = s.Holding && s.mine()
	}
	s.Expired = !e.Wall.Before(e.Lease.ExpiresAt)
	if s.Exists && now-s.FirstSeen >= s.TTL*2/renewPart {
		s = s.suspect(s.LastSeen) // it should have been renewed by now
	}
	switch {
	case s.Holding:
		s.ReadAt = never
		if s.Stale {
			s.ReadAt = now
		} else if changed || s.RenewAt == never {
			s.RenewAt = now
		}
	case s.Suspects || s.Stale:
		s.ReadAt = now + s.every(SuspectEvery, suspectPart)
		if end := s.FirstSeen + s.TTL; now < end {
			s.ReadAt = min(s.ReadAt, end)
		}
	default:
		s.ReadAt = now + s.watchEvery()
	}
	return s
}

func (s State) wrote(e Wrote, now time.Duration) State {
	switch e.Outcome {
	case Applied:
		if s.Observed && e.Lease.Seq < s.Lease.Seq {
			break // somebody has written over it since, which was read before this answer
		}
		s.Observed, s.Exists, s.Lease = true, true, e.Lease
		s.FirstSeen, s.LastSeen, s.Younger = now, now, true
		s.Suspects, s.Stale, s.RetryAt = false, false, now
		s.ReadAt = now + s.watchEvery()
		if s.mine() && !s.Resigned {
			// Counted from when it was sent: others may have seen it at once.
			s.Holding, s.ReadAt = true, never
			s.Until = e.Sent + s.TTL - s.TTL/marginPart
			s.RenewAt = e.Sent + s.TTL/renewPart
			if mistake.Made(mistake.CountedFromAnswer) {
				s.Until = now + s.TTL
			}
			if mistake.Made(mistake.HolderNeverStops) {
				s.Until = never
			}
		}
	case Refused:
		// What was seen is not what stands there.
		s.Stale, s.StaleAt = true, now
		s.ReadAt, s.RetryAt, s.RenewAt = now, now, never
	case Failed:
		s.RetryAt = now + s.every(retryEvery, retryPart)
		s.RenewAt = s.RetryAt
		if !s.Holding {
			s.ReadAt = s.RetryAt
		}
	}
	return s
}

// Wake is when Step has to be called next if nothing happens.
func (s State) Wake(now time.Duration) time.Duration {
	wake := never
	if s.Holding {
		wake = s.Until
	}
	switch {
	case s.Writing:
		return max(wake, now)
	case s.Stale:
	case s.Resigned:
		if s.mine() {
			wake = min(wake, s.RetryAt)
		}
	case s.Holding:
		wake = min(wake, s.RenewAt)
	case s.Free():
		wake = min(wake, s.RetryAt)
	}
	if !s.Reading {
		wake = min(wake, s.ReadAt)
	}
	return max(wake, now)
}
