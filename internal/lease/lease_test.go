package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

// fakeClock follows the time of the test's bubble, and what it slept beside it.
type fakeClock struct {
	start time.Time
	slept atomic.Int64
}

func newClock() *fakeClock { return &fakeClock{start: time.Now()} }

func (c *fakeClock) Now() time.Duration { return time.Since(c.start) + time.Duration(c.slept.Load()) }

// machine is one process that runs for the lease.
type machine struct {
	*Runner
	clock *fakeClock
	store *fault.Store
	stop  context.CancelFunc
	done  chan struct{}
}

func newMachine(b bucket.Bucket, node string) *machine {
	m := &machine{clock: newClock(), store: fault.New(b), done: make(chan struct{})}
	m.Runner = New(registry.New(m.store, registry.Options{Node: node}), Config{Node: node, TTL: ttl, Clock: m.clock})
	m.stop = func() { close(m.done) }
	return m
}

func start(t *testing.T, b bucket.Bucket, node string) *machine {
	t.Helper()
	m := newMachine(b, node)
	ctx, cancel := context.WithCancel(context.Background())
	m.stop = cancel
	go func() {
		defer close(m.done)
		if err := m.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run of %s: %v", node, err)
		}
	}()
	t.Cleanup(m.kill)
	return m
}

// kill ends the process at once.
func (m *machine) kill() { m.stop(); <-m.done }

func (m *machine) fence(t *testing.T, want int64) {
	t.Helper()
	if got, ok := m.Held(); !ok || got != want {
		t.Fatalf("holds fence %d (%v), want %d", got, ok, want)
	}
}

func (m *machine) idle(t *testing.T) {
	t.Helper()
	if got, ok := m.Held(); ok {
		t.Fatalf("holds fence %d, want none", got)
	}
}

// world is a bubble with a bucket in it, checked at the end.
func world(t *testing.T, f func(t *testing.T, b bucket.Bucket)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(memory.ContentETags())
		f(t, b)
		check.Bucket(t, b)
	})
}

func TestElection(t *testing.T) {
	world(t, func(t *testing.T, b bucket.Bucket) {
		a := start(t, b, "node-a")
		synctest.Wait()
		a.fence(t, 1) // no lease yet: nothing to wait for
		c := start(t, b, "node-c")
		time.Sleep(10*time.Minute + time.Second)
		a.fence(t, 1)
		c.idle(t)
		if l, held := c.Last(); !held || l.Node != "node-a" || l.Fence != 1 {
			t.Fatalf("c sees %+v, %v", l, held)
		}
		before := c.store.Counts()
		if l, held, err := c.Current(t.Context()); err != nil || !held || l.Node != "node-a" || time.Since(l.RenewedAt) > 5*time.Second {
			t.Fatalf("c reads %+v, %v, %v", l, held, err)
		}
		// Which is all that GET /v1/state costs.
		if after := c.store.Counts(); after[fault.Get] != before[fault.Get]+1 || after[fault.Replace] != before[fault.Replace] {
			t.Errorf("a look at the lease: %v, then %v", before, after)
		}
		// Ten minutes: a renewal each 5 s, and a read by the others each 30 s,
		// once they have seen it move.
		if n := a.store.Counts(); n[fault.Replace] != 120 || n[fault.Create] != 1 || n[fault.Get] != 1 {
			t.Errorf("requests of the holder: %v", n)
		}
		if n := c.store.Counts(); n[fault.Get] < 22 || n[fault.Get] > 28 || n[fault.Replace] != 0 {
			t.Errorf("requests of the other one: %v", n)
		}
	})
}

// A holder that dies is replaced a TTL after somebody first looked, which is at
// once when it missed an answer.
func TestTakeOverAfterAKill(t *testing.T) {
	world(t, func(t *testing.T, b bucket.Bucket) {
		a := start(t, b, "node-a")
		synctest.Wait()
		c := start(t, b, "node-c")
		time.Sleep(time.Minute)
		a.fence(t, 1)
		a.kill()
		time.Sleep(2 * time.Second)
		c.HolderSuspect()
		begun := time.Now()
		for {
			if _, ok := c.Held(); ok {
				break
			}
			<-c.Changed()
		}
		if d := time.Since(begun); d < ttl-5*time.Second || d > ttl+time.Second {
			t.Errorf("taken over after %v", d)
		}
		c.fence(t, 2)
		// The node comes back as another process: a challenger, which waits.
		a = start(t, b, "node-a")
		time.Sleep(5 * time.Minute)
		a.idle(t)
		c.fence(t, 2)
	})
}

func TestTakeOverWithoutSuspicion(t *testing.T) {
	world(t, func(t *testing.T, b bucket.Bucket) {
		a := start(t, b, "node-a")
		synctest.Wait()
		c := start(t, b, "node-c")
		time.Sleep(time.Minute)
		a.kill()
		time.Sleep(2*WatchEvery + time.Second)
		c.fence(t, 2)
	})
}

func TestAProcessExecutedAnewWaits(t *testing.T) {
	world(t, func(t *testing.T, b bucket.Bucket) {
		a := start(t, b, "node-a")
		time.Sleep(time.Minute)
		a.kill()
		a = start(t, b, "node-a")
		time.Sleep(ttl - time.Second)
		a.idle(t)
		time.Sleep(2 * time.Second)
		a.fence(t, 2)
	})
}

func TestReleaseKeepsTheFence(t *testing.T) {
	world(t, func(t *testing.T, b bucket.Bucket) {
		a := start(t, b, "node-a")
		synctest.Wait()
		c := start(t, b, "node-c")
		time.Sleep(time.Minute)
		if err := a.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.idle(t)
		l, held, err := c.Current(t.Context())
		if err != nil || held || l.Node != "" || l.Fence != 1 {
			t.Fatalf("after the release: %+v, %v, %v", l, held, err)
		}
		synctest.Wait()
		c.fence(t, 2) // c looked, and a released lease is free at once
		if err := a.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if ok, err := a.Offer(t.Context()); ok || err != nil {
			t.Fatalf("offers itself after its release: %v, %v", ok, err)
		}
		time.Sleep(10 * time.Minute)
		c.fence(t, 2)
	})
}

func TestReleaseWithoutRun(t *testing.T) {
	world(t, func(t *testing.T, b bucket.Bucket) {
		a := start(t, b, "node-a")
		synctest.Wait()
		a.kill()
		if err := a.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		c := newMachine(b, "node-c")
		if ok, err := c.Offer(t.Context()); !ok || err != nil {
			t.Fatalf("a released lease: %v, %v", ok, err)
		}
		c.fence(t, 2)
	})
}

func TestReleaseWhileTheBucketIsAway(t *testing.T) {
	world(t, func(t *testing.T, b bucket.Bucket) {
		a := start(t, b, "node-a")
		synctest.Wait()
		down := a.store.Inject(fault.Rule{Kind: fault.Unavailable})
		done := make(chan error, 1)
		go func() { done <- a.Release(context.Background()) }()
		time.Sleep(time.Second)
		a.idle(t)
		down.Remove()
		time.Sleep(3 * time.Second)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if l, held, err := a.Current(t.Context()); err != nil || held || l.Node != "" {
			t.Fatalf("after the release: %+v %v %v", l, held, err)
		}

		c := start(t, b, "node-c")
		synctest.Wait()
		c.store.Inject(fault.Rule{Kind: fault.Unavailable})
		begun := time.Now()
		err := c.Release(t.Context())
		if scafo.CodeOf(err) != scafo.CodeStoreUnavailable || time.Since(begun) > ttl {
			t.Fatalf("after %v: %v", time.Since(begun), err)
		}
	})
}

func TestOfferNeverTakesWhatItHasNotWatched(t *testing.T) {
	world(t, func(t *testing.T, b bucket.Bucket) {
		a := start(t, b, "node-a")
		synctest.Wait()
		a.kill()
		time.Sleep(time.Hour)
		c := newMachine(b, "node-c")
		// Its expiresAt has passed: nobody counts as holding it, and yet it is not free.
		if _, held, err := c.Current(t.Context()); held || err != nil {
			t.Fatalf("held %v, %v", held, err)
		}
		if ok, err := c.Offer(t.Context()); ok || err != nil {
			t.Fatalf("took an unwatched lease: %v, %v", ok, err)
		}
		time.Sleep(ttl)
		if ok, err := c.Offer(t.Context()); !ok || err != nil {
			t.Fatalf("after a TTL: %v, %v", ok, err)
		}
		c.fence(t, 2)
	})
}

// The bucket goes away: the holder stops acting before its TTL is over, nobody
// is made coordinator meanwhile, and it holds again once the bucket is back.
func TestBucketAway(t *testing.T) {
	world(t, func(t *testing.T, b bucket.Bucket) {
		a := start(t, b, "node-a")
		time.Sleep(time.Minute + time.Second)
		down := a.store.Inject(fault.Rule{Kind: fault.Unavailable})
		time.Sleep(9 * time.Second)
		a.fence(t, 1)
		time.Sleep(6 * time.Second)
		a.idle(t)
		if _, _, err := a.Current(t.Context()); scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
			t.Fatalf("reading the lease: %v", err)
		}
		time.Sleep(time.Hour)
		down.Remove()
		time.Sleep(3 * time.Second)
		a.fence(t, 2)
	})
}

// A machine that slept through its lease does not act on it for a moment.
func TestSuspend(t *testing.T) {
	world(t, func(t *testing.T, b bucket.Bucket) {
		a := start(t, b, "node-a")
		time.Sleep(time.Minute)
		a.fence(t, 1)
		a.clock.slept.Add(int64(20 * time.Second))
		a.idle(t)
		time.Sleep(6 * time.Second) // its timers did not run meanwhile
		a.fence(t, 2)
	})
}

// Every request in turn is lost before or after it was applied: there are never
// two holders, and there is one again soon.
func TestLostAnswers(t *testing.T) {
	for _, kind := range []fault.Kind{fault.LostApplied, fault.LostNotApplied, fault.Refused, fault.Unavailable} {
		for skip := range 8 {
			world(t, func(t *testing.T, b bucket.Bucket) {
				a, c := newMachine(b, "node-a"), newMachine(b, "node-c")
				a.store.Inject(fault.Rule{Kind: kind, Skip: skip, Times: 2})
				for _, m := range []*machine{a, c} {
					ctx, cancel := context.WithCancel(context.Background())
					t.Cleanup(cancel)
					go m.Run(ctx)
				}
				for range 400 {
					time.Sleep(100 * time.Millisecond)
					_, ah := a.Held()
					_, ch := c.Held()
					if ah && ch {
						t.Fatalf("%v after %d: two holders", kind, skip)
					}
				}
				_, ah := a.Held()
				_, ch := c.Held()
				if !ah && !ch {
					t.Fatalf("%v after %d: no holder after 40 s", kind, skip)
				}
			})
		}
	}
}

func TestBoottime(t *testing.T) {
	a := bootClock{}.Now()
	b := bootClock{}.Now()
	if a <= 0 || b < a || b == never {
		t.Fatalf("CLOCK_BOOTTIME went from %v to %v", a, b)
	}
}
