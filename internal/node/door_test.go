package node

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/problem"
)

// A connection that was accepted before a handover, and whose request comes after the
// node decided to leave, is answered; one that never brings a request holds nothing up
// for longer than the bound.
func TestTheDoorWaitsForWhoIsIn(t *testing.T) {
	d := newDoor(slog.New(slog.DiscardHandler))
	d.open(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "in") }))
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
	for leaving := false; !leaving; time.Sleep(time.Millisecond) {
		d.mu.Lock()
		leaving = d.leaving
		d.mu.Unlock()
	}
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

// Calls of a node that starts wait for it, and are refused only while it waits for its
// bucket itself.
func TestTheDoorOfANodeThatStarts(t *testing.T) {
	d := newDoor(slog.New(slog.DiscardHandler))
	call := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		d.ServeHTTP(w, httptest.NewRequest(http.MethodGet, scafo.HealthPath, nil))
		return w
	}
	answered := make(chan int, 1)
	go func() { answered <- call().Code }()
	select {
	case code := <-answered:
		t.Fatalf("answered with %d before anything was known", code)
	case <-time.After(50 * time.Millisecond):
	}
	d.setAway(true)
	if code := <-answered; code != http.StatusServiceUnavailable {
		t.Errorf("who waited is answered with %d", code)
	}
	w := call()
	if e, _, ok := problem.Read(w.Body); w.Code != http.StatusServiceUnavailable || !ok || e.Code != scafo.CodeStoreUnavailable {
		t.Errorf("while the bucket is away: %d %v", w.Code, e)
	}
	for path, want := range map[string]scafo.Code{
		"/v1/ingress/routes": scafo.CodeDraining, "/v1/ingress/routes/traefik": scafo.CodeDraining,
		"/v1/state": scafo.CodeStoreUnavailable, "/v1/ingress/routesx": scafo.CodeStoreUnavailable,
	} {
		w := httptest.NewRecorder()
		d.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if e, _, ok := problem.Read(w.Body); w.Code != http.StatusServiceUnavailable || !ok || e.Code != want || w.Header().Get("Retry-After") == "" {
			t.Errorf("%s while the bucket is away: %d %v, want %s", path, w.Code, e, want)
		}
	}
	d.setAway(false)
	go func() { answered <- call().Code }()
	select {
	case code := <-answered:
		t.Fatalf("answered with %d when the bucket was back", code)
	case <-time.After(50 * time.Millisecond):
	}
	d.open(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	if code := <-answered; code != http.StatusTeapot {
		t.Errorf("who waited is answered with %d", code)
	}
	// Who goes away while it waits is let go.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	newDoor(slog.New(slog.DiscardHandler)).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
}

// A body that does not come holds no connection of a node that waits for its bucket.
func TestTheDoorWaitsForNoBody(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(nil)
	d := newDoor(slog.New(slog.DiscardHandler))
	d.install(s.Config)
	d.setAway(true)
	s.Start()
	t.Cleanup(s.Close)
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "POST /v1/fleet/freeze HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
	answer, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 503 ") {
		t.Errorf("%q %v", answer, err)
	}
}
