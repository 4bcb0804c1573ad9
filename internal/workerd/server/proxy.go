package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"
)

// HealthPath is the health route of the public listener.
const HealthPath = "/.well-known/celld/health"

// servePublic answers health and hands everything else to workerd.
func (s *Server) servePublic(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == HealthPath && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		s.awaitFirst(r.Context())
		s.serveHealth(w)
		return
	}
	b, stopping := s.acquire()
	if b == nil {
		refuse(w, stopping)
		return
	}
	defer b.end()
	if r.ContentLength != 0 {
		w, r = mayBeEarly(w, r)
	}
	var up *upgrade
	if r.Header.Get("Upgrade") != "" {
		up = &upgrade{}
	}
	r = traced(r, up)
	r, done := b.waiting(r)
	defer done()
	// An answer without a type has none: net/http would guess one.
	w.Header()["Content-Type"] = nil
	b.proxy.ServeHTTP(w, r)
}

// upgrade is the connection to workerd that a request to upgrade went over.
type upgrade struct{ conn net.Conn }

type upgradeKey struct{}

// abort cuts it with a reset, which workerd notices in any case.
func (u *upgrade) abort() {
	if tcp, ok := u.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // closing it is what matters, and that follows
	}
}

// awaitFirst holds a question for the health while the first deployment is being
// brought up, for a while: whoever asks is told when it serves, and need not ask
// again and again.
func (s *Server) awaitFirst(ctx context.Context) {
	select {
	case <-s.booted:
		return
	default:
	}
	t := time.NewTimer(healthHold)
	defer t.Stop()
	select {
	case <-s.booted:
	case <-t.C:
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
}

func (s *Server) serveHealth(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if s.ready() {
		_, _ = io.WriteString(w, `{"ok":true}`)
		return
	}
	s.mu.Lock()
	stopping := s.stopping
	s.mu.Unlock()
	if stopping {
		w.Header().Set("Connection", "close")
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"ok":false}`)
}

// ready reports whether requests are served.
func (s *Server) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.stopping && s.ctx.Err() == nil && s.current != nil && s.current.healthy.Load()
}

// acquire counts a request in at the workerd that serves; nil when none does.
func (s *Server) acquire() (b *backend, stopping bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping || s.ctx.Err() != nil {
		return nil, true
	}
	if s.current != nil {
		s.current.begin()
	}
	return s.current, false
}

// refuse says that nobody can answer now.
func refuse(w http.ResponseWriter, stopping bool) {
	h := w.Header()
	h.Set("Retry-After", "1")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	if stopping {
		h.Set("Connection", "close")
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, cannotAnswer)
}

const cannotAnswer = "The application cannot answer at the moment.\n"

// refusal is what refuse answers, as bytes.
func refusal() []byte {
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nCache-Control: no-store\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\nContent-Length: %d\r\n\r\n%s", len(cannotAnswer), cannotAnswer)
}

// newProxy is the way to one workerd. It adds nothing to a request: what the
// Worker sees is what the client sent.
func (s *Server) newProxy(b *backend) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:      b.transport,
		FlushInterval:  -1,
		BufferPool:     &buffers,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		Rewrite:        func(p *httputil.ProxyRequest) { rewrite(p, s.o.Trust) },
		ModifyResponse: func(r *http.Response) error { return s.modify(b, r) },
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if cause, ours := endedHere(r.Context()); ours {
				err = cause
			} else if r.Context().Err() != nil || errors.Is(err, context.Canceled) {
				panic(http.ErrAbortHandler) // the client is gone
			}
			s.log.Debug("workerd did not answer", "pid", b.proc.PID(), "method", r.Method, "err", err)
			s.mu.Lock()
			stopping := s.stopping
			s.mu.Unlock()
			refuse(w, stopping)
		},
	}
}

func (s *Server) modify(b *backend, r *http.Response) error {
	b.heard(r.Request)
	if err := b.blameStore(r); err != nil {
		return err
	}
	if r.StatusCode != http.StatusSwitchingProtocols || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return nil
	}
	conn, ok := r.Body.(io.ReadWriteCloser)
	if !ok {
		return errors.New("the upgraded connection cannot be written")
	}
	var abort func()
	if up, ok := r.Request.Context().Value(upgradeKey{}).(*upgrade); ok {
		abort = up.abort
	}
	k := newSocket(conn, abort)
	b.upgraded(k)
	r.Body = &trackedSocket{socket: k, b: b}
	return nil
}

// trackedSocket forgets its socket when it is closed.
type trackedSocket struct {
	*socket
	b *backend
}

func (t *trackedSocket) Close() error {
	t.b.closed(t.socket)
	return t.socket.Close()
}

// forwarding are the headers that ReverseProxy takes away before Rewrite.
var forwarding = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

func rewrite(p *httputil.ProxyRequest, trust bool) {
	in, out := p.In, p.Out
	for _, name := range forwarding {
		if v, ok := in.Header[name]; ok {
			out.Header[name] = v
		}
	}
	out.Host = in.Host
	out.URL = upstreamURL(in)
	if trust {
		if h := last(in.Header["X-Forwarded-Host"]); validHost(h) {
			out.Host = h
		}
		switch proto := strings.ToLower(last(in.Header["X-Forwarded-Proto"])); proto {
		case "http", "https":
			out.Header.Set("X-Forwarded-Proto", proto)
		default:
			out.Header.Del("X-Forwarded-Proto")
		}
	}
	if out.Body == nil || out.Body == http.NoBody {
		switch out.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions:
			// A body, even an empty one, keeps the transport from sending a request
			// again by itself: a cut connection does not say that nothing was done.
			// (These methods then still go out without one.)
			out.Body = emptyBody{}
		}
	}
}

// upstreamURL is the address within workerd, with path and query exactly as the
// client spelled them.
func upstreamURL(in *http.Request) *url.URL {
	u := *in.URL
	u.Scheme, u.Host = "http", "workerd"
	u.User, u.Fragment = nil, ""
	path, query, found := strings.Cut(in.RequestURI, "?")
	if strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") {
		u.Opaque = path
		u.RawQuery, u.ForceQuery = query, found && query == ""
	}
	return &u
}

// last is the last element of a list header.
func last(values []string) string {
	if len(values) == 0 {
		return ""
	}
	v := values[len(values)-1]
	return strings.TrimSpace(v[strings.LastIndexByte(v, ',')+1:])
}

// validHost reports whether h can stand in an address as host or host:port.
func validHost(h string) bool {
	if h == "" || len(h) > 300 || strings.ContainsAny(h, "/\\@?#% \t\"<>^`{|}") {
		return false
	}
	u, err := url.Parse("http://" + h + "/")
	return err == nil && u.Host == h
}

type emptyBody struct{}

func (emptyBody) Read([]byte) (int, error) { return 0, io.EOF }
func (emptyBody) Close() error             { return nil }

type bufferPool struct{ p sync.Pool }

func (b *bufferPool) Get() []byte {
	if v, ok := b.p.Get().(*[]byte); ok {
		return *v
	}
	return make([]byte, 32<<10)
}

func (b *bufferPool) Put(v []byte) { b.p.Put(&v) }

var buffers bufferPool
