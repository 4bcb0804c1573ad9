package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/route"
	"github.com/scafo/scafo/internal/supervise"
)

const (
	// retryAfter is how soon what failed is tried again: reading always, decisions
	// with doubling pauses up to retryMost.
	retryAfter   = 2 * time.Second
	retryMost    = 30 * time.Second
	maxDoublings = 4
	// passShare is the part of the time, one in so many, that passes may take in the
	// long run; passSaved is how much of that may be saved up for a burst of them, and
	// passRestMost bounds one rest.
	passShare    = 4
	passSaved    = 100 * time.Millisecond
	passRestMost = 250 * time.Millisecond
)

// Loop is the reconcile loop of one node. Its methods may be called from any
// goroutine, before, during and after Run.
type Loop struct {
	c     Config
	log   *slog.Logger
	pub   route.Publisher
	tasks tasks
	wake  chan struct{} // a pass is asked for
	beat  chan struct{} // the heartbeat may have changed
	reap  chan struct{} // the reaper should look
	out   chan struct{} // closed when this node was removed from the fleet

	// Only the goroutine of Run touches these.
	set      []supervise.Want       // what the supervisor was last told
	told     bool                   // it was told at all
	leaving  map[string]time.Time   // by uid: since when a process lingers; zero once it has for long enough
	redo     bool                   // the last pass left something undone
	retryAt  time.Time              // when to try that again
	failed   int                    // how often that failed in a row
	nextRead time.Time              // when the revision is read next
	readOnce bool                   // the bucket has been read
	relistAt time.Time              // when a new coordinator lists everything again
	fence    int64                  // under which it last coordinated
	problems map[route.Problem]bool // those that were reported
	decided  map[string]decision    // by application: those not yet read back
	seen     map[string]string      // by node: the heartbeat that liveness was told of
	gone     map[string]time.Time   // by node: since when it counts as gone
	orphaned map[orphan]bool        // those that were asked to end
	searched map[string]bool        // by uid: it was looked whether an earlier daemon left a process
	drain    drainState
	passes   int64
	placed   int       // placements that the pass under way has written
	last     *view     // of the last pass
	lookedAt time.Time // when the last pass looked

	mu       sync.Mutex // guards what follows
	live     *plan.Liveness
	refresh  bool          // the next pass reads the bucket
	view     *view         // of the last pass; nil before the first good one
	passed   chan struct{} // closed at the end of a pass
	begun    int64         // passes that began
	read     int64         // the latest pass that read the bucket and ended
	status   *scafo.ReconcileStatus
	going    bool                 // Drain was called
	said     beatContent          // what the next heartbeat says
	outboxes map[string]*outbox   // by node
	asked    map[string]time.Time // by node: when it last asked this one
	known    map[string]time.Time // by node: since when it is known
	ending   map[string]bool      // by uid: its last things are being removed
	setAgain bool                 // the supervisor is to be told anew what shall run
}

// New makes a loop; Run runs it.
func New(c Config) (*Loop, error) {
	if c.Node == "" || c.Store == nil || c.Lease == nil {
		return nil, errors.New("reconcile: a loop needs a node, a store and a lease")
	}
	c.Times = c.Times.withDefaults()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	now := time.Now()
	l := &Loop{
		c: c, log: c.Log,
		wake: make(chan struct{}, 1), beat: make(chan struct{}, 1), reap: make(chan struct{}, 1), out: make(chan struct{}),
		leaving: map[string]time.Time{}, problems: map[route.Problem]bool{},
		decided: map[string]decision{}, seen: map[string]string{}, gone: map[string]time.Time{},
		live:    plan.NewLiveness(c.Node, now, plan.DefaultLivenessTimes(c.Times.Heartbeat, c.Times.HeartbeatStale)),
		refresh: true, passed: make(chan struct{}),
		outboxes: map[string]*outbox{}, asked: map[string]time.Time{}, known: map[string]time.Time{},
		ending: map[string]bool{}, searched: map[string]bool{},
	}
	c.Store.OnChange(l.Changed)
	return l, nil
}

// Run passes until ctx ends. It leaves the processes running.
func (l *Loop) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(meter.With(ctx, Purpose))
	defer l.tasks.close()
	defer cancel()
	if !l.tasks.open(ctx) {
		return errors.New("reconcile: Run was called twice")
	}
	l.tasks.start(l.heartbeats)
	l.tasks.start(l.probe)
	l.tasks.start(l.reaper)
	timer := time.NewTimer(0)
	defer timer.Stop()
	pace := pace{saved: passSaved, counted: time.Now()}
	var processes <-chan struct{}
	if l.c.Supervisor != nil {
		processes = l.c.Supervisor.Changes()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-processes:
		case <-l.c.Lease.Changed():
		case <-timer.C:
			if at := l.next(); time.Now().Before(at) {
				timer.Reset(time.Until(at))
				continue
			}
		}
		l.covers(processes)
		began := time.Now()
		l.pass(ctx)
		// A pass of a large fleet takes a while, and whatever comes in bursts (a hundred
		// processes that start) must not make a burst of passes: they take a part of the
		// time, and what happens meanwhile is one. The few of a deploy wait for nothing.
		if rest := pace.spend(time.Now(), time.Since(began)); rest > 0 && !sleep(ctx, rest) {
			return nil
		}
		timer.Reset(time.Until(l.next()))
	}
}

// covers takes the signals that have come until now, since the pass that is about to
// begin sees whatever they tell of: several at once are one pass, whichever the loop
// happened to hear first.
func (l *Loop) covers(processes <-chan struct{}) {
	for _, c := range []<-chan struct{}{l.wake, processes, l.c.Lease.Changed()} {
		select {
		case <-c:
		default:
		}
	}
}

// pace keeps passes to their share of the time.
type pace struct {
	saved   time.Duration // what passes may take before the loop rests; below zero after a long one
	counted time.Time     // until when the share was counted
}

// spend counts a pass that has just ended and says how long to rest after it.
func (p *pace) spend(now time.Time, took time.Duration) time.Duration {
	p.saved = min(p.saved+now.Sub(p.counted)/passShare, passSaved) - took
	p.saved = max(p.saved, -passRestMost/passShare) // a slow store is no reason for a slow fleet
	p.counted = now
	return max(0, -p.saved*passShare)
}

// Kick begins a pass that reads the bucket.
func (l *Loop) Kick() {
	l.mu.Lock()
	l.refresh = true
	l.mu.Unlock()
	signal(l.wake)
}

// Changed says that this node wrote those documents: they are read again at
// once, here and on the other nodes. The store says it by itself of what goes
// through this process's registry.
func (l *Loop) Changed(keys ...string) {
	keys = hintable(keys)
	if len(keys) == 0 {
		return
	}
	l.c.Store.Hint(keys...)
	l.Kick()
	l.tell(keys...)
}

// next is when a pass has something to do by time alone.
func (l *Loop) next() time.Time {
	at := l.nextRead
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	if l.redo {
		sooner(l.retryAt)
	}
	sooner(l.relistAt)
	sooner(l.drain.wake(l.c.Times))
	for _, since := range l.leaving {
		if !since.IsZero() {
			sooner(since.Add(l.c.Times.DrainRoute))
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if due, ok := l.live.Next(); ok {
		sooner(due)
	}
	if at, ok := l.live.Steadies(l.lookedAt); ok {
		sooner(at) // it may be given its share then
	}
	if l.refresh {
		sooner(time.Now())
	}
	return at
}

// pass reads what changed, decides, and makes it so.
func (l *Loop) pass(ctx context.Context) {
	began := time.Now()
	tally := &meter.Tally{}
	ctx = meter.WithTally(ctx, tally)
	l.placed = 0
	l.mu.Lock()
	l.begun++
	seq := l.begun
	setAgain := l.setAgain
	l.setAgain = false
	l.mu.Unlock()
	l.told = l.told && !setAgain

	read, err := l.readChanges(ctx)
	v := l.look()
	again := l.redo && !began.Before(l.retryAt)
	if v != nil && (again || setAgain || !v.sameInputs(l.last) || l.lingering()) {
		l.redo = false
		err = errors.Join(err, l.act(ctx, v))
	} else if v != nil {
		v.keepOutcome(l.last)
	}
	l.last = v
	l.passes++
	s := &scafo.ReconcileStatus{
		StartedAt: began.UTC(), FinishedAt: time.Now().UTC(), OK: err == nil, Passes: l.passes,
		DurationMS: time.Since(began).Milliseconds(), Requests: tally.Total(),
	}
	if err != nil {
		s.Error = safe(err)
		if ctx.Err() == nil {
			l.log.Warn("a reconcile pass failed", "event", "reconcile.failed", "err", err)
		}
	}
	l.mu.Lock()
	l.status = s
	if read {
		l.read = seq
	}
	if v != nil {
		l.view = v
	}
	close(l.passed)
	l.passed = make(chan struct{})
	l.mu.Unlock()
	if l.c.Passed != nil {
		l.c.Passed(Pass{Took: s.FinishedAt.Sub(s.StartedAt), Failed: err != nil, Placed: l.placed})
	}
}

// safe is what of an error a caller may see.
func safe(err error) string {
	var e *scafo.Error
	if errors.As(err, &e) && e.Detail != "" {
		return e.Detail
	}
	return "the pass could not be completed; the log says why"
}

// readChanges brings the snapshot up to date when the time has come or somebody
// said that it is old, with the heartbeats of those that have been silent. It
// reports whether it did.
func (l *Loop) readChanges(ctx context.Context) (read bool, err error) {
	now := time.Now()
	l.takeOver(now)
	if !l.relistAt.IsZero() && !now.Before(l.relistAt) {
		l.relistAt = time.Time{}
		l.c.Store.Relist()
		l.nextRead = now
	}
	l.mu.Lock()
	due := l.live.Due(now)
	want := l.refresh || len(due) > 0 || !now.Before(l.nextRead)
	l.refresh = false
	l.mu.Unlock()
	if !want {
		return false, nil
	}
	for _, id := range due {
		l.c.Store.Hint(registry.HeartbeatKey(id))
	}
	_, err = l.c.Store.Refresh(ctx)
	now = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.nextRead = now.Add(min(retryAfter, l.c.Times.Interval))
		for _, id := range due {
			l.live.Unread(now, id)
		}
		due = nil
	} else {
		l.nextRead, l.readOnce = now.Add(l.c.Times.Interval), true
	}
	if l.readOnce {
		// What could be read counts, also when something could not.
		l.hear(now, l.c.Store.Snapshot(), due)
	}
	return err == nil, err
}

// takeOver makes a new coordinator list everything now, and again when every
// write of its predecessor has landed.
func (l *Loop) takeOver(now time.Time) {
	fence, held := l.c.Lease.Held()
	if !held || fence == l.fence {
		return
	}
	l.fence = fence
	l.log.Info("this node coordinates", "event", "lease.taken", "fence", fence)
	l.c.Store.Relist()
	l.relistAt = now.Add(2 * l.c.Times.LeaseTTL)
	l.nextRead = now
	signal(l.reap)
}

// hear tells liveness what the snapshot says. The caller holds mu.
func (l *Loop) hear(now time.Time, snap *registry.Snapshot, due []string) {
	ids := make([]string, 0, len(snap.Nodes))
	for id, n := range snap.Nodes {
		if n.Removed == nil && id != l.c.Node {
			ids = append(ids, id)
			if _, ok := l.known[id]; !ok {
				l.known[id] = now
			}
		}
	}
	for id := range l.known {
		if !slices.Contains(ids, id) {
			delete(l.known, id)
			delete(l.asked, id)
		}
	}
	l.live.Known(now, ids)
	for _, id := range ids {
		stamp := snap.Heartbeats[id].Write
		was, ok := l.seen[id]
		if stamp != was || !ok || slices.Contains(due, id) {
			l.live.Looked(now, id, stamp)
			l.seen[id] = stamp
		}
	}
}

// act decides on the view and makes it so.
func (l *Loop) act(ctx context.Context, v *view) error {
	err := l.coordinate(ctx, v)
	if err != nil {
		l.redo, l.retryAt = true, time.Now().Add(min(retryAfter<<min(l.failed, maxDoublings), retryMost))
		l.failed++
	} else {
		l.failed = 0
	}
	l.apply(v)
	l.endLives(v)
	return errors.Join(err, l.publish(v))
}

// sameInputs is whether nothing that decisions follow from differs.
func (v *view) sameInputs(was *view) bool {
	return was != nil && v.snap == was.snap && v.fence == was.fence && v.held == was.held && v.phase == was.phase &&
		slices.EqualFunc(v.machines, was.machines, func(a, b plan.Machine) bool {
			return a.ID == b.ID && a.Live == b.Live && a.Steady == b.Steady && a.Unsure == b.Unsure && a.Draining == b.Draining
		}) && reflect.DeepEqual(v.own, was.own)
}

// keepOutcome takes over what followed from the same inputs.
func (v *view) keepOutcome(was *view) {
	v.unplaced, v.wants, v.placements, v.fleet = was.unplaced, was.wants, was.placements, was.fleet
}
