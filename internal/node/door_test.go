package node

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// A connection that was accepted before a handover, and whose request comes after the
// node decided to leave, is answered; one that never brings a request holds nothing up
// for longer than the bound.
func TestTheDoorWaitsForWhoIsIn(t *testing.T) {
	d := newDoor(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "in") }))
	accepted := make(chan struct{}, 2)
	s := &http.Server{ReadHeaderTimeout: time.Minute}
	d.install(s)
	state := s.ConnState
	s.ConnState = func(c net.Conn, st http.ConnState) {
		state(c, st)
		if st == http.StateNew {
			accepted <- struct{}{}
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); s.Serve(l) }()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		<-accepted
		return c
	}
	late, silent := dial(), dial()
	l.Close()
	<-served

	const bound = 300 * time.Millisecond
	left := make(chan time.Duration)
	began := time.Now()
	go func() { d.leave(bound); left <- time.Since(began) }()
	fmt.Fprint(late, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(late), nil)
	if err != nil {
		t.Fatalf("who was in is cut: %v", err)
	}
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "in" || !res.Close {
		t.Errorf("%q, %v, close %v", b, err, res.Close)
	}
	if waited := <-left; waited < bound {
		t.Errorf("left after %v while one had not brought its request", waited)
	}
	silent.Close()
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	// With nobody left there is nothing to wait for.
	began = time.Now()
	if d.leave(time.Minute); time.Since(began) > 10*time.Second {
		t.Error("waits for nobody")
	}
}
