package reconcile

import (
	"time"

	"github.com/scafo/scafo"
)

const (
	// crashNews is how many heartbeats a node may write at once for what processes do
	// that have crashed before, and crashNewsEvery how often another one. A bucket that
	// was away for all, and processes that all come back, fit in; a crash loop, which
	// never ends, costs next to nothing, however many processes loop and however fast.
	crashNews      = 30
	crashNewsEvery = 5 * time.Minute
	// crashSettled is how long a process has to stay what it is to be told of all the
	// same. The supervisor's policy has no loop that stays both up and down for as long.
	crashSettled = time.Minute
)

// crashNewsAllowance holds back what crash loops would have a node write.
type crashNewsAllowance struct {
	saved   int
	counted time.Time
	seen    map[string]lastSeen // by uid
}

// lastSeen is a process, and since when it is what it is.
type lastSeen struct {
	process scafo.ProcessStatus
	since   time.Time
}

// look notes what the processes are now.
func (a *crashNewsAllowance) look(now time.Time, c beatContent) {
	seen := make(map[string]lastSeen, len(c.processes))
	for _, p := range c.processes {
		s, ok := a.seen[p.UID]
		if !ok || differs(p, s.process) {
			s.since = now
		}
		s.process = p
		seen[p.UID] = s
	}
	a.seen = seen
	if a.counted.IsZero() {
		a.saved, a.counted = crashNews, now
	}
	for a.saved < crashNews && now.Sub(a.counted) >= crashNewsEvery {
		a.saved, a.counted = a.saved+1, a.counted.Add(crashNewsEvery)
	}
	if a.saved == crashNews {
		a.counted = now
	}
}

// from is when c may be told to who was told was; that is now for whatever is no news
// of crashes alone.
func (a *crashNewsAllowance) from(now time.Time, c, was beatContent) (at time.Time, crashes bool) {
	if crashes = c.crashesOnly(was); !crashes || a.saved > 0 {
		return now, crashes
	}
	at = a.counted.Add(crashNewsEvery)
	told := byUID(was)
	for _, p := range c.processes {
		if settled := a.seen[p.UID].since.Add(crashSettled); differs(p, told[p.UID]) && settled.Before(at) {
			at = settled
		}
	}
	return at, true
}

// take uses one up.
func (a *crashNewsAllowance) take() { a.saved = max(0, a.saved-1) }

func byUID(c beatContent) map[string]scafo.ProcessStatus {
	out := make(map[string]scafo.ProcessStatus, len(c.processes))
	for _, p := range c.processes {
		out[p.UID] = p
	}
	return out
}

// crashesOnly is whether all that is new is what processes do that have crashed
// before, each for the version that it was to serve all the time.
func (c beatContent) crashesOnly(was beatContent) bool {
	if !was.known || c.draining != was.draining || len(c.processes) != len(was.processes) {
		return false
	}
	before := byUID(was)
	for _, p := range c.processes {
		b, ok := before[p.UID]
		if !ok || differs(p, b) && (p.LastExit == nil || p.Wanted != b.Wanted || refused(p) != refused(b)) {
			return false
		}
	}
	return true
}
