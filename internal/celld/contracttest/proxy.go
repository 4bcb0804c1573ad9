package contracttest

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// proxy stands between the program and the store. It notes every request, and can
// let the store hang, vanish, or lose an answer.
type proxy struct {
	url string

	mu    sync.Mutex
	seen  []request      // guarded by mu
	hook  func(*request) // guarded by mu; runs before a request is passed on
	mode  mode           // guarded by mu
	still chan struct{}  // guarded by mu; closed when hanging ends
}

type mode int

const (
	passing  mode = iota
	hanging       // takes requests and answers none
	vanished      // cuts every connection
)

// request is one request to the store.
type request struct {
	method, path    string
	ifMatch, ifNone string
	status          int
	ctx             context.Context

	// Set by a hook:
	loseAnswer bool // pass it on, and cut the connection then
	forge      bool // answer a refused condition as if it had been written
}

func newProxy(t *testing.T, store string) *proxy {
	t.Helper()
	u, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{}
	transport := &http.Transport{MaxIdleConnsPerHost: 32}
	// The host stays as the client sent it, since the signature covers it.
	reverse := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = u.Scheme, u.Host
			r.Out.Host = r.In.Host
		},
		Transport:    transport,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.pass(w, r, reverse) }))
	srv.Config.ErrorLog = nil
	srv.Start()
	p.url = srv.URL
	t.Cleanup(func() {
		p.set(vanished)
		srv.CloseClientConnections()
		srv.Close()
		transport.CloseIdleConnections()
	})
	return p
}

func (p *proxy) pass(w http.ResponseWriter, r *http.Request, reverse http.Handler) {
	p.mu.Lock()
	m, still, hook := p.mode, p.still, p.hook
	p.mu.Unlock()
	if m == hanging {
		select {
		case <-still:
		case <-r.Context().Done():
		}
		m = p.current()
	}
	if m == vanished {
		panic(http.ErrAbortHandler)
	}
	q := &request{method: r.Method, path: r.URL.Path, ifMatch: r.Header.Get("If-Match"), ifNone: r.Header.Get("If-None-Match"), ctx: r.Context()}
	if hook != nil {
		hook(q)
	}
	if q.loseAnswer {
		rec := httptest.NewRecorder()
		reverse.ServeHTTP(rec, r)
		q.status = rec.Code
		p.note(*q)
		panic(http.ErrAbortHandler)
	}
	if q.forge && (q.ifMatch != "" || q.ifNone != "") {
		rec := httptest.NewRecorder()
		reverse.ServeHTTP(rec, r)
		if q.status = rec.Code; q.status == http.StatusPreconditionFailed {
			w.Header().Set("ETag", `"00000000000000000000000000000000"`)
			w.WriteHeader(http.StatusOK)
			return
		}
		maps.Copy(w.Header(), rec.Header())
		w.WriteHeader(rec.Code)
		w.Write(rec.Body.Bytes()) //nolint:errcheck,gosec // the client is gone then
		return
	}
	sw := &statusWriter{ResponseWriter: w}
	defer func() { q.status = sw.status; p.note(*q) }()
	reverse.ServeHTTP(sw, r)
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (s *statusWriter) WriteHeader(code int) {
	s.status = code
	s.ResponseWriter.WriteHeader(code)
}

func (s *statusWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *statusWriter) ReadFrom(r io.Reader) (int64, error) { return io.Copy(s.ResponseWriter, r) }

func (p *proxy) note(q request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, q)
}

func (p *proxy) current() mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode
}

// set changes what happens to requests from now on.
func (p *proxy) set(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == hanging && m != hanging {
		close(p.still)
	}
	if m == hanging && p.mode != hanging {
		p.still = make(chan struct{})
	}
	p.mode = m
}

func (p *proxy) onRequest(hook func(*request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hook = hook
}

// writes are the successful writes so far, in the order of their answers.
func (p *proxy) writes() []request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []request
	for _, q := range p.seen {
		if (q.method == http.MethodPut || q.method == http.MethodPost) && q.status < 300 {
			list = append(list, q)
		}
	}
	return list
}

// pointer reports whether the request writes the application's pointer.
func (q request) pointer() bool {
	return q.method == http.MethodPut && strings.HasSuffix(q.path, "/"+pointerKey)
}
