package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/workerd/layout"
)

// Stacks name the developer's files once the source map could be read; it is read once,
// and not before there is a stack.
func TestStacksLeadToTheProject(t *testing.T) {
	const (
		stack  = "TypeError: no\n    at f (index.js:2:1)\n    at async Object.fetch (index.js:7:3)\n    at other.js:2:1"
		mapped = "TypeError: no\n    at f (src/a.ts:1:1)\n    at async Object.fetch (index.js:7:3)\n    at other.js:2:1"
	)
	good := []byte(`{"version": 3, "sources": ["src/a.ts"], "mappings": ";AAAA"}`)
	for name, c := range map[string]struct {
		answers []error // of each reading; the last stays
		text    []byte
		said    string
		want    []string // a minute apart
		reads   int
	}{
		"a map":               {[]error{nil}, good, stack, []string{mapped, mapped}, 1},
		"no map":              {[]error{bucket.ErrNotFound}, nil, stack, []string{stack, stack}, 1},
		"a map that is none":  {[]error{nil}, []byte("{"), stack, []string{stack, stack}, 1},
		"the most lines":      {[]error{nil}, lined(maxMapLines), stack, []string{mapped}, 1},
		"too many lines":      {[]error{nil}, lined(maxMapLines + 1), stack, []string{stack}, 1},
		"the store is away":   {[]error{bucket.ErrUnavailable, nil}, good, stack, []string{stack, mapped, mapped}, 2},
		"no stack":            {[]error{nil}, good, "at index.js:2:1", []string{"at index.js:2:1"}, 0},
		"words before it":     {[]error{nil}, good, "see index.js:2:1\n    at index.js:2:1", []string{"see index.js:2:1\n    at src/a.ts:1:1"}, 1},
		"other errors, twice": {[]error{errors.New("x")}, nil, stack, []string{stack, stack}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			now, reads := time.Unix(0, 0), 0
			s := &stacks{main: "index.js", log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }, read: func(context.Context) ([]byte, error) {
				err := c.answers[min(reads, len(c.answers)-1)]
				reads++
				if err != nil {
					return nil, fmt.Errorf("get: %w", err)
				}
				return c.text, nil
			}}
			for i, want := range c.want {
				for range 2 { // the second within the minute
					if got := s.rewrite(c.said); got != want {
						t.Errorf("%d: %q, want %q", i, got, want)
					}
				}
				now = now.Add(mapAgain)
			}
			if reads != c.reads {
				t.Errorf("%d readings, want %d", reads, c.reads)
			}
		})
	}
	var none *stacks
	if got := none.rewrite(stack); got != stack {
		t.Errorf("%q", got)
	}
}

// lined is a map of a module with that many ends of lines.
func lined(n int) []byte {
	return []byte(`{"version": 3, "sources": ["src/a.ts"], "mappings": ";AAAA` + strings.Repeat(";", n-1) + `"}`)
}

// mapStore is a store that asks for no credentials.
type mapStore struct{ bucket.Bucket }

func (mapStore) Credentials(context.Context) (access, secret, session string, expires time.Time, err error) {
	return "", "", "", time.Time{}, nil
}

// The map that is read is the one that the deployment was published with, and a store
// that has none, or is away, does no harm.
func TestTheMapOfADeployment(t *testing.T) {
	const stack, mapped = "Error\n    at index.js:2:1", "Error\n    at src/a.ts:1:1"
	b := fault.New(memory.New())
	m := &layout.Manifest{ScriptName: "app", Version: "0123456789abcdef", Main: "index.js"}
	w := &workerdRuntime{store: mapStore{b}, log: slog.New(slog.DiscardHandler)}
	if got := w.stacksOf(m).rewrite(stack); got != stack {
		t.Errorf("without a map: %q", got)
	}
	if _, err := b.Put(t.Context(), "deploy/app/0123456789abcdef/main.map", []byte(`{"version": 3, "sources": ["src/a.ts"], "mappings": ";AAAA"}`)); err != nil {
		t.Fatal(err)
	}
	if got := w.stacksOf(m).rewrite(stack); got != mapped {
		t.Errorf("with a map: %q", got)
	}
	b.SetDown(true)
	if got := w.stacksOf(m).rewrite(stack); got != stack {
		t.Errorf("while the store is away: %q", got)
	}
}
