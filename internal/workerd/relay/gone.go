package relay

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lookEvery is how often the clients of requests that take long are looked at.
	lookEvery = 100 * time.Millisecond
	// restAfter is how many looks that found no request let the watcher rest.
	restAfter = 10
)

// watcher notices clients that go while their request is under way: nothing is read
// from them then, so nobody else would.
type watcher struct {
	s       *Server
	running atomic.Bool
	stopped atomic.Bool
	work    sync.WaitGroup
	end     chan struct{}
	once    sync.Once
}

func (w *watcher) ending() chan struct{} {
	w.once.Do(func() { w.end = make(chan struct{}) })
	return w.end
}

// begun says that a request is under way.
func (w *watcher) begun() {
	if w.running.Load() || !w.running.CompareAndSwap(false, true) {
		return
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if !w.stopped.Load() {
		w.work.Go(w.run) // ends by itself when nothing is under way, and with stop
	}
}

func (w *watcher) run() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for idle := 0; idle < restAfter; idle++ {
		select {
		case <-tick.C:
		case <-w.ending():
			return
		}
		if w.look() {
			idle = 0
		}
	}
	w.running.Store(false)
	// A request that began just before may have counted on this one.
	if w.look() {
		w.begun()
	}
}

// look ends the requests of clients that are gone, and reports whether any request
// is under way.
func (w *watcher) look() bool {
	now := time.Now().UnixNano()
	any := false
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	for c := range w.s.conns {
		since := c.since.Load()
		if since == 0 {
			continue
		}
		any = true
		if now-since >= int64(lookEvery) && c.peek.look() == closed {
			c.abandon()
		}
	}
	return any
}

// stop ends the watcher and waits for it.
func (w *watcher) stop() {
	w.s.mu.Lock()
	if !w.stopped.Swap(true) {
		close(w.ending())
	}
	w.s.mu.Unlock()
	w.work.Wait()
}
