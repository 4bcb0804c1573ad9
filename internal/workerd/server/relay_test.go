package server

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/workerd/layout"
)

// tcpProcess is a workerd that is a raw listener: what a test reads and writes there
// is all that happens.
type tcpProcess struct {
	*fakeProcess
	addr  string
	mu    sync.Mutex
	dials int
}

func (p *tcpProcess) Dial(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	p.dials++
	p.mu.Unlock()
	return new(net.Dialer).DialContext(ctx, "tcp", p.addr)
}

// ways is a server with two listeners: everything that comes on slow is net/http's,
// what comes on fast is relayed where it is plain.
type ways struct {
	t          *testing.T
	s          *Server
	b          *backend
	p          *tcpProcess
	fast, slow string
}

// newWays starts it before an upstream that serve plays, a call for each connection.
func newWays(t *testing.T, o Options, durable bool, serve func(c net.Conn)) *ways {
	t.Helper()
	up := listenTCP(t)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := up.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	w := &ways{t: t, s: New(deployed("v1"), o)}
	w.p = &tcpProcess{fakeProcess: &fakeProcess{cluster: durable, done: make(chan struct{})}, addr: up.Addr().String()}
	w.b = newBackend(adoption{deployment: &layout.Deployment{Manifest: &layout.Manifest{}}}, w.p, 0)
	w.b.proxy = w.s.newProxy(w.b)
	w.s.current = w.b
	fast, slow := listenTCP(t), listenTCP(t)
	w.fast, w.slow = fast.Addr().String(), slow.Addr().String()
	short := w.s.newRelay()
	rest := &http.Server{Handler: http.HandlerFunc(w.s.servePublic)}
	var listeners sync.WaitGroup
	listeners.Go(func() { _ = rest.Serve(slow) })
	listeners.Go(func() { _ = rest.Serve(short.Rest(fast)) })
	listeners.Go(func() { _ = short.Serve(fast) })
	t.Cleanup(func() {
		_ = fast.Close()
		short.Close()
		_ = rest.Close()
		w.b.closeIdle()
		_ = up.Close()
		listeners.Wait()
		conns.Wait()
	})
	return w
}

func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (w *ways) dial(addr string) net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// untilIdle waits until no request is counted any more.
func (w *ways) untilIdle() {
	w.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); w.b.requests() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatal("a request is still counted")
		}
	}
}

// script answers each request with the same bytes and keeps what it read.
type script struct {
	answer string
	mu     sync.Mutex
	heads  []string
	got    []*http.Request
	bodies []string
}

func (s *script) serve(c net.Conn) {
	var raw bytes.Buffer
	b := bufio.NewReader(io.TeeReader(c, &raw))
	for {
		raw.Reset()
		req, err := http.ReadRequest(b)
		if err != nil {
			return
		}
		body, _ := io.ReadAll(req.Body)
		s.mu.Lock()
		s.heads, s.got, s.bodies = append(s.heads, raw.String()), append(s.got, req), append(s.bodies, string(body))
		s.mu.Unlock()
		if _, err := io.WriteString(c, s.answer); err != nil || strings.Contains(s.answer, "close") {
			return
		}
	}
}

func (s *script) last() (head string, req *http.Request, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.got) - 1
	if n < 0 {
		return "", nil, ""
	}
	return s.heads[n], s.got[n], s.bodies[n]
}

// told is an answer as a client sees it.
type told struct {
	status   int
	header   http.Header
	body     string
	trailer  http.Header
	closed   bool
	informed int
	failed   bool // it ended early
}

func (w *ways) ask(addr, raw string) told {
	w.t.Helper()
	c := w.dial(addr)
	if _, err := io.WriteString(c, raw); err != nil {
		w.t.Fatal(err)
	}
	method, _, _ := strings.Cut(raw, " ")
	b := bufio.NewReader(c)
	var got told
	for {
		res, err := http.ReadResponse(b, &http.Request{Method: method})
		if err != nil {
			w.t.Fatalf("%s: %q: no answer: %v", addr, raw, err)
		}
		if res.StatusCode < 200 {
			got.informed++
			continue
		}
		body, err := io.ReadAll(res.Body)
		got.status, got.header, got.body, got.trailer, got.closed, got.failed = res.StatusCode, res.Header, string(body), res.Trailer, res.Close, err != nil
		if res.Header.Get("Date") == "" {
			w.t.Errorf("%s: %q: no Date", addr, raw)
		}
		res.Header.Del("Date")
		return got
	}
}

// marked shows how a request went: net/http spells the name of a header its own way.
const marked = "x-SpElLeD: 1\r\n"

func TestBothWaysAreOne(t *testing.T) {
	const (
		ok    = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
		plain = "GET /a?b=c%20d&e HTTP/1.1\r\nHost: app.test\r\n" + marked
		large = 300_000
	)
	for name, c := range map[string]struct {
		request, answer string
		fast            bool
		trust           bool
	}{
		"plain":                     {request: plain + "\r\n", answer: ok, fast: true},
		"many values":               {request: plain + "A: 1\r\nA: 2\r\nCookie: a=b\r\n\r\n", answer: "HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 0\r\nContent-Type: x/y\r\n\r\n", fast: true},
		"with a body":               {request: "POST /a HTTP/1.1\r\nHost: app.test\r\n" + marked + "Content-Length: 5\r\n\r\nhello", answer: ok, fast: true},
		"its connection ends":       {request: plain + "Connection: close\r\n\r\n", answer: ok, fast: true},
		"the upstream's ends":       {request: plain + "\r\n", answer: "HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", fast: true},
		"HEAD":                      {request: "HEAD / HTTP/1.1\r\nHost: app.test\r\n" + marked + "\r\n", answer: "HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nContent-Length: 99\r\n\r\n", fast: true},
		"204":                       {request: plain + "\r\n", answer: "HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n", fast: true},
		"304":                       {request: plain + "\r\n", answer: "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n", fast: true},
		"no type":                   {request: plain + "\r\n", answer: "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", fast: true},
		"an error":                  {request: plain + "\r\n", answer: "HTTP/1.1 500 Internal Server Error\r\nContent-Type: x/y\r\nContent-Length: 4\r\n\r\noops", fast: true},
		"an unusual status":         {request: plain + "\r\n", answer: "HTTP/1.1 599 Odd\r\nContent-Type: x/y\r\nContent-Length: 0\r\n\r\n", fast: true},
		"chunked":                   {request: plain + "\r\n", answer: "HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n5;a=b\r\nthere\r\n0\r\n\r\n", fast: true},
		"large":                     {request: plain + "\r\n", answer: fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nContent-Length: %d\r\n\r\n%s", large, strings.Repeat("x", large)), fast: true},
		"of medium size":            {request: plain + "\r\n", answer: fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nContent-Length: %d\r\n\r\n%s", 50_000, strings.Repeat("x", 50_000)), fast: true},
		"a large head":              {request: plain + "\r\n", answer: "HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nX-A: " + strings.Repeat("x", 100_000) + "\r\nContent-Length: 2\r\n\r\nok", fast: true},
		"until the end":             {request: plain + "Connection: close\r\n\r\n", answer: "HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nConnection: close\r\n\r\nall of it", fast: true},
		"early hints":               {request: plain + "\r\n", answer: "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok, fast: true},
		"hop by hop":                {request: plain + "\r\n", answer: "HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: x\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", fast: true},
		"length and chunks":         {request: plain + "\r\n", answer: "HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", fast: true},
		"forwarded":                 {request: plain + "X-Forwarded-Host: b.test\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\n\r\n", answer: ok, fast: true, trust: true},
		"forwarded, no trust":       {request: plain + "X-Forwarded-Host: b.test\r\nX-Forwarded-Proto: ftp\r\nForwarded: for=1.2.3.4\r\n\r\n", answer: ok, fast: true},
		"forwarded twice":           {request: plain + "X-Forwarded-Host: b.test, c.test\r\n\r\n", answer: ok, trust: true},
		"chunked request":           {request: "POST /a HTTP/1.1\r\nHost: app.test\r\n" + marked + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", answer: ok},
		"hop by hop, asked":         {request: plain + "Connection: keep-alive, X-Gone\r\nX-Gone: 1\r\nKeep-Alive: 5\r\n\r\n", answer: ok},
		"a fold":                    {request: plain + "A: b\r\n c\r\n\r\n", answer: ok},
		"no answer":                 {request: plain + "\r\n", answer: "HTTP/1.1 close", fast: true},
		"no HTTP":                   {request: plain + "\r\n", answer: "close SSH-2.0\r\n\r\n", fast: true},
		"101 that nobody asked for": {request: plain + "\r\n", answer: "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade, close\r\nUpgrade: x\r\n\r\n", fast: true},
		"two lengths":               {request: plain + "\r\n", answer: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok.", fast: true},
		"truncated":                 {request: plain + "\r\n", answer: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: x/y\r\nContent-Length: 9\r\n\r\nok", fast: true},
		"truncated chunks":          {request: plain + "\r\n", answer: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: x/y\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nok", fast: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &script{answer: c.answer}
			w := newWays(t, Options{Trust: c.trust}, false, s.serve)
			fast := w.ask(w.fast, c.request)
			head, fastReq, fastBody := s.last()
			if got := strings.Contains(head, marked); got != c.fast {
				t.Errorf("relayed: %v, want %v", got, c.fast)
			}
			slow := w.ask(w.slow, c.request)
			_, slowReq, slowBody := s.last()
			if !reflect.DeepEqual(fast, slow) {
				t.Errorf("the client got\n%.2000s\nand from net/http\n%.2000s", fmt.Sprintf("%+v", fast), fmt.Sprintf("%+v", slow))
			}
			if fastReq == nil || slowReq == nil {
				t.Fatal("the upstream was not asked")
			}
			slowReq.Header.Del("Accept-Encoding")
			fastReq.Header.Del("Accept-Encoding")
			if fastReq.Method != slowReq.Method || fastReq.RequestURI != slowReq.RequestURI || fastReq.Host != slowReq.Host ||
				!maps.EqualFunc(fastReq.Header, slowReq.Header, func(a, b []string) bool { return reflect.DeepEqual(a, b) }) || fastBody != slowBody ||
				fastReq.ContentLength != slowReq.ContentLength {
				t.Errorf("the upstream got\n%+v %q\nand from net/http\n%+v %q", fastReq, fastBody, slowReq, slowBody)
			}
		})
	}
}

// Requests on one connection, plain ones and others, all at once: each gets its own
// answer, and the plain ones at the beginning share a connection to the upstream.
func TestPipelined(t *testing.T) {
	w := newWays(t, Options{}, false, func(c net.Conn) {
		b := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(b)
			if err != nil {
				return
			}
			body, _ := io.ReadAll(req.Body)
			answer := req.URL.Path + string(body)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
		}
	})
	c := w.dial(w.fast)
	var all strings.Builder
	for i := range 20 {
		switch {
		case i == 15:
			fmt.Fprintf(&all, "POST /%d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", i)
		case i%3 == 0:
			fmt.Fprintf(&all, "POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", i)
		default:
			fmt.Fprintf(&all, "GET /%d HTTP/1.1\r\nHost: a\r\n\r\n", i)
		}
	}
	raw := all.String()
	go func() { // in pieces that end anywhere
		for len(raw) > 0 {
			n := min(len(raw), 97)
			if _, err := io.WriteString(c, raw[:n]); err != nil {
				return
			}
			raw = raw[n:]
		}
	}()
	b := bufio.NewReader(c)
	for i := range 20 {
		res, err := http.ReadResponse(b, nil)
		if err != nil {
			t.Fatal(i, err)
		}
		body, _ := io.ReadAll(res.Body)
		if want := fmt.Sprintf("/%d", i); strings.TrimSuffix(string(body), "x") != want {
			t.Errorf("%q, want %q", body, want)
		}
	}
}

// One connection to the upstream serves one request after another; what it says
// without being asked reaches nobody.
func TestConnectionsToTheUpstream(t *testing.T) {
	var mode struct {
		sync.Mutex
		after string // is written behind an answer
		close bool   // after an answer
	}
	written := make(chan struct{}, 10)
	w := newWays(t, Options{}, false, func(c net.Conn) {
		b := bufio.NewReader(c)
		for {
			if _, err := http.ReadRequest(b); err != nil {
				return
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			mode.Lock()
			after, end := mode.after, mode.close
			mode.Unlock()
			if after != "" {
				time.Sleep(20 * time.Millisecond) // a moment after its answer was taken for whole
				io.WriteString(c, after)
			}
			written <- struct{}{}
			if end {
				return
			}
		}
	})
	ask := func(want int) {
		t.Helper()
		if got := w.ask(w.fast, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); got.status != 200 || got.body != "ok" {
			t.Errorf("%+v", got)
		}
		<-written
		w.untilIdle() // then the connection has been given back
		w.p.mu.Lock()
		defer w.p.mu.Unlock()
		if w.p.dials != want {
			t.Errorf("%d connections, want %d", w.p.dials, want)
		}
	}
	set := func(after string, end bool) {
		mode.Lock()
		mode.after, mode.close = after, end
		mode.Unlock()
	}
	ask(1)
	ask(1)
	set("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", false)
	ask(1)
	set("", true) // and the next one is closed
	ask(2)
	time.Sleep(20 * time.Millisecond) // for the end to come: none is told of it
	set("", false)
	ask(3)
	w.b.pool.Prune(time.Now().Add(idleUpstream))
	ask(4)
}

func TestAClientThatGoesEndsItsRequest(t *testing.T) {
	for name, answer := range map[string]string{"before the answer": "", "amidst it": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, ended := make(chan struct{}), make(chan struct{})
			w := newWays(t, Options{}, false, func(c net.Conn) {
				b := bufio.NewReader(c)
				if _, err := http.ReadRequest(b); err != nil {
					return
				}
				io.WriteString(c, answer)
				close(asked)
				_, _ = b.ReadByte() // until it is ended
				close(ended)
			})
			c := w.dial(w.fast)
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			<-asked
			select {
			case <-ended:
				t.Error("it was ended while the client waits")
			case <-time.After(300 * time.Millisecond):
			}
			c.Close()
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Error("the upstream was not told")
			}
			w.untilIdle()
		})
	}
}

// A request that waits for a peer that is gone is ended with 503, and nothing else
// that comes on its connection afterwards.
func TestAWaitIsEnded(t *testing.T) {
	w := newWays(t, Options{}, true, func(c net.Conn) {
		b := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(b)
			if err != nil {
				return
			}
			if req.URL.Path != "/hang" {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
		}
	})
	c := w.dial(w.fast)
	b := bufio.NewReader(c)
	var late []*wait
	for i := range 4 {
		path, want := "/", 200
		if i%2 == 0 {
			path, want = "/hang", 503
		}
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path)
		if want == 503 {
			var waits []*wait
			for deadline := time.Now().Add(10 * time.Second); len(waits) == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				waits = w.b.longWaits(0)
			}
			for _, old := range late {
				old.cancel(errPeerGone) // does nothing any more
			}
			for _, k := range waits {
				k.cancel(errPeerGone)
			}
			late = waits
		}
		res, err := http.ReadResponse(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		if res.StatusCode != want || want == 503 && res.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: %s %v", path, res.Status, res.Header)
		}
		if n := len(w.b.longWaits(0)); n != 0 {
			t.Errorf("%d requests wait still", n)
		}
	}
}

// What is under way when the server is shut down gets its answer; a connection that
// waits is closed.
func TestShutdownOfTheShortWay(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	w := newWays(t, Options{}, false, func(c net.Conn) {
		b := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(b)
			if err != nil {
				return
			}
			if req.URL.Path == "/slow" {
				close(asked)
				<-release
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	l := listenTCP(t)
	short := w.s.newRelay()
	served := make(chan struct{})
	go func() { defer close(served); _ = short.Serve(l) }()
	idle, busy := w.dial(l.Addr().String()), w.dial(l.Addr().String())
	io.WriteString(idle, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if res, err := http.ReadResponse(bufio.NewReader(idle), nil); err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	io.WriteString(busy, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
	<-asked
	w.s.mu.Lock()
	w.s.stopping = true
	w.s.mu.Unlock()
	l.Close()
	<-served
	down := make(chan struct{})
	go func() {
		defer close(down)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		short.Shutdown(ctx)
	}()
	rest, err := io.ReadAll(idle)
	if err != nil || !strings.HasSuffix("ok", string(rest)) {
		t.Errorf("the idle connection: %q, %v", rest, err)
	}
	select {
	case <-down:
		t.Error("it did not wait for the answer")
	default:
	}
	close(release)
	res, err := http.ReadResponse(bufio.NewReader(busy), nil)
	if err != nil || res.StatusCode != 200 || !res.Close {
		t.Errorf("%v, %v", res, err)
	}
	<-down
}

// A server that cannot answer says so the same way everywhere.
func TestRefusedBothWays(t *testing.T) {
	w := newWays(t, Options{}, false, func(c net.Conn) { _, _ = bufio.NewReader(c).ReadByte() }) // reads, and ends
	const raw = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	fast, slow := w.ask(w.fast, raw), w.ask(w.slow, raw)
	if !reflect.DeepEqual(fast, slow) || fast.status != 503 || fast.header.Get("Retry-After") != "1" || fast.closed {
		t.Errorf("%+v\n%+v", fast, slow)
	}
	w.s.mu.Lock()
	w.s.stopping = true
	w.s.mu.Unlock()
	fast, slow = w.ask(w.fast, raw), w.ask(w.slow, raw)
	if !reflect.DeepEqual(fast, slow) || !fast.closed {
		t.Errorf("%+v\n%+v", fast, slow)
	}
}
