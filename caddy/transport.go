package caddy

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

func init() {
	caddy.RegisterModule(Transport{})
}

const (
	// keptBody is how much of a request's body is kept for another upstream.
	keptBody = 64 << 10
	// refusalWindow is how long after a request came another upstream is looked for:
	// well before the proxy gives up, which would answer less than the refusal says.
	refusalWindow = tryDuration / 2
	// expectTimeout is how long a body that its client holds back (Expect:
	// 100-continue) waits for an upstream that neither asks for it nor answers.
	expectTimeout = 3 * time.Second
)

// Transport is Caddy's HTTP transport for the processes that the gate found. A
// process that is about to end refuses what is new: 503 with Retry-After on a
// connection that it closes. Another one is tried then, as if that one had not been
// reached, as long as there is another one and what was sent of the request's body
// can be sent again.
type Transport struct {
	reverseproxy.HTTPTransport
}

// CaddyModule returns the module's information.
func (Transport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.reverse_proxy.transport.scafo", New: func() caddy.Module { return new(Transport) }}
}

// Provision sets the transport up. A client that asks before it sends a body is
// answered by the upstream, so that what is refused uploads nothing: Caddy's own
// default is to send the body at once.
func (t *Transport) Provision(ctx caddy.Context) error {
	if t.ExpectContinueTimeout == 0 {
		t.ExpectContinueTimeout = caddy.Duration(expectTimeout)
	}
	return t.HTTPTransport.Provision(ctx)
}

var errRefused = errors.New("the process is ending and refuses the request")

// RoundTrip makes one try of a request.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	a, ok := caddyhttp.GetVar(req.Context(), routeVar).(*attempt)
	if !ok || len(a.entry.dials) < 2 {
		return t.HTTPTransport.RoundTrip(req)
	}
	var sent *view
	if req.Body != nil && req.Body != http.NoBody {
		if a.body == nil {
			a.body = replayOf(req.Body)
		}
		var err error
		if sent, err = a.body.start(); err != nil {
			return nil, err
		}
		req = req.WithContext(req.Context()) // a copy: the caller's keeps its body
		req.Body = sent
		req.GetBody = func() (io.ReadCloser, error) { return a.body.start() }
	}
	res, err := t.HTTPTransport.RoundTrip(req)
	if err != nil || !refuses(res) || !a.another(req) || (sent != nil && !a.body.rewindable()) {
		return res, err
	}
	res.Body.Close()
	return nil, reverseproxy.NewDialError(errRefused)
}

// refuses reports whether an answer is that of a process which is about to end.
func refuses(res *http.Response) bool {
	return res.StatusCode == http.StatusServiceUnavailable && res.Close && res.Header.Get("Retry-After") != ""
}

// another notes that the upstream of the request refused, and reports whether one is
// left that has not.
func (a *attempt) another(req *http.Request) bool {
	d, ok := reverseproxy.GetDialInfo(req.Context())
	if !ok || time.Since(a.began) > refusalWindow {
		return false
	}
	if !slices.Contains(a.refused, d.Address) {
		a.refused = append(a.refused, d.Address)
	}
	return slices.ContainsFunc(a.entry.dials, func(dial string) bool { return !slices.Contains(a.refused, dial) })
}

// replay is the body of a request, of which the beginning is kept so that it can be
// sent again.
type replay struct {
	source io.Reader // read by who has set reading

	mu      sync.Mutex
	changed sync.Cond // over mu: a read of the source ended, or another view began
	reading bool      // guarded by mu; somebody waits for the client
	asked   int       // guarded by mu; the most that this read can bring
	kept    []byte    // guarded by mu; all that was read of source, while it is not too much
	over    bool      // guarded by mu; it was too much
	ended   error     // guarded by mu; how the source ended
	now     *view     // guarded by mu; the one that may read
}

// replayOf keeps the beginning of a body.
func replayOf(source io.Reader) *replay {
	r := &replay{source: source}
	r.changed.L = &r.mu
	return r
}

var errSent = errors.New("what was sent of the request's body cannot be sent again")

// start is the body from its beginning. The views before it read nothing more; one
// that waits for the client cannot be stopped, and what it gets is kept for the new
// one.
func (r *replay) start() (*view, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || r.reading && len(r.kept)+r.asked > keptBody {
		return nil, errSent
	}
	r.now = &view{of: r}
	r.changed.Broadcast()
	return r.now, nil
}

// rewindable ends what reads the body, and reports whether it can begin again.
func (r *replay) rewindable() bool {
	_, err := r.start()
	return err == nil
}

// view is the body as one try reads it.
type view struct {
	of *replay
	at int // guarded by of.mu; how much of what is kept it has read
}

var errStale = errors.New("the request goes to another upstream")

// Read reads what is kept, and then from the client.
func (v *view) Read(p []byte) (int, error) {
	r := v.of
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.now == v && r.reading && v.at == len(r.kept) {
		r.changed.Wait() // for what an earlier view waits for
	}
	switch {
	case r.now != v:
		return 0, errStale
	case v.at < len(r.kept):
		n := copy(p, r.kept[v.at:])
		v.at += n
		return n, nil
	case r.ended != nil:
		return 0, r.ended
	}
	r.reading, r.asked = true, len(p)
	r.mu.Unlock()
	n, err := r.source.Read(p)
	r.mu.Lock()
	r.reading, r.ended = false, err
	r.changed.Broadcast()
	switch {
	case r.over:
	case len(r.kept)+n > keptBody:
		r.over, r.kept, v.at = true, nil, 0
	default:
		r.kept = append(r.kept, p[:n]...)
		v.at += n
	}
	return n, err
}

// Close ends this try alone: the server closes the body itself.
func (v *view) Close() error { return nil }

var (
	_ caddy.Provisioner                   = (*Transport)(nil)
	_ caddy.CleanerUpper                  = (*Transport)(nil)
	_ caddyfile.Unmarshaler               = (*Transport)(nil)
	_ http.RoundTripper                   = (*Transport)(nil)
	_ reverseproxy.TLSTransport           = (*Transport)(nil)
	_ reverseproxy.H2CTransport           = (*Transport)(nil)
	_ reverseproxy.ProxyProtocolTransport = (*Transport)(nil)
)
