// Package lease elects the coordinator of a fleet: one node at a time, by a
// record in the bucket that its holder renews. The lease is advice; what keeps two
// coordinators apart is the fence that each of their writes carries, and
// compare-and-swap. Step decides, as a function of a state and an event; Runner
// does what Step says.
package lease

import (
	"context"
	"log/slog"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// Clock is the time by which a lease is held. It must run through a suspend of
// the machine.
type Clock interface {
	Now() time.Duration // since some fixed moment
}

// Config says who runs for the lease.
type Config struct {
	Node    string
	Process string        // nonce of this process; empty takes a random one
	TTL     time.Duration // 0 takes DefaultTTL
	Clock   Clock         // nil takes CLOCK_BOOTTIME
	Log     *slog.Logger
}

// DefaultTTL is lease.ttlSeconds.
const DefaultTTL = 15 * time.Second

// Runner runs for the lease, holds it and watches it.
type Runner struct {
	r *registry.Registry
	c Config
}

// New makes a runner; Run makes it run.
func New(r *registry.Registry, c Config) *Runner { return &Runner{r: r, c: c} }

// Run runs for the lease until the context ends.
func (r *Runner) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// Held is whether this process holds the lease, by its own clock, and under which
// fence.
func (r *Runner) Held() (fence int64, ok bool) { return 0, false }

// Current reads the lease afresh; held is whether anybody holds it.
func (r *Runner) Current(ctx context.Context) (l scafo.Lease, held bool, err error) {
	return scafo.Lease{}, false, nil
}

// Last is Current as of the last read.
func (r *Runner) Last() (scafo.Lease, bool) { return scafo.Lease{}, false }

// Offer takes the lease if nobody holds it, and reports whether this process
// holds it then.
func (r *Runner) Offer(ctx context.Context) (bool, error) { return false, nil }

// Release gives the lease back for good: this process does not run for it again.
func (r *Runner) Release(ctx context.Context) error { return nil }

// Changed gets a value when this process took or lost the lease, or saw another
// holder. Signals are merged.
func (r *Runner) Changed() <-chan struct{} { return nil }

// HolderSuspect says that the holder missed an answer, or that it goes: it is
// looked at each second then.
func (r *Runner) HolderSuspect() {}
