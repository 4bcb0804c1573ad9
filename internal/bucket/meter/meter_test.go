package meter_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/buckettest"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/bucket/meter"
)

func TestSuite(t *testing.T) {
	buckettest.Suite(t, func(*testing.T) bucket.Bucket { return meter.New(memory.New()) })
}

func TestCounts(t *testing.T) {
	b := meter.New(memory.New())
	ctx := meter.With(t.Context(), "lease")
	calls := func(ctx context.Context) {
		etag, _ := b.Create(ctx, "k", nil)
		_, _ = b.Replace(ctx, "k", etag, []byte("x"))
		_, _ = b.Replace(ctx, "k", "stale", []byte("x"))
		_, _ = b.Get(ctx, "k")
		_, _ = b.GetIfChanged(ctx, "k", etag)
		_, _ = b.Put(ctx, "k", nil)
		_, _ = b.List(ctx, "", bucket.ListOptions{})
		_ = b.Delete(ctx, "k")
	}
	calls(ctx)
	want := meter.Counts{
		{"lease", meter.Create}: 1, {"lease", meter.Replace}: 2, {"lease", meter.Get}: 2,
		{"lease", meter.Put}: 1, {"lease", meter.List}: 1, {"lease", meter.Delete}: 1,
	}
	first := b.Counts()
	if !maps.Equal(first, want) {
		t.Errorf("counted %v, want %v", first, want)
	}
	_, _ = b.Get(t.Context(), "k")
	if got := b.Counts().Since(first); !maps.Equal(got, meter.Counts{{meter.Other, meter.Get}: 1}) {
		t.Errorf("since then %v", got)
	}
	if n := b.Counts().Total(); n != 9 {
		t.Errorf("total %d", n)
	}
	if n := b.Counts().For("lease").Total(meter.Get, meter.List); n != 3 {
		t.Errorf("reads and listings of the lease: %d", n)
	}
}

func TestTally(t *testing.T) {
	b := meter.New(memory.New())
	tally := &meter.Tally{}
	ctx := meter.WithTally(meter.With(t.Context(), "a"), tally)
	if _, err := b.Create(ctx, "k", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(meter.With(ctx, "b"), "k"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if got := tally.Total(); got != 2 {
		t.Errorf("counted %d", got)
	}
}

// Every request tells once how it ended; the outcome is the bucket's own.
func TestOutcomes(t *testing.T) {
	b := meter.New(memory.New())
	type answer struct {
		op      meter.Op
		outcome meter.Outcome
	}
	got := map[answer]int{}
	_, _ = b.Get(t.Context(), "before") // nobody asked yet
	b.OnAnswer(func(op meter.Op, o meter.Outcome, took time.Duration) {
		if took < 0 {
			t.Errorf("%s took %s", op, took)
		}
		got[answer{op, o}]++
	})
	etag, _ := b.Create(t.Context(), "k", nil)
	_, _ = b.Create(t.Context(), "k", nil)
	_, _ = b.Replace(t.Context(), "k", "stale", nil)
	_, _ = b.GetIfChanged(t.Context(), "k", etag)
	_, _ = b.Get(t.Context(), "k")
	_, _ = b.Get(t.Context(), "none")
	_, _ = b.Put(t.Context(), "k", nil)
	_, _ = b.List(t.Context(), "", bucket.ListOptions{})
	_ = b.Delete(t.Context(), "k")
	want := map[answer]int{
		{meter.Create, meter.OutcomeOK}: 1, {meter.Create, meter.OutcomeRefused}: 1, {meter.Replace, meter.OutcomeRefused}: 1,
		{meter.Get, meter.OutcomeNotModified}: 1, {meter.Get, meter.OutcomeOK}: 1, {meter.Get, meter.OutcomeNotFound}: 1,
		{meter.Put, meter.OutcomeOK}: 1, {meter.List, meter.OutcomeOK}: 1, {meter.Delete, meter.OutcomeOK}: 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
}

func TestOutcomeOf(t *testing.T) {
	for err, want := range map[error]meter.Outcome{
		nil: meter.OutcomeOK, errors.New("?"): meter.OutcomeOther,
		&bucket.Error{Kind: bucket.ErrUnavailable, Err: bucket.ErrFull}: meter.OutcomeUnavailable,
		&bucket.Error{Kind: bucket.ErrUnknown}:                          meter.OutcomeUnknown,
		&bucket.Error{Kind: bucket.ErrDenied}:                           meter.OutcomeDenied,
		fmt.Errorf("x: %w", &bucket.Error{Kind: bucket.ErrInvalid}):     meter.OutcomeInvalid,
	} {
		if got := meter.OutcomeOf(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}
