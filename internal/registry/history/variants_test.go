package history

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/embedded/embeddedtest"
)

// unconditional is a store that knows no conditions.
type unconditional struct{ bucket.Bucket }

func (u unconditional) Create(ctx context.Context, key string, body []byte) (string, error) {
	return u.Put(ctx, key, body)
}

func (u unconditional) Replace(ctx context.Context, key, _ string, body []byte) (string, error) {
	return u.Put(ctx, key, body)
}

// trusting takes a lost answer for a success.
type trusting struct{ bucket.Bucket }

func (u trusting) Create(ctx context.Context, key string, body []byte) (string, error) {
	return trust(u.Bucket.Create(ctx, key, body))
}

func (u trusting) Replace(ctx context.Context, key, etag string, body []byte) (string, error) {
	return trust(u.Bucket.Replace(ctx, key, etag, body))
}

func trust(etag string, err error) (string, error) {
	if errors.Is(err, bucket.ErrUnknown) {
		return "trusted", nil
	}
	return etag, err
}

// remembering answers every other read with what it read before.
type remembering struct {
	bucket.Bucket
	mu   *sync.Mutex
	old  map[string]*bucket.Object // guarded by mu
	turn *int                      // guarded by mu
}

func (u remembering) GetIfChanged(ctx context.Context, key, _ string) (*bucket.Object, error) {
	return u.Get(ctx, key)
}

func (u remembering) Get(ctx context.Context, key string) (*bucket.Object, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if o := u.old[key]; o != nil {
		if *u.turn++; *u.turn%2 == 0 {
			return o, nil
		}
	}
	o, err := u.Bucket.Get(ctx, key)
	if err == nil {
		u.old[key] = o
	}
	return o, err
}

// What breaks the rules is found: these tests can fail.
func TestBrokenVariantsAreFound(t *testing.T) {
	t.Parallel()
	const (
		most = 200
		// spoiltPatience is for a lease that nobody gets any more since its record was lost.
		spoiltPatience = 5 * time.Second
		enough         = 100 // histories: who asks for as many has the time for mistakes that show rarely
	)
	e := embeddedtest.Start(t, t.TempDir())
	variants := map[string]variant{
		"unconditional": func(b bucket.Bucket, _ uint64) bucket.Bucket { return unconditional{b} },
		"trusting":      func(b bucket.Bucket, _ uint64) bucket.Bucket { return trusting{b} },
		"remembering": func(b bucket.Bucket, _ uint64) bucket.Bucket {
			return remembering{b, &sync.Mutex{}, map[string]*bucket.Object{}, new(int)}
		},
	}
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, c := range []struct {
		variant string
		subject subject
		rare    bool
	}{
		{"unconditional", applications, false}, {"unconditional", freezes, false}, {"unconditional", operators, false}, {"unconditional", claims, false},
		{"trusting", applications, false}, {"trusting", freezes, false}, {"trusting", operators, true}, {"trusting", claims, true},
		{"remembering", applications, false}, {"remembering", freezes, false},
	} {
		if c.rare && *histories < enough {
			continue
		}
		group.Go(func() error {
			for seed := range uint64(most) {
				h, err := record(t.Context(), e, c.subject, fmt.Sprintf("%s/%s/%d", c.variant, c.subject.name, seed), seed, variants[c.variant])
				if err != nil {
					return err
				}
				if porcupine.CheckOperationsTimeout(c.subject.model(), h, thinking) == porcupine.Illegal {
					t.Logf("%s over a store that is %s: found by history %d", c.subject.name, c.variant, seed+1)
					return nil
				}
			}
			t.Errorf("%s: %d histories over a store that is %s look right", c.subject.name, most, c.variant)
			return nil
		})
	}
	group.Go(func() error {
		for seed := range uint64(most) {
			h, err := recordLease(t.Context(), e, fmt.Sprintf("unconditional/lease/%d", seed), seed, spoiltPatience, variants["unconditional"])
			if porcupine.CheckOperationsTimeout(leaseModel, h, thinking) == porcupine.Illegal {
				t.Logf("leases over a store that is unconditional: found by history %d", seed+1)
				return nil
			}
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
		}
		t.Errorf("%d histories of leases over a store that is unconditional look right", most)
		return nil
	})
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
