package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/embedded/embeddedtest"
	"github.com/scafo/scafo/internal/lease"
	"github.com/scafo/scafo/internal/registry"
)

const (
	leaseTTL   = time.Second
	leaseNodes = 3
	leaseTerms = 4                    // of holders, at least
	leaseLook  = 5 * time.Millisecond // how often a node acts, where it may
	leaseTests = 16                   // at once: they mostly wait
	// leaseLate is how late a lost write of a lease may arrive: also after others may
	// have taken it.
	leaseLate = leaseTTL * 3 / 2
	// leasePatience is how long the next holder may take. It is no part of what is
	// shown here: a machine that computes nothing else for a minute is one that is stuck.
	leasePatience = time.Minute
)

// act is something that a node did as coordinator: who it was, in which life, under
// which fence.
type act struct {
	who, life int
	fence     int64
}

// Fences never fall, and each belongs to one life of one node.
var leaseModel = porcupine.Model{
	Init: func() any { return act{} },
	Step: func(state, in, _ any) (bool, any) {
		last, now := state.(act), in.(act)
		return now.fence > last.fence || now == last, now
	},
	DescribeOperation: func(in, _ any) string { return fmt.Sprintf("%+v", in) },
}

// terms is a history of leases that is being recorded.
type terms struct {
	begun    time.Time
	patience time.Duration // for the next holder
	nodes    []*runner

	mu   sync.Mutex
	acts []porcupine.Operation // guarded by mu
	last act                   // of the greatest fence; guarded by mu
	news chan struct{}         // closed and replaced when last has changed; guarded by mu
}

// runner is a node that runs for the lease, in one life after another.
type runner struct {
	who   int
	store bucket.Bucket
	spoil func(bucket.Bucket) bucket.Bucket
	seed  uint64

	life   sync.Mutex // held while a life is replaced, and while it acts
	now    act        // with the number of this life
	lease  *lease.Runner
	net    *network
	kill   context.CancelFunc
	ending sync.WaitGroup // lives that are over, and their last requests
}

// begin starts a life; the caller holds life, or is alone.
func (n *runner) begin(ctx context.Context) {
	ctx, n.kill = context.WithCancel(ctx)
	n.net = newNetwork(n.store, n.seed*1000+uint64(n.who*100+n.now.life))
	n.net.lateness = leaseLate
	id := fmt.Sprintf("n%d", n.who)
	r := lease.New(registry.New(n.spoil(n.net), registry.Options{Node: id}), lease.Config{Node: id, TTL: leaseTTL})
	n.lease = r
	net := n.net
	n.ending.Go(func() {
		_ = r.Run(ctx) // until it is killed
		net.late.Wait()
	})
	r.HolderSuspect()
}

// dieAndBegin ends a life, without a word, and starts the next one.
func (n *runner) dieAndBegin(ctx context.Context) {
	n.life.Lock()
	defer n.life.Unlock()
	n.kill()
	n.now.life++
	n.begin(ctx)
}

// act notes what a node does as coordinator for as long as the context lasts.
func (t *terms) act(ctx context.Context, n *runner) {
	for ctx.Err() == nil {
		n.life.Lock()
		a, call := n.now, int64(time.Since(t.begun))
		fence, ok := n.lease.Held()
		ret := int64(time.Since(t.begun))
		n.life.Unlock()
		if ok {
			a.fence = fence
			t.note(porcupine.Operation{ClientId: n.who, Input: a, Call: call, Return: ret})
		}
		time.Sleep(leaseLook)
	}
}

func (t *terms) note(o porcupine.Operation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.acts = append(t.acts, o)
	if a := o.Input.(act); a.fence > t.last.fence {
		t.last = a
		close(t.news)
		t.news = make(chan struct{})
	}
}

// next waits for somebody to act under a greater fence than that of before.
func (t *terms) next(ctx context.Context, before act) (act, error) {
	ctx, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	for {
		t.mu.Lock()
		last, news := t.last, t.news
		t.mu.Unlock()
		if last.fence > before.fence {
			return last, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return last, fmt.Errorf("nobody acts after %+v: %w", before, ctx.Err())
		}
	}
}

// disturb does something to the holder, and returns when another term has begun.
func (t *terms) disturb(ctx context.Context, rng *rand.Rand, holder act) (act, error) {
	n := t.nodes[holder.who]
	switch rng.IntN(3) {
	case 0:
		n.dieAndBegin(ctx)
	case 1: // this fails where the network does, and the lease lapses
		n.life.Lock()
		r := n.lease
		n.life.Unlock()
		_ = r.Release(ctx)
		n.dieAndBegin(ctx)
	default:
		n.net.cut.Store(true)
		defer n.net.cut.Store(false)
	}
	for _, other := range t.nodes {
		if other != n {
			other.lease.HolderSuspect() // its answers stay away
		}
	}
	return t.next(ctx, holder)
}

// recordLease has nodes run for the lease of a fresh bucket over networks that fail, and
// whoever holds it is killed, gives it back, or is cut off. It returns what they did as
// coordinators.
func recordLease(ctx context.Context, e embedded.Endpoint, prefix string, seed uint64, patience time.Duration, spoil variant) ([]porcupine.Operation, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	t := &terms{begun: time.Now(), patience: patience, news: make(chan struct{})}
	var acting sync.WaitGroup
	for who := range leaseNodes {
		mine, err := open(ctx, e, prefix)
		if err != nil {
			return nil, err
		}
		defer mine.Close()
		n := &runner{who: who, store: mine, seed: seed, now: act{who: who}, spoil: func(b bucket.Bucket) bucket.Bucket {
			if spoil != nil {
				b = spoil(b, seed)
			}
			return b
		}}
		n.begin(ctx)
		t.nodes = append(t.nodes, n)
		acting.Go(func() { t.act(ctx, n) })
	}
	rng := rand.New(rand.NewPCG(seed, leaseNodes)) //nolint:gosec // reproducible on purpose
	holder, err := t.next(ctx, act{})
	for term := 1; err == nil && term < leaseTerms; term++ {
		time.Sleep(time.Duration(rng.Int64N(int64(leaseTTL / 2)))) // it acts, and renews
		holder, err = t.disturb(ctx, rng, holder)
	}
	stop()
	acting.Wait()
	for _, n := range t.nodes {
		n.ending.Wait()
	}
	return t.acts, err
}

// Whatever happens between nodes and the store, no two act under one fence, and none
// under a fence that another one has passed.
func TestFencesOfActs(t *testing.T) {
	t.Parallel()
	e := embeddedtest.Start(t, t.TempDir())
	begun := time.Now()
	var mu sync.Mutex
	acts, fences := 0, map[string]bool{}
	var group errgroup.Group
	group.SetLimit(leaseTests)
	count := max(*histories/4, 1)
	for i := range count {
		seed := *firstSeed + uint64(i)
		group.Go(func() error {
			h, err := recordLease(t.Context(), e, fmt.Sprintf("lease/%d", seed), seed, leasePatience, nil)
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			if result := porcupine.CheckOperationsTimeout(leaseModel, h, thinking); result != porcupine.Ok {
				t.Errorf("seed %d: %s\n%s", seed, result, listing(h))
			}
			mu.Lock()
			defer mu.Unlock()
			acts += len(h)
			for _, o := range h {
				fences[fmt.Sprint(seed, o.Input.(act).fence)] = true
			}
			return nil
		})
	}
	_ = group.Wait()
	// A test of leases that nobody takes over shows nothing.
	if len(fences) < leaseTerms*count {
		t.Errorf("%d fences in %d histories", len(fences), count)
	}
	t.Logf("%d histories, %d acts under %d fences, %s", count, acts, len(fences), time.Since(begun).Round(time.Millisecond))
}
