package server

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/workerd/relay"
)

// adoption is one deployment as this process took it over.
type adoption struct {
	generation int64
	pointer    layout.Pointer
	deployment *layout.Deployment
}

// backend is one workerd with what is under way to it.
type backend struct {
	adoption
	proc      Process
	slot      int
	started   time.Time
	transport *http.Transport
	pool      relay.Pool // connections of what is relayed the short way
	proxy     *httputil.ReverseProxy
	healthy   atomic.Bool
	drained   atomic.Bool   // it was asked to leave
	gone      chan struct{} // closed when the exit was dealt with
	standIn   bool          // it serves without the store, while that is away
	of        *backend      // whose spare it was made as; nil: nobody's

	mu       sync.Mutex // guards the rest
	inflight int
	retired  bool
	idle     chan struct{} // closed once retired with nothing in flight
	sockets  map[*socket]struct{}
	waits    map[*wait]struct{}
	cause    string   // why it was killed, for the log
	spare    *backend // ready to stand in for it; nil: none
	leaves   bool     // it is about to end, and gets no spare any more
}

func newBackend(a adoption, p Process, slot int) *backend {
	b := &backend{
		adoption: a, proc: p, slot: slot, started: time.Now(),
		idle: make(chan struct{}), gone: make(chan struct{}), sockets: map[*socket]struct{}{},
		waits: map[*wait]struct{}{},
	}
	b.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := p.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return newUpstreamConn(c), nil
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: maxIdlePerBackend,
		IdleConnTimeout:     idleUpstream,
		ReadBufferSize:      16 << 10,
		WriteBufferSize:     16 << 10,
	}
	b.pool.Dial, b.pool.Most, b.pool.Idle = p.Dial, maxIdlePerBackend, idleUpstream
	return b
}

// Pool implements relay.Backend.
func (b *backend) Pool() *relay.Pool { return &b.pool }

// End implements relay.Backend.
func (b *backend) End() { b.end() }

const (
	maxIdlePerBackend = 128
	// idleUpstream is shorter than the five seconds after which workerd closes an
	// idle connection, so that no request meets one that is just being closed.
	idleUpstream = 2 * time.Second
)

// durable reports whether this workerd is a member of the cluster.
func (b *backend) durable() bool { return b.proc.ClusterAddr() != "" }

// begin counts a request in. It must be called while the backend is known not to
// be retired (the server's lock sees to that).
func (b *backend) begin() {
	b.mu.Lock()
	b.inflight++
	b.mu.Unlock()
}

func (b *backend) end() {
	b.mu.Lock()
	b.inflight--
	b.settle()
	b.mu.Unlock()
}

// settle closes idle when nothing more can come. Called with mu held.
func (b *backend) settle() {
	if b.retired && b.inflight == 0 {
		select {
		case <-b.idle:
		default:
			close(b.idle)
		}
	}
}

// retire says that no request will come any more, and closes the WebSockets.
func (b *backend) retire() {
	b.mu.Lock()
	b.retired = true
	b.settle()
	open := make([]*socket, 0, len(b.sockets))
	for k := range b.sockets {
		open = append(open, k)
	}
	b.mu.Unlock()
	for _, k := range open {
		k.goAway()
	}
	b.closeIdle()
}

// closeIdle closes the connections that nobody uses any more.
func (b *backend) closeIdle() {
	b.transport.CloseIdleConnections()
	b.pool.Close()
}

// upgraded takes an upgraded connection under its wing.
func (b *backend) upgraded(k *socket) {
	b.mu.Lock()
	b.sockets[k] = struct{}{}
	retired := b.retired
	b.mu.Unlock()
	if retired {
		k.goAway()
	}
}

func (b *backend) closed(k *socket) {
	b.mu.Lock()
	delete(b.sockets, k)
	b.mu.Unlock()
}

// ends reports whether it gets no more requests, and is about to leave.
func (b *backend) ends() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.retired
}

func (b *backend) requests() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inflight
}

// kill ends it for a reason.
func (b *backend) kill(cause string) {
	b.mu.Lock()
	if b.cause == "" {
		b.cause = cause
	}
	b.mu.Unlock()
	_ = b.proc.Kill() // it may be gone already
}

func (b *backend) killed() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cause
}

// pulse is what one look at a workerd found.
type pulse int

const (
	silent   pulse = iota // no answer in time
	unready               // it answered, and does not serve
	answered              // it serves
	closed                // nobody listens any more, though the process lives
)

// look asks a workerd whether it lives. All are asked, where the Worker's requests go
// as well, what is no request: the runtime itself answers that with 400 before any
// Worker sees it. Members of the cluster also have a route for it, on another listener.
func (b *backend) look(ctx context.Context) pulse {
	p := b.knock(ctx)
	if p != answered || !b.durable() {
		return p
	}
	err := b.proc.Healthy(ctx)
	switch {
	case err == nil:
		return answered
	case ctx.Err() != nil:
		return silent
	}
	return unready
}

func (b *backend) knock(ctx context.Context) pulse {
	conn, err := b.proc.Dial(ctx)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return closed // workerd closes its listener for good when it cannot accept
	case err != nil:
		return silent
	}
	defer conn.Close()
	if d, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(d)
	}
	if _, err := conn.Write([]byte("?\r\n\r\n")); err != nil {
		return silent
	}
	line, err := bufio.NewReaderSize(conn, 256).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "HTTP/1.1 ") {
		return silent
	}
	return answered
}
