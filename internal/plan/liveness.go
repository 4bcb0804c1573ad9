package plan

import (
	"slices"
	"strings"
	"time"
)

// LivenessTimes are the windows of [Liveness].
type LivenessTimes struct {
	// Gone is how long after its last sign a peer counts as gone that was reached
	// at least once.
	Gone time.Duration
	// Stale is the same for a peer that was never reached, until its heartbeat has
	// shown the rhythm of a node that nobody asks.
	Stale time.Duration
	// Read is how long a peer may be silent before its heartbeat is looked at, and
	// how often it is looked at from then on.
	Read time.Duration
	// Retry is how soon a heartbeat that could not be read is tried again.
	Retry time.Duration
	// Slow is how often the heartbeat of a peer that is gone is looked at, at first.
	Slow time.Duration
	// Steady is how long a peer must have been alive to be given what it need not
	// have.
	Steady time.Duration
	// Asleep is a pause between two ticks after which the observer takes itself to
	// have been stopped, and counts the time in between against nobody.
	Asleep time.Duration
}

// The windows that the design names.
const (
	GoneAfter   = 15 * time.Second
	ReadAfter   = 8 * time.Second
	SteadyAfter = 15 * time.Second
	AsleepAfter = 5 * time.Second
	RetryAfter  = 2 * time.Second
)

// A peer that is gone is looked at after a tenth of the time that it has been
// silent, between Slow and this.
const (
	slower  = 10
	slowest = 15 * time.Minute
)

// DefaultLivenessTimes are the windows for heartbeats of that rhythm.
func DefaultLivenessTimes(heartbeat, stale time.Duration) LivenessTimes {
	return LivenessTimes{
		Gone: GoneAfter, Stale: stale, Read: ReadAfter, Retry: RetryAfter, Slow: heartbeat,
		Steady: SteadyAfter, Asleep: AsleepAfter,
	}
}

// Liveness tells which nodes live, from what this node heard and read itself. It
// trusts no other clock: every age is the time of the reader since it saw
// something change.
//
// A peer lives from when it is first known, for a whole window. Each answer of its
// own begins the window anew. While it is silent its heartbeat is looked at: the
// first look shows where it stands and is no sign of life, since nobody knows how
// old that heartbeat is; a change after it is one. At the end of a window the peer
// is gone only when its heartbeat was read and did not change for as long as a
// living node that nobody asks would need to change it: who cannot read the bucket
// removes nobody.
//
// It is fed in the order of time and is not safe for concurrent use.
type Liveness struct {
	self  string
	times LivenessTimes
	peers map[string]*peer
	last  time.Time // of the latest event
	start time.Time
}

type peer struct {
	reached bool      // it has answered at least once
	brisk   bool      // its heartbeat was seen to change twice within one short window
	changed time.Time // when its heartbeat was last seen to change
	sign    time.Time // its latest sign of life, or when it became known
	stamp   string    // the heartbeat as it was last read
	looked  time.Time // when it was last read; zero for never
	base    time.Time // since when the heartbeat is watched in this silence
	tried   time.Time // when it was last tried to be read in vain
	gone    bool
	since   time.Time // since when it is live without a gap
}

// NewLiveness begins to watch at that time.
func NewLiveness(self string, now time.Time, times LivenessTimes) *Liveness {
	return &Liveness{self: self, times: times, peers: map[string]*peer{}, last: now, start: now}
}

// Known says which nodes there are. A new one is granted a whole window; others
// are forgotten.
func (l *Liveness) Known(now time.Time, nodes []string) {
	l.Tick(now)
	keep := make(map[string]bool, len(nodes))
	for _, id := range nodes {
		keep[id] = true
		if _, ok := l.peers[id]; !ok && id != l.self {
			l.peers[id] = &peer{sign: now, since: now}
		}
	}
	for id := range l.peers {
		if !keep[id] {
			delete(l.peers, id)
		}
	}
}

// Answered says that the node itself answered.
func (l *Liveness) Answered(now time.Time, node string) {
	l.Tick(now)
	if p, ok := l.peers[node]; ok {
		p.reached = true
		p.alive(now)
	}
}

func (p *peer) alive(now time.Time) {
	p.sign = now
	if p.gone {
		p.gone, p.since = false, now
	}
}

// Looked says that the node's heartbeat was read, successfully, and which write
// of it that was; empty when the node has none.
func (l *Liveness) Looked(now time.Time, node, stamp string) {
	l.Tick(now)
	p, ok := l.peers[node]
	if !ok {
		return
	}
	watched := !p.looked.IsZero() && !p.looked.Before(p.sign)
	changed := watched && stamp != p.stamp
	p.stamp, p.looked, p.tried = stamp, now, time.Time{}
	switch {
	case !watched:
		p.base = now
	case changed:
		// A node that some peer does not ask writes often, for that peer to see. So
		// one that was never reached but was seen to write often may be missed soon.
		p.brisk = !p.changed.IsZero() && now.Sub(p.changed) <= l.times.Gone
		p.changed, p.base = now, now
		p.alive(now)
	case now.Sub(p.sign) >= l.window(p) && now.Sub(p.base) >= l.quiet():
		p.gone = true
	}
}

// quiet is how long a heartbeat has to be seen unchanged before its node may be
// gone.
func (l *Liveness) quiet() time.Duration { return l.times.Gone - l.times.Read }

// Unread says that the node's heartbeat could not be read: it is tried again
// soon, and nothing follows from it.
func (l *Liveness) Unread(now time.Time, node string) {
	l.Tick(now)
	if p, ok := l.peers[node]; ok {
		p.tried = now
	}
}

func (l *Liveness) window(p *peer) time.Duration {
	if p.reached || p.brisk {
		return l.times.Gone
	}
	return l.times.Stale
}

// Tick says that the observer is awake; every other event says so too. Some of
// them must come more often than every Asleep.
func (l *Liveness) Tick(now time.Time) {
	if slept := now.Sub(l.last); slept > l.times.Asleep {
		for _, p := range l.peers {
			for _, at := range []*time.Time{&p.sign, &p.base, &p.looked} {
				if !at.IsZero() {
					*at = at.Add(slept)
				}
			}
		}
	}
	l.last = now
}

// Live is whether the node counts as alive. The observer itself always does; a
// node that it does not know never does.
func (l *Liveness) Live(node string) bool {
	if node == l.self {
		return true
	}
	p, ok := l.peers[node]
	return ok && !p.gone
}

// Unsure is whether the node counts as alive though it never gave a sign.
func (l *Liveness) Unsure(node string) bool {
	p, ok := l.peers[node]
	return ok && !p.gone && !p.reached && p.changed.IsZero()
}

// Steady is whether the node has been alive for a while without a gap.
func (l *Liveness) Steady(now time.Time, node string) bool {
	if node == l.self {
		return now.Sub(l.start) >= l.times.Steady
	}
	p, ok := l.peers[node]
	return ok && !p.gone && now.Sub(p.since) >= l.times.Steady
}

// Steadies is when the next node becomes steady, if none of them dies before; ok is
// false when none will.
func (l *Liveness) Steadies(now time.Time) (at time.Time, ok bool) {
	sooner := func(t time.Time) {
		if t.After(now) && (!ok || t.Before(at)) {
			at, ok = t, true
		}
	}
	sooner(l.start.Add(l.times.Steady))
	for _, p := range l.peers {
		if !p.gone {
			sooner(p.since.Add(l.times.Steady))
		}
	}
	return at, ok
}

// Silent is how long ago the node's latest sign was.
func (l *Liveness) Silent(now time.Time, node string) time.Duration {
	if p, ok := l.peers[node]; ok {
		return now.Sub(p.sign)
	}
	return 0
}

// Due are the nodes whose heartbeat has to be read now, in order.
func (l *Liveness) Due(now time.Time) []string {
	var due []string
	for id, p := range l.peers {
		if !l.due(p).After(now) {
			due = append(due, id)
		}
	}
	slices.SortFunc(due, strings.Compare)
	return due
}

// due is when the peer's heartbeat is to be read next: a while after its latest
// sign, again and again while it stays silent, and as soon as a verdict may fall.
func (l *Liveness) due(p *peer) time.Time {
	next := p.sign.Add(l.times.Read)
	if watched := !p.looked.Before(p.sign); watched {
		next = p.looked.Add(l.times.Read)
		verdict := p.sign.Add(l.window(p))
		if quiet := p.base.Add(l.quiet()); quiet.After(verdict) {
			verdict = quiet
		}
		if p.looked.Before(verdict) && verdict.Before(next) {
			next = verdict
		}
		if p.gone {
			// The longer it is gone, the less often: one that comes back says so.
			next = p.looked.Add(min(max(l.times.Slow, p.looked.Sub(p.sign)/slower), slowest))
		}
	}
	if again := p.tried.Add(l.times.Retry); !p.tried.IsZero() && again.After(next) {
		next = again
	}
	return next
}

// Next is when the first heartbeat will be due; ok is false when none will.
func (l *Liveness) Next() (at time.Time, ok bool) {
	for _, p := range l.peers {
		if d := l.due(p); !ok || d.Before(at) {
			at, ok = d, true
		}
	}
	return at, ok
}
