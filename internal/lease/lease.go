// Package lease elects the coordinator of a fleet: one node at a time, by a
// record in the bucket that its holder renews. The lease is advice; what keeps two
// coordinators apart is the fence that each of their writes carries, and
// compare-and-swap. Step decides, as a function of a state and an event; Runner
// does what Step says.
package lease

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/mistake"
	"github.com/scafo/scafo/internal/registry"
)

// Purpose names the lease's requests to the meter.
const Purpose = "lease"

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
	r       *registry.Registry
	clock   Clock
	log     *slog.Logger
	changed chan struct{} // told to the owner; holds one signal
	kick    chan struct{} // wakes Run; holds one signal

	mu    sync.Mutex
	s     State                     // guarded by mu
	doc   registry.Doc[scafo.Lease] // the record as State has it; guarded by mu
	moved chan struct{}             // closed and replaced when s is another one; guarded by mu
	was   State                     // s when moved was last replaced; guarded by mu
	told  holder                    // as it was last signalled; guarded by mu
	down  bool                      // the last request failed; guarded by mu
}

// holder is what Changed signals the changes of.
type holder struct {
	held  bool
	node  string
	fence int64
}

// New makes a runner; Run makes it run.
func New(r *registry.Registry, c Config) *Runner {
	if c.TTL <= 0 {
		c.TTL = DefaultTTL
	}
	if c.Clock == nil {
		c.Clock = bootClock{}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if mistake.Made(mistake.ExpiryByWallClock) {
		c.Clock = wallClock{r}
	}
	if c.Process == "" {
		c.Process = r.Nonce(processBytes)
	}
	return &Runner{
		r: r, clock: c.Clock, log: c.Log,
		changed: make(chan struct{}, 1), kick: make(chan struct{}, 1), moved: make(chan struct{}),
		s:   Start(c.Node, c.Process, c.TTL, c.Clock.Now()),
		doc: registry.Doc[scafo.Lease]{Key: registry.CoordinatorKey},
	}
}

const processBytes = 8

// wallClock is the mistake of a holder that counts by its time of day.
type wallClock struct{ r *registry.Registry }

func (c wallClock) Now() time.Duration { return time.Duration(c.r.Now().UnixNano()) }

// Run runs for the lease until the context ends. It does not give the lease back
// then: Release does.
func (r *Runner) Run(ctx context.Context) error {
	for {
		r.perform(ctx, r.step(Event{}))
		r.mu.Lock()
		now := r.clock.Now()
		wait := r.s.Wake(now) - now
		r.mu.Unlock()
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-r.kick:
			t.Stop()
		case <-t.C:
		}
	}
}

// Held is whether this process may act as coordinator, by its own clock, and
// under which fence.
func (r *Runner) Held() (fence int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.s.Held(r.clock.Now()) {
		return 0, false
	}
	return r.s.Lease.Fence, true
}

// Current reads the lease afresh; held is whether anybody holds it.
func (r *Runner) Current(ctx context.Context) (l scafo.Lease, held bool, err error) {
	if err := r.look(ctx); err != nil {
		return scafo.Lease{}, false, err
	}
	r.poke()
	l, held = r.Last()
	return l, held, nil
}

// Last is Current as of the last read.
func (r *Runner) Last() (scafo.Lease, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.s.Lease, r.s.Effective(r.clock.Now())
}

// Offer looks once, takes the lease if it is free, and reports whether this
// process holds it then. A lease that this process has not watched long enough
// is not free, whatever its record says; it is watched closely from then on.
func (r *Runner) Offer(ctx context.Context) (bool, error) {
	if _, ok := r.Held(); ok {
		return true, nil
	}
	if err := r.look(ctx); err != nil {
		return false, err
	}
	for {
		r.perform(ctx, r.step(Event{Want: true}))
		r.mu.Lock()
		writing, moved := r.s.Writing, r.moved
		r.mu.Unlock()
		if !writing {
			break
		}
		select { // another goroutine's write: what it did counts
		case <-moved:
		case <-ctx.Done():
			return false, scafo.Wrap(ctx.Err(), scafo.CodeStoreUnavailable, "the bucket did not answer in time: taking the lease")
		}
	}
	r.poke()
	_, ok := r.Held()
	return ok, nil
}

// Release gives the lease back for good: this process stops acting at once, the
// record says that nobody holds it, and this process does not run for it again.
// When the bucket is away it tries for a TTL: the lease has lapsed then.
func (r *Runner) Release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.ttl())
	defer cancel()
	defer r.poke()
	for {
		r.perform(ctx, r.step(Event{Resign: true}))
		r.mu.Lock()
		now := r.clock.Now()
		open, moved := r.s.mine() || r.s.Writing || r.s.Stale, r.moved
		wait := min(r.s.Wake(now)-now, r.s.TTL) + afterRun
		r.mu.Unlock()
		if !open {
			return nil
		}
		t := time.NewTimer(wait)
		select {
		case <-moved:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return scafo.Wrap(ctx.Err(), scafo.CodeStoreUnavailable, "the bucket did not answer in time: giving the lease back")
		}
		t.Stop()
	}
}

// afterRun is how much later than Run a Release acts that waits for the same moment:
// which of them does is not left to chance.
const afterRun = time.Millisecond

// Changed gets a value when this process took or lost the lease, or saw another
// holder. Signals are merged.
func (r *Runner) Changed() <-chan struct{} { return r.changed }

// HolderSuspect says that the holder missed an answer, or that it goes: it is
// looked at each second then, until it renews.
func (r *Runner) HolderSuspect() {
	r.observe(Event{Suspect: true})
	r.poke()
}

func (r *Runner) ttl() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.s.TTL
}

// poke makes Run look at the state again.
func (r *Runner) poke() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// step applies an event and returns what the caller has to perform.
func (r *Runner) step(e Event) Action {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	var a Action
	r.s, a = Step(r.s, e, now)
	r.after(now)
	return a
}

// observe applies an event and leaves what follows to Run.
func (r *Runner) observe(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	r.s = Observe(r.s, e, now)
	r.after(now)
}

// after tells who waits. The caller holds mu.
func (r *Runner) after(now time.Duration) {
	// Who waits for a change steps once it comes: two of them would wake each other for
	// ever by steps that change nothing.
	if r.s != r.was {
		close(r.moved)
		r.moved, r.was = make(chan struct{}), r.s
	}
	h := holder{held: r.s.Held(now), node: r.s.Lease.Node, fence: r.s.Lease.Fence}
	if h == r.told {
		return
	}
	if h.held != r.told.held || h.held && h.fence != r.told.fence {
		r.log.Info("the coordinator lease", "event", "lease.changed", "held", h.held, "fence", h.fence, "holder", h.node)
	}
	r.told = h
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// perform does what a step asked for, and what follows from it.
func (r *Runner) perform(ctx context.Context, a Action) {
	ctx = meter.With(ctx, Purpose)
	for {
		switch {
		case a.Write != nil:
			a = r.write(ctx, *a.Write)
		case a.Read:
			a = r.read(ctx)
		default:
			return
		}
	}
}

// A request of the lease takes no longer than half a TTL: a later answer helps
// nobody.
const requestPart = 2

func (r *Runner) read(ctx context.Context) Action {
	saw, doc, err := r.load(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	e := Event{ReadDone: true}
	if err != nil {
		e.ReadFailed = true
	} else {
		e.Saw = &saw
	}
	r.failed(ctx, err)
	now := r.clock.Now()
	var a Action
	r.s, a = Step(r.s, e, now)
	r.keep(doc)
	r.after(now)
	return a
}

// look reads the record beside what Run does.
func (r *Runner) look(ctx context.Context) error {
	saw, doc, err := r.load(meter.With(ctx, Purpose))
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	r.s = Observe(r.s, Event{Saw: &saw}, now)
	r.keep(doc)
	r.after(now)
	return nil
}

func (r *Runner) load(ctx context.Context) (Saw, registry.Doc[scafo.Lease], error) {
	r.mu.Lock()
	base, ttl := r.doc, r.s.TTL
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, ttl/requestPart)
	defer cancel()
	sent := r.clock.Now()
	doc, err := registry.Reload(ctx, r.r, base)
	return Saw{Sent: sent, Exists: doc.Exists, Lease: doc.Value, Wall: r.r.Now()}, doc, err
}

// keep remembers the document when the state is about it. The caller holds mu.
func (r *Runner) keep(doc registry.Doc[scafo.Lease]) {
	if doc.Key != "" && doc.Exists == r.s.Exists && doc.Value.Write == r.s.Lease.Write {
		r.doc = doc
	}
}

func (r *Runner) write(ctx context.Context, l scafo.Lease) Action {
	r.mu.Lock()
	doc, ttl := r.doc, r.s.TTL
	if doc.Value.Write != l.Write {
		// Another read has shown a newer record since the step that asked for this.
		defer r.mu.Unlock()
		var a Action
		r.s, a = Step(r.s, Event{Wrote: &Wrote{Outcome: Refused}}, r.clock.Now())
		return a
	}
	r.mu.Unlock()
	l.RenewedAt = r.r.Now()
	l.ExpiresAt = l.RenewedAt
	if l.Node != "" {
		l.ExpiresAt = l.RenewedAt.Add(ttl)
	}
	if l.AcquiredAt.IsZero() {
		l.AcquiredAt = l.RenewedAt
	}
	doc.Value = l
	wctx, cancel := context.WithTimeout(ctx, ttl/requestPart)
	defer cancel()
	sent := r.clock.Now()
	doc, err := registry.Swap(wctx, r.r, doc)
	if err == nil && l.Node == "" && mistake.Made(mistake.ReleaseDeletesRecord) {
		err = r.r.Bucket().Delete(wctx, registry.CoordinatorKey)
	}
	w := Wrote{Sent: sent, Outcome: Applied, Lease: doc.Value}
	switch {
	case errors.Is(err, bucket.ErrRefused):
		w.Outcome = Refused
	case err != nil:
		w.Outcome = Failed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.Outcome != Refused {
		r.failed(ctx, err)
	}
	now := r.clock.Now()
	var a Action
	r.s, a = Step(r.s, Event{Wrote: &w}, now)
	if err == nil {
		r.keep(doc)
	}
	r.after(now)
	return a
}

// failed reports the first of several failures, and their end. The caller holds
// mu.
func (r *Runner) failed(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil && !r.down:
		r.down = true
		r.log.Warn("the coordinator lease is out of reach", "event", "lease.unreachable", "err", err)
	case err == nil && r.down:
		r.down = false
		r.log.Info("the coordinator lease is in reach again", "event", "lease.reachable")
	}
}
