package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/scafo/scafo"
)

// Standing is where a node stands in the fleet, as whoever only reads the bucket
// can tell.
type Standing string

// The standings of a node.
const (
	StandingLive     Standing = "live"
	StandingDraining Standing = "draining" // it gives its applications up, and still has some
	StandingDrained  Standing = "drained"  // it was told to drain and runs nothing any more
	StandingSilent   Standing = "silent"   // its heartbeat is old
	StandingNew      Standing = "new"      // it registered and never wrote a heartbeat
	StandingRemoved  Standing = "removed"
)

// StandingOf judges a node by its record and its last heartbeat, of which known is
// false where there is none. A heartbeat is old after stale. Its time is of the
// node's clock and now of the reader's: the verdict is for people to read, and no
// node acts on it.
func StandingOf(n scafo.Node, h scafo.Heartbeat, known bool, now time.Time, stale time.Duration) Standing {
	switch {
	case n.Removed != nil:
		return StandingRemoved
	case !known:
		return StandingNew
	case now.Sub(h.At) > stale:
		return StandingSilent
	case n.Drain != nil && h.Draining && len(Running(h)) == 0:
		return StandingDrained
	case n.Drain != nil || h.Draining:
		return StandingDraining
	}
	return StandingLive
}

// Running are the processes of a heartbeat that are not over, in the order of their
// applications.
func Running(h scafo.Heartbeat) []scafo.ProcessStatus {
	out := slices.DeleteFunc(slices.Clone(h.Processes), func(p scafo.ProcessStatus) bool { return p.State == scafo.ProcessStopped })
	slices.SortFunc(out, func(a, b scafo.ProcessStatus) int {
		return cmp.Or(cmp.Compare(a.Application, b.Application), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// Interrupts is whether the removal of a node of that standing would take
// applications away before they answer elsewhere.
func Interrupts(s Standing, h scafo.Heartbeat) bool {
	return (s == StandingLive || s == StandingDraining) && len(Running(h)) > 0
}
