package registry

import (
	"context"

	"github.com/scafo/scafo"
)

// Snapshot is the registry as a follower last read it. Nobody changes it, or
// anything that it points to.
type Snapshot struct {
	Counter      int64 // of the revision that it contains at least
	Fleet        scafo.Fleet
	Applications map[string]scafo.Application // by name
	Nodes        map[string]scafo.Node        // by id
	Heartbeats   map[string]scafo.Heartbeat   // by node
	Placements   map[string]scafo.Placement   // by application, of its present life
	Claims       map[string]scafo.Claim       // by host
	Freeze       *scafo.Freeze
	// Unreadable are the documents that are left alone, with the reason: those of a
	// newer release, above all. What was known of them before stays in the maps.
	Unreadable map[string]string
}

// Follower keeps a snapshot of the registry up to date.
type Follower struct{ r *Registry }

// NewFollower makes a follower that has read nothing yet.
func NewFollower(r *Registry) *Follower { return &Follower{r: r} }

// Refresh reads what changed.
func (f *Follower) Refresh(ctx context.Context) (changed bool, err error) { return false, nil }

// Snapshot is what was last read; it is never nil.
func (f *Follower) Snapshot() *Snapshot { return &Snapshot{} }

// Hint names keys that changed, to be read at the next Refresh.
func (f *Follower) Hint(keys ...string) {}

// Relist makes the next Refresh list everything.
func (f *Follower) Relist() {}
