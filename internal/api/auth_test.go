package api_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/token/tokentest"
)

// routes is every route of the node with a token that it takes.
var routes = []struct {
	method, path string
	takes        []string // who is let in
	refuses      []string // who is known, and not let in
}{
	{"GET", "/v1/state", []string{"admin", "tenant", "node-b"}, nil},
	{"POST", "/v1/applications/shop/deploys", []string{"admin", "tenant", "narrow-admin", "node-b"}, nil},
	{"POST", "/v1/applications/other/deploys", []string{"admin", "node-b"}, []string{"tenant", "narrow-admin"}},
	{"GET", "/v1/deploys/shop.0123456789abcdef", []string{"admin", "tenant", "narrow-admin", "node-b"}, nil},
	{"GET", "/v1/deploys/other.0123456789abcdef", []string{"admin", "node-b"}, []string{"tenant", "narrow-admin"}},
	{"GET", "/v1/applications", []string{"admin", "tenant", "narrow-admin"}, []string{"node-b"}},
	{"GET", "/v1/applications/shop", []string{"admin", "tenant", "narrow-admin"}, []string{"node-b"}},
	{"GET", "/v1/applications/other", []string{"admin"}, []string{"tenant", "narrow-admin", "node-b"}},
	{"DELETE", "/v1/applications/shop", []string{"admin", "narrow-admin", "tenant", "node-b"}, nil},
	{"DELETE", "/v1/applications/other?force=1", []string{"admin", "node-b"}, []string{"narrow-admin", "tenant"}},
	{"POST", "/v1/applications/shop/block", []string{"admin", "narrow-admin"}, []string{"tenant", "node-b"}},
	{"POST", "/v1/applications/other/block", []string{"admin"}, []string{"narrow-admin", "tenant", "node-b"}},
	{"POST", "/v1/applications/shop/unblock", []string{"admin", "narrow-admin"}, []string{"tenant", "node-b"}},
	{"POST", "/v1/applications/other/unblock", []string{"admin"}, []string{"narrow-admin", "tenant", "node-b"}},
	{"POST", "/v1/applications/shop/labels", []string{"admin", "narrow-admin"}, []string{"tenant", "node-b"}},
	{"POST", "/v1/applications/other/labels", []string{"admin"}, []string{"narrow-admin", "tenant", "node-b"}},
	{"POST", "/v1/applications/shop/retire", []string{"admin", "narrow-admin", "tenant", "node-b"}, nil},
	{"POST", "/v1/applications/other/retire", []string{"admin", "node-b"}, []string{"narrow-admin", "tenant"}},
	{"POST", "/v1/applications/shop/unretire", []string{"admin", "narrow-admin", "tenant", "node-b"}, nil},
	{"POST", "/v1/applications/other/unretire", []string{"admin", "node-b"}, []string{"narrow-admin", "tenant"}},
	{"POST", "/v1/applications/shop/selector", []string{"admin", "narrow-admin", "tenant", "node-b"}, nil},
	{"POST", "/v1/applications/other/selector", []string{"admin", "node-b"}, []string{"narrow-admin", "tenant"}},
	{"POST", "/v1/applications/shop/replicas", []string{"admin", "narrow-admin", "tenant", "node-b"}, nil},
	{"POST", "/v1/applications/other/replicas", []string{"admin", "node-b"}, []string{"narrow-admin", "tenant"}},
	{"POST", "/v1/applications/shop/domains/shop.example", []string{"admin", "narrow-admin", "tenant"}, []string{"node-b"}},
	{"POST", "/v1/applications/shop/domains/shop.example?wildcard=1", []string{"admin"}, []string{"narrow-admin", "tenant", "node-b"}},
	{"POST", "/v1/applications/other/domains/other.example", []string{"admin"}, []string{"narrow-admin", "tenant", "node-b"}},
	{"DELETE", "/v1/applications/shop/domains/shop.example", []string{"admin", "narrow-admin", "tenant"}, []string{"node-b"}},
	{"DELETE", "/v1/applications/other/domains/other.example", []string{"admin"}, []string{"narrow-admin", "tenant", "node-b"}},
	{"GET", "/v1/fleet/freeze", []string{"admin", "narrow-admin", "tenant"}, []string{"node-b"}},
	{"POST", "/v1/fleet/freeze", []string{"admin", "narrow-admin"}, []string{"tenant", "node-b"}},
	{"DELETE", "/v1/fleet/freeze", []string{"admin", "narrow-admin"}, []string{"tenant", "node-b"}},
	{"GET", "/v1/operators", []string{"admin", "narrow-admin", "tenant"}, []string{"node-b"}},
	{"POST", "/v1/operators", []string{"admin", "narrow-admin", "tenant"}, []string{"node-b"}},
	{"DELETE", "/v1/operators/nobody", []string{"admin", "narrow-admin"}, []string{"tenant", "node-b"}},
	{"POST", "/v1/peer/hints", []string{"node-b"}, []string{"admin", "tenant"}},
	{"GET", "/v1/ingress/routes", []string{"ingress"}, nil},
}

func TestWhoIsLetIn(t *testing.T) {
	f := newFleet(t)
	f.loop.ready = true
	for _, r := range routes {
		for _, by := range r.takes {
			w := f.do(request(r.method, r.path, by, nil))
			if w.Code == 401 || w.Code == 403 {
				t.Errorf("%s %s by %s: %d %s", r.method, r.path, by, w.Code, w.Body)
			}
		}
		for _, by := range r.refuses {
			d := wantProblem(t, f.do(request(r.method, r.path, by, nil)), scafo.CodeAuthScope)
			for _, hidden := range []string{"blog", "*"} {
				if strings.Contains(d.Detail, hidden) {
					t.Errorf("%s %s by %s discloses %q: %s", r.method, r.path, by, hidden, d.Detail)
				}
			}
		}
	}
}

// Every bad token gets the very same answer, on every route, whatever is wrong.
// The clock stands still: a token of the near future is good a moment later.
func TestBadTokens(t *testing.T) { synctest.Test(t, testBadTokens) }

func testBadTokens(t *testing.T) {
	f := newFleet(t)
	f.loop.ready = true
	now := time.Now()
	bad := tokentest.All(signer("admin"), signer("tenant"), signer("stranger"), now)
	used := bearer("admin")
	replayed := request(http.MethodGet, "/v1/state", "", nil)
	replayed.Header.Set("Authorization", used)
	if w := f.do(replayed); w.Code != http.StatusOK {
		t.Fatal(w.Code, w.Body)
	}
	bad = append(bad, tokentest.Bad{Name: "used before", Authorization: []string{used}})
	bad = append(bad, tokentest.Bad{Name: "of an unknown key", Authorization: []string{bearer("nobody")}})
	if len(bad) < 60 {
		t.Fatalf("%d bad tokens, at least 60 are promised", len(bad))
	}

	var document []byte
	var header http.Header
	before := f.bucket.Counts()
	for _, r := range routes {
		for _, b := range bad {
			if r.takes[0] == "ingress" && b.Name == "an ingress token" {
				continue // the one that is good here
			}
			req := httptest.NewRequest(r.method, r.path, nil)
			for _, a := range b.Authorization {
				req.Header.Add("Authorization", a)
			}
			w := f.do(req)
			if document == nil {
				wantProblem(t, w, scafo.CodeAuthInvalid)
				document, header = bytes.Clone(w.Body.Bytes()), w.Header()
			}
			if w.Code != http.StatusUnauthorized || !bytes.Equal(w.Body.Bytes(), document) {
				t.Fatalf("%s %s with %s: %d %s\nothers get %s", r.method, r.path, b.Name, w.Code, w.Body, document)
			}
			for name := range header {
				if w.Header().Get(name) != header.Get(name) || len(w.Header()) != len(header) {
					t.Errorf("%s %s with %s: headers %v, others get %v", r.method, r.path, b.Name, w.Header(), header)
				}
			}
		}
	}
	if header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("headers %v", header)
	}
	after := f.bucket.Counts()
	for op, n := range after {
		if op.IsWrite() && n != before[op] {
			t.Errorf("refused tokens made %d %s requests", n-before[op], op)
		}
	}
	if n := f.deploys.calls.Load(); n != 0 {
		t.Errorf("%d calls went through", n)
	}
}

func TestTokenKindsDoNotMix(t *testing.T) {
	f := newFleet(t)
	f.loop.ready = true
	for _, by := range []string{"admin", "node-b"} {
		wantProblem(t, f.get("/v1/ingress/routes", by), scafo.CodeAuthInvalid)
	}
	wantProblem(t, f.get("/v1/state", "ingress"), scafo.CodeAuthInvalid)
}

// One token, sent at the same time to two nodes: one of the calls is accepted.
func TestSingleUseAcrossNodes(t *testing.T) {
	f := newFleet(t)
	nodes := []http.Handler{f.handler, f.node()}
	for _, target := range []string{"/v1/state", "/v1/applications"} {
		authorization := bearer("admin")
		var accepted, refused atomic.Int64
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				r := request(http.MethodGet, target, "", nil)
				r.Header.Set("Authorization", authorization)
				w := httptest.NewRecorder()
				nodes[i%2].ServeHTTP(w, r)
				switch w.Code {
				case http.StatusOK:
					accepted.Add(1)
				case http.StatusUnauthorized:
					refused.Add(1)
				}
			})
		}
		wg.Wait()
		if accepted.Load() != 1 || refused.Load() != 19 {
			t.Errorf("%s: accepted %d times, refused %d times", target, accepted.Load(), refused.Load())
		}
	}
}

// A token is used up by a call that is refused for what it asks, too.
func TestRefusedCallsUseTheirTokenUp(t *testing.T) {
	for _, c := range []struct{ path, by string }{
		{"/v1/applications/other", "tenant"},
		{"/v1/applications/Not-A-Name", "admin"},
		{"/v1/applications", "node-b"},
		{"/v1/deploys/none", "admin"},
	} {
		f := newFleet(t)
		r := request(http.MethodGet, c.path, c.by, nil)
		if w := f.do(r); w.Code == 401 || w.Code == 200 {
			t.Fatal(c.path, w.Code, w.Body)
		}
		again := request(http.MethodGet, "/v1/state", "", nil)
		again.Header.Set("Authorization", r.Header.Get("Authorization"))
		wantProblem(t, f.do(again), scafo.CodeAuthInvalid)
	}
}

func TestRevokedOperator(t *testing.T) {
	f := newFleet(t)
	if w := f.get("/v1/applications", "tenant"); w.Code != http.StatusOK {
		t.Fatal(w.Code, w.Body)
	}
	f.must(f.registry.RemoveOperator(t.Context(), "tenant"))
	wantProblem(t, f.get("/v1/applications", "tenant"), scafo.CodeAuthInvalid)
	// Out of its scope as well: a key that is not there has none.
	wantProblem(t, f.get("/v1/applications/other", "tenant"), scafo.CodeAuthInvalid)
}

// A bucket that is away is no reason to call a token bad, on any route; and
// nothing is answered, or done, before the token is known to be new.
func TestStoreAway(t *testing.T) { synctest.Test(t, testStoreAway) }

func testStoreAway(t *testing.T) {
	f := newFleet(t)
	for _, by := range []string{"admin", "tenant", "node-b", "narrow-admin"} {
		if w := f.get("/v1/state", by); w.Code != http.StatusOK { // the keys are cached now
			t.Fatal(w.Code, w.Body)
		}
	}
	f.bucket.SetDown(true)
	for _, r := range routes {
		if r.takes[0] == "ingress" || r.path == "/v1/peer/hints" {
			continue // these ask nothing of the bucket
		}
		for _, by := range append([]string{"stranger"}, r.takes...) {
			w := f.do(request(r.method, r.path, by, nil))
			wantProblem(t, w, scafo.CodeStoreUnavailable)
			if w.Header().Get("Retry-After") == "" {
				t.Errorf("%s %s: no Retry-After", r.method, r.path)
			}
		}
	}
	if n := f.deploys.calls.Load(); n > 20 {
		t.Errorf("%d calls", n)
	}
	f.bucket.SetDown(false)
	if w := f.get("/v1/state", "admin"); w.Code != http.StatusOK {
		t.Errorf("afterwards: %d %s", w.Code, w.Body)
	}
}

func TestChangesWaitForTheirToken(t *testing.T) { synctest.Test(t, testChangesWait) }

func testChangesWait(t *testing.T) {
	f := newFleet(t)
	f.get("/v1/state", "admin")
	before := f.deploys.calls.Load()
	f.bucket.SetDown(true)
	wantProblem(t, f.do(request(http.MethodPost, "/v1/applications/shop/deploys", "admin", strings.NewReader("x"))), scafo.CodeStoreUnavailable)
	if n := f.deploys.calls.Load() - before; n != 0 {
		t.Errorf("a deploy went through before its token was known to be new")
	}
}

// What each kind of call costs of the bucket, its key being cached.
func TestBucketRequestsOfAuthentication(t *testing.T) {
	f := newFleet(t)
	f.loop.ready = true
	f.application("shop", nil)
	for _, by := range []string{"admin", "tenant", "node-b"} {
		f.get("/v1/state", by)
	}
	for _, c := range []struct {
		method, path, by string
		gets, creates    int
	}{
		{"GET", "/v1/state", "admin", 0, 1},
		{"GET", "/v1/applications/shop", "admin", 2, 1}, // the operator's record and the application
		{"GET", "/v1/applications/other", "tenant", 1, 1},
		{"POST", "/v1/applications/other/deploys", "tenant", 0, 1},
		{"POST", "/v1/peer/hints", "node-b", 0, 0},
		{"GET", "/v1/ingress/routes", "ingress", 0, 0},
		{"GET", "/.well-known/scafo/health", "", 0, 0},
		{"GET", "/v1/nothing", "admin", 0, 0},
	} {
		before := f.bucket.Counts()
		f.do(request(c.method, c.path, c.by, nil))
		after := f.bucket.Counts()
		total := 0
		for _, op := range fault.Ops() {
			total += after[op] - before[op]
		}
		gets, creates := after[fault.Get]-before[fault.Get], after[fault.Create]-before[fault.Create]
		if gets != c.gets || creates != c.creates || total != c.gets+c.creates {
			t.Errorf("%s %s: %d gets, %d creates, %d in all; want %d and %d", c.method, c.path, gets, creates, total, c.gets, c.creates)
		}
	}
}
