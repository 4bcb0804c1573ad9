package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/scafo/scafo"
)

// Health asks the first node that answers how it is.
func (c *Client) Health(ctx context.Context) (scafo.Health, error) {
	var h scafo.Health
	err := c.call(ctx, &request{method: http.MethodGet, path: scafo.HealthPath}, &h)
	return h, err
}

// State is what a node says of itself and of the fleet.
func (c *Client) State(ctx context.Context) (scafo.DaemonState, error) {
	var s scafo.DaemonState
	err := c.call(ctx, &request{method: http.MethodGet, path: "/v1/state"}, &s)
	return s, err
}

// ApplicationList is the answer of [Client.Applications].
type ApplicationList struct {
	Applications []scafo.Application `json:"applications"`
	Scoped       bool                `json:"scoped,omitempty"`
}

// Applications lists the applications that the key reaches, in name order.
func (c *Client) Applications(ctx context.Context) (ApplicationList, error) {
	var l ApplicationList
	err := c.call(ctx, &request{method: http.MethodGet, path: "/v1/applications"}, &l)
	return l, err
}

// Application is one application's record.
func (c *Client) Application(ctx context.Context, name string) (scafo.Application, error) {
	var a struct {
		Application scafo.Application `json:"application"`
	}
	err := c.call(ctx, &request{method: http.MethodGet, path: "/v1/applications/" + url.PathEscape(name)}, &a)
	return a.Application, err
}

// Upload is an artifact on its way to a node.
type Upload struct {
	// Body is read once, and only after a node agreed to the deploy.
	Body io.Reader
	// Size is how many bytes Body has.
	Size int64
	// Progress, when set, is told how many bytes were sent.
	Progress func(sent, total int64)
}

// Deploy sends an artifact to be deployed. It is not tried at another node once
// one may have seen it. The status says where to poll; [AnswerOf] an error says
// when to come back.
func (c *Client) Deploy(ctx context.Context, application string, m scafo.DeployMetadata, u Upload) (scafo.DeployStatus, error) {
	var s scafo.DeployStatus
	header, err := m.Header()
	if err != nil {
		return s, err
	}
	if u.Size <= 0 {
		return s, fmt.Errorf("deploy %s: an artifact has a size", application)
	}
	h := http.Header{}
	h.Set(scafo.DeployHeader, header)
	err = c.call(ctx, &request{
		method: http.MethodPost,
		path:   "/v1/applications/" + url.PathEscape(application) + "/deploys",
		header: h,
		upload: &upload{r: u.Body, size: u.Size, progress: u.Progress},
		accept: []int{http.StatusAccepted},
	}, &s)
	return s, err
}

// DeployStatus says how far a deploy is. Any node can tell.
func (c *Client) DeployStatus(ctx context.Context, id string) (scafo.DeployStatus, error) {
	var s scafo.DeployStatus
	err := c.call(ctx, &request{method: http.MethodGet, path: "/v1/deploys/" + url.PathEscape(id)}, &s)
	return s, err
}

// AwaitDeploy is DeployStatus for who knows the deploy already as it was under an
// ETag: a node that can tell keeps its answer back until something has changed, or
// until the time is up. changed is false, and the status empty, while nothing has; a
// node that cannot tell says so at once. An empty etag waits for nothing.
func (c *Client) AwaitDeploy(ctx context.Context, id, etag string, wait time.Duration) (s scafo.DeployStatus, newETag string, changed bool, err error) {
	r := &request{method: http.MethodGet, path: "/v1/deploys/" + url.PathEscape(id), header: http.Header{}, accept: []int{http.StatusOK, http.StatusNotModified}}
	if etag != "" {
		r.header.Set("If-None-Match", etag)
		r.header.Set("Prefer", "wait="+strconv.Itoa(int(wait/time.Second))) // RFC 7240, section 4.3
	}
	res, err := c.do(ctx, r)
	if err != nil {
		return s, "", false, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotModified {
		return s, etag, false, nil
	}
	err = decode(res, &s)
	return s, res.Header.Get("ETag"), true, err
}

// Routes is the routing document for an ingress. With the ETag of an earlier one,
// changed is false, and the document empty, while that is still current. prefer is
// a node's id, "self", or empty.
func (c *Client) Routes(ctx context.Context, prefer, etag string) (doc scafo.FleetRouting, newETag string, changed bool, err error) {
	r := &request{method: http.MethodGet, path: "/v1/ingress/routes", header: http.Header{}, accept: []int{http.StatusOK, http.StatusNotModified}}
	if prefer != "" {
		r.query = url.Values{"prefer": {prefer}}
	}
	if etag != "" {
		r.header.Set("If-None-Match", etag)
	}
	res, err := c.do(ctx, r)
	if err != nil {
		return doc, "", false, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotModified {
		return doc, etag, false, nil
	}
	err = decode(res, &doc)
	return doc, res.Header.Get("ETag"), true, err
}

// Hint tells a node which documents changed, and returns what it runs. The
// credential must be a node's.
func (c *Client) Hint(ctx context.Context, h scafo.PeerHint) (scafo.PeerAnswer, error) {
	var a scafo.PeerAnswer
	err := c.call(ctx, &request{method: http.MethodPost, path: "/v1/peer/hints", json: h}, &a)
	return a, err
}
