// Package paralleltest runs tests of whole systems beside each other. Most of them
// wait: for a lease to end, for a minute to be over, for a process to leave. What they
// start computes, though, so few of them run at once. A test that measures, or asks as
// fast as it can, calls nothing of this package: it runs alone, before all those that do.
package paralleltest

import (
	"flag"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
)

const (
	// perProcessor is how many tests for each processor have a slot at once.
	perProcessor = 2
	// unbounded is more than there are tests: the slots bound them.
	unbounded = 1000
	// gathering is how long the first slots wait for those that want one. The tests of
	// a package ask for theirs at the same time, in no order, and the long ones come first.
	gathering = 200 * time.Millisecond
)

var all = newQueue(perProcessor * runtime.NumCPU())

// Main runs the tests of a package whose TestMain calls it, and returns the exit code.
func Main(m *testing.M) int {
	// The testing package's own bound would let tests begin in no order, and those that
	// only wait keep others from running.
	if err := flag.Set("test.parallel", strconv.Itoa(unbounded)); err != nil {
		panic(err)
	}
	return m.Run()
}

// Beside lets t run beside others, as soon as there is a slot for it.
func Beside(t *testing.T) {
	t.Helper()
	beside(t, false)
}

// Early is [Beside] for a test that takes long: it gets a slot before the others, so
// that nobody waits for it alone in the end.
func Early(t *testing.T) {
	t.Helper()
	beside(t, true)
}

func beside(t *testing.T, early bool) {
	t.Helper()
	t.Parallel()
	all.take(early)
	t.Cleanup(all.give)
}

// Waits lets t run beside others at once: it does hardly more than wait, or has subtests
// that do the work and call [Beside].
func Waits(t *testing.T) {
	t.Helper()
	t.Parallel()
}

// queue hands out a number of slots, to those who are early first.
type queue struct {
	mu            sync.Mutex
	asked         bool // whether anybody has asked for a slot
	open          bool // whether slots are handed out yet
	free          int
	early, others []chan struct{} // who waits, in the order of their coming
}

func newQueue(slots int) *queue { return &queue{free: slots} }

// take waits for a slot.
func (q *queue) take(early bool) {
	got := make(chan struct{})
	q.mu.Lock()
	if early {
		q.early = append(q.early, got)
	} else {
		q.others = append(q.others, got)
	}
	first := !q.asked
	q.asked = true
	q.handOutLocked()
	q.mu.Unlock()
	if first {
		time.Sleep(gathering)
		q.mu.Lock()
		q.open = true
		q.handOutLocked()
		q.mu.Unlock()
	}
	<-got
}

// give returns a slot.
func (q *queue) give() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free++
	q.handOutLocked()
}

func (q *queue) handOutLocked() {
	for q.open && q.free > 0 {
		from := &q.early
		if len(*from) == 0 {
			from = &q.others
		}
		if len(*from) == 0 {
			return
		}
		close((*from)[0])
		*from = (*from)[1:]
		q.free--
	}
}
