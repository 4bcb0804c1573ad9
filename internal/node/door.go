package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/problem"
)

// front is the API's server. It takes calls from the moment on at which the node has
// its socket: while the node starts they wait, which is short, and are refused only
// where the node itself has to wait for its bucket.
type front struct {
	server *http.Server
	door   *door

	handing atomic.Bool   // the socket was closed on purpose
	served  chan struct{} // closed when nothing is accepted any more
	err     error         // why, where nobody asked for it; set before served is closed
}

// answer starts the server. closing is closed when it shuts down.
func answer(l net.Listener, log *slog.Logger, closing chan struct{}) *front {
	f := &front{door: newDoor(log), served: make(chan struct{}), server: &http.Server{
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	f.door.install(f.server)
	// Polls that wait for news would hold a shutdown up.
	f.server.RegisterOnShutdown(sync.OnceFunc(func() { close(closing) }))
	go func() { // ends with the server or its socket
		defer close(f.served)
		if err := f.server.Serve(l); !errors.Is(err, http.ErrServerClosed) && !f.handing.Load() {
			f.err = fmt.Errorf("the API: %w", err)
		}
	}()
	return f
}

// wait returns once nothing is accepted any more.
func (f *front) wait() error {
	<-f.served
	return f.err
}

// leave closes the socket, and waits for the requests of whom it has accepted.
func (f *front) leave(l net.Listener) {
	f.handing.Store(true)
	l.Close()
	<-f.served // whom it has accepted the door knows now
	f.door.leave(leaveWithin)
}

// shutdown ends the requests that run, in order until ctx ends.
func (f *front) shutdown(ctx context.Context) {
	if err := f.server.Shutdown(ctx); err != nil {
		f.server.Close()
	}
}

// door is the API's way in. It knows the connections that were taken from the
// socket's queue and whose first request has not come to the handler: a server that
// shuts down cuts those, also when the request is on its way.
type door struct {
	log *slog.Logger

	mu      sync.Mutex
	next    http.Handler          // nil until the node is ready; guarded by mu
	away    bool                  // the bucket does not answer; guarded by mu
	changed chan struct{}         // closed and replaced when next or away changed; guarded by mu
	waiting map[net.Conn]struct{} // guarded by mu
	leaving bool                  // guarded by mu
	empty   chan struct{}         // closed when nobody waits and leaving; guarded by mu
}

func newDoor(log *slog.Logger) *door {
	return &door{log: log, changed: make(chan struct{}), waiting: map[net.Conn]struct{}{}, empty: make(chan struct{})}
}

// routesPath is where ingresses follow the routing document, in each of its forms.
const routesPath = "/v1/ingress/routes"

// unreadBody is how long the body of a call may take that is refused unread.
const unreadBody = time.Second

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

// open lets calls through to the handler.
func (d *door) open(next http.Handler) { d.set(func() { d.next = next }) }

// setAway says whether the node waits for its bucket.
func (d *door) setAway(away bool) { d.set(func() { d.away = away }) }

func (d *door) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(net.Conn)
	if ok && d.passed(c) {
		w.Header().Set("Connection", "close")
	}
	for {
		d.mu.Lock()
		next, away, changed := d.next, d.away, d.changed
		d.mu.Unlock()
		switch {
		case next != nil:
			next.ServeHTTP(w, r)
			return
		case away:
			// A server waits for a body that was announced, although nobody will read it.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadBody))
			problem.Write(w, r, d.log, whileAway(r.URL.Path))
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// whileAway refuses a call while a node that starts waits for its bucket. To an ingress it
// is a node before its first pass (the node API, "Ingress routing").
func whileAway(path string) error {
	code := scafo.CodeStoreUnavailable
	if path == routesPath || strings.HasPrefix(path, routesPath+"/") {
		code = scafo.CodeDraining
	}
	return scafo.Errorf(code, "this node is starting, and waits for the bucket, which does not answer")
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
