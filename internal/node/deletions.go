package node

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/celld"
	"github.com/scafo/scafo/internal/deletion"
)

func (n *Node) newDeletions() (err error) {
	c := deletion.Config{
		Node: n.ID, Registry: n.Registry, Lease: n.lease, Fleet: n.loop,
		Grace: time.Duration(n.c.Retire.GraceSeconds) * time.Second, Log: n.log,
	}
	if n.peers != nil {
		c.Forwarder = n.peers
	}
	n.deletions, err = deletion.New(c)
	return err
}

// Forward hands the deletion of an application on to the node that coordinates. The
// answer comes once that node has one, however long the deletion takes.
func (p *peers) Forward(ctx context.Context, to scafo.Node, r deletion.Request) (*deletion.Answer, error) {
	base, err := url.Parse(to.Address)
	if err != nil {
		return nil, fmt.Errorf("the address of node %s: %w", to.ID, err)
	}
	u := base.JoinPath("v1", "applications", r.Application)
	if r.Force {
		u.RawQuery = "force=1"
	}
	token, err := p.key.Token(p.now())
	if err != nil {
		return nil, fmt.Errorf("sign the request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set(scafo.ForwardedForHeader, r.Caller)
	req.Header.Set("User-Agent", "scafo/"+scafo.Version)
	// One connection for one such request: a kept one may have been closed by the other
	// side, and a change is not sent twice.
	req.Close = true
	res, err := p.transport.RoundTrip(req) //nolint:bodyclose // whoever gets the answer closes it
	if err != nil {
		return nil, err
	}
	return &deletion.Answer{Status: res.StatusCode, Header: res.Header, Body: res.Body}, nil
}

// runtimes reaches the runtimes of other nodes at their internal listeners.
type runtimes struct{}

func (runtimes) Serves(ctx context.Context, internal string) (string, error) {
	s, err := celld.Internal{URL: internal}.State(ctx)
	return s.Version, err
}

func (runtimes) Shutdown(ctx context.Context, internal string) error {
	return celld.Internal{URL: internal}.Shutdown(ctx)
}
