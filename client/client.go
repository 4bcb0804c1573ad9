// Package client calls the node API of a scafo fleet: it signs a fresh token for
// each request, tries another node where that is safe, and turns problem
// documents back into errors.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/scafo/scafo"
)

const (
	// maxDocument bounds an answer that is read into memory.
	maxDocument = 256 << 20
	// expectTimeout is how long an upload waits for a node to ask for its body, so
	// that a refused deploy uploads nothing. A node asks after a few bucket calls;
	// something in between that never asks costs an upload this much.
	expectTimeout = 3 * time.Second
	dialTimeout   = 5 * time.Second
)

// Credential gives one token for one request. Tokens of nodes and operators are
// accepted once, so each call must return a new one.
type Credential interface {
	Token(ctx context.Context) (string, error)
}

// CredentialFunc is a function as a [Credential].
type CredentialFunc func(ctx context.Context) (string, error)

// Token calls f.
func (f CredentialFunc) Token(ctx context.Context) (string, error) { return f(ctx) }

// Static is a [Credential] that always gives the same token: an ingress token, or
// a workload token.
func Static(token string) Credential {
	return CredentialFunc(func(context.Context) (string, error) { return token, nil })
}

// Config says which fleet to call and as whom.
type Config struct {
	// URLs are the base URLs of nodes, in the order in which they are tried.
	URLs []string
	// Credential signs the requests; nil sends none, which only health takes.
	Credential Credential
	// Transport carries the requests; nil takes one of the client's own.
	Transport http.RoundTripper
	// UserAgent is "scafo/<version>" when empty.
	UserAgent string
	// Now is the clock that a refused token's hint about clocks compares with;
	// nil is time.Now.
	Now func() time.Time
}

// Client calls one fleet. It is safe for concurrent use.
type Client struct {
	bases      []*url.URL
	credential Credential
	http       *http.Client
	own        *http.Transport // nil when the transport was given
	userAgent  string
	now        func() time.Time
	// good is the index of the node that answered last: it is tried first.
	good atomic.Int64
}

// New makes a client. It refuses URLs that are no base URL of a node.
func New(c Config) (*Client, error) {
	if len(c.URLs) == 0 {
		return nil, errors.New("no node URL was given")
	}
	cl := &Client{credential: c.Credential, userAgent: c.UserAgent, now: c.Now}
	for _, s := range c.URLs {
		base, err := parseBase(s)
		if err != nil {
			return nil, err
		}
		cl.bases = append(cl.bases, base)
	}
	if cl.userAgent == "" {
		cl.userAgent = "scafo/" + scafo.Version
	}
	if cl.now == nil {
		cl.now = time.Now
	}
	transport := c.Transport
	if transport == nil {
		cl.own = newTransport()
		transport = cl.own
	}
	cl.http = &http.Client{
		Transport: transport,
		// A node never redirects, and a token goes to nobody else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return cl, nil
}

// Close gives idle connections back.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

func parseBase(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is no node URL: http://HOST[:PORT] or https://HOST[:PORT]", s)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = ""
	return u, nil
}

// request is one call, before it is known which node gets it.
type request struct {
	method string
	path   string // escaped
	query  url.Values
	header http.Header
	json   any    // the body, encoded as JSON
	raw    []byte // the body as it is; nil has none
	upload *upload
	// accept lists the statuses that are no failure; empty takes 200.
	accept []int
}

// safe reports whether a node may see the call twice: reads, which change nothing.
func (r *request) safe() bool { return r.method == http.MethodGet || r.method == http.MethodHead }

// do carries a call to the first node that answers it. The caller closes the body
// of the answer.
func (c *Client) do(ctx context.Context, r *request) (*http.Response, error) {
	var body []byte
	if r.json != nil {
		b, err := json.Marshal(r.json)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		body = b
	}
	start := int(c.good.Load())
	var failure error
	for i := range c.bases {
		n := (start + i) % len(c.bases)
		res, err := c.send(ctx, c.bases[n], r, body)
		if err == nil {
			c.good.Store(int64(n))
			return res, nil
		}
		failure = better(failure, err)
		if ctx.Err() != nil || !c.mayTryNext(r, err) {
			break
		}
	}
	return nil, failure
}

// better keeps the error that says more: what a node answered, over a node that
// could not be reached.
func better(old, err error) error {
	var a *Answer
	if old != nil && errors.As(old, &a) && !errors.As(err, &a) {
		return old
	}
	return err
}

// mayTryNext reports whether another node may get the call after this failure: a
// read always when the node could not do it, a change only when it surely did not
// see it.
func (c *Client) mayTryNext(r *request, err error) bool {
	var a *Answer
	if errors.As(err, &a) {
		return r.safe() && (a.Status == http.StatusBadGateway || a.Status == http.StatusServiceUnavailable || a.Status == http.StatusGatewayTimeout)
	}
	var u *Unreachable
	if !errors.As(err, &u) {
		return false
	}
	return r.safe() || (u.unsent && !r.upload.started())
}

// send makes one attempt at one node.
func (c *Client) send(ctx context.Context, base *url.URL, r *request, body []byte) (*http.Response, error) {
	u := base.String() + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	var reader io.Reader
	switch {
	case r.upload != nil:
		reader = r.upload
	case r.json != nil:
		reader = bytes.NewReader(body)
	case r.raw != nil:
		reader = bytes.NewReader(r.raw)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, reader)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	req.Header.Set("User-Agent", c.userAgent)
	switch {
	case r.upload != nil:
		req.ContentLength = r.upload.size
		req.Header.Set("Content-Type", "application/octet-stream")
		req.Header.Set("Expect", "100-continue")
	case r.json != nil:
		req.Header.Set("Content-Type", "application/json")
	case r.raw != nil:
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	if c.credential != nil {
		t, err := c.credential.Token(ctx)
		if err != nil {
			return nil, fmt.Errorf("sign the request: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+t)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, unreachable(base, err)
	}
	if r.accepts(res.StatusCode) {
		return res, nil
	}
	defer res.Body.Close()
	return nil, c.answer(base, res)
}

func (r *request) accepts(status int) bool {
	if len(r.accept) == 0 {
		return status == http.StatusOK
	}
	for _, s := range r.accept {
		if s == status {
			return true
		}
	}
	return false
}

// call is do with an answer that is one JSON document.
func (c *Client) call(ctx context.Context, r *request, out any) error {
	res, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return decode(res, out)
}

func decode(res *http.Response, out any) error {
	if out == nil {
		return nil
	}
	body := &io.LimitedReader{R: res.Body, N: maxDocument + 1}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		if body.N <= 0 {
			return fmt.Errorf("the answer of %s is larger than %d bytes", res.Request.URL.Host, maxDocument)
		}
		return fmt.Errorf("read the answer of %s: %w", res.Request.URL.Host, err)
	}
	return nil
}
