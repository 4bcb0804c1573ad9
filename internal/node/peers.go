package node

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// dialTimeout is how long a node that does not answer may take to be noticed.
const dialTimeout = 5 * time.Second

// peers calls other nodes under this node's own key. Connections are shared; the
// clients are kept for each address.
type peers struct {
	key       keyfile.Key
	now       func() time.Time
	transport *http.Transport

	mu      sync.Mutex
	clients map[string]*client.Client // by base URL; guarded by mu
}

func newPeers(key keyfile.Key, now func() time.Time) *peers {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = nil // nodes reach each other directly
	t.DialContext = (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext
	return &peers{key: key, now: now, transport: t, clients: map[string]*client.Client{}}
}

func (p *peers) client(url string) (*client.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.clients[url]; ok {
		return c, nil
	}
	c, err := client.New(client.Config{
		URLs: []string{url}, Transport: asNode{p.key.ID, p.transport},
		Credential: client.CredentialFunc(func(context.Context) (string, error) { return p.key.Token(p.now()) }),
	})
	if err != nil {
		return nil, err
	}
	p.clients[url] = c
	return c, nil
}

// asNode says which node asks, so that the one that is asked for its health knows
// that somebody does.
type asNode struct {
	id   string
	next http.RoundTripper
}

func (a asNode) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Scafo-Node", a.id)
	return a.next.RoundTrip(r)
}

// Health asks a node's health route and returns the id that answered.
func (p *peers) Health(ctx context.Context, n scafo.Node) (string, error) {
	c, err := p.client(n.Address)
	if err != nil {
		return "", err
	}
	h, err := c.Health(ctx)
	return h.Node, err
}

// Hint tells a node which documents changed.
func (p *peers) Hint(ctx context.Context, n scafo.Node, h scafo.PeerHint) (scafo.PeerAnswer, error) {
	c, err := p.client(n.Address)
	if err != nil {
		return scafo.PeerAnswer{}, err
	}
	return c.Hint(ctx, h)
}

// close gives the connections back.
func (p *peers) close() { p.transport.CloseIdleConnections() }
