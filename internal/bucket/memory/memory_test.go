package memory_test

import (
	"errors"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/buckettest"
	"github.com/scafo/scafo/internal/bucket/memory"
)

func TestSuite(t *testing.T) {
	for name, opts := range map[string][]memory.Option{
		"Plain":        nil,
		"ContentETags": {memory.ContentETags()},
		"Files":        {memory.Files()},
	} {
		t.Run(name, func(t *testing.T) {
			buckettest.Suite(t, func(*testing.T) bucket.Bucket { return memory.New(opts...) })
		})
	}
}

func TestETags(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []memory.Option
		repeat bool
	}{
		"every write has its own": {nil, false},
		"content decides":         {[]memory.Option{memory.ContentETags()}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := memory.New(c.opts...)
			first, err := b.Put(t.Context(), "k", []byte("x"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Put(t.Context(), "k", []byte("y")); err != nil {
				t.Fatal(err)
			}
			third, err := b.Put(t.Context(), "k", []byte("x"))
			if err != nil {
				t.Fatal(err)
			}
			if (first == third) != c.repeat {
				t.Errorf("x, y, x: ETags %s and %s", first, third)
			}
		})
	}
}

func TestFilesRefusesParents(t *testing.T) {
	b := memory.New(memory.Files())
	if _, err := b.Create(t.Context(), "p/q", nil); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"p", "p/q/r", "p/q/r/s"} {
		if _, err := b.Create(t.Context(), key, nil); !errors.Is(err, bucket.ErrInvalid) {
			t.Errorf("create %s: %v", key, err)
		}
	}
	if _, err := b.Create(t.Context(), "p/qq", nil); err != nil {
		t.Errorf("a neighbour: %v", err)
	}
}

func TestClock(t *testing.T) {
	at := time.Date(2026, 5, 4, 3, 2, 1, 999, time.UTC)
	b := memory.New(memory.WithClock(func() time.Time { return at }))
	if _, err := b.Put(t.Context(), "k", nil); err != nil {
		t.Fatal(err)
	}
	at = at.Add(90 * time.Second)
	o, err := b.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if age := o.Date.Sub(o.Modified); age != 90*time.Second {
		t.Errorf("age by the store's clock: %v", age)
	}
}
