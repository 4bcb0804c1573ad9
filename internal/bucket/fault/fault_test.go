package fault_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/buckettest"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
)

func TestSuiteWithoutFaults(t *testing.T) {
	buckettest.Suite(t, func(*testing.T) bucket.Bucket { return fault.New(memory.New()) })
}

const key = "k"

// call makes one call of that kind that would succeed on the store of prepare.
func call(ctx context.Context, b bucket.Bucket, op fault.Op, etag string) error {
	var err error
	switch op {
	case fault.Get:
		_, err = b.Get(ctx, key)
	case fault.Create:
		_, err = b.Create(ctx, "new", []byte("after"))
	case fault.Replace:
		_, err = b.Replace(ctx, key, etag, []byte("after"))
	case fault.Put:
		_, err = b.Put(ctx, key, []byte("after"))
	case fault.Delete:
		err = b.Delete(ctx, key)
	case fault.List:
		_, err = b.List(ctx, key, bucket.ListOptions{})
	}
	return err
}

func prepare(t *testing.T) (*memory.Store, string) {
	t.Helper()
	m := memory.New()
	etag, err := m.Put(t.Context(), key, []byte("before"))
	if err != nil {
		t.Fatal(err)
	}
	return m, etag
}

func changed(m *memory.Store) bool {
	all := m.Dump()
	return len(all) != 1 || string(all[key]) != "before"
}

// Every kind of fault in every kind of call: what the caller is told, and
// whether the store changed.
func TestKinds(t *testing.T) {
	for _, c := range []struct {
		kind        fault.Kind
		read, write error
		applied     bool
		cause       error
	}{
		{fault.None, nil, nil, true, nil},
		{fault.Unavailable, bucket.ErrUnavailable, bucket.ErrUnavailable, false, fault.ErrInjected},
		{fault.Throttled, bucket.ErrUnavailable, bucket.ErrUnavailable, false, fault.ErrThrottled},
		{fault.Denied, bucket.ErrDenied, bucket.ErrDenied, false, fault.ErrInjected},
		{fault.LostNotApplied, bucket.ErrUnavailable, bucket.ErrUnknown, false, fault.ErrInjected},
		{fault.LostApplied, bucket.ErrUnavailable, bucket.ErrUnknown, true, fault.ErrInjected},
		{fault.CrashBefore, bucket.ErrUnavailable, bucket.ErrUnknown, false, fault.ErrCrashed},
		{fault.CrashAfter, bucket.ErrUnavailable, bucket.ErrUnknown, true, fault.ErrCrashed},
	} {
		for _, op := range fault.Ops() {
			t.Run(fmt.Sprintf("%d/%s", c.kind, op), func(t *testing.T) {
				m, etag := prepare(t)
				s := fault.New(m)
				s.Next(op, "", c.kind)
				err := call(t.Context(), s, op, etag)
				want, applied := c.read, false
				if op.IsWrite() {
					want, applied = c.write, c.applied
				}
				if bucket.KindOf(err) != want {
					t.Errorf("got %v, want %v", err, want)
				}
				if c.cause != nil && !errors.Is(err, c.cause) {
					t.Errorf("got %v, want the cause %v", err, c.cause)
				}
				if changed(m) != applied {
					t.Errorf("the store changed: %v, want %v", changed(m), applied)
				}
			})
		}
	}
}

func TestRefusedIsNotApplied(t *testing.T) {
	m, etag := prepare(t)
	s := fault.New(m)
	s.Next(fault.Replace, key, fault.Refused)
	if err := call(t.Context(), s, fault.Replace, etag); !errors.Is(err, bucket.ErrRefused) || changed(m) {
		t.Errorf("%v, changed %v", err, changed(m))
	}
	if err := call(t.Context(), s, fault.Replace, etag); err != nil || !changed(m) {
		t.Errorf("the next one: %v, changed %v", err, changed(m))
	}
}

func TestRulesMatch(t *testing.T) {
	s := fault.New(memory.New())
	a := s.Inject(fault.Rule{Op: fault.Put, Key: "a/*", Skip: 1, Times: 2, Kind: fault.Unavailable})
	s.Inject(fault.Rule{Key: "exact", Kind: fault.Denied})
	ctx := t.Context()
	var got []bool
	for range 5 {
		_, err := s.Put(ctx, "a/x", nil)
		got = append(got, err != nil)
	}
	if fmt.Sprint(got) != "[false true true false false]" || a.Hits() != 2 {
		t.Errorf("struck %v, %d hits", got, a.Hits())
	}
	if _, err := s.Put(ctx, "b/x", nil); err != nil {
		t.Errorf("another key: %v", err)
	}
	if _, err := s.Get(ctx, "exact"); !errors.Is(err, bucket.ErrDenied) {
		t.Errorf("the exact key: %v", err)
	}
	if _, err := s.Put(ctx, "exactly", nil); err != nil {
		t.Errorf("a longer key: %v", err)
	}
	if want := map[fault.Op]int{fault.Put: 7, fault.Get: 1}; !maps.Equal(s.Counts(), want) {
		t.Errorf("counts %v, want %v", s.Counts(), want)
	}
	s.Reset()
	if len(s.Calls()) != 0 || len(s.Counts()) != 0 {
		t.Error("reset left something")
	}
	b := s.Inject(fault.Rule{Kind: fault.Unavailable})
	b.Remove()
	if _, err := s.Put(ctx, "free", nil); err != nil {
		t.Errorf("after the rule was removed: %v", err)
	}
	if calls := s.Calls(); len(calls) != 1 || calls[0] != (fault.Call{Op: fault.Put, Key: "free", Seq: 9}) {
		t.Errorf("calls %+v", calls)
	}
}

func TestCrashEndsTheProcess(t *testing.T) {
	m, etag := prepare(t)
	s := fault.New(m)
	ended := 0
	s.OnCrash(func() { ended++ })
	s.Next(fault.Replace, "", fault.CrashAfter)
	_ = call(t.Context(), s, fault.Replace, etag)
	for _, op := range fault.Ops() {
		if err := call(t.Context(), s, op, etag); !errors.Is(err, fault.ErrCrashed) {
			t.Errorf("%s after the end: %v", op, err)
		}
	}
	if all := m.Dump(); len(all) != 1 || string(all[key]) != "after" {
		t.Errorf("the store has %q", all)
	}
	if ended != 1 || !s.Crashed() {
		t.Errorf("the hook ran %d times", ended)
	}
	if _, err := fault.New(m).Get(t.Context(), key); err != nil {
		t.Errorf("a new process: %v", err)
	}
}

func TestDown(t *testing.T) {
	m, etag := prepare(t)
	s := fault.New(m)
	s.SetDown(true)
	for _, op := range fault.Ops() {
		if err := call(t.Context(), s, op, etag); !errors.Is(err, bucket.ErrUnavailable) || changed(m) {
			t.Errorf("%s: %v", op, err)
		}
	}
	s.SetDown(false)
	if err := call(t.Context(), s, fault.Get, etag); err != nil {
		t.Error(err)
	}
}

func TestLatencyAndHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, etag := prepare(t)
		s := fault.New(m)
		var order []string
		s.Inject(fault.Rule{
			Op: fault.Replace, Latency: 3 * time.Second, Times: 1,
			Before: func(context.Context, fault.Call) { order = append(order, fmt.Sprint("before ", changed(m))) },
			After:  func(context.Context, fault.Call) { order = append(order, fmt.Sprint("after ", changed(m))) },
		})
		start := time.Now()
		if err := call(t.Context(), s, fault.Replace, etag); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("took %v", d)
		}
		if fmt.Sprint(order) != "[before false after true]" {
			t.Errorf("hooks: %v", order)
		}
		// A caller that goes while it waits has sent nothing.
		s.Inject(fault.Rule{Latency: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := call(ctx, s, fault.Put, ""); !errors.Is(err, bucket.ErrUnavailable) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

func TestRandomRepeats(t *testing.T) {
	run := func() (outcome string, failed int) {
		s := fault.New(memory.New())
		stop := s.Random(42, 0.3, fault.Rule{Op: fault.Put}, fault.Unavailable, fault.LostApplied)
		for range 200 {
			_, err := s.Put(t.Context(), key, nil)
			outcome += fmt.Sprint(bucket.KindOf(err), ";")
			if err != nil {
				failed++
			}
		}
		stop()
		for range 50 {
			if _, err := s.Put(t.Context(), key, nil); err != nil {
				t.Fatalf("after stop: %v", err)
			}
		}
		return outcome, failed
	}
	first, failed := run()
	second, _ := run()
	if first != second {
		t.Error("the same seed gave two sequences")
	}
	if failed < 40 || failed > 80 {
		t.Errorf("%d of 200 failed, want about 60", failed)
	}
}
