package relay

import (
	"bytes"
	"errors"
	"io"
	"net"
	"time"
)

// answer is one exchange with an upstream.
type answer struct {
	c        *conn
	pool     *Pool
	buffer   []byte // for what comes from the upstream
	n        int    // bytes in it
	out      []byte // the head for the client, before it is written
	res      response
	begun    bool // something of the answer was written to the client
	closes   bool // the client's connection is closed after it
	answered func()
}

// ask sends the request.
func (a *answer) ask() error {
	u, err := a.pool.get(time.Now())
	if err != nil {
		return err
	}
	a.c.hold(u)
	r := &a.c.req
	// The buffer is not needed for the answer before the request was sent.
	_, err = u.Write(r.appendTo(a.buffer[:0], a.c.in[:a.c.n]))
	return err
}

// head reads the head of the final answer, and passes interim ones on.
func (a *answer) head() error {
	for range maxInform {
		if err := a.readHead(); err != nil {
			return err
		}
		a.answered()
		var err error
		if a.out, err = a.res.parse(a.buffer[:a.n], a.c.req.isHead, a.out[:0]); err != nil {
			return err
		}
		a.n = copy(a.buffer, a.buffer[a.res.head:a.n])
		switch {
		case a.res.status == statusSwitching:
			return errAnswer // nobody asked for it
		case a.res.status >= 200:
			return nil
		case a.res.status == 100:
			continue // nobody waits for it
		}
		a.begun = true
		if _, err := a.c.tcp.Write(append(a.out, crlf...)); err != nil {
			return err
		}
	}
	return errAnswer
}

// readHead reads until the buffer has the end of a head.
func (a *answer) readHead() error {
	for from := 0; !bytes.Contains(a.buffer[from:a.n], headEnd); {
		from = max(0, a.n-len(headEnd)+1)
		if a.n == len(a.buffer) {
			if len(a.buffer) >= maxHead {
				return errLarge
			}
			a.buffer = append(a.buffer, make([]byte, len(a.buffer))...)
		}
		n, err := a.c.up.Read(a.buffer[a.n:])
		a.n += n
		if n == 0 && err != nil {
			return err
		}
	}
	return nil
}

// whole reads until the buffer has that much of a body.
func (a *answer) whole(length int) error {
	if length > len(a.buffer) {
		return errLarge
	}
	for a.n < length {
		n, err := a.c.up.Read(a.buffer[a.n:])
		a.n += n
		if n == 0 && err != nil {
			return err
		}
	}
	return nil
}

var errTruncated = errors.New("the upstream ended its answer early")

// body writes the head and passes the body on as it comes.
func (a *answer) body() error {
	bodyless := a.res.bodyless(a.c.req.isHead)
	until := !bodyless && !a.res.chunked && a.res.length < 0 // its end is the connection's
	a.closes = until || a.c.req.closes || a.c.s.o.Stopping()
	if a.closes {
		a.out = append(a.out, "Connection: close\r\n"...)
	}
	a.out = append(a.out, crlf...)
	a.begun = true
	switch {
	case bodyless:
		_, err := a.c.tcp.Write(a.out)
		return err
	case a.res.chunked:
		return a.chunked()
	case until:
		return a.untilEnd()
	}
	return a.counted(a.res.length)
}

// write writes what is left of the head together with b.
func (a *answer) write(b []byte) error {
	var err error
	switch {
	case len(a.out) == 0:
		_, err = a.c.tcp.Write(b)
	case len(a.out)+len(b) <= cap(a.out) || len(b) <= smallBody:
		_, err = a.c.tcp.Write(append(a.out, b...))
	default:
		_, err = (&net.Buffers{a.out, b}).WriteTo(a.c.tcp)
	}
	a.out = a.out[:0]
	return err
}

// smallBody is copied behind its head.
const smallBody = 4 << 10

func (a *answer) counted(left int64) error {
	n := min(int64(a.n), left)
	if err := a.write(a.buffer[:n]); err != nil {
		return err
	}
	left -= n
	a.n = copy(a.buffer, a.buffer[n:a.n])
	if left >= splices {
		moved, err := a.c.tcp.ReadFrom(&io.LimitedReader{R: a.c.up.Conn, N: left})
		if err != nil {
			return err
		}
		left -= moved
		if left > 0 {
			return errTruncated
		}
	}
	for left > 0 {
		n, err := a.c.up.Read(a.buffer[:min(int64(len(a.buffer)), left)])
		if n == 0 && err != nil {
			return errTruncated
		}
		if err := a.write(a.buffer[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

func (a *answer) chunked() error {
	var f chunks
	for {
		n, err := f.follow(a.buffer[:a.n])
		if err != nil {
			return err
		}
		if n > 0 || len(a.out) > 0 {
			if err := a.write(a.buffer[:n]); err != nil {
				return err
			}
		}
		a.n = copy(a.buffer, a.buffer[n:a.n])
		if f.state == chunksDone {
			return nil
		}
		if a.n, err = a.c.up.Read(a.buffer); a.n == 0 && err != nil {
			return errTruncated
		}
	}
}

func (a *answer) untilEnd() error {
	for {
		if err := a.write(a.buffer[:a.n]); err != nil {
			return err
		}
		var err error
		if a.n, err = a.c.up.Read(a.buffer); a.n == 0 && err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// drop ends the connection to the upstream.
func (a *answer) drop() {
	if u, _ := a.c.release(); u != nil {
		_ = u.Close()
	}
}

// finish gives the connection to the upstream back.
func (a *answer) finish() bool {
	u, ok := a.c.release()
	bounded := a.res.length >= 0 || a.res.chunked || a.res.bodyless(a.c.req.isHead)
	// Bytes that nobody asked for make the rest of it worthless.
	if ok && bounded && !a.res.closes && a.n == 0 {
		a.pool.put(u, time.Now())
	} else {
		_ = u.Close()
	}
	return !a.closes
}
