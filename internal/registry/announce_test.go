package registry

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
)

func revision(t *testing.T, r *Registry) scafo.Revision {
	t.Helper()
	d, err := Load[scafo.Revision](t.Context(), r, RevisionKey)
	if err != nil {
		t.Fatal(err)
	}
	return d.Value
}

func changedKeys(rev scafo.Revision) []string {
	var out []string
	for _, c := range rev.Changed {
		out = append(out, c.Key)
	}
	return out
}

func TestAnnounceAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fault.New(memory.New())
		r := New(store, Options{})
		begun := time.Now()
		// A chain of steps waits for no clock.
		for i := range announceBurst {
			if err := r.Announce(t.Context(), fmt.Sprint("k", i)); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(begun); d != 0 {
			t.Errorf("waited %v", d)
		}
		if rev := revision(t, r); rev.Counter != announceBurst || len(rev.Changed) != announceBurst {
			t.Errorf("the revision is at %d with %d changes", rev.Counter, len(rev.Changed))
		}
		// One request each, but for the first, which has to look.
		if n := store.Counts(); n[fault.Create] != 1 || n[fault.Replace] != announceBurst-1 || n[fault.Get] != 2 {
			t.Errorf("requests: %v", n)
		}
	})
}

func TestAnnouncementsAreMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fault.New(memory.New())
		store.Inject(fault.Rule{Latency: 30 * time.Millisecond})
		r := New(store, Options{})
		begun := time.Now()
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				if err := r.Announce(t.Context(), fmt.Sprint("k", i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if d := time.Since(begun); d > 200*time.Millisecond {
			t.Errorf("took %v", d)
		}
		if rev := revision(t, r); rev.Counter > 2 || len(rev.Changed) != 50 {
			t.Errorf("%d writes of %d keys, want at most 2 of 50", rev.Counter, len(rev.Changed))
		}
	})
}

// Over time it is one write a second, however many changes there are.
func TestAnnouncementsASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(memory.New(), Options{})
		stop := time.Now().Add(2 * time.Minute)
		for i := 0; time.Now().Before(stop); i++ {
			if err := r.Announce(t.Context(), fmt.Sprint("k", i%9)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if rev := revision(t, r); rev.Counter > 120+announceBurst+1 || rev.Counter < 120 {
			t.Errorf("%d writes in two minutes", rev.Counter)
		}
	})
}

func TestAnnounceWhileTheBucketIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fault.New(memory.New())
		r := New(store, Options{})
		down := store.Inject(fault.Rule{Kind: fault.Unavailable})
		if err := r.Announce(t.Context(), "a"); scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
			t.Fatalf("%v", err)
		}
		if n := r.Unannounced(); n != 1 {
			t.Errorf("%d keys are left", n)
		}
		down.Remove()
		if err := r.Announce(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		if got := changedKeys(revision(t, r)); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("announced %v", got)
		}
		// The next heartbeat takes along what is left, and does not wait for it.
		down = store.Inject(fault.Rule{Key: RevisionKey, Kind: fault.Unavailable})
		_ = r.Announce(t.Context(), "c")
		down.Remove()
		if err := r.WriteHeartbeat(t.Context(), scafo.Heartbeat{Node: "n"}, false); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := changedKeys(revision(t, r)); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("announced %v", got)
		}
	})
}

// Whoever changed something and went away has it announced all the same.
func TestAnnounceOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fault.New(memory.New())
		store.Inject(fault.Rule{Key: RevisionKey, Latency: time.Second})
		r := New(store, Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, _, err := r.CreateApplication(ctx, "shop", "op", nil); scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
			t.Fatalf("%v", err)
		}
		time.Sleep(3 * time.Second)
		if got := changedKeys(revision(t, r)); !slices.Equal(got, []string{ApplicationKey("shop")}) {
			t.Errorf("announced %v", got)
		}
	})
}

// A write may have happened though its writer never learnt of it and gave up: it is
// announced, since nobody else would tell of it, and the writer reads it again too.
func TestAWriteThatWasGivenUpIsAnnounced(t *testing.T) {
	key := PlacementKey("shop", "u")
	place := func(ctx context.Context, r *Registry) error {
		_, _, err := r.DecidePlacement(ctx, scafo.Placement{Application: "shop", UID: "u", Nodes: []string{"a"}, Fence: 1}, nil)
		return err
	}
	lift := func(ctx context.Context, r *Registry) error { _, err := r.LiftFreeze(ctx); return err }
	for _, c := range []struct {
		name, key string
		kind      fault.Kind
		do        func(context.Context, *Registry) error
		want      []string
	}{
		{"a decision", key, fault.LostApplied, place, []string{key}},
		{"a decision that was lost on the way", key, fault.LostNotApplied, place, []string{key}},
		{"a decision that the store refused to make", key, fault.Unavailable, place, nil},
		{"a removal", FreezeKey, fault.LostApplied, lift, []string{FreezeKey}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := fault.New(memory.New())
				r := New(store, Options{})
				if _, _, err := r.FreezeDeploys(t.Context(), "op", ""); err != nil {
					t.Fatal(err)
				}
				before := revision(t, r).Counter
				var heard []string
				r.OnChange(func(_ context.Context, keys []string) { heard = append(heard, keys...) })
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				rule := fault.Rule{Key: c.key, Match: func(c fault.Call) bool { return c.Op.IsWrite() }, Kind: c.kind}
				rule.After = func(context.Context, fault.Call) { time.Sleep(time.Minute) } // the answer does not come
				rule.Before = func(context.Context, fault.Call) {
					if c.kind == fault.LostNotApplied {
						time.Sleep(time.Minute)
					}
				}
				armed := store.Inject(rule)
				if err := c.do(ctx, r); scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
					t.Fatalf("%v", err)
				}
				armed.Remove()
				synctest.Wait()
				got, _ := changedSince(revision(t, r), before)
				if !slices.Equal(got, c.want) || !slices.Equal(heard, c.want) {
					t.Errorf("announced %v, told here %v, want %v", got, heard, c.want)
				}
			})
		})
	}
}

// Nobody follows the lease or the revision itself: giving up a write of those is told
// to nobody.
func TestWhatIsNotFollowedIsNotAnnounced(t *testing.T) {
	for _, key := range []string{RevisionKey, CoordinatorKey, OperatorIndexKey, HeartbeatKey("n"), TrustKey("shop"), IDKey("n"), TokenPrefix + "1/x", StoragePrefix + "objects/x"} {
		if announces(key) {
			t.Errorf("%s is announced", key)
		}
	}
}

func TestAnnouncersOfManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(memory.ContentETags())
		var wg sync.WaitGroup
		for n := range 30 {
			store := fault.New(b)
			store.Inject(fault.Rule{Latency: 10 * time.Millisecond})
			store.Inject(fault.Rule{Op: fault.Replace, Kind: fault.LostApplied, Times: 1})
			r := New(store, Options{})
			wg.Go(func() {
				for i := range 4 {
					if err := r.Announce(context.Background(), fmt.Sprintf("k%d-%d", n, i)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if rev := revision(t, New(b, Options{})); len(rev.Changed) != 120 {
			t.Errorf("%d changes of 120", len(rev.Changed))
		}
	})
}

// Whatever is announced, in whatever groups: a reader that comes by at any time
// either hears of every key that was announced since it was there last, or hears
// that it has to list.
func TestRevisionProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var rev scafo.Revision
		var counter int64
		since := map[string]bool{}
		for range rapid.IntRange(1, 30).Draw(t, "writes") {
			var keys []string
			for range rapid.SampledFrom([]int{1, 2, 40, 200, 300}).Draw(t, "keys") {
				k := fmt.Sprint(rapid.IntRange(0, 600).Draw(t, "key"))
				if !slices.Contains(keys, k) {
					keys = append(keys, k)
				}
				since[k] = true
			}
			rev = announced(rev, keys)
			if len(rev.Changed) > scafo.MaxChanges {
				t.Fatalf("%d changes", len(rev.Changed))
			}
			if rapid.IntRange(0, 2).Draw(t, "read") > 0 {
				continue
			}
			got, ok := changedSince(rev, counter)
			if ok {
				want := map[string]bool{}
				for _, k := range got {
					want[k] = true
				}
				for k := range since {
					if !want[k] {
						t.Fatalf("a reader at %d of %d (since %d) misses %s", counter, rev.Counter, rev.Since, k)
					}
				}
			} else if len(since) <= scafo.MaxChanges && rev.Since <= counter {
				t.Fatal("it has to list for nothing")
			}
			counter, since = rev.Counter, map[string]bool{}
		}
		if _, ok := changedSince(rev, rev.Counter+1); ok {
			t.Fatal("a reader that is ahead of the revision does not list")
		}
	})
}

func TestMaxChanges(t *testing.T) {
	keys := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprint(i))
		}
		return out
	}
	if rev := announced(scafo.Revision{}, keys(scafo.MaxChanges)); rev.Since != 0 || len(rev.Changed) != scafo.MaxChanges {
		t.Errorf("%d changes, complete since %d", len(rev.Changed), rev.Since)
	}
	rev := announced(scafo.Revision{}, keys(scafo.MaxChanges+1))
	if rev.Since != 1 || len(rev.Changed) != scafo.MaxChanges {
		t.Errorf("%d changes, complete since %d", len(rev.Changed), rev.Since)
	}
	if _, ok := changedSince(rev, 0); ok {
		t.Error("a reader that missed one does not list")
	}
	if got, ok := changedSince(rev, 1); !ok || len(got) != 0 {
		t.Errorf("a reader that was there: %v, %v", got, ok)
	}
}
