package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/deletion"
	"github.com/scafo/scafo/internal/registry"
)

// deletions deletes as a test wants it to.
type deletions struct {
	delete func(r deletion.Request) (deletion.Outcome, error)
	asked  []deletion.Request
}

func (d *deletions) Delete(_ context.Context, r deletion.Request) (deletion.Outcome, error) {
	d.asked = append(d.asked, r)
	if d.delete == nil {
		return deletion.Outcome{}, scafo.Errorf(scafo.CodeNotFound, "no application %s", r.Application)
	}
	return d.delete(r)
}

// What of a request a deletion is given.
func TestDeleteRequests(t *testing.T) {
	f := newFleet(t)
	for _, c := range []struct {
		query, by, forwardedFor string
		want                    deletion.Request
	}{
		{"", "tenant", "", deletion.Request{Caller: "tenant"}},
		{"?force=1", "tenant", "", deletion.Request{Caller: "tenant", Force: true}},
		{"?force=true", "admin", "", deletion.Request{Caller: "admin", Force: true}},
		{"?force=TRUE", "admin", "", deletion.Request{Caller: "admin"}},
		{"?force=0", "admin", "", deletion.Request{Caller: "admin"}},
		{"?force=yes", "admin", "", deletion.Request{Caller: "admin"}},
		{"?force", "admin", "", deletion.Request{Caller: "admin"}},
		{"?force=", "admin", "", deletion.Request{Caller: "admin"}},
		{"?force=%31", "admin", "", deletion.Request{Caller: "admin", Force: true}},
		{"?force=11", "admin", "", deletion.Request{Caller: "admin"}},
		{"?FORCE=1", "admin", "", deletion.Request{Caller: "admin"}},
		{"?force=1%", "admin", "", deletion.Request{Caller: "admin"}},
		{"", "node-b", "", deletion.Request{Caller: "node-b"}},
		{"?force=1", "node-b", "tenant", deletion.Request{Caller: "tenant", Force: true, Forwarded: true}},
		{"", "node-b", "../x", deletion.Request{Caller: "node-b", Forwarded: true}},
		{"", "tenant", "admin", deletion.Request{Caller: "tenant"}}, // nodes alone are believed
	} {
		f.deletes.asked = nil
		r := request(http.MethodDelete, "/v1/applications/shop"+c.query, c.by, strings.NewReader("{}"))
		if c.forwardedFor != "" {
			r.Header.Set("X-Scafo-Forwarded-For", c.forwardedFor)
		}
		wantProblem(t, f.do(r), scafo.CodeNotFound)
		c.want.Application = "shop"
		if !slices.Equal(f.deletes.asked, []deletion.Request{c.want}) {
			t.Errorf("%+v: asked %+v", c, f.deletes.asked)
		}
	}
	f.deletes.asked = nil
	wantProblem(t, f.do(request(http.MethodDelete, "/v1/applications/No.Name", "admin", nil)), scafo.CodeInvalidSlug)
	wantProblem(t, f.do(request(http.MethodDelete, "/v1/applications/shop", "admin", bytes.NewReader(make([]byte, 65537)))), scafo.CodeResourceLimit)
	if len(f.deletes.asked) != 0 {
		t.Errorf("asked %+v", f.deletes.asked)
	}
}

// The coordinator's answer is passed on as it is, be it a refusal or a document.
func TestTheCoordinatorsAnswerIsVerbatim(t *testing.T) {
	f := newFleet(t)
	f.undocumented = true // a coordinator of another release may answer anything
	for _, c := range []struct {
		status int
		header http.Header
		body   string
	}{
		{200, http.Header{"Content-Type": {"application/json"}}, `{"deleted": [ "a" ]}` + "\n\n"},
		{503, http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"7"}}, `{"title":"Not the coordinator","code":"draining","future":1}`},
		{401, http.Header{"Content-Type": {"application/problem+json"}, "Www-Authenticate": {"Bearer"}}, `{}`},
		{502, http.Header{"Content-Type": {"text/html"}, "Content-Length": {"4"}, "Set-Cookie": {"no"}}, `oops`},
	} {
		f.deletes.delete = func(deletion.Request) (deletion.Outcome, error) {
			return deletion.Outcome{Answer: &deletion.Answer{Status: c.status, Header: c.header, Body: io.NopCloser(strings.NewReader(c.body))}}, nil
		}
		w := f.do(request(http.MethodDelete, "/v1/applications/shop", "admin", nil))
		if w.Code != c.status || w.Body.String() != c.body {
			t.Errorf("%d %q", w.Code, w.Body)
		}
		for _, name := range []string{"Content-Type", "Retry-After", "Www-Authenticate", "Content-Length"} {
			if got := w.Header().Get(name); got != c.header.Get(name) {
				t.Errorf("%s: %q", name, got)
			}
		}
		if w.Header().Get("Set-Cookie") != "" {
			t.Error("a header that means nothing here is passed on")
		}
	}
}

// Deleting and deploying anew would be a way around an admin's block.
func TestABlockedApplicationIsDeletedByAdmins(t *testing.T) {
	f := newFleet(t)
	f.application("shop", nil)
	if _, _, err := f.registry.BlockApplication(t.Context(), "shop", "admin"); err != nil {
		t.Fatal(err)
	}
	calls := 0
	f.deletes.delete = func(deletion.Request) (deletion.Outcome, error) {
		calls++
		return deletion.Outcome{}, scafo.Errorf(scafo.CodeDraining, "asked")
	}
	wantProblem(t, f.do(request(http.MethodDelete, "/v1/applications/shop?force=1", "tenant", nil)), scafo.CodeApplicationBlocked)
	if calls != 0 {
		t.Error("the deletion was asked for")
	}
	for _, by := range []string{"admin", "narrow-admin", "node-b"} {
		wantProblem(t, f.do(request(http.MethodDelete, "/v1/applications/shop?force=1", by, nil)), scafo.CodeDraining)
	}
	if _, _, err := f.registry.UnblockApplication(t.Context(), "shop"); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, f.do(request(http.MethodDelete, "/v1/applications/shop", "tenant", nil)), scafo.CodeDraining)
	wantProblem(t, f.do(request(http.MethodDelete, "/v1/applications/blog-none", "tenant", nil)), scafo.CodeDraining)
	if calls != 5 {
		t.Errorf("asked %d times", calls)
	}
}

// oneLease is a coordinator lease that several nodes share without a bucket.
type oneLease struct {
	mu     sync.Mutex
	holder string // guarded by mu
	fence  int64  // guarded by mu
}

type leaseOf struct {
	*oneLease
	node string
}

func (l leaseOf) Held() (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fence, l.holder == l.node
}

func (l leaseOf) Last() (scafo.Lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return scafo.Lease{Node: l.holder, Fence: l.fence}, l.holder != ""
}

func (l leaseOf) Current(context.Context) (scafo.Lease, bool, error) {
	lease, held := l.Last()
	return lease, held, nil
}

func (l leaseOf) Offer(context.Context) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holder == "" {
		l.holder = l.node
		l.fence++
	}
	return l.holder == l.node, nil
}

// wire carries requests from node to node.
type wire struct {
	mu    sync.Mutex
	nodes map[string]http.Handler // guarded by mu
	urls  map[string]string       // guarded by mu; a node that has one is reached over the network
}

type wireOf struct {
	*wire
	from string
}

func (w wireOf) Forward(ctx context.Context, to scafo.Node, r deletion.Request) (*deletion.Answer, error) {
	w.mu.Lock()
	h, url := w.nodes[to.ID], w.urls[to.ID]
	w.mu.Unlock()
	if h == nil {
		return nil, errors.New("connection refused")
	}
	path := "/v1/applications/" + r.Application
	if r.Force {
		path += "?force=1"
	}
	req := request(http.MethodDelete, path, w.from, nil).WithContext(ctx)
	req.Header.Set(scafo.ForwardedForHeader, r.Caller)
	if url != "" {
		out, err := http.NewRequestWithContext(ctx, http.MethodDelete, url+path, nil)
		if err != nil {
			return nil, err
		}
		out.Header = req.Header
		res, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			return nil, err
		}
		return &deletion.Answer{Status: res.StatusCode, Header: res.Header, Body: res.Body}, nil
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	res := rec.Result()
	return &deletion.Answer{Status: res.StatusCode, Header: res.Header, Body: res.Body}, nil
}

// quietNodes are nodes without processes.
type quietNodes struct{ f *registry.Follower }

func (q quietNodes) Quiet(context.Context, string, string, time.Duration) []string { return nil }

func (q quietNodes) Remains(ctx context.Context, application, uid string) (hosts []string, deploys []scafo.DeployID, err error) {
	if _, err := q.f.Refresh(ctx); err != nil {
		return nil, nil, err
	}
	for host, c := range q.f.Snapshot().Claims {
		if c.UID == uid && c.State != scafo.ClaimReleased {
			hosts = append(hosts, host)
		}
	}
	return hosts, nil, nil
}

// untilTheEnd runs a service while t does; its context ends with t.
func untilTheEnd(t *testing.T, run func(context.Context) error) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return ctx
}

// deleting is a node's API that deletes, over a bucket.
func deleting(t *testing.T, b bucket.Bucket, id string, lease *oneLease, w *wire, more ...func(r *registry.Registry, d *api.Deps)) (http.Handler, *deletion.Service) {
	t.Helper()
	r := registry.New(b, registry.Options{Node: id})
	log := slog.New(slog.DiscardHandler)
	follower := registry.NewFollower(r)
	s, err := deletion.New(deletion.Config{
		Node: id, Registry: r, Lease: leaseOf{lease, id}, Fleet: quietNodes{follower}, Forwarder: wireOf{w, id}, Grace: time.Hour, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	untilTheEnd(t, s.Run)
	d := api.Deps{
		Node: id, Log: log, Verifier: auth.New(r, auth.Options{Log: log}), Applications: api.Following(r, follower),
		Setters: r, Freezes: r, Operators: r, Deletions: s, Domains: r, PlatformDomains: platformDomains,
	}
	for _, f := range more {
		f(r, &d)
	}
	h, err := api.New(d)
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes == nil {
		w.nodes = map[string]http.Handler{}
	}
	w.nodes[id] = h
	return h, s
}

func registerNodes(t *testing.T, r *registry.Registry, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if _, err := r.RegisterNode(t.Context(), scafo.Node{ID: id, PublicKey: jwk(id), Address: "http://" + id, Version: "0.1.0"}); err != nil {
			t.Fatal(err)
		}
	}
}

// Any node takes a deletion: the coordinator carries it out, whoever asks for it where.
func TestDeleteOnAnyNode(t *testing.T) {
	for _, asked := range []string{"node-a", "node-b"} {
		for _, holder := range []string{"", "node-a", "node-b"} {
			b := memory.New()
			r := fleetOver(t, b)
			registerNodes(t, r, "node-a", "node-b")
			lease, w := &oneLease{holder: holder, fence: 1}, &wire{}
			for _, id := range []string{"node-a", "node-b"} {
				deleting(t, b, id, lease, w)
			}
			app, err := r.Application(t.Context(), "shop")
			if err != nil {
				t.Fatal(err)
			}
			put := func(key string) {
				if _, err := b.Put(t.Context(), key, []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
			put(registry.RuntimePrefix("shop", app.UID) + "objects/<&>")
			answer := call(w.nodes[asked], "DELETE", "/v1/applications/shop", "tenant", "")
			wantProblem(t, answer, scafo.CodeNotRetired)
			answer = call(w.nodes[asked], "DELETE", "/v1/applications/shop?force=1", "tenant", "")
			wantJSON(t, answer, fmt.Sprintf(`{"deleted":["fleets/shop/%s/objects/<&>","_scafo/applications/shop.json"]}`, app.UID))
			wantProblem(t, call(w.nodes[asked], "DELETE", "/v1/applications/shop?force=1", "tenant", ""), scafo.CodeNotFound)
			want := holder
			if want == "" {
				want = asked
			}
			if lease.holder != want {
				t.Errorf("asked at %s of %q: %s coordinates", asked, holder, lease.holder)
			}
		}
	}
}

// manyKeys is a bucket in memory beneath which an application has any number of keys
// that take no room.
type manyKeys struct {
	*memory.Store
	prefix string

	mu   sync.Mutex
	n    int          // guarded by mu
	gone map[int]bool // guarded by mu; beyond the last one that is gone with all before it
	low  int          // guarded by mu; all below are gone
	fail int          // guarded by mu; the key that cannot be deleted; 0: none
}

func (m *manyKeys) key(i int) string { return fmt.Sprintf("%sobjects/%09d", m.prefix, i) }

func (m *manyKeys) Delete(ctx context.Context, key string) error {
	var i int
	if _, err := fmt.Sscanf(key, m.prefix+"objects/%d", &i); err != nil {
		return m.Store.Delete(ctx, key)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i == m.fail {
		return &bucket.Error{Op: "delete", Key: key, Kind: bucket.ErrDenied}
	}
	for m.gone[i] = true; m.gone[m.low+1]; m.low++ {
		delete(m.gone, m.low+1)
	}
	return nil
}

func (m *manyKeys) List(ctx context.Context, prefix string, o bucket.ListOptions) (bucket.Page, error) {
	if prefix != registry.RuntimesPrefix+"shop/" {
		return m.Store.List(ctx, prefix, o)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	page, i := bucket.Page{}, m.low+1
	for ; i <= m.n && len(page.Objects) < memory.MaxPage; i++ {
		if k := m.key(i); k > o.After && !m.gone[i] {
			page.Objects = append(page.Objects, bucket.Info{Key: k})
		}
	}
	if i <= m.n {
		page.Next = page.Objects[len(page.Objects)-1].Key
	}
	return page, nil
}

// crowded is two nodes over such a bucket, which reach each other over the network;
// node-a coordinates.
func crowded(t *testing.T, n int) (*manyKeys, *wire) {
	t.Helper()
	b := &manyKeys{Store: memory.New(), n: n, gone: map[int]bool{}}
	r := fleetOver(t, b)
	app, err := r.Application(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	b.prefix = registry.RuntimePrefix("shop", app.UID)
	registerNodes(t, r, "node-a", "node-b")
	lease, w := &oneLease{holder: "node-a", fence: 1}, &wire{}
	for _, id := range []string{"node-a", "node-b"} {
		h, _ := deleting(t, b, id, lease, w)
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		w.mu.Lock()
		if w.urls == nil {
			w.urls = map[string]string{}
		}
		w.urls[id] = s.URL
		w.mu.Unlock()
	}
	return b, w
}

// 300,000 keys are answered as they go, by the coordinator and by a node that hands its
// answer on: nobody ever holds them.
func TestDeletedKeysAreStreamed(t *testing.T) {
	const n = 300_000
	b, w := crowded(t, n)
	least := liveHeap()
	var most uint64
	req, err := http.NewRequest(http.MethodDelete, w.urls["node-b"]+"/v1/applications/shop?force=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", bearer("admin"))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	dec := json.NewDecoder(res.Body)
	found, last := 0, ""
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		k, ok := tok.(string)
		if !ok || k == "deleted" {
			continue
		}
		if found++; found <= n && k != b.key(found) {
			t.Fatalf("key %d is %s", found, k)
		}
		if last = k; found%60_000 == 0 {
			most = max(most, liveHeap())
		}
	}
	if found != n+1 || last != "_scafo/applications/shop.json" {
		t.Errorf("%d keys, the last one %s", found, last)
	}
	const room = 4 << 20
	if most > least+room {
		t.Errorf("the live heap grew by %d bytes, at most %d are for buffers", most-least, room)
	}
	t.Logf("the live heap grew by %d KiB", (int64(most)-int64(least))/1024)
}

// When a deletion fails after its answer has begun, the answer breaks off: no reader
// takes it for a whole one. The node that hands it on breaks off as well.
func TestAStreamedAnswerBreaksOff(t *testing.T) {
	b, w := crowded(t, 5000)
	b.fail = 3500
	for range 2 {
		req, err := http.NewRequest(http.MethodDelete, w.urls["node-b"]+"/v1/applications/shop?force=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", bearer("admin"))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode == http.StatusServiceUnavailable {
			continue // the second time it fails before it has anything to answer
		}
		if res.StatusCode != 200 || err == nil || json.Valid(body) {
			t.Errorf("%d, %v, %d bytes that are a document: %v", res.StatusCode, err, len(body), json.Valid(body))
		}
	}
	b.mu.Lock()
	b.fail = 0
	b.mu.Unlock()
	w2 := call(w.nodes["node-b"], "DELETE", "/v1/applications/shop", "admin", "")
	var said struct{ Deleted []string }
	if err := json.Unmarshal(w2.Body.Bytes(), &said); w2.Code != 200 || err != nil || len(said.Deleted) == 0 {
		t.Errorf("repeated at the other node: %d %v", w2.Code, err)
	}
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

var bucketAll = bucket.ListOptions{}

func record(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}
