// Package fault wraps a bucket and injects what goes wrong between a client and
// its store: writes that fail without having been applied, writes that are
// applied although their answer is lost, throttling, latency, outages, and the
// end of the process before or after a call. It also counts and records calls.
// It is for tests alone.
package fault

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo/internal/bucket"
)

// Op is a kind of call; the empty Op means every kind. GetIfChanged is Get.
type Op string

// The kinds of calls.
const (
	Get     Op = "get"
	Create  Op = "create"
	Replace Op = "replace"
	Put     Op = "put"
	Delete  Op = "delete"
	List    Op = "list"
)

// Ops lists every kind.
func Ops() []Op { return []Op{Get, Create, Replace, Put, Delete, List} }

// Writes lists the kinds that change something.
func Writes() []Op { return []Op{Create, Replace, Put, Delete} }

// IsWrite says whether the call changes something.
func (o Op) IsWrite() bool { return slices.Contains(Writes(), o) }

// Call is one call of the wrapped bucket.
type Call struct {
	Op  Op
	Key string // of a listing: its prefix
	Seq int    // 1 for the first call of the store, whatever its kind
}

// Kind is what goes wrong.
type Kind int

// The faults. For reads the two Lost kinds are as Unavailable.
const (
	// None: nothing goes wrong (a rule may still add latency or hooks).
	None Kind = iota
	// Unavailable: the store did not do it and the caller knows (ErrUnavailable).
	Unavailable
	// Throttled is Unavailable with ErrThrottled as its cause.
	Throttled
	// Denied: the store refuses the credentials; not applied.
	Denied
	// LostNotApplied: the request was lost; not applied, ErrUnknown.
	LostNotApplied
	// LostApplied: the answer was lost; applied, ErrUnknown.
	LostApplied
	// Refused: the condition is refused although it holds, as stores may do when
	// two writes overlap (409); not applied.
	Refused
	// CrashBefore: the process ends before the call; not applied. This call and
	// every later one return ErrCrashed.
	CrashBefore
	// CrashAfter: the call is applied and the process ends before it learns so.
	CrashAfter
)

// The causes within injected errors.
var (
	ErrInjected  = errors.New("injected fault")
	ErrThrottled = errors.New("injected fault: throttled")
	// ErrCrashed is the cause of every error after a crash point; the errors are
	// of the kind ErrUnavailable for reads and ErrUnknown for writes.
	ErrCrashed = errors.New("injected fault: the process has ended")
)

// Rule says which calls a fault strikes.
type Rule struct {
	Op Op // empty: every kind
	// Key is an exact key, or a prefix when it ends with "*"; empty: every key.
	Key string
	// Match, if set, must hold too.
	Match func(Call) bool
	// Skip lets that many matching calls pass first; Times ends the rule after it
	// struck that often (0: it never ends).
	Skip, Times int

	Kind    Kind
	Latency time.Duration // before the call reaches the store
	// Before runs before the call reaches the store, After once the store did it
	// and before the caller hears of it: places for a test to hold a call or to let
	// somebody else act. After does not run when the store was not reached.
	Before, After func(context.Context, Call)
}

// Armed is a rule in force.
type Armed struct {
	store *Store
	rule  Rule
	seen  int // guarded by store.mu
	hits  int // guarded by store.mu
}

// Hits is how often the rule struck.
func (a *Armed) Hits() int {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	return a.hits
}

// Remove ends the rule.
func (a *Armed) Remove() {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	a.store.rules = slices.DeleteFunc(a.store.rules, func(r *Armed) bool { return r == a })
}

var _ bucket.Bucket = (*Store)(nil)

// Store wraps a bucket. To model a restart after a crash, wrap the same bucket
// in a new Store.
type Store struct {
	next bucket.Bucket

	mu      sync.Mutex
	rules   []*Armed   // guarded by mu
	calls   []Call     // guarded by mu
	counts  map[Op]int // guarded by mu
	seq     int        // guarded by mu
	down    bool       // guarded by mu
	crashed bool       // guarded by mu
	onCrash func()     // guarded by mu
}

// New wraps a bucket; without rules it changes nothing.
func New(next bucket.Bucket) *Store { return &Store{next: next, counts: map[Op]int{}} }

// Inject puts a rule in force. The first rule that matches a call decides it;
// rules that have struck Times times are skipped.
func (s *Store) Inject(r Rule) *Armed {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &Armed{store: s, rule: r}
	s.rules = append(s.rules, a)
	return a
}

// Next injects one fault into the next call of that kind on that key (both as in
// Rule).
func (s *Store) Next(op Op, key string, kind Kind) *Armed {
	return s.Inject(Rule{Op: op, Key: key, Times: 1, Kind: kind})
}

// Random injects, into each call that matches the rule's Op and Key, one of the
// kinds with the given probability. The same seed gives the same sequence of
// decisions.
func (s *Store) Random(seed uint64, probability float64, r Rule, kinds ...Kind) (stop func()) {
	rng := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // reproducible on purpose
	armed := make([]*Armed, len(kinds))
	// One draw for each call, whichever rule looks first.
	var drawnFor, drawn int
	base := r.Match
	for i, k := range kinds {
		r.Kind = k
		r.Match = func(c Call) bool { // runs under s.mu
			if drawnFor != c.Seq {
				drawnFor, drawn = c.Seq, -1
				if rng.Float64() < probability {
					drawn = rng.IntN(len(kinds))
				}
			}
			return drawn == i && (base == nil || base(c))
		}
		armed[i] = s.Inject(r)
	}
	return func() {
		for _, a := range armed {
			a.Remove()
		}
	}
}

// SetDown makes every call fail as when nothing listens at the store's address,
// until it is called with false.
func (s *Store) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// OnCrash runs f when a crash point is reached, on the goroutine of that call.
func (s *Store) OnCrash(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onCrash = f
}

// Crashed says whether a crash point was reached.
func (s *Store) Crashed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.crashed
}

// Counts is how many calls of each kind there were, those that failed included.
func (s *Store) Counts() map[Op]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
}

// Calls lists the calls since the start or the last Reset.
func (s *Store) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Reset forgets the counts and the list of calls; rules stay.
func (s *Store) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.counts = nil, map[Op]int{}
}

// decide records the call and finds the rule that strikes it.
func (s *Store) decide(op Op, key string) (Call, Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[op]++
	s.seq++
	c := Call{Op: op, Key: key, Seq: s.seq}
	s.calls = append(s.calls, c)
	if s.crashed {
		return c, Rule{Kind: CrashBefore}
	}
	if s.down {
		return c, Rule{Kind: Unavailable}
	}
	for _, a := range s.rules {
		if !a.rule.matches(c) || (a.rule.Times > 0 && a.hits >= a.rule.Times) {
			continue
		}
		a.seen++
		if a.seen <= a.rule.Skip {
			continue
		}
		a.hits++
		return c, a.rule
	}
	return c, Rule{}
}

func (r Rule) matches(c Call) bool {
	if r.Op != "" && r.Op != c.Op {
		return false
	}
	if prefix, ok := strings.CutSuffix(r.Key, "*"); ok {
		if !strings.HasPrefix(c.Key, prefix) {
			return false
		}
	} else if r.Key != "" && r.Key != c.Key {
		return false
	}
	return r.Match == nil || r.Match(c)
}

// crash marks the process as ended and runs the hook once.
func (s *Store) crash() {
	s.mu.Lock()
	hook := s.onCrash
	if s.crashed {
		hook = nil
	}
	s.crashed = true
	s.mu.Unlock()
	if hook != nil {
		hook()
	}
}

// do runs one call under the rules. call must be safe to run at most once.
func do[T any](ctx context.Context, s *Store, op Op, key string, call func() (T, error)) (T, error) {
	c, r := s.decide(op, key)
	var zero T
	fail := func(kind, cause error) (T, error) {
		return zero, &bucket.Error{Op: string(op), Key: key, Kind: kind, Err: cause}
	}
	lost := bucket.ErrUnavailable
	if op.IsWrite() {
		lost = bucket.ErrUnknown
	}
	if r.Latency > 0 {
		t := time.NewTimer(r.Latency)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return fail(bucket.ErrUnavailable, ctx.Err())
		}
	}
	if r.Before != nil {
		r.Before(ctx, c)
	}
	switch r.Kind {
	case Unavailable:
		return fail(bucket.ErrUnavailable, ErrInjected)
	case Throttled:
		return fail(bucket.ErrUnavailable, ErrThrottled)
	case Denied:
		return fail(bucket.ErrDenied, ErrInjected)
	case LostNotApplied:
		return fail(lost, ErrInjected)
	case Refused:
		return fail(bucket.ErrRefused, ErrInjected)
	case CrashBefore:
		s.crash()
		return fail(lost, ErrCrashed)
	case None, LostApplied, CrashAfter:
	}
	v, err := call()
	if r.After != nil {
		r.After(ctx, c)
	}
	switch r.Kind {
	case LostApplied:
		return fail(lost, ErrInjected)
	case CrashAfter:
		s.crash()
		return fail(lost, ErrCrashed)
	default:
		return v, err
	}
}

// Get implements bucket.Bucket.
func (s *Store) Get(ctx context.Context, key string) (*bucket.Object, error) {
	return do(ctx, s, Get, key, func() (*bucket.Object, error) { return s.next.Get(ctx, key) })
}

// GetIfChanged implements bucket.Bucket.
func (s *Store) GetIfChanged(ctx context.Context, key, etag string) (*bucket.Object, error) {
	return do(ctx, s, Get, key, func() (*bucket.Object, error) { return s.next.GetIfChanged(ctx, key, etag) })
}

// Create implements bucket.Bucket.
func (s *Store) Create(ctx context.Context, key string, body []byte) (string, error) {
	return do(ctx, s, Create, key, func() (string, error) { return s.next.Create(ctx, key, body) })
}

// Replace implements bucket.Bucket.
func (s *Store) Replace(ctx context.Context, key, etag string, body []byte) (string, error) {
	return do(ctx, s, Replace, key, func() (string, error) { return s.next.Replace(ctx, key, etag, body) })
}

// Put implements bucket.Bucket.
func (s *Store) Put(ctx context.Context, key string, body []byte) (string, error) {
	return do(ctx, s, Put, key, func() (string, error) { return s.next.Put(ctx, key, body) })
}

// Delete implements bucket.Bucket.
func (s *Store) Delete(ctx context.Context, key string) error {
	_, err := do(ctx, s, Delete, key, func() (struct{}, error) { return struct{}{}, s.next.Delete(ctx, key) })
	return err
}

// List implements bucket.Bucket.
func (s *Store) List(ctx context.Context, prefix string, o bucket.ListOptions) (bucket.Page, error) {
	return do(ctx, s, List, prefix, func() (bucket.Page, error) { return s.next.List(ctx, prefix, o) })
}
