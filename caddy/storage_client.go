package caddy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scafo/scafo"
)

// The media types of answers.
const (
	problemKind = "application/problem+json"
	jsonKind    = "application/json"
	bytesKind   = "application/octet-stream"
)

const (
	// storageTimeout bounds one request to one node.
	storageTimeout = 10 * time.Second
	// storageDial bounds the wait for a connection.
	storageDial = 3 * time.Second
	// readPatience and writePatience are for how long the nodes are asked again before
	// a call fails. A visitor waits for what is read; what is written may have cost an
	// order of a certificate, and outlasts the restart of a node.
	readPatience  = 2 * time.Second
	writePatience = 30 * time.Second
	// The pause between two rounds grows from the first to the last of these.
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
	// maxStorageAnswer bounds an answer, in bytes; the largest are listings.
	maxStorageAnswer = 64 << 20
)

// storageClient asks the nodes of a fleet for what is in its storage: one of them,
// and the others in turn when that one fails.
type storageClient struct {
	urls  []string
	token string
	http  *http.Client
	at    atomic.Int64 // the node that answered last
	// proven are the nodes that are known to have a storage, by URL: the 404 of one
	// that has none says nothing of a key.
	proven  sync.Map
	counted *storageCounters
}

func newStorageClient(urls []string, token string) *storageClient {
	t := http.DefaultTransport.(*http.Transport).Clone() //nolint:errcheck // it is one
	t.DialContext = (&net.Dialer{Timeout: storageDial}).DialContext
	return &storageClient{urls: urls, token: token, counted: newStorageCounters(), http: &http.Client{
		Transport: t, Timeout: storageTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// call is one request of the storage's protocol.
type call struct {
	// operation is the one of the storage that the call is for.
	operation    string
	method, path string
	body         []byte
	header       map[string]string
	// kind is the media type of what is asked for; empty where there is none.
	kind string
	// once asks each node at most once, for a caller that will ask again anyway.
	once bool
}

type storageAnswer struct {
	status int
	header http.Header
	body   []byte
}

// kind is the media type of the body.
func (a *storageAnswer) kind() string {
	kind, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return kind
}

// refusal is an answer that another node would give too.
type refusal struct {
	status int
	detail string
}

func (r *refusal) Error() string { return fmt.Sprintf("refused (%d): %s", r.status, r.detail) }

// Is makes a key that is not there the error that certmagic knows.
func (r *refusal) Is(target error) bool {
	return target == fs.ErrNotExist && r.status == http.StatusNotFound
}

// tried is what each node said.
type tried []error

func (t tried) Error() string {
	said := make([]string, len(t))
	for i, err := range t {
		said[i] = err.Error()
	}
	return strings.Join(said, "; ")
}

// Is tells only whether the context ended: nothing that failed on the way may read
// as a key that is not there.
func (t tried) Is(target error) bool {
	return (target == context.Canceled || target == context.DeadlineExceeded) &&
		slices.ContainsFunc(t, func(err error) bool { return errors.Is(err, target) })
}

// do makes a call. The error is a *refusal for what no other node would answer
// differently, and says what each node said otherwise.
func (c *storageClient) do(ctx context.Context, what call) (*storageAnswer, error) {
	began := time.Now()
	a, err := c.tryAll(ctx, what, began)
	c.counted.took(what.operation, began, err)
	return a, err
}

// tryAll makes a call that began then, as often as there is patience for.
func (c *storageClient) tryAll(ctx context.Context, what call, began time.Time) (*storageAnswer, error) {
	patience := writePatience
	if what.method == http.MethodGet {
		patience = readPatience
	}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		var failures tried
		first := c.at.Load()
		for i := range int64(len(c.urls)) {
			n := (first + i) % int64(len(c.urls))
			a, err := c.ask(ctx, c.urls[n], what)
			var r *refusal
			if err == nil || errors.As(err, &r) {
				c.at.Store(n)
				return a, err
			}
			failures = append(failures, fmt.Errorf("%s: %w", c.urls[n], err))
			if ctx.Err() != nil {
				return nil, failures
			}
		}
		if what.once || time.Since(began)+pause > patience {
			return nil, failures
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, failures
		case <-t.C:
		}
	}
}

// ask makes a call to one node.
func (c *storageClient) ask(ctx context.Context, node string, what call) (*storageAnswer, error) {
	a, err := c.send(ctx, node, what)
	if err != nil {
		return nil, err
	}
	switch {
	case a.status == http.StatusNoContent && what.kind == "":
		return a, nil
	case a.status == http.StatusOK && what.kind != "" && a.kind() == what.kind:
		return a, nil
	case a.status == http.StatusUnauthorized:
		return nil, errToken
	}
	p, ok := problemOf(a)
	switch {
	case !ok:
		return nil, fmt.Errorf("it answered %d, and not as a node does", a.status)
	case a.status == http.StatusNotFound:
		if err := c.prove(ctx, node); err != nil {
			return nil, err
		}
		return nil, &refusal{a.status, p.Detail}
	case a.status == http.StatusBadRequest, a.status == http.StatusConflict, a.status == http.StatusRequestEntityTooLarge:
		return nil, &refusal{a.status, p.Detail}
	}
	return nil, fmt.Errorf("it answered %d: %s", a.status, p.Detail)
}

// prove finds out whether a node has a storage at all: one that has refuses the stat
// of no key, and one that has not does not know the route.
func (c *storageClient) prove(ctx context.Context, node string) error {
	if _, ok := c.proven.Load(node); ok {
		return nil
	}
	a, err := c.send(ctx, node, call{method: http.MethodGet, path: "/v1/storage/stat?key="})
	if err != nil {
		return err
	}
	if p, ok := problemOf(a); !ok || p.Code != scafo.CodeInvalidInput {
		return errors.New("it has no storage")
	}
	c.proven.Store(node, true)
	return nil
}

func (c *storageClient) send(ctx context.Context, node string, what call) (*storageAnswer, error) {
	req, err := http.NewRequestWithContext(ctx, what.method, node+what.path, bytes.NewReader(what.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set(scafo.StorageVersionHeader, scafo.StorageVersion)
	for name, value := range what.header {
		req.Header.Set(name, value)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxStorageAnswer+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxStorageAnswer {
		return nil, fmt.Errorf("its answer is longer than %d bytes", maxStorageAnswer)
	}
	return &storageAnswer{status: res.StatusCode, header: res.Header, body: body}, nil
}

type problemDocument struct {
	Code   scafo.Code `json:"code"`
	Detail string     `json:"detail"`
}

// problemOf is the problem document of an answer; ok is false when it has none.
func problemOf(a *storageAnswer) (p problemDocument, ok bool) {
	if a.kind() != problemKind || json.Unmarshal(a.body, &p) != nil || p.Code == "" {
		return problemDocument{}, false
	}
	return p, true
}

func (c *storageClient) stat(ctx context.Context, key string, once bool) (st scafo.StorageStat, err error) {
	a, err := c.do(ctx, call{operation: "stat", method: http.MethodGet, path: "/v1/storage/stat?key=" + url.QueryEscape(key), kind: jsonKind, once: once})
	if err != nil {
		return st, err
	}
	return st, decodeAnswer(a, &st)
}

func (c *storageClient) list(ctx context.Context, prefix string, recursive bool) (keys []string, err error) {
	path := "/v1/storage/list?prefix=" + url.QueryEscape(prefix)
	if recursive {
		path += "&recursive=true"
	}
	a, err := c.do(ctx, call{operation: "list", method: http.MethodGet, path: path, kind: jsonKind})
	if err != nil {
		return nil, err
	}
	return keys, decodeAnswer(a, &keys)
}

func decodeAnswer(a *storageAnswer, into any) error {
	if err := json.Unmarshal(a.body, into); err != nil {
		return fmt.Errorf("the node's answer does not read: %w", err)
	}
	return nil
}

func objectPath(key string) string { return "/v1/storage/objects/" + escapeKey(key) }

func lockPath(name string) string { return "/v1/storage/locks/" + escapeKey(name) }

// escapeKey is a key as a part of a URL: each segment for itself.
func escapeKey(key string) string {
	segments := strings.Split(key, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return strings.Join(segments, "/")
}
