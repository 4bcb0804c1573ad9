package relay

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Pool keeps the idle connections to one upstream.
type Pool struct {
	Dial func(context.Context) (net.Conn, error)
	Most int           // idle connections that are kept
	Idle time.Duration // for how long

	mu     sync.Mutex // guards the rest
	conns  []*upstream
	closed bool
}

// upstream is a connection to the upstream.
type upstream struct {
	net.Conn
	peek peeker
	used time.Time // when it was last given back
}

// get returns an idle connection that is still good, or a new one.
func (p *Pool) get(now time.Time) (*upstream, error) {
	for {
		p.mu.Lock()
		n := len(p.conns)
		if n == 0 {
			p.mu.Unlock()
			break
		}
		u := p.conns[n-1]
		p.conns[n-1], p.conns = nil, p.conns[:n-1]
		p.mu.Unlock()
		// Nothing may have come on it: neither its end nor bytes that nobody asked for.
		if now.Sub(u.used) < p.Idle && u.peek.look() == quiet {
			return u, nil
		}
		_ = u.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	c, err := p.Dial(ctx)
	if err != nil {
		return nil, err
	}
	u := &upstream{Conn: c}
	u.peek.bind(c)
	return u, nil
}

// put gives a connection back on which nothing is under way.
func (p *Pool) put(u *upstream, now time.Time) {
	u.used = now
	p.mu.Lock()
	keep := !p.closed && len(p.conns) < p.Most
	if keep {
		p.conns = append(p.conns, u)
	}
	p.mu.Unlock()
	if !keep {
		_ = u.Close()
	}
}

// Prune closes the connections that were idle for too long.
func (p *Pool) Prune(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := 0
	for old < len(p.conns) && now.Sub(p.conns[old].used) >= p.Idle {
		_ = p.conns[old].Close() // it does not block
		old++
	}
	p.conns = append(p.conns[:0], p.conns[old:]...)
}

// Close closes the idle connections; those in use are closed when they are given
// back.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, u := range p.conns {
		_ = u.Close()
	}
	p.conns = nil
}

// sight is what a look at a connection found.
type sight int

const (
	quiet  sight = iota // nothing came
	talks               // something came
	closed              // the other side closed it, or it broke
)

// peeker looks at a connection without reading from it and without waiting.
type peeker struct {
	raw   syscall.RawConn // nil: it cannot be looked at
	f     func(fd uintptr)
	found sight
}

// bind makes it look at c.
func (p *peeker) bind(c net.Conn) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	p.raw = raw
	p.f = func(fd uintptr) {
		var one [1]byte
		n, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case n > 0:
			p.found = talks
		case err == unix.EAGAIN || err == unix.EINTR: //nolint:errorlint // a system call's own
			p.found = quiet
		default:
			p.found = closed
		}
	}
}

func (p *peeker) look() sight {
	if p.raw == nil {
		return quiet
	}
	if p.raw.Control(p.f) != nil {
		return closed
	}
	return p.found
}
