package meter

import (
	"context"
	"sync"
	"time"
)

// A window looks back an hour, and up to one step more. WindowStart is for how long
// what it counts is that of a start, which is then forgotten.
const (
	WindowLength = time.Hour
	WindowStart  = time.Minute
	windowStep   = 5 * time.Minute
)

// Window keeps what a bucket's counters were, so that what was lately asked of it
// can be told from what a start asked long ago.
type Window struct {
	b *Bucket

	mu    sync.Mutex
	marks []mark // oldest first, never empty; guarded by mu
	first bool   // the oldest is the beginning; guarded by mu
}

type mark struct {
	at     time.Time
	counts Counts
}

// NewWindow begins now.
func NewWindow(b *Bucket) *Window {
	return &Window{b: b, marks: []mark{{time.Now(), b.Counts()}}, first: true}
}

// Run keeps the window moving until ctx ends.
func (w *Window) Run(ctx context.Context) error {
	t := time.NewTicker(windowStep)
	defer t.Stop()
	started := time.NewTimer(WindowStart)
	defer started.Stop()
	for {
		select {
		case <-started.C:
			w.begin()
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			w.move()
		}
	}
}

// begin forgets the start.
func (w *Window) begin() {
	now := mark{time.Now(), w.b.Counts()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marks, w.first = []mark{now}, false
}

func (w *Window) move() {
	now := mark{time.Now(), w.b.Counts()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marks = append(w.marks, now)
	for len(w.marks) > 1 && now.at.Sub(w.marks[1].at) >= WindowLength {
		w.marks = w.marks[1:]
	}
}

// Recent is what was counted since a time that lies WindowLength back at the most;
// beginning is whether the start is still in it.
func (w *Window) Recent() (c Counts, since time.Time, beginning bool) {
	now := w.b.Counts()
	w.mu.Lock()
	defer w.mu.Unlock()
	return now.Since(w.marks[0].counts), w.marks[0].at, w.first
}
