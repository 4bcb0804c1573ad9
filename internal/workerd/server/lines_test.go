package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo/internal/workerd/instance"
)

// buffer is a log that somebody reads while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string { b.mu.Lock(); defer b.mu.Unlock(); return b.b.String() }

func dropsTold(log string) (told []string) {
	for line := range strings.Lines(log) {
		if _, n, ok := strings.Cut(line, "lines of output were dropped\" lines="); ok {
			told = append(told, strings.TrimSpace(n))
		}
	}
	return told
}

// A burst beyond the bound leaves one line that says how much is missing, though nothing
// comes after it; one without end is told of now and then.
func TestABurstIsToldOfOnce(t *testing.T) {
	for name, c := range map[string]struct {
		pieces int           // of 100 lines each
		every  time.Duration // between the pieces
		least  int
		most   int
	}{
		"at once":      {1000, 0, 1, 1},
		"for a second": {1000, time.Millisecond, 1, 1},
		"for a minute": {600, 100 * time.Millisecond, 3, 7},
		"within it":    {10, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out buffer
				l := newLineLog(slog.New(slog.NewTextHandler(&out, nil)))
				text := strings.Repeat("x", 900)
				for range c.pieces {
					for range 100 {
						l.add(taggedLine{Line: instance.Line{Level: "log", Text: text}})
					}
					synctest.Wait() // the queue is empty again
					if c.every > 0 {
						time.Sleep(c.every)
					}
				}
				time.Sleep(2 * dropsOver)
				synctest.Wait()
				told := dropsTold(out.String())
				if len(told) < c.least || len(told) > c.most {
					t.Errorf("told of %v", told)
				}
				kept := strings.Count(out.String(), text)
				sum := 0
				for _, n := range told {
					var v int
					if _, err := fmt.Sscan(n, &v); err != nil {
						t.Fatal(err)
					}
					sum += v
				}
				if kept+sum != 100*c.pieces {
					t.Errorf("%d lines were kept and %d counted, of %d", kept, sum, 100*c.pieces)
				}
				l.close()
			})
		})
	}
}

// What was dropped just before the end is told of as well.
func TestDropsAtTheEndAreTold(t *testing.T) {
	var out buffer
	l := newLineLog(slog.New(slog.NewTextHandler(&out, nil)))
	for range 2 * lineBurst / maxText {
		l.add(taggedLine{Line: instance.Line{Level: "log", Text: strings.Repeat("x", maxText)}})
	}
	l.close()
	if told := dropsTold(out.String()); len(told) != 1 {
		t.Errorf("told of %v", told)
	}
}
