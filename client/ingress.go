package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/scafo/scafo"
)

// The credential of these calls is an ingress token.

// RenderedRoutes is the routing document in a form that an ingress reads natively,
// such as "traefik". prefer is a node's id, "self", or empty.
func (c *Client) RenderedRoutes(ctx context.Context, format, prefer string) ([]byte, error) {
	r := &request{method: http.MethodGet, path: "/v1/ingress/routes/" + url.PathEscape(format)}
	if prefer != "" {
		r.query = url.Values{"prefer": {prefer}}
	}
	return c.bytes(ctx, r)
}

func (c *Client) bytes(ctx context.Context, r *request) ([]byte, error) {
	res, err := c.do(ctx, r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", res.Request.URL.Host, err)
	}
	if len(b) > maxDocument {
		return nil, fmt.Errorf("the answer of %s is larger than %d bytes", res.Request.URL.Host, maxDocument)
	}
	return b, nil
}

// storagePath is a key behind a route, each of its segments escaped.
func storagePath(route, key string) string {
	segments := strings.Split(key, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return route + strings.Join(segments, "/")
}

func objectPath(key string) string { return storagePath("/v1/storage/objects/", key) }

// Object is a value of the ingress's storage; not-found where there is none.
func (c *Client) Object(ctx context.Context, key string) ([]byte, error) {
	return c.bytes(ctx, &request{method: http.MethodGet, path: objectPath(key)})
}

// none calls a route that answers nothing.
func (c *Client) none(ctx context.Context, r *request) (http.Header, error) {
	r.accept = []int{http.StatusNoContent}
	res, err := c.do(ctx, r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return res.Header, nil
}

// PutObject keeps a value of at most [scafo.MaxStorageObject] bytes.
func (c *Client) PutObject(ctx context.Context, key string, value []byte) error {
	_, err := c.none(ctx, &request{method: http.MethodPut, path: objectPath(key), raw: value})
	return err
}

// DeleteObject removes a key and everything beneath it; not-found where that is
// nothing.
func (c *Client) DeleteObject(ctx context.Context, key string) error {
	_, err := c.none(ctx, &request{method: http.MethodDelete, path: objectPath(key)})
	return err
}

// ListObjects lists whole keys beneath a prefix, which is a path: the immediate
// children, or with recursive all keys that have values. It is not-found where there
// is none.
func (c *Client) ListObjects(ctx context.Context, prefix string, recursive bool) ([]string, error) {
	var keys []string
	q := url.Values{"prefix": {prefix}}
	if recursive {
		q.Set("recursive", "true")
	}
	err := c.call(ctx, &request{method: http.MethodGet, path: "/v1/storage/list", query: q}, &keys)
	return keys, err
}

// StatObject is what is known of a key, or of what is beneath it.
func (c *Client) StatObject(ctx context.Context, key string) (scafo.StorageStat, error) {
	var s scafo.StorageStat
	err := c.call(ctx, &request{method: http.MethodGet, path: "/v1/storage/stat", query: url.Values{"key": {key}}}, &s)
	return s, err
}

func lockRequest(method, name, holder string) *request {
	r := &request{method: method, path: storagePath("/v1/storage/locks/", name), header: http.Header{}}
	if holder != "" {
		r.header.Set(scafo.LockHolderHeader, holder)
	}
	return r
}

// Lock takes a lock for a holder, which may be empty, or renews the holder's own; it
// does not wait: cas-conflict says that another has it. lease is for how long it is
// wanted, in whole seconds, 0 for as long as the fleet grants. granted is after how
// long it is free again unless it is renewed.
func (c *Client) Lock(ctx context.Context, name, holder string, lease time.Duration) (granted time.Duration, err error) {
	r := lockRequest(http.MethodPost, name, holder)
	if lease > 0 {
		r.header.Set(scafo.LockSecondsHeader, strconv.FormatInt(int64((lease+time.Second-1)/time.Second), 10))
	}
	h, err := c.none(ctx, r)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(h.Get(scafo.LockSecondsHeader), 10, 31)
	if err != nil {
		return 0, fmt.Errorf("the answer does not say how long the lock lasts: %w", err)
	}
	return time.Duration(n) * time.Second, nil
}

// Unlock gives back the lock that holder has, or one that was taken without a holder.
// It succeeds where there is nothing to give back.
func (c *Client) Unlock(ctx context.Context, name, holder string) error {
	_, err := c.none(ctx, lockRequest(http.MethodDelete, name, holder))
	return err
}
