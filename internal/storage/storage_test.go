package storage

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/costtest"
	"github.com/scafo/scafo/internal/registry"
)

func open(b bucket.Bucket) *Service {
	return New(registry.New(b, registry.Options{}), Options{})
}

// files is a store that keeps objects as files: it refuses p beside p/q.
func files() *memory.Store { return memory.New(memory.Files(), memory.ContentETags()) }

func key(t cmpFatal, s string) Key {
	k, err := ParsePrefix(s)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return k
}

type cmpFatal interface{ Fatalf(string, ...any) }

func put(t *testing.T, s *Service, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if err := s.Put(t.Context(), key(t, k), []byte("value of "+k)); err != nil {
			t.Fatalf("%s: %v", k, err)
		}
	}
}

func TestBytesComeBackAsTheyWere(t *testing.T) {
	s := open(files())
	for name, body := range map[string][]byte{
		"empty": {}, "zero": {0}, "not text": {0xff, 0xfe, 0, '\n'}, "json": []byte(`{"tombstone":true}`),
		"largest": bytes.Repeat([]byte{7}, MaxBody),
	} {
		k := key(t, "a/"+name)
		if err := s.Put(t.Context(), k, body); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := s.Get(t.Context(), k)
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%s: %d bytes came back as %d, %v", name, len(body), len(got), err)
		}
		st, err := s.Stat(t.Context(), k)
		if err != nil || st.Size != int64(len(body)) || !st.IsTerminal || st.Key != "a/"+name || st.Modified.IsZero() {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
	}
	if err := s.Put(t.Context(), key(t, "a"), make([]byte, MaxBody+1)); scafo.CodeOf(err) != scafo.CodeResourceLimit {
		t.Errorf("one byte too many: %v", err)
	}
}

func TestPrefixesArePaths(t *testing.T) {
	s := open(files())
	put(t, s, "foo/a", "foobar/a", "foo", "foo-1/a", "foo/b/c", "foo/b/d", "foo/b")
	list := func(prefix string, recursive bool, want ...string) {
		t.Helper()
		got, err := s.List(t.Context(), key(t, prefix), recursive)
		if len(want) == 0 {
			if scafo.CodeOf(err) != scafo.CodeNotFound {
				t.Errorf("%s: %v, %v; want not-found", prefix, got, err)
			}
			return
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s, recursive %v: %v, %v; want %v", prefix, recursive, got, err, want)
		}
	}
	list("foo", false, "foo/a", "foo/b")
	list("foo/", false, "foo/a", "foo/b")
	list("foo", true, "foo/a", "foo/b", "foo/b/c", "foo/b/d")
	list("", false, "foo", "foo-1", "foobar")
	list("fo", true)
	list("foo/a", true)
	st, err := s.Stat(t.Context(), key(t, "foo-1"))
	if err != nil || st.IsTerminal || st.Size != 0 || st.Key != "foo-1" || st.Modified.IsZero() {
		t.Errorf("a prefix: %+v, %v", st, err)
	}
	if err := s.Delete(t.Context(), key(t, "foo")); err != nil {
		t.Fatal(err)
	}
	list("", true, "foo-1/a", "foobar/a")
	list("foo", true)
	if err := s.Delete(t.Context(), key(t, "foo")); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Errorf("a second removal: %v", err)
	}
	put(t, s, "foo/b/c")
	list("foo", true, "foo/b/c")
}

// model is the storage as a map with paths.
type model map[string]string

func (m model) beneath(k string, recursive bool) []string {
	found := map[string]bool{}
	for full := range m {
		rest, ok := strings.CutPrefix(full, k+"/")
		if k == "" {
			rest, ok = full, true
		}
		if !ok {
			continue
		}
		if !recursive {
			rest, _, _ = strings.Cut(rest, "/")
		}
		if k != "" {
			rest = k + "/" + rest
		}
		found[rest] = true
	}
	return slices.Sorted(maps.Keys(found))
}

func TestStorageAgainstAMapWithPaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, s, ctx := model{}, open(files()), context.Background()
		parents := func(k string) string {
			segments := strings.Split(k, "/")
			return strings.Join(segments[:rapid.IntRange(0, len(segments)).Draw(t, "depth")], "/")
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				k, v := keys().Draw(t, "key"), rapid.String().Draw(t, "value")
				if err := s.Put(ctx, key(t, k), []byte(v)); err != nil {
					t.Fatal(err)
				}
				m[k] = v
			},
			"delete": func(t *rapid.T) {
				k := keys().Draw(t, "key")
				if p := parents(k); p != "" {
					k = p
				}
				before := len(m)
				maps.DeleteFunc(m, func(full, _ string) bool { return full == k || strings.HasPrefix(full, k+"/") })
				err := s.Delete(ctx, key(t, k))
				if (err == nil) != (len(m) < before) || err != nil && scafo.CodeOf(err) != scafo.CodeNotFound {
					t.Fatalf("removing %q: %v", k, err)
				}
			},
			"get": func(t *rapid.T) {
				k := keys().Draw(t, "key")
				got, err := s.Get(ctx, key(t, k))
				want, there := m[k]
				if (err == nil) != there || there && string(got) != want || err != nil && scafo.CodeOf(err) != scafo.CodeNotFound {
					t.Fatalf("%q is %q, %v; want %q, %v", k, got, err, want, there)
				}
			},
			"stat": func(t *rapid.T) {
				k := keys().Draw(t, "key")
				st, err := s.Stat(ctx, key(t, k))
				want, terminal := m[k]
				exists := terminal || len(m.beneath(k, true)) > 0
				if (err == nil) != exists || err != nil && scafo.CodeOf(err) != scafo.CodeNotFound {
					t.Fatalf("%q: %v", k, err)
				}
				if exists && (st.Key != k || st.IsTerminal != terminal || st.Size != int64(len(want))) {
					t.Fatalf("%q: %+v", k, st)
				}
			},
			"list": func(t *rapid.T) {
				k, recursive := parents(keys().Draw(t, "key")), rapid.Bool().Draw(t, "recursive")
				got, err := s.List(ctx, key(t, k), recursive)
				want := m.beneath(k, recursive)
				if (err == nil) != (len(want) > 0) || err != nil && scafo.CodeOf(err) != scafo.CodeNotFound || !slices.Equal(got, want) {
					t.Fatalf("%q, recursive %v: %v, %v; want %v", k, recursive, got, err, want)
				}
			},
		})
	})
}

// A document of a value and a tombstone never have each other's size.
func TestSizesTellValuesFromTombstones(t *testing.T) {
	b := files()
	s := open(b)
	size := func(k string) int {
		t.Helper()
		body, ok := b.Dump()[key(t, k).object()]
		if !ok {
			t.Fatalf("%s is not in the bucket", k)
		}
		return len(body)
	}
	for _, k := range []string{"a", "a/b", strings.Repeat("x", 700)} {
		for _, n := range []int{0, 1, 100, 255, 256, 257, 5000} {
			if err := s.Put(t.Context(), key(t, k), make([]byte, n)); err != nil {
				t.Fatal(err)
			}
			if got := size(k); got < leastObject {
				t.Errorf("%d bytes under %q: a document of %d", n, k, got)
			}
		}
		if err := s.Delete(t.Context(), key(t, k)); err != nil {
			t.Fatal(err)
		}
		if got := size(k); got >= leastObject {
			t.Errorf("a tombstone of %d bytes", got)
		}
	}
}

func TestRequestsOfEachOperation(t *testing.T) {
	b := fault.New(files())
	s := open(b)
	for i := range 2500 {
		put(t, s, fmt.Sprintf("big/%04d/x", i))
	}
	put(t, s, "p/one", "q/r/one", "z/r/one")
	for name, c := range map[string]struct {
		do   func(ctx context.Context) error
		want map[fault.Op]int
	}{
		"put":          {func(ctx context.Context) error { return s.Put(ctx, key(t, "p/two"), nil) }, map[fault.Op]int{fault.Get: 1, fault.Create: 1}},
		"put over":     {func(ctx context.Context) error { return s.Put(ctx, key(t, "p/one"), nil) }, map[fault.Op]int{fault.Get: 1, fault.Replace: 1}},
		"get":          {func(ctx context.Context) error { _, err := s.Get(ctx, key(t, "p/one")); return err }, map[fault.Op]int{fault.Get: 1}},
		"stat":         {func(ctx context.Context) error { _, err := s.Stat(ctx, key(t, "p/one")); return err }, map[fault.Op]int{fault.Get: 1}},
		"stat prefix":  {func(ctx context.Context) error { _, err := s.Stat(ctx, key(t, "q")); return err }, map[fault.Op]int{fault.Get: 1, fault.List: 1}},
		"list":         {func(ctx context.Context) error { _, err := s.List(ctx, key(t, "q"), true); return err }, map[fault.Op]int{fault.List: 1}},
		"list many":    {func(ctx context.Context) error { _, err := s.List(ctx, key(t, "big"), false); return err }, map[fault.Op]int{fault.List: 3}},
		"list over":    {func(ctx context.Context) error { _, err := s.List(ctx, Key{}, false); return err }, map[fault.Op]int{fault.List: 2}},
		"delete":       {func(ctx context.Context) error { return s.Delete(ctx, key(t, "z")) }, map[fault.Op]int{fault.List: 1, fault.Get: 2, fault.Replace: 1}},
		"acquire":      {func(ctx context.Context) error { _, err := s.Acquire(ctx, key(t, "l"), "me", 0); return err }, map[fault.Op]int{fault.Get: 1, fault.Create: 1}},
		"release none": {func(ctx context.Context) error { return s.Release(ctx, key(t, "none"), "") }, map[fault.Op]int{fault.Get: 1}},
	} {
		b.Reset()
		if err := c.do(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := b.Counts(); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	// What grows with the number of keys is what the reference says.
	rows := costtest.Rows(t)
	rows["GET /v1/storage/list"].Check(t, "list many", costtest.Times{"for each 1,000 keys beneath": 3}, 0, 0, 3)
	b.Reset()
	if err := s.Delete(t.Context(), key(t, "big")); err != nil {
		t.Fatal(err)
	}
	n := b.Counts()
	rows["DELETE /v1/storage/objects/**"].Check(t, "delete many", costtest.Times{
		"for each key beneath": 2500, "for each value": 2500, "for each 1,000 keys beneath": 3,
	}, n[fault.Get], n[fault.Replace], n[fault.List])
}

// A store that is away never reads as a key that is not there.
func TestAStoreThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fault.New(files())
		s := open(b)
		put(t, s, "a/b")
		b.SetDown(true)
		for name, err := range everything(t.Context(), t, s) {
			if scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
				t.Errorf("%s: %v, want store-unavailable", name, err)
			}
		}
		b.SetDown(false)
		if got, err := s.Get(t.Context(), key(t, "a/b")); err != nil || string(got) != "value of a/b" {
			t.Errorf("afterwards: %q, %v", got, err)
		}
	})
}

func everything(ctx context.Context, t *testing.T, s *Service) map[string]error {
	k := key(t, "a/b")
	_, get := s.Get(ctx, k)
	_, stat := s.Stat(ctx, k)
	_, list := s.List(ctx, key(t, "a"), true)
	_, acquire := s.Acquire(ctx, k, "", 0)
	return map[string]error{
		"put": s.Put(ctx, k, nil), "get": get, "stat": stat, "list": list, "delete": s.Delete(ctx, k),
		"acquire": acquire, "release": s.Release(ctx, k, ""),
	}
}

// Whatever a request ends with, what the caller is told is what is in the bucket;
// and a call that is repeated after a failure does what it said.
func TestFaultsOfStorage(t *testing.T) {
	for _, kind := range []fault.Kind{fault.Unavailable, fault.Throttled, fault.LostApplied, fault.LostNotApplied, fault.Refused} {
		for skip := range 4 {
			synctest.Test(t, func(t *testing.T) {
				b := fault.New(files())
				s := open(b)
				put(t, s, "a/b", "a/c")
				b.Inject(fault.Rule{Match: func(c fault.Call) bool { return c.Op.IsWrite() || kind != fault.Refused }, Skip: skip, Times: 1, Kind: kind})
				again := func(what string, do func() error) {
					for try := 0; ; try++ {
						err := do()
						if err == nil {
							return
						}
						if code := scafo.CodeOf(err); code != scafo.CodeStoreUnavailable || try == 3 {
							t.Errorf("%v after %d: %s: %v", kind, skip, what, err)
							return
						}
					}
				}
				again("put", func() error { return s.Put(t.Context(), key(t, "a/b"), []byte("new")) })
				again("put", func() error { return s.Put(t.Context(), key(t, "d"), []byte("new")) })
				again("delete", func() error {
					err := s.Delete(t.Context(), key(t, "a/c"))
					if scafo.CodeOf(err) == scafo.CodeNotFound {
						return nil
					}
					return err
				})
				for k, want := range map[string]string{"a/b": "new", "d": "new"} {
					if got, err := s.Get(t.Context(), key(t, k)); err != nil || string(got) != want {
						t.Errorf("%v after %d: %s is %q, %v", kind, skip, k, got, err)
					}
				}
				if _, err := s.Get(t.Context(), key(t, "a/c")); scafo.CodeOf(err) != scafo.CodeNotFound {
					t.Errorf("%v after %d: what was removed: %v", kind, skip, err)
				}
			})
		}
	}
}

func TestADamagedObjectIsInNobodysWay(t *testing.T) {
	b := files()
	s := open(b)
	torn := []byte(`{"v":1,"write":"x","key":"a","bo` + strings.Repeat("x", leastObject))
	for name, do := range map[string]func(Key) error{
		"put":    func(k Key) error { return s.Put(t.Context(), k, []byte("new")) },
		"delete": func(k Key) error { return s.Delete(t.Context(), k) },
	} {
		k := key(t, name)
		if _, err := b.Put(t.Context(), k.object(), torn); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(t.Context(), k); scafo.CodeOf(err) != scafo.CodeInternal {
			t.Errorf("%s: a torn document reads as %v", name, err)
		}
		if err := do(k); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := s.Get(t.Context(), key(t, "put")); err != nil || string(got) != "new" {
		t.Errorf("%q, %v", got, err)
	}
	newer := []byte(`{"v":2,"write":"x"}`)
	if _, err := b.Put(t.Context(), key(t, "n").object(), newer); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), key(t, "n"), nil); err == nil {
		t.Error("what a newer release wrote was written over")
	}
	if got := b.Dump()[key(t, "n").object()]; !bytes.Equal(got, newer) {
		t.Errorf("it is now %s", got)
	}
}

func TestManyWritersOfOneKey(t *testing.T) {
	s := open(files())
	errs := make(chan error)
	for i := range 10 {
		go func() { errs <- s.Put(context.Background(), key(t, "k"), fmt.Appendf(nil, "%d", i)) }()
	}
	var all []error
	for range 10 {
		all = append(all, <-errs)
	}
	if err := errors.Join(all...); err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(t.Context(), key(t, "k"))
	if err != nil || cmp.Compare(string(got), "0") < 0 || len(got) != 1 {
		t.Errorf("%q, %v", got, err)
	}
}

func TestModifiedIsTheStoresTime(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b := memory.New(memory.WithClock(func() time.Time { return at }))
	s := open(b)
	put(t, s, "a/one")
	at = at.Add(time.Hour)
	put(t, s, "a/two")
	for k, want := range map[string]time.Time{"a/one": at.Add(-time.Hour), "a/two": at, "a": at} {
		if st, err := s.Stat(t.Context(), key(t, k)); err != nil || !st.Modified.Equal(want) {
			t.Errorf("%s: %v, %v; want %v", k, st.Modified, err, want)
		}
	}
}
