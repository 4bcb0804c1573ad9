package node

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// door is the API's way in. It knows the connections that were taken from the
// socket's queue and whose first request has not come to the handler: a server that
// shuts down cuts those, also when the request is on its way.
type door struct {
	next http.Handler

	mu      sync.Mutex
	waiting map[net.Conn]struct{} // guarded by mu
	leaving bool                  // guarded by mu
	empty   chan struct{}         // closed when nobody waits and leaving; guarded by mu
}

func newDoor(next http.Handler) *door {
	return &door{next: next, waiting: map[net.Conn]struct{}{}, empty: make(chan struct{})}
}

// connKey is where a request's context has its connection.
type connKey struct{}

// install makes the server pass through the door.
func (d *door) install(s *http.Server) {
	s.Handler = d
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	s.ConnState = func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			d.mu.Lock()
			d.waiting[c] = struct{}{}
			d.mu.Unlock()
		case http.StateClosed, http.StateHijacked:
			d.passed(c)
		}
	}
}

func (d *door) passed(c net.Conn) (leaving bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.waiting[c]; ok {
		delete(d.waiting, c)
		d.tell()
	}
	return d.leaving
}

// tell closes empty when its time has come. The caller holds mu.
func (d *door) tell() {
	if !d.leaving || len(d.waiting) > 0 {
		return
	}
	select {
	case <-d.empty:
	default:
		close(d.empty)
	}
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(net.Conn)
	if ok && d.passed(c) {
		w.Header().Set("Connection", "close")
	}
	d.next.ServeHTTP(w, r)
}

// leave waits until every connection that was accepted has brought its request, at
// most for the time given: one that brings none would be waited for in vain. Each
// connection ends with its answer from then on. Nothing may be accepted any more.
func (d *door) leave(within time.Duration) {
	d.mu.Lock()
	d.leaving = true
	d.tell()
	d.mu.Unlock()
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-d.empty:
	case <-t.C:
	}
}
