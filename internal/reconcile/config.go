// Package reconcile is the loop of a node: it follows the registry, decides as
// the coordinator when it holds the lease, makes its own processes match the
// placements, says how it is, and keeps the routing document.
//
// What to do is decided by the pure packages plan and route. This package reads,
// asks, writes, and waits. Nothing in it waits for a timer when something it can
// hear of has changed: calls of the API, hints of other nodes, changes of
// processes and of the lease each begin a pass at once.
package reconcile

import (
	"context"
	"log/slog"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/supervise"
)

// Lease is what the loop needs of the coordinator lease.
type Lease interface {
	// Held is the fence, while this process may act under it.
	Held() (fence int64, ok bool)
	// Current reads the lease afresh; held is whether anyone holds it now.
	Current(ctx context.Context) (l scafo.Lease, held bool, err error)
	// Last is the lease as it was last read.
	Last() (scafo.Lease, bool)
	// Release gives the lease up, and does not take it again.
	Release(ctx context.Context) error
	// HolderSuspect says that somebody saw the holder miss an answer.
	HolderSuspect()
	// Changed fires, coalesced, when the lease came, went, or has a new holder.
	Changed() <-chan struct{}
}

// Supervisor is what the loop needs of the processes.
type Supervisor interface {
	Set(wants []supervise.Want)
	Statuses() []scafo.ProcessStatus
	Changes() <-chan struct{}
	StopAll(ctx context.Context) error
	// Kept are the uids that have a process or anything on disk here.
	Kept() []string
	// Stop drains the process of a uid, kills it when it is not gone within that
	// time, and returns when it is gone.
	Stop(ctx context.Context, uid string, within time.Duration) error
	// Forget removes what a stopped process left on this machine.
	Forget(uid string) error
}

// Peers reaches other nodes. Both calls are bounded by their context.
type Peers interface {
	// Health asks a node's health route, and returns the id that answered.
	Health(ctx context.Context, node scafo.Node) (id string, err error)
	// Hint posts to a node's /v1/peer/hints under a token of this node.
	Hint(ctx context.Context, node scafo.Node, h scafo.PeerHint) (scafo.PeerAnswer, error)
}

// Abandoned carries out what follows from a deploy that nobody carries out any
// more, after its record says so: its place in the application is freed, and the
// runtime's pointer put back where it still names that deploy's version.
type Abandoned func(ctx context.Context, d scafo.Deploy) error

// Config is what a loop works with.
type Config struct {
	Node   string
	BootID string
	// CelldVersion is what the runtime prints for --version; empty on a node
	// without a runner.
	CelldVersion string

	Store Store
	Lease Lease
	// Supervisor is nil on a node that runs no applications.
	Supervisor Supervisor
	// Peers is nil on a node that cannot sign: it then reaches nobody.
	Peers Peers
	// Abandoned is nil where nothing needs to follow.
	Abandoned Abandoned
	// Deleting and Ending are nil where nothing is deleted.
	Deleting Deleting
	Ending   Ending
	// Runtimes is nil where runtimes of other nodes cannot be reached.
	Runtimes Runtimes

	PlatformDomains []string
	APIPublic       bool

	// Used, when set, is what this node has lately asked of the bucket.
	Used func() scafo.BucketUse
	// Passed, when set, is told of every pass at its end. It must be quick.
	Passed func(Pass)

	Times Times
	Log   *slog.Logger
}

// Pass is what a pass was.
type Pass struct {
	Took   time.Duration
	Failed bool
	// Placed is how many placements this node wrote as the coordinator.
	Placed int
}

// Purpose names the bucket requests of a pass to the meter.
const Purpose = "reconcile"

// Times are the configured times of the loop. Zero takes the default, but for
// the two of a drain, which are what they say.
type Times struct {
	Interval       time.Duration // reconcile.intervalSeconds
	Heartbeat      time.Duration // heartbeat.seconds
	HeartbeatStale time.Duration // heartbeat.staleSeconds
	LeaseTTL       time.Duration // lease.ttlSeconds
	DrainReplace   time.Duration // drain.replaceSeconds
	DrainRoute     time.Duration // drain.routeSeconds
}

// The defaults of the configuration.
const (
	DefaultInterval       = 10 * time.Second
	DefaultHeartbeat      = 45 * time.Second
	DefaultHeartbeatStale = 100 * time.Second
	DefaultLeaseTTL       = 15 * time.Second
)

func (t Times) withDefaults() Times {
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	set(&t.Interval, DefaultInterval)
	set(&t.Heartbeat, DefaultHeartbeat)
	set(&t.HeartbeatStale, DefaultHeartbeatStale)
	set(&t.LeaseTTL, DefaultLeaseTTL)
	t.DrainReplace = max(t.DrainReplace, 0)
	t.DrainRoute = max(t.DrainRoute, 0)
	return t
}
