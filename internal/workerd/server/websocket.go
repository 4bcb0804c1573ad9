package server

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"
)

// closeRestart is an unmasked close frame: 1012 "service restart" (RFC 6455,
// section 7.4, and the IANA registry).
var closeRestart = func() []byte {
	const reason = "service restart"
	f := []byte{0x88, byte(2 + len(reason)), 0x03, 0xF4}
	return append(f, reason...)
}()

// closeWait is how long a peer has to answer a close frame.
const closeWait = 5 * time.Second

const opcodeClose = 8

// frames follows one direction of a WebSocket and knows where a frame ends.
type frames struct {
	header  [14]byte
	have    int    // bytes of the header so far
	payload uint64 // bytes of the payload still to come
	closed  bool   // a close frame went by
}

// boundary reports whether the next byte begins a frame.
func (f *frames) boundary() bool { return f.have == 0 && f.payload == 0 }

// headerLen is how long the header is, as far as the bytes so far tell.
func (f *frames) headerLen() int {
	if f.have < 2 {
		return 2
	}
	n := 2
	switch f.header[1] & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if f.header[1]&0x80 != 0 {
		n += 4
	}
	return n
}

// next consumes bytes of p up to the end of the frame that they are part of, and
// returns how many.
func (f *frames) next(p []byte) int {
	used := 0
	for f.payload == 0 && used < len(p) {
		f.header[f.have] = p[used]
		f.have++
		used++
		if f.have < f.headerLen() {
			continue
		}
		switch l := f.header[1] & 0x7f; l {
		case 126:
			f.payload = uint64(binary.BigEndian.Uint16(f.header[2:]))
		case 127:
			f.payload = binary.BigEndian.Uint64(f.header[2:])
		default:
			f.payload = uint64(l)
		}
		if f.header[0]&0x0f == opcodeClose {
			f.closed = true
		}
		f.have = 0
		if f.payload == 0 {
			return used
		}
	}
	n := min(f.payload, uint64(len(p)-used))
	f.payload -= n
	return used + int(n)
}

// all consumes the whole of p.
func (f *frames) all(p []byte) {
	for len(p) > 0 {
		p = p[f.next(p):]
	}
}

var (
	errWentAway = errors.New("the WebSocket was closed: service restart")
	errEnded    = errors.New("the WebSocket has ended")
)

// socket stands between a client and the upgraded connection to workerd. It
// passes everything through, and can close the WebSocket between two frames with
// 1012, so that the client knows to connect again at once. When workerd vanishes
// between two frames it does the same.
type socket struct {
	conn   io.ReadWriteCloser // to workerd
	chunks chan []byte        // what workerd sent; closed at its end
	away   chan struct{}      // closed: close the WebSocket
	done   chan struct{}      // closed by Close

	abort func() // cuts the connection to workerd with a reset; may be nil

	onceAway, onceDone sync.Once

	// Read's own.
	toClient frames
	pending  []byte
	going    bool
	ending   error // what is left is to wait for the client's close frame
	timer    <-chan time.Time

	// Write's own.
	toServer   frames
	clientDone chan struct{} // closed: the client sent its close frame

	serverDone chan struct{} // closed: workerd sent its close frame, or ended
	onceServer sync.Once
}

// newSocket takes the upgraded connection; abort may be nil.
func newSocket(conn io.ReadWriteCloser, abort func()) *socket {
	k := &socket{
		conn: conn, abort: abort, serverDone: make(chan struct{}), chunks: make(chan []byte), away: make(chan struct{}),
		done: make(chan struct{}), clientDone: make(chan struct{}),
	}
	go k.pump()
	return k
}

// pump reads from workerd until the connection ends or is closed.
func (k *socket) pump() {
	defer close(k.chunks)
	defer k.onceServer.Do(func() { close(k.serverDone) })
	buf := make([]byte, 32<<10)
	var f frames
	for {
		n, err := k.conn.Read(buf)
		if n > 0 {
			if f.all(buf[:n]); f.closed {
				k.onceServer.Do(func() { close(k.serverDone) })
			}
			select {
			case k.chunks <- append([]byte(nil), buf[:n]...):
			case <-k.done: // what it still says has no reader, but its close frame counts
			}
		}
		if err != nil {
			return
		}
	}
}

// goAway closes the WebSocket with 1012, between two frames.
func (k *socket) goAway() { k.onceAway.Do(func() { close(k.away) }) }

// Read is what goes to the client.
func (k *socket) Read(p []byte) (int, error) {
	for {
		if len(k.pending) > 0 {
			n := copy(p, k.pending)
			k.pending = k.pending[n:]
			return n, nil
		}
		if k.ending != nil {
			return 0, k.farewell()
		}
		if k.going && k.toClient.boundary() && !k.toClient.closed {
			k.inject()
			continue
		}
		away := k.away
		if k.going {
			away = nil
		}
		select {
		case <-away:
			k.going = true
		case <-k.done:
			return 0, io.EOF
		case chunk, ok := <-k.chunks:
			if !ok {
				switch {
				case k.toClient.closed:
					k.end(errEnded)
				case k.toClient.boundary():
					k.inject()
				default:
					return 0, io.ErrUnexpectedEOF
				}
				continue
			}
			if k.going && !k.toClient.closed {
				chunk = chunk[:k.toClient.next(chunk)]
			} else {
				k.toClient.all(chunk)
			}
			k.pending = chunk
		}
	}
}

func (k *socket) inject() {
	k.pending = closeRestart
	k.end(errWentAway)
}

func (k *socket) end(why error) {
	k.ending, k.timer = why, time.After(closeWait)
}

// farewell waits for the client's answer to the close frame, and drops what
// workerd still says.
func (k *socket) farewell() error {
	chunks := k.chunks
	for {
		select {
		case <-k.clientDone:
			return k.ending
		case <-k.timer:
			return k.ending
		case <-k.done:
			return io.EOF
		case _, ok := <-chunks:
			if !ok {
				chunks = nil
			}
		}
	}
}

// Write is what comes from the client. Once workerd is gone it is dropped: the
// client's close frame is all that matters then.
func (k *socket) Write(p []byte) (int, error) {
	was := k.toServer.closed
	k.toServer.all(p)
	_, err := k.conn.Write(p)
	if k.toServer.closed && !was {
		close(k.clientDone)
	}
	if err != nil {
		select {
		case <-k.done:
			return 0, err
		default:
		}
	}
	return len(p), nil
}

// goodbyeWait is how long workerd has to answer the client's close frame. A
// Worker need not answer it; then workerd does not notice that the connection is
// closed either, and would keep the request, and its own exit, waiting for good.
const goodbyeWait = 500 * time.Millisecond

// Close ends both directions.
func (k *socket) Close() error {
	k.onceDone.Do(func() { close(k.done) })
	select {
	case <-k.clientDone:
	default:
		return k.conn.Close()
	}
	if k.abort == nil {
		return k.conn.Close()
	}
	go func() { // ends by itself
		t := time.NewTimer(goodbyeWait)
		defer t.Stop()
		select {
		case <-k.serverDone:
		case <-t.C:
			k.abort()
		}
		_ = k.conn.Close()
	}()
	return nil
}
