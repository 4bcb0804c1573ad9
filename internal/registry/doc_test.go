package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
)

// bump is a change that can be counted.
func bump(d *Doc[scafo.Application]) error {
	d.Value.Name, d.Value.Replicas = "shop", scafo.Replicas{Count: 1}
	d.Value.DeploySeq++
	return nil
}

func TestManyWritersLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(memory.ContentETags())
		key := ApplicationKey("shop")
		const writers, each = 12, 10
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				store := fault.New(b)
				store.Inject(fault.Rule{Latency: 20 * time.Millisecond})
				r := New(store, Options{})
				for range each {
					if _, err := Update(context.Background(), r, key, bump); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		d, err := Load[scafo.Application](t.Context(), New(b, Options{}), key)
		if err != nil || d.Value.DeploySeq != writers*each {
			t.Fatalf("%d changes are left of %d, %v", d.Value.DeploySeq, writers*each, err)
		}
	})
}

// One table of faults, through creating, replacing, creating over a tombstone and
// removing: what the caller is told is what is in the bucket.
func TestFaultsOfAWrite(t *testing.T) {
	type world struct {
		r     *Registry
		store *fault.Store
		key   string
	}
	ops := map[string]struct {
		prepare func(w world) error
		do      func(w world) error
		done    func(d Doc[scafo.Application]) bool
	}{
		"create": {
			nil, func(w world) error { _, err := Update(context.Background(), w.r, w.key, bump); return err },
			func(d Doc[scafo.Application]) bool { return d.Exists && d.Value.DeploySeq == 1 },
		},
		"replace": {
			func(w world) error { _, err := Update(context.Background(), w.r, w.key, bump); return err },
			func(w world) error { _, err := Update(context.Background(), w.r, w.key, bump); return err },
			func(d Doc[scafo.Application]) bool { return d.Exists && d.Value.DeploySeq == 2 },
		},
		"create over a tombstone": {
			func(w world) error {
				if _, err := Update(context.Background(), w.r, w.key, bump); err != nil {
					return err
				}
				_, err := Remove[scafo.Application](context.Background(), w.r, w.key, nil)
				return err
			},
			func(w world) error { _, err := Update(context.Background(), w.r, w.key, bump); return err },
			func(d Doc[scafo.Application]) bool { return d.Exists && d.Value.DeploySeq == 1 },
		},
		"remove": {
			func(w world) error { _, err := Update(context.Background(), w.r, w.key, bump); return err },
			func(w world) error {
				removed, err := Remove[scafo.Application](context.Background(), w.r, w.key, nil)
				if err == nil && !removed {
					return errors.New("nothing was removed")
				}
				return err
			},
			func(d Doc[scafo.Application]) bool { return !d.Exists && d.ETag != "" },
		},
	}
	faults := map[string]struct {
		rule fault.Rule
		ok   bool
	}{
		"the answer is lost":                  {fault.Rule{Kind: fault.LostApplied, Times: 1}, true},
		"the request is lost":                 {fault.Rule{Kind: fault.LostNotApplied, Times: 1}, true},
		"two answers are lost":                {fault.Rule{Kind: fault.LostApplied, Times: 2}, true},
		"refused for nothing":                 {fault.Rule{Kind: fault.Refused, Times: 3}, true},
		"away for a moment":                   {fault.Rule{Kind: fault.Unavailable, Times: writeTries - 1}, true},
		"throttled":                           {fault.Rule{Kind: fault.Throttled, Times: 2}, true},
		"away":                                {fault.Rule{Kind: fault.Unavailable}, false},
		"every request is lost":               {fault.Rule{Kind: fault.LostNotApplied}, false},
		"refused for ever":                    {fault.Rule{Kind: fault.Refused}, false},
		"denied":                              {fault.Rule{Kind: fault.Denied}, false},
		"the process ends before the request": {fault.Rule{Kind: fault.CrashBefore, Times: 1}, false},
	}
	for opName, op := range ops {
		for faultName, f := range faults {
			t.Run(opName+"/"+faultName, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := memory.New(memory.ContentETags())
					w := world{store: fault.New(b), key: ApplicationKey("shop")}
					w.r = New(w.store, Options{})
					if op.prepare != nil {
						if err := op.prepare(w); err != nil {
							t.Fatal(err)
						}
					}
					for _, kind := range []fault.Op{fault.Create, fault.Replace} {
						rule := f.rule
						rule.Op = kind
						w.store.Inject(rule)
					}
					err := op.do(w)
					d, lerr := Load[scafo.Application](t.Context(), New(b, Options{}), w.key)
					if lerr != nil {
						t.Fatal(lerr)
					}
					switch {
					case f.ok && (err != nil || !op.done(d)):
						t.Errorf("%v; in the bucket: %+v", err, d.Value)
					case !f.ok && (scafo.CodeOf(err) != scafo.CodeStoreUnavailable || errors.Is(err, bucket.ErrRefused)):
						t.Errorf("want store-unavailable, got %v", err)
					case !f.ok && op.done(d):
						t.Error("it was done, and said to have failed")
					}
					time.Sleep(announceTimeout) // what is not known to have happened is announced
				})
			})
		}
	}
}

// A write whose answer is lost, and that somebody else has written over before it
// can be read back, is not taken for a refusal for ever: the change is applied to
// what is there.
func TestLostAnswerAndARival(t *testing.T) {
	b := memory.New()
	store := fault.New(b)
	r, rival := New(store, Options{}), New(b, Options{})
	key := ApplicationKey("shop")
	store.Inject(fault.Rule{Op: fault.Create, Kind: fault.LostApplied, Times: 1, After: func(ctx context.Context, _ fault.Call) {
		_, err := Update(ctx, rival, key, func(d *Doc[scafo.Application]) error {
			d.Value.Labels = map[string]string{"rival": "was here"}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}})
	d, err := Update(t.Context(), r, key, bump)
	if err != nil || d.Value.Labels["rival"] != "was here" || d.Value.DeploySeq < 1 {
		t.Fatalf("%+v, %v", d.Value, err)
	}
}

// A write that was given up for lost arrives late, just before the next try: that
// one is refused, and the first is found to have happened.
func TestALostWriteThatArrivesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		late := &lateStore{Bucket: b}
		r := New(late, Options{})
		d, err := Update(t.Context(), r, ApplicationKey("shop"), bump)
		if err != nil || d.Value.DeploySeq != 1 || late.writes != 2 {
			t.Fatalf("%+v, %v after %d writes", d.Value, err, late.writes)
		}
	})
}

// lateStore holds the first write back and applies it before the second.
type lateStore struct {
	bucket.Bucket
	writes int
	held   func()
}

func (s *lateStore) Create(ctx context.Context, key string, body []byte) (string, error) {
	s.writes++
	if s.writes == 1 {
		s.held = func() { _, _ = s.Bucket.Create(ctx, key, bytes.Clone(body)) }
		return "", &bucket.Error{Op: "create", Key: key, Kind: bucket.ErrUnknown}
	}
	s.held()
	return s.Bucket.Create(ctx, key, body)
}

func TestSwapSaysWhatHappened(t *testing.T) {
	for kind, want := range map[fault.Kind]error{
		fault.None: nil, fault.LostApplied: nil, fault.LostNotApplied: bucket.ErrUnknown,
		fault.Refused: bucket.ErrRefused, fault.Unavailable: bucket.ErrUnavailable, fault.Denied: bucket.ErrDenied,
	} {
		store := fault.New(memory.New())
		r := New(store, Options{})
		store.Next(fault.Create, CoordinatorKey, kind)
		d := Doc[scafo.Lease]{Key: CoordinatorKey, Value: scafo.Lease{Fence: 1}}
		got, err := Swap(t.Context(), r, d)
		if want == nil && (err != nil || got.ETag == "" || !got.Exists) || want != nil && !errors.Is(err, want) {
			t.Errorf("%v: %v", kind, err)
		}
		if n := store.Counts(); n[fault.Create] != 1 {
			t.Errorf("%v: %v", kind, n)
		}
		if want == nil {
			if _, err := Swap(t.Context(), r, d); !errors.Is(err, bucket.ErrRefused) {
				t.Errorf("over what was not read: %v", err)
			}
			if _, err := Swap(t.Context(), r, got); err != nil {
				t.Errorf("over what was written: %v", err)
			}
		}
	}
}

func TestTombstonesReadAsAbsent(t *testing.T) {
	b := memory.New()
	r := New(b, Options{})
	key := ApplicationKey("shop")
	if removed, err := Remove[scafo.Application](t.Context(), r, key, nil); removed || err != nil {
		t.Fatalf("removing nothing: %v, %v", removed, err)
	}
	put(t, b, key, `{"v":1,"write":"w","name":"shop","uid":"u1","replicas":1,"extra":1}`)
	veto := errors.New("not this one")
	if removed, err := Remove(t.Context(), r, key, func(a scafo.Application) error { return veto }); removed || !errors.Is(err, veto) {
		t.Fatalf("against the check: %v, %v", removed, err)
	}
	if removed, err := Remove(t.Context(), r, key, func(a scafo.Application) error {
		if a.UID != "u1" {
			return fmt.Errorf("uid %s", a.UID)
		}
		return nil
	}); !removed || err != nil {
		t.Fatalf("%v, %v", removed, err)
	}
	if removed, err := Remove[scafo.Application](t.Context(), r, key, nil); removed || err != nil {
		t.Fatalf("removing it again: %v, %v", removed, err)
	}
	if _, err := r.Application(t.Context(), "shop"); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Fatalf("a tombstone reads as %v", err)
	}
	if apps, err := r.Applications(t.Context()); err != nil || len(apps) != 0 {
		t.Fatalf("a tombstone is listed: %v, %v", apps, err)
	}
	app, created, err := r.CreateApplication(t.Context(), "shop", "op", nil)
	if err != nil || !created || app.UID == "u1" {
		t.Fatalf("over a tombstone: %+v, %v, %v", app, created, err)
	}
	if got := stored(t, b, key); got["extra"] != nil || got["tombstone"] != nil || got["removed"] != nil {
		t.Errorf("something of the earlier life is left: %v", got)
	}
}

func TestReadsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fault.New(memory.New())
		r := New(store, Options{})
		rule := store.Inject(fault.Rule{Op: fault.Get, Kind: fault.Throttled, Times: readTries - 1})
		if _, err := r.Freeze(t.Context()); err != nil {
			t.Error(err)
		}
		rule.Remove()
		store.Inject(fault.Rule{Op: fault.Get, Kind: fault.Unavailable})
		_, err := r.Freeze(t.Context())
		if scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
			t.Errorf("%v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.Freeze(ctx); scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
			t.Errorf("after its caller went away: %v", err)
		}
	})
}
