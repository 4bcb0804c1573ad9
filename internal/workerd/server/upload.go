package server

import (
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
)

// A Worker may answer without reading what is uploaded to it: a refusal, say. Of a
// large body workerd then takes what it likes, answers, and closes the connection.
// net/http takes the write that fails for the end of the request, though the answer
// lies there to be read; so a write of a body that fails waits until whoever reads
// the answer is done with the connection, or finds that there is none.

// The states of an upstream connection's request.
const (
	asksAlone int32 = iota // it has no body, or is none that may be answered early
	uploads                // it has one, and nothing was sent yet
	uploading              // something of it was
)

// upstreamConn is a connection to workerd of the longer way.
type upstreamConn struct {
	net.Conn
	state  atomic.Int32
	once   sync.Once
	closed chan struct{}
}

func newUpstreamConn(c net.Conn) *upstreamConn {
	return &upstreamConn{Conn: c, closed: make(chan struct{})}
}

func (c *upstreamConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.state.CompareAndSwap(uploads, uploading)
	}
	// Where nothing was sent the connection was an old one, and another may be tried.
	if err != nil && c.state.Load() == uploading {
		<-c.closed
	}
	return n, err
}

func (c *upstreamConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// traced has the connection know which request it carries, and up, unless it is
// nil, which connection carries that.
func traced(r *http.Request, up *upgrade) *http.Request {
	state := asksAlone
	if r.ContentLength != 0 && up == nil {
		state = uploads
	}
	ctx := r.Context()
	if up != nil {
		ctx = context.WithValue(ctx, upgradeKey{}, up)
	}
	return r.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		c, ok := i.Conn.(*upstreamConn)
		if !ok {
			return
		}
		c.state.Store(state)
		if up != nil {
			up.conn = c.Conn
		}
	}}))
}
