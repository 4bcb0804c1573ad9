// Package relay is the short way of a request: it reads plain HTTP/1.1 requests,
// passes each to an upstream on the same goroutine, and passes the answer back,
// without building what nobody looks at. A request that is plain has one meaning in
// every byte, and all of its body came with it. Whatever else comes on a connection
// is handed over, unread, to an http.Server, with the rest of the connection.
package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Backend is where one request goes.
type Backend interface {
	// Pool has the connections to it.
	Pool() *Pool
	// Waiting says that the request waits for its answer, and how it can be ended:
	// with 503. The function that it returns, which may be nil, is called once the
	// answer has begun, or will never come.
	Waiting(end func()) (over func())
	// Suspects reports whether an answer of that status and length may be none of the
	// upstream's making; Blames looks at its whole body then, and an error makes it one
	// that never came.
	Suspects(status int, length int64) bool
	Blames(body []byte) error
	// End says that the request is done.
	End()
}

// Options of a [Server].
type Options struct {
	// Acquire counts a request in; nil when nobody can answer. Such a request is handed
	// over.
	Acquire func() Backend
	// Stopping reports whether connections are to be closed after an answer.
	Stopping func() bool
	// Refused is the whole answer, with its head, for a request whose upstream failed
	// before it answered, but for the line Connection and the Date.
	Refused []byte
	// Trust makes X-Forwarded-Host the host that the upstream is told.
	Trust bool
	// Idle is how long a connection may wait for its next request.
	Idle time.Duration
	Log  *slog.Logger
}

const (
	inBuffer  = 8 << 10  // of a client's connection: for the head and the body of a request
	upBuffer  = 32 << 10 // for an answer
	maxHead   = 1 << 20  // of an answer
	maxInform = 8        // interim answers to one request
	// splices is from where on a body is moved by the kernel.
	splices = 64 << 10
	// dialTimeout bounds a new connection to an upstream of this machine.
	dialTimeout = 5 * time.Second
	// deadlineEvery is how exact Idle is.
	deadlineEvery = 10 * time.Second
)

// Server relays what comes on a listener.
type Server struct {
	o    Options
	rest *handover
	gone watcher

	mu      sync.Mutex // guards the rest
	conns   map[*conn]struct{}
	closing bool
	over    chan struct{} // closed once closing with no connection left
}

// New makes a server. What it does not relay comes from Rest.
func New(o Options) *Server {
	s := &Server{o: o, conns: map[*conn]struct{}{}, over: make(chan struct{})}
	s.rest = newHandover()
	s.gone.s = s
	return s
}

// Rest is a listener that accepts the connections that are handed over, for an
// http.Server. Addr is that of l.
func (s *Server) Rest(l net.Listener) net.Listener {
	s.rest.addr = l.Addr()
	return s.rest
}

// Serve accepts connections on l until that is closed.
func (s *Server) Serve(l net.Listener) error {
	defer s.rest.Close() //nolint:errcheck // it has none
	for pause := time.Duration(0); ; {
		c, err := l.Accept()
		if err != nil {
			var timeout interface{ Temporary() bool }
			if errors.As(err, &timeout) && timeout.Temporary() {
				pause = min(max(2*pause, acceptPause), acceptPauseMost)
				time.Sleep(pause) // too many files: there is nothing to be told by
				continue
			}
			return err
		}
		pause = 0
		tcp, ok := c.(*net.TCPConn)
		if !ok { // it cannot be looked at
			s.rest.give(c)
			continue
		}
		k := &conn{s: s, tcp: tcp}
		k.peek.bind(tcp)
		if !s.add(k) {
			_ = tcp.Close()
			continue
		}
		go k.serve() // ends with the connection, which Shutdown and Close end
	}
}

const (
	acceptPause     = 5 * time.Millisecond
	acceptPauseMost = time.Second
)

func (s *Server) add(k *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.conns[k] = struct{}{}
	return true
}

func (s *Server) remove(k *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, k)
	s.settle()
}

// settle closes over when nothing more can come. The caller holds mu.
func (s *Server) settle() {
	if s.closing && len(s.conns) == 0 {
		select {
		case <-s.over:
		default:
			close(s.over)
		}
	}
}

// Shutdown closes the connections that wait for a request, and waits until the
// others have their answers or ctx ends. Then it closes them too. Connections that
// were handed over are not its any more.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.closing = true
	for k := range s.conns {
		if k.since.Load() == 0 {
			_ = k.tcp.SetReadDeadline(past)
		}
	}
	s.settle()
	s.mu.Unlock()
	select {
	case <-s.over:
	case <-ctx.Done():
	}
	s.Close()
}

// Close closes every connection and waits for their goroutines.
func (s *Server) Close() {
	s.mu.Lock()
	s.closing = true
	for k := range s.conns {
		_ = k.tcp.Close()
		k.abandon()
	}
	s.settle()
	s.mu.Unlock()
	<-s.over
	s.gone.stop()
}

var past = time.Unix(1, 0)

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// conn is a client's connection.
type conn struct {
	s    *Server
	tcp  *net.TCPConn
	peek peeker
	in   [inBuffer]byte
	n    int // bytes in it
	req  request
	set  time.Time // when the read deadline was set
	out  []byte    // kept for the heads of answers

	since atomic.Int64 // when the request began that is under way, in Unix nanoseconds; 0: none is

	mu     sync.Mutex // guards the rest
	up     *upstream  // of the request under way
	left   bool       // the client is gone
	serial int        // of the request under way
	ended  bool       // somebody ended it
}

// serve reads requests until the connection ends or is handed over.
func (c *conn) serve() {
	handed := false
	defer func() {
		if !handed {
			_ = c.tcp.Close()
		}
		c.s.remove(c)
	}()
	for {
		if c.n == 0 && !c.read() {
			return
		}
		if c.req.parse(c.in[:c.n], c.s.o.Trust) != plain {
			handed = c.hand()
			return
		}
		b := c.s.o.Acquire()
		if b == nil {
			handed = c.hand()
			return
		}
		c.since.Store(time.Now().UnixNano())
		c.s.gone.begun()
		keep := c.relay(b)
		c.since.Store(0)
		b.End()
		if !keep || c.req.closes || c.s.isClosing() {
			return
		}
		// What follows in the buffer is the next request.
		used := c.req.head + c.req.body
		c.n = copy(c.in[:], c.in[used:c.n])
	}
}

// read waits for bytes.
func (c *conn) read() bool {
	if now := time.Now(); now.Sub(c.set) > deadlineEvery {
		c.set = now
		if c.tcp.SetReadDeadline(now.Add(c.s.o.Idle)) != nil {
			return false
		}
		if c.s.isClosing() { // its deadline was the sign, and is gone now
			return false
		}
	}
	n, err := c.tcp.Read(c.in[:])
	c.n = n
	return n > 0 && err == nil
}

// hand gives the connection with what came on it to the http.Server.
func (c *conn) hand() bool {
	if c.tcp.SetReadDeadline(time.Time{}) != nil {
		return false
	}
	return c.s.rest.give(&prefixed{TCPConn: c.tcp, prefix: bytes.Clone(c.in[:c.n])})
}

var buffers = sync.Pool{New: func() any { return new([upBuffer]byte) }}

// relay passes the request on and the answer back. It reports whether the client's
// connection can have another request.
func (c *conn) relay(b Backend) bool {
	out := buffers.Get().(*[upBuffer]byte)
	defer buffers.Put(out)
	over := b.Waiting(c.begin())
	told := false
	answered := func() {
		if over != nil && !told {
			over()
		}
		told = true
	}
	defer answered()
	pool := b.Pool()
	a := answer{c: c, pool: pool, buffer: out[:], out: c.out[:0], answered: answered}
	defer func() { c.out = a.out[:0] }()
	err := a.ask()
	if err == nil {
		err = a.head()
	}
	if err == nil && !c.req.isHead && !a.res.chunked && b.Suspects(a.res.status, a.res.length) {
		if err = a.whole(int(a.res.length)); err == nil {
			err = b.Blames(a.buffer[:a.res.length])
		}
	}
	if err != nil {
		a.drop()
		answered()
		if c.gone() || a.begun {
			return false
		}
		c.s.o.Log.Debug("the upstream did not answer", "method", string(c.req.method), "err", err)
		return c.refuse()
	}
	if err := a.body(); err != nil {
		a.drop()
		return false
	}
	return a.finish()
}

// refuse answers that nobody can.
func (c *conn) refuse() bool {
	head, body, _ := bytes.Cut(c.s.o.Refused, headEnd)
	out := appendDate(append(bytes.Clone(head), crlf...))
	keep := !c.req.closes && !c.s.o.Stopping()
	if !keep {
		out = append(out, "Connection: close\r\n"...)
	}
	out = append(out, crlf...)
	if !c.req.isHead {
		out = append(out, body...)
	}
	_, err := c.tcp.Write(out)
	return err == nil && keep
}

// begin counts a request, and returns how that very one can be ended.
func (c *conn) begin() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	c.ended = false
	serial := c.serial
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.serial == serial {
			c.end()
		}
	}
}

// end ends what is under way. The caller holds mu.
func (c *conn) end() {
	c.ended = true
	if c.up != nil {
		_ = c.up.Close() // its reader finds out
	}
}

// hold makes an upstream the one of the request under way.
func (c *conn) hold(u *upstream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up = u
	if c.ended || c.left {
		_ = u.Close()
	}
}

// release takes the upstream back; nobody else ends it after that. ok is false
// when somebody has.
func (c *conn) release() (u *upstream, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u, c.up = c.up, nil
	return u, !c.ended && !c.left
}

// abandon ends the request that is under way, since its client is gone.
func (c *conn) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	c.end()
}

func (c *conn) gone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

// date is the Date line of this second.
var date atomic.Pointer[dateLine]

type dateLine struct {
	second int64
	text   []byte
}

func appendDate(out []byte) []byte {
	now := time.Now()
	d := date.Load()
	if d == nil || d.second != now.Unix() {
		d = &dateLine{now.Unix(), []byte("Date: " + now.UTC().Format(http.TimeFormat) + "\r\n")}
		date.Store(d)
	}
	return append(out, d.text...)
}

// handover is the listener of what is not relayed.
type handover struct {
	addr  net.Addr
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (h *handover) give(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.done:
		_ = c.Close()
		return false
	}
}

// Accept implements net.Listener.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handover) Close() error { h.once.Do(func() { close(h.done) }); return nil }

// Addr implements net.Listener.
func (h *handover) Addr() net.Addr { return h.addr }

// prefixed is a connection from which something was read already.
type prefixed struct {
	*net.TCPConn
	prefix []byte
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.prefix) > 0 {
		n := copy(b, p.prefix)
		p.prefix = p.prefix[n:]
		return n, nil
	}
	return p.TCPConn.Read(b)
}

// WriteTo keeps io.Copy from passing the prefix by.
func (p *prefixed) WriteTo(w io.Writer) (int64, error) {
	type reader struct{ io.Reader }
	return io.Copy(w, reader{p})
}
