package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
)

func used(t *testing.T, b bucket.Bucket) (keys []string) {
	t.Helper()
	if err := bucket.Walk(t.Context(), b, registry.TokenPrefix, func(i bucket.Info) error {
		keys = append(keys, i.Key)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestUseToken(t *testing.T) {
	r, b := fleet(t)
	other := open(b)
	ctx, exp := t.Context(), time.Date(2026, 1, 2, 3, 4, 59, 0, time.UTC)
	if err := r.UseToken(ctx, exp, "kid", "jti"); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*registry.Registry{r, other} {
		err := r.UseToken(ctx, exp, "kid", "jti")
		if !errors.Is(err, bucket.ErrRefused) {
			t.Errorf("a second use: %v", err)
		}
		wantCode(t, err, scafo.CodeAuthInvalid)
	}
	// The key is made of both, and nobody can shift what is in which.
	for _, id := range [][2]string{{"kid", "jti2"}, {"kid2", "jti"}, {"kidj", "ti"}, {"ki", "djti"}} {
		if err := r.UseToken(ctx, exp, id[0], id[1]); err != nil {
			t.Errorf("%v: %v", id, err)
		}
	}
	keys := used(t, b)
	if len(keys) != 5 || !strings.HasPrefix(keys[0], "_scafo/tokens/20260102T0304/") {
		t.Errorf("%v", keys)
	}
	if rev, err := registry.Load[scafo.Revision](ctx, r, registry.RevisionKey); err != nil || rev.Value.Counter != 1 {
		t.Errorf("token ids touch the revision: %+v, %v", rev.Value, err) // 1 is the fleet itself
	}
}

// Of many calls at once with one token, exactly one is accepted, also where the
// store loses answers, refuses for nothing, or is tried twice on the way.
func TestUseTokenAtOnce(t *testing.T) {
	for _, kind := range []fault.Kind{fault.None, fault.LostApplied, fault.LostNotApplied, fault.Refused, fault.Unavailable} {
		synctest.Test(t, func(t *testing.T) {
			b := memory.New()
			var wg sync.WaitGroup
			errs := make([]error, 24)
			for i := range errs {
				store := fault.New(b)
				store.Inject(fault.Rule{Op: fault.Create, Kind: kind, Times: 1, Latency: time.Duration(i%3) * time.Millisecond})
				wg.Go(func() { errs[i] = open(store).UseToken(context.Background(), time.Now(), "kid", "jti") })
			}
			wg.Wait()
			accepted := 0
			for _, err := range errs {
				if err == nil {
					accepted++
				} else if !errors.Is(err, bucket.ErrRefused) {
					t.Errorf("%v", err)
				}
			}
			if accepted != 1 || len(used(t, b)) != 1 {
				t.Errorf("fault %d: accepted %d times", kind, accepted)
			}
		})
	}
}

// A request that was tried twice on the way is refused by its own success.
func TestUseTokenTriedTwiceOnTheWay(t *testing.T) {
	b := memory.New()
	if err := open(doubling{b}).UseToken(t.Context(), time.Now(), "kid", "jti"); err != nil {
		t.Fatal(err)
	}
	if err := open(doubling{b}).UseToken(t.Context(), time.Now(), "kid", "jti"); !errors.Is(err, bucket.ErrRefused) {
		t.Fatalf("%v", err)
	}
}

type doubling struct{ bucket.Bucket }

func (d doubling) Create(ctx context.Context, key string, body []byte) (string, error) {
	_, _ = d.Bucket.Create(ctx, key, body)
	return d.Bucket.Create(ctx, key, body)
}

func TestUseTokenWhileTheBucketIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, rule := range []fault.Rule{
			{Kind: fault.Unavailable},
			{Kind: fault.Denied},
			{Kind: fault.LostNotApplied},
			{Op: fault.Create, Kind: fault.LostNotApplied},
			{Op: fault.Create, Kind: fault.Refused},
		} {
			store := fault.New(memory.New())
			store.Inject(rule)
			err := open(store).UseToken(t.Context(), time.Now(), "kid", "jti")
			wantCode(t, err, scafo.CodeStoreUnavailable)
			if errors.Is(err, bucket.ErrRefused) {
				t.Errorf("%+v: looks like a replay: %v", rule, err)
			}
		}
	})
}

func TestSweepTokens(t *testing.T) {
	clock := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	b := memory.New(memory.WithClock(func() time.Time { return clock }))
	r := open(b)
	if _, err := r.InitFleet(t.Context(), admin("root")); err != nil {
		t.Fatal(err)
	}
	for m := range 20 {
		for i := range 3 {
			if err := r.UseToken(t.Context(), clock.Add(time.Duration(m)*time.Minute), "kid", fmt.Sprint(m, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	oldest := func() string {
		keys := used(t, b)
		return strings.Split(strings.TrimPrefix(keys[0], registry.TokenPrefix), "/")[0]
	}
	for _, c := range []struct {
		own, store time.Duration // after 03:00
		want       string
	}{
		{11*time.Minute - 1, 11*time.Minute - 1, "20260102T0300"},
		{11 * time.Minute, 11 * time.Minute, "20260102T0301"}, // ten minutes after the minute has passed
		{15 * time.Minute, 15 * time.Minute, "20260102T0305"},
		{24 * time.Hour, 15 * time.Minute, "20260102T0305"}, // this machine's clock runs ahead
		{15 * time.Minute, 24 * time.Hour, "20260102T0305"}, // the store's does
	} {
		start := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
		clock = start.Add(c.store)
		if err := r.SweepTokens(t.Context(), start.Add(c.own)); err != nil {
			t.Fatal(err)
		}
		if got := oldest(); got != c.want {
			t.Errorf("at %v (store %v): the oldest minute is %s, want %s", c.own, c.store, got, c.want)
		}
	}
}
