package history

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/embedded/embeddedtest"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

const (
	nodes    = 4 // that work on one bucket at once
	each     = 7 // calls of one node
	atOnce   = 6 // histories
	thinking = 60 * time.Second
)

// subject is a part of the registry with the rule that it keeps: what one node alone
// would be answered.
type subject struct {
	name    string
	prepare func(ctx context.Context, r *registry.Registry) error
	// next draws a call.
	next func(rng *rand.Rand) any
	// run makes it. An error is a call whose outcome nobody knows; a refusal is a value.
	run func(ctx context.Context, r *registry.Registry, op any) (any, error)
	// final are the calls that look at what is left when all is over.
	final []any
	// settle, where given, is what the coordinator does in the end with what calls that
	// failed half-way have left.
	settle func(ctx context.Context, r *registry.Registry) error
	// first is the state at the beginning; apply is the rule. Both kinds of values can
	// be compared.
	first any
	apply func(state, op any) (next, value any)
	// loose, where given, says whether an answer that the rule does not give is right
	// all the same, since b was under way at the same time.
	loose func(op, value, b any) bool
	// repeats, where given, says whether b, under way at the same time, may have had the
	// call begin again after it had taken effect.
	repeats func(op, b any) bool
}

// asked is a call in a history.
type asked struct {
	op any
	// again is set on what stands beside a call that lost answers of the store: such a
	// call may have taken effect more than once while it lasted.
	again bool
	loose bool
}

// answer is what it was answered.
type answer struct {
	value   any
	unknown bool // it may have happened, or not, or happen yet
	faults  bool // something went wrong on the way
}

// model is the subject's rule as porcupine wants it.
func (s subject) model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{s.first} },
		Step: func(state, in, out any) []any {
			a, o := in.(asked), out.(answer)
			next, want := s.apply(state, a.op)
			switch {
			case a.again || o.unknown:
				return []any{state, next}
			case o.value == want:
				return []any{next}
			case a.loose:
				return []any{state}
			}
			return nil
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
	}
	return m.ToModel()
}

// variant spoils what is between a node and its registry's store.
type variant func(b bucket.Bucket, seed uint64) bucket.Bucket

// record has several nodes work on a fresh bucket, and returns what they asked and were
// answered.
func record(ctx context.Context, e embedded.Endpoint, s subject, prefix string, seed uint64, spoil variant) ([]porcupine.Operation, error) {
	truth, err := open(ctx, e, prefix)
	if err != nil {
		return nil, err
	}
	defer truth.Close()
	over := registry.New(truth, registry.Options{Node: "observer"})
	if err := s.prepare(ctx, over); err != nil {
		return nil, err
	}
	t := &tape{begun: time.Now()}
	var working sync.WaitGroup
	networks := make([]*network, nodes)
	for i := range nodes {
		mine, err := open(ctx, e, prefix)
		if err != nil {
			return nil, err
		}
		defer mine.Close()
		networks[i] = newNetwork(mine, seed*nodes+uint64(i))
		var b bucket.Bucket = networks[i]
		if spoil != nil {
			b = spoil(b, seed)
		}
		r := registry.New(b, registry.Options{Node: fmt.Sprintf("n%d", i)})
		rng := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // reproducible on purpose
		working.Go(func() {
			for range each {
				t.call(ctx, s, r, networks[i], i, s.next(rng))
			}
		})
	}
	working.Wait()
	for _, n := range networks {
		n.late.Wait()
	}
	quiet := newNetwork(truth, seed)
	quiet.calm.Store(true)
	for _, op := range s.final {
		t.call(ctx, s, over, quiet, nodes+1, op)
	}
	h := s.allow(t.out)
	if spoil != nil {
		return h, nil
	}
	if s.settle != nil {
		if err := s.settle(ctx, over); err != nil {
			return h, err
		}
	}
	wrong, err := check.All(ctx, truth)
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("the bucket: %q", wrong)
	}
	return h, err
}

// tape is a history that is being recorded.
type tape struct {
	begun time.Time
	mu    sync.Mutex
	out   []porcupine.Operation // guarded by mu
}

func (t *tape) now() int64 { return int64(time.Since(t.begun)) }

// call makes one call and records it.
func (t *tape) call(ctx context.Context, s subject, r *registry.Registry, n *network, who int, op any) {
	lost, faults, call := n.lost.Load(), n.faults.Load(), t.now()
	value, err := s.run(ctx, r, op)
	ret := t.now()
	if err != nil {
		ret = math.MaxInt64
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o := porcupine.Operation{
		ClientId: who, Input: asked{op: op}, Call: call, Return: ret,
		Output: answer{value: value, unknown: err != nil, faults: n.faults.Load() > faults},
	}
	t.out = append(t.out, o)
	for range min(n.lost.Load()-lost, 2) {
		t.out = append(t.out, again(op, o))
	}
}

// allow marks what calls under way at the same time explain, and adds the second
// effects that they may have caused.
func (s subject) allow(h []porcupine.Operation) []porcupine.Operation {
	out := slices.Clone(h)
	for i, o := range h {
		a := o.Input.(asked)
		repeats := 0
		for j, other := range h {
			b := other.Input.(asked)
			end := other.Return
			if other.Output.(answer).faults {
				end = math.MaxInt64 // it may have left something behind
			}
			if i == j || a.again || b.again || other.Call > o.Return || end < o.Call {
				continue
			}
			a.loose = a.loose || s.loose != nil && s.loose(a.op, o.Output.(answer).value, b.op)
			if s.repeats != nil && s.repeats(a.op, b.op) {
				repeats++
			}
		}
		out[i].Input = a
		for range min(repeats, 2) {
			out = append(out, again(a.op, o))
		}
	}
	return out
}

// again is a second effect of a call.
func again(op any, o porcupine.Operation) porcupine.Operation {
	return porcupine.Operation{ClientId: nodes + 2, Input: asked{op: op, again: true}, Call: o.Call, Output: answer{}, Return: o.Return}
}

// refusal turns a refusal into a value; what failed stays an error.
func refusal(err error) (string, error) {
	switch code := scafo.CodeOf(err); {
	case err == nil:
		return "", nil
	case code == scafo.CodeStoreUnavailable, code == scafo.CodeInternal, code == "":
		return "", err
	default:
		return string(code), nil
	}
}

var subjects = []subject{applications, freezes, operators, claims}

// Whatever several nodes do to one bucket at once through networks that fail, there is
// an order in which one node would have been answered the same.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	chosen := slices.DeleteFunc(slices.Clone(subjects), func(s subject) bool { return *only != "" && s.name != *only })
	if len(chosen) == 0 {
		t.Fatalf("there is no subject %q", *only)
	}
	e := embeddedtest.Start(t, t.TempDir())
	begun := time.Now()
	var calls atomic.Int64
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i := range *histories {
		s, seed := chosen[i%len(chosen)], *firstSeed+uint64(i)
		group.Go(func() error {
			h, err := record(t.Context(), e, s, fmt.Sprintf("%s/%d", s.name, seed), seed, nil)
			if err != nil {
				t.Errorf("%s with seed %d: %v\n%s", s.name, seed, err, listing(h))
			}
			calls.Add(int64(len(h)))
			result, info := porcupine.CheckOperationsVerbose(s.model(), h, thinking)
			switch result {
			case porcupine.Ok:
			case porcupine.Illegal:
				path := filepath.Join(t.ArtifactDir(), fmt.Sprintf("%s-%d.html", s.name, seed))
				err := porcupine.VisualizePath(s.model(), info, path)
				t.Errorf("%s with seed %d: no order explains this history: %s %v\n%s", s.name, seed, path, err, listing(h))
			case porcupine.Unknown:
				t.Errorf("%s with seed %d could not be decided within %s", s.name, seed, thinking)
			}
			return nil
		})
	}
	_ = group.Wait()
	t.Logf("%d histories, %d calls, %s", *histories, calls.Load(), time.Since(begun).Round(time.Millisecond))
}

// listing is a history in words, in the order of its calls.
func listing(h []porcupine.Operation) string {
	out := ""
	for _, o := range h {
		ret := time.Duration(o.Return).Round(time.Microsecond).String()
		if o.Return == math.MaxInt64 {
			ret = "never"
		}
		out += fmt.Sprintf("%10s %10s  n%d  %+v -> %+v\n", time.Duration(o.Call).Round(time.Microsecond), ret, o.ClientId, o.Input, o.Output)
	}
	return out
}
