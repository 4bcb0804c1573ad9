package qualify_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/bucket/qualify"
)

func TestProve(t *testing.T) {
	for _, m := range []*memory.Store{memory.New(), memory.New(memory.ContentETags()), memory.New(memory.Files())} {
		if err := qualify.Prove(t.Context(), m, "_scafo/qualify"); err != nil {
			t.Error(err)
		}
		if left := m.Dump(); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// What a prover leaves that is killed goes with a proof that is made an hour later, and
// nothing else does.
func TestWhatADeadProverLeft(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	m := memory.New(memory.WithClock(func() time.Time { return now }))
	put := func(keys ...string) {
		t.Helper()
		for _, key := range keys {
			if _, err := m.Put(t.Context(), key, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("probe/0123456789abcdef", "probe/clock", "probe/0123456789abcdef.json", "probe/deep/0123456789abcdef", "other/0123456789abcdef")
	now = now.Add(time.Second)
	put("probe/00000000000000aa")
	now = now.Add(time.Hour) // an hour exactly for the second
	if err := qualify.Prove(t.Context(), m, "probe"); err != nil {
		t.Fatal(err)
	}
	want := []string{"other/0123456789abcdef", "probe/00000000000000aa", "probe/0123456789abcdef.json", "probe/clock", "probe/deep/0123456789abcdef"}
	if left := slices.Sorted(maps.Keys(m.Dump())); !slices.Equal(left, want) {
		t.Errorf("left: %q", left)
	}
}

// broken is a store with one flaw.
type broken struct {
	*memory.Store
	create  func(ctx context.Context, key string, body []byte) (string, error)
	replace func(ctx context.Context, key, etag string, body []byte) (string, error)
	list    func() (bucket.Page, error)
	get     func(o *bucket.Object)
}

func (b *broken) Create(ctx context.Context, key string, body []byte) (string, error) {
	if b.create != nil {
		return b.create(ctx, key, body)
	}
	return b.Store.Create(ctx, key, body)
}

func (b *broken) Replace(ctx context.Context, key, etag string, body []byte) (string, error) {
	if b.replace != nil {
		return b.replace(ctx, key, etag, body)
	}
	return b.Store.Replace(ctx, key, etag, body)
}

func (b *broken) List(ctx context.Context, prefix string, o bucket.ListOptions) (bucket.Page, error) {
	if b.list != nil {
		return b.list()
	}
	return b.Store.List(ctx, prefix, o)
}

func (b *broken) Get(ctx context.Context, key string) (*bucket.Object, error) {
	o, err := b.Store.Get(ctx, key)
	if b.get != nil && err == nil {
		b.get(o)
	}
	return o, err
}

func TestFlaws(t *testing.T) {
	invalid := &bucket.Error{Op: "create", Kind: bucket.ErrInvalid}
	for name, c := range map[string]struct {
		flaw func(m *memory.Store) *broken
		want qualify.Check
	}{
		"ignores If-None-Match": {func(m *memory.Store) *broken {
			return &broken{create: m.Put}
		}, qualify.CheckCreateRace},
		"ignores If-None-Match but serializes what is under way": {func(m *memory.Store) *broken {
			return &broken{create: func(ctx context.Context, key string, body []byte) (string, error) {
				if string(body) == "second" {
					return m.Put(ctx, key, body)
				}
				return m.Create(ctx, key, body)
			}}
		}, qualify.CheckCreateOnce},
		"does not know conditions": {func(*memory.Store) *broken {
			return &broken{create: func(context.Context, string, []byte) (string, error) { return "", invalid }}
		}, qualify.CheckWrite},
		"ignores If-Match": {func(m *memory.Store) *broken {
			return &broken{replace: func(ctx context.Context, key, _ string, body []byte) (string, error) {
				return m.Put(ctx, key, body)
			}}
		}, qualify.CheckReplaceStale},
		"refuses every If-Match": {func(*memory.Store) *broken {
			return &broken{replace: func(_ context.Context, key, _ string, _ []byte) (string, error) {
				return "", &bucket.Error{Op: "replace", Key: key, Kind: bucket.ErrRefused}
			}}
		}, qualify.CheckReplace},
		"refuses and writes": {func(m *memory.Store) *broken {
			return &broken{replace: func(ctx context.Context, key, etag string, body []byte) (string, error) {
				tag, err := m.Replace(ctx, key, etag, body)
				if err != nil {
					_, _ = m.Put(ctx, key, body)
				}
				return tag, err
			}}
		}, qualify.CheckReplaceStale},
		"If-Match creates": {func(m *memory.Store) *broken {
			return &broken{replace: func(ctx context.Context, key, etag string, body []byte) (string, error) {
				if _, err := m.Get(ctx, key); errors.Is(err, bucket.ErrNotFound) {
					return m.Put(ctx, key, body)
				}
				return m.Replace(ctx, key, etag, body)
			}}
		}, qualify.CheckReplaceAbsent},
		"lists late": {func(*memory.Store) *broken {
			return &broken{list: func() (bucket.Page, error) { return bucket.Page{}, nil }}
		}, qualify.CheckList},
		"answers another ETag": {func(*memory.Store) *broken {
			return &broken{get: func(o *bucket.Object) { o.ETag = "W/" + o.ETag }}
		}, qualify.CheckReadBack},
	} {
		t.Run(name, func(t *testing.T) {
			m := memory.New()
			b := c.flaw(m)
			b.Store = m
			err := qualify.Prove(t.Context(), b, "prove/")
			var e *qualify.Error
			if !errors.As(err, &e) {
				t.Fatalf("qualified, or failed otherwise: %v", err)
			}
			if e.Check != c.want || !strings.Contains(err.Error(), string(e.Check)) {
				t.Errorf("failed %q, want %q: %v", e.Check, c.want, err)
			}
			if left := m.Dump(); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// A store that is away is no store that does not qualify.
func TestAway(t *testing.T) {
	for _, op := range fault.Ops() {
		for _, kind := range []fault.Kind{fault.Unavailable, fault.Denied, fault.LostNotApplied} {
			s := fault.New(memory.New())
			s.Next(op, "", kind)
			err := qualify.Prove(t.Context(), s, "prove/")
			var e *qualify.Error
			if op == fault.Put {
				continue // it never puts without a condition
			}
			if err == nil || errors.As(err, &e) {
				t.Errorf("%s, fault %d: %v", op, kind, err)
			}
		}
	}
}
