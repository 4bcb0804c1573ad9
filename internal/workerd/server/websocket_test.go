package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"pgregory.net/rapid"

	"github.com/scafo/scafo/internal/workerd/instance"
)

func frame(op byte, masked bool, payload int) []byte {
	b := []byte{0x80 | op, 0}
	switch {
	case payload < 126:
		b[1] = byte(payload)
	case payload < 1<<16:
		b[1] = 126
		b = append(b, byte(payload>>8), byte(payload))
	default:
		b[1] = 127
		b = append(b, 0, 0, 0, 0, byte(payload>>24), byte(payload>>16), byte(payload>>8), byte(payload))
	}
	if masked {
		b[1] |= 0x80
		b = append(b, 1, 2, 3, 4)
	}
	return append(b, bytes.Repeat([]byte{0x88}, payload)...)
}

// However a stream is cut into reads, the boundaries found are those of its
// frames.
func TestFrameBoundaries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		ends := map[int]bool{0: true}
		for range rapid.IntRange(1, 6).Draw(t, "frames") {
			n := rapid.OneOf(rapid.IntRange(0, 130), rapid.SampledFrom([]int{125, 126, 65535, 65536})).Draw(t, "payload")
			stream = append(stream, frame(2, rapid.Bool().Draw(t, "masked"), n)...)
			ends[len(stream)] = true
		}
		var f frames
		for at := 0; at < len(stream); {
			chunk := min(rapid.IntRange(1, 70000).Draw(t, "chunk"), len(stream)-at)
			n := f.next(stream[at : at+chunk])
			at += n
			if f.boundary() != ends[at] {
				t.Fatalf("at %d: boundary %v", at, f.boundary())
			}
			if n < chunk && !f.boundary() {
				t.Fatalf("at %d: stopped within a frame", at)
			}
		}
		if f.closed {
			t.Fatal("no frame was a close frame")
		}
		f.all(frame(8, false, 2))
		if !f.closed {
			t.Fatal("the close frame was not seen")
		}
	})
}

// An injected close frame never lands within another frame.
func TestGoAwayBetweenFrames(t *testing.T) {
	whole := frame(1, false, 300)
	a, b := net.Pipe()
	k := newSocket(a, nil)
	defer k.Close()
	begun := make(chan struct{})
	go func() {
		_, _ = b.Write(whole[:10])
		<-begun
		k.goAway()
		_, _ = b.Write(append(whole[10:len(whole):len(whole)], frame(1, false, 9)...))
		_, _ = io.Copy(io.Discard, b)
	}()
	got := make([]byte, len(whole)+len(closeRestart))
	if _, err := io.ReadFull(k, got[:10]); err != nil {
		t.Fatal(err)
	}
	close(begun)
	if _, err := io.ReadFull(k, got[10:]); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, append(whole[:len(whole):len(whole)], closeRestart...)) {
		t.Errorf("%x", got)
	}
	if _, err := k.Write(frame(8, true, 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Read(got); !errors.Is(err, errWentAway) {
		t.Errorf("%v", err)
	}
}

// echoes is a Worker that echoes messages and closes on "bye".
func echoes(p *fakeProcess) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, m, err := c.Read(context.Background())
			if err != nil {
				return
			}
			if string(m) == "bye" {
				_ = c.Close(4001, "as you like")
				return
			}
			if err := c.Write(context.Background(), kind, m); err != nil {
				return
			}
		}
	})
}

func (w *world) websocket() *websocket.Conn {
	w.t.Helper()
	c, _, err := websocket.Dial(w.t.Context(), "ws://app.test/", &websocket.DialOptions{HTTPClient: w.client})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func echo(t *testing.T, c *websocket.Conn, m string) {
	t.Helper()
	if err := c.Write(t.Context(), websocket.MessageText, []byte(m)); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(t.Context()); err != nil || string(got) != m {
		t.Fatalf("%d bytes came back of %d: %v", len(got), len(m), err)
	}
}

func wantClose(t *testing.T, c *websocket.Conn, code websocket.StatusCode, reason string) {
	t.Helper()
	_, _, err := c.Read(t.Context())
	var e websocket.CloseError
	if !errors.As(err, &e) || e.Code != code || e.Reason != reason {
		t.Errorf("%v, want %d %q", err, code, reason)
	}
}

func TestWebSockets(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    func(w *world, c *websocket.Conn)
		code   websocket.StatusCode
		reason string
	}{
		{"the Worker closes", func(w *world, c *websocket.Conn) { _ = c.Write(w.t.Context(), websocket.MessageText, []byte("bye")) }, 4001, "as you like"},
		{"a new deployment", func(w *world, c *websocket.Conn) { w.rt.deploy("v2"); w.reload() }, 1012, "service restart"},
		{"a stop", func(w *world, c *websocket.Conn) { w.s.Stop() }, 1012, "service restart"},
		{"a crash", func(w *world, c *websocket.Conn) { w.rt.process(0).end(instance.Exit{Code: -1}) }, 1012, "service restart"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rt := deployed("v1")
			rt.handler = echoes
			withServer(t, rt, Options{}, func(w *world) {
				ws := w.websocket()
				defer ws.CloseNow()
				echo(w.t, ws, "hello")
				echo(w.t, ws, strings.Repeat("x", 30000))
				time.Sleep(10 * time.Minute) // an idle one stays
				echo(w.t, ws, "still there")
				begun := time.Now()
				c.end(w, ws)
				wantClose(w.t, ws, c.code, c.reason)
				if took := time.Since(begun); took > time.Second {
					t.Errorf("after %s", took)
				}
			})
		})
	}
}

func TestAWebSocketThatDoesNotAnswerTheClose(t *testing.T) {
	rt := deployed("v1")
	rt.handler = echoes
	withServer(t, rt, Options{}, func(w *world) {
		ws := w.websocket() // and nobody reads it
		defer ws.CloseNow()
		echo(w.t, ws, "hello")
		begun := time.Now()
		w.s.Stop()
		err := <-w.result
		w.result <- err
		if took := time.Since(begun); err != nil || took > closeWait+3*time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}
