package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
)

// dateless is a store that does not say what time it is.
type dateless struct{ bucket.Bucket }

func (d dateless) GetIfChanged(ctx context.Context, key, etag string) (*bucket.Object, error) {
	o, err := d.Bucket.GetIfChanged(ctx, key, etag)
	if o != nil {
		o.Date = time.Time{}
	}
	return o, err
}

// stores are two kinds of store: one whose clock is known, and one whose is not.
func stores() map[string]func() bucket.Bucket {
	return map[string]func() bucket.Bucket{
		"with its time": func() bucket.Bucket { return files() },
		"without":       func() bucket.Bucket { return dateless{files()} },
	}
}

func acquire(t *testing.T, s *Service, name, holder string, lease time.Duration, want scafo.Code) {
	t.Helper()
	if _, err := s.Acquire(t.Context(), key(t, name), holder, lease); scafo.CodeOf(err) != want {
		t.Fatalf("%q asks for %s: %v, want %q", holder, name, err, want)
	}
}

func release(t *testing.T, s *Service, name, holder string) {
	t.Helper()
	if err := s.Release(t.Context(), key(t, name), holder); err != nil {
		t.Fatal(err)
	}
}

const (
	granted = scafo.Code("")
	refused = scafo.CodeCASConflict
)

func TestALockIsOnes(t *testing.T) {
	s := open(files())
	acquire(t, s, "a/b", "", 0, granted)
	acquire(t, s, "a/b", "", 0, refused)
	acquire(t, s, "a", "", 0, granted) // beside it
	release(t, s, "a/b", "")
	release(t, s, "a/b", "")
	release(t, s, "never", "")
	acquire(t, s, "a/b", "", 0, granted)
}

func TestHoldersFreeAndRenewTheirOwn(t *testing.T) {
	s := open(files())
	acquire(t, s, "x", "one", 0, granted)
	acquire(t, s, "x", "one", 0, granted)
	acquire(t, s, "x", "two", 0, refused)
	acquire(t, s, "x", "", 0, refused)
	release(t, s, "x", "two")
	release(t, s, "x", "")
	acquire(t, s, "x", "two", 0, refused)
	release(t, s, "x", "one")
	acquire(t, s, "x", "", 0, granted)
	release(t, s, "x", "one")
	acquire(t, s, "x", "one", 0, refused)
}

func TestTwentyLockers(t *testing.T) {
	b := files()
	nodes := []*Service{open(b), open(b)}
	for _, named := range []bool{false, true} {
		for round := range 200 {
			var wins atomic.Int32
			var wg sync.WaitGroup
			name := key(t, fmt.Sprintf("lock/%v/%d", named, round%3))
			winner := make(chan string, 20)
			for i := range 20 {
				wg.Go(func() {
					holder := ""
					if named {
						holder = fmt.Sprintf("holder-%d", i)
					}
					_, err := nodes[i%2].Acquire(context.Background(), name, holder, 0)
					if err == nil {
						wins.Add(1)
						winner <- holder
					} else if scafo.CodeOf(err) != refused {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if n := wins.Load(); n != 1 {
				t.Fatalf("round %d: %d of 20 have the lock", round, n)
			}
			if err := nodes[round%2].Release(t.Context(), name, <-winner); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// After its holder died, a lock is free as soon as its lease is over and no sooner.
func TestALockEndsByItself(t *testing.T) {
	for name, store := range stores() {
		for _, lease := range []time.Duration{0, 5 * time.Second, time.Hour} {
			t.Run(fmt.Sprint(name, lease), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := store()
					s, other := open(b), open(b)
					want := lease
					if lease == 0 || lease > DefaultLock {
						want = DefaultLock
					}
					got, err := s.Acquire(t.Context(), key(t, "x"), "dead", lease)
					if err != nil || got != want {
						t.Fatalf("granted for %v, %v; want %v", got, err, want)
					}
					acquire(t, other, "x", "next", 0, refused)
					time.Sleep(want - time.Millisecond)
					acquire(t, other, "x", "next", 0, refused)
					// The store's times are whole seconds.
					time.Sleep(2*time.Second + time.Millisecond)
					acquire(t, other, "x", "next", 0, granted)
				})
			})
		}
	}
}

// Who has a lock keeps it by asking again, for as long as it likes.
func TestARenewedLockDoesNotEnd(t *testing.T) {
	for name, store := range stores() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := store()
				s, other := open(b), open(b)
				for range 100 {
					acquire(t, s, "x", "one", 10*time.Second, granted)
					time.Sleep(9 * time.Second)
					acquire(t, other, "x", "two", 0, refused)
				}
			})
		})
	}
}

// A holder that was paused past its lease cannot take the lock back, nor free its
// successor's.
func TestAPausedHolderComesBack(t *testing.T) {
	for name, store := range stores() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := store()
				s, other := open(b), open(b)
				acquire(t, s, "x", "paused", 5*time.Second, granted)
				acquire(t, other, "x", "next", 0, refused)
				time.Sleep(10 * time.Second)
				acquire(t, other, "x", "next", 0, granted)
				release(t, s, "x", "paused")
				release(t, other, "x", "")
				acquire(t, s, "x", "paused", 0, refused)
				acquire(t, other, "x", "third", 0, refused)
				acquire(t, other, "x", "next", 0, granted)
			})
		})
	}
}

// A node that has just started, with a clock of its own, judges by what it watched
// or by the store, and by no clock of the holder's.
func TestNoForeignClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := dateless{files()}
		acquire(t, open(b), "x", "dead", 30*time.Second, granted)
		time.Sleep(time.Hour)
		late := open(b)
		acquire(t, late, "x", "next", 0, refused) // seen for the first time
		time.Sleep(29 * time.Second)
		acquire(t, late, "x", "next", 0, refused)
		time.Sleep(time.Second)
		acquire(t, late, "x", "next", 0, granted)
	})
}

func TestADamagedLockEndsToo(t *testing.T) {
	for name, store := range stores() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := store()
				s := open(b)
				if _, err := b.Put(t.Context(), key(t, "x").lock(), []byte(`{"v":1,"na`)); err != nil {
					t.Fatal(err)
				}
				acquire(t, s, "x", "one", 0, refused)
				release(t, s, "x", "one")
				time.Sleep(DefaultLock - time.Second)
				acquire(t, s, "x", "one", 0, refused)
				time.Sleep(2 * time.Second)
				acquire(t, s, "x", "one", 0, granted)
				acquire(t, s, "x", "two", 0, refused)
			})
		})
	}
}

// Whatever becomes of a request, at most one has the lock, and its holder can
// renew and free it.
func TestFaultsOfALock(t *testing.T) {
	for _, kind := range []fault.Kind{fault.Unavailable, fault.LostApplied, fault.LostNotApplied, fault.Refused, fault.CrashAfter, fault.CrashBefore} {
		for _, op := range []fault.Op{fault.Get, fault.Create} {
			synctest.Test(t, func(t *testing.T) {
				b := files()
				store := fault.New(b)
				s, other := open(store), open(b)
				store.Next(op, key(t, "x").lock(), kind)
				_, err := s.Acquire(t.Context(), key(t, "x"), "one", 0)
				_, rival := other.Acquire(t.Context(), key(t, "x"), "two", 0)
				if err == nil && rival == nil {
					t.Errorf("%v of %s: both have it", kind, op)
				}
				if err != nil && scafo.CodeOf(err) != scafo.CodeStoreUnavailable && scafo.CodeOf(err) != refused {
					t.Errorf("%v of %s: %v", kind, op, err)
				}
				after := open(b)
				if err == nil || rival != nil {
					acquire(t, after, "x", "one", 0, granted)
					release(t, after, "x", "one")
					acquire(t, after, "x", "two", 0, granted)
				}
			})
		}
	}
}

func TestHolders(t *testing.T) {
	long := make([]byte, MaxHolder)
	for i := range long {
		long[i] = 'x'
	}
	for holder, ok := range map[string]bool{
		"": true, "host-1/7f3a": true, string(long): true, string(long) + "x": false, "a b": false, "é": false, "a\n": false,
	} {
		if err := CheckHolder(holder); (err == nil) != ok {
			t.Errorf("%q: %v", holder, err)
		}
	}
}

func TestWhatIsWatchedIsBounded(t *testing.T) {
	b := memory.New()
	s, other := open(dateless{b}), open(b)
	for i := range maxWatched + 10 {
		name := key(t, fmt.Sprintf("l/%d", i))
		if _, err := other.Acquire(t.Context(), name, "a", 0); err != nil {
			t.Fatal(err)
		}
		var e *scafo.Error
		if _, err := s.Acquire(t.Context(), name, "b", 0); !errors.As(err, &e) || e.Code != refused {
			t.Fatal(err)
		}
	}
	if len(s.watched) > maxWatched {
		t.Errorf("%d locks are watched", len(s.watched))
	}
}
