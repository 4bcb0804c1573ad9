package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/deploy"
)

func TestHealth(t *testing.T) {
	f := newFleet(t)
	w := f.get("/.well-known/scafo/health", "")
	wantJSON(t, w, `{"ok":true,"version":"0.1.0","node":"node-a"}`)
	if f.loop.asked != "" {
		t.Errorf("asked by %q", f.loop.asked)
	}
	for header, asked := range map[string]string{"node-b": "node-b", "../x": "", "": ""} {
		f.loop.asked = ""
		r := request(http.MethodGet, "/.well-known/scafo/health", "", nil)
		r.Header.Set("X-Scafo-Node", header)
		f.do(r)
		if f.loop.asked != asked {
			t.Errorf("header %q: asked by %q", header, f.loop.asked)
		}
	}
}

func TestUnknownRoutes(t *testing.T) {
	f := newFleet(t)
	for _, path := range []string{
		"/", "/v1", "/v1/", "/v1/states", "/V1/state", "/v1/state/", "/v1//state", "//v1/state", "/v1/./state", "/v1/x/../state",
		"/v1/%2e%2e/v1/state", "/v1%2Fstate", "/v1/applications/shop/", "/v1/applications//deploys", "/v1/deploys", "/v1/deploys/",
		"/.well-known/celld/health", "/v1/ingress/routes/", "/v1/applications/a/b/c",
	} {
		for _, by := range []string{"", "admin"} {
			w := f.do(request(http.MethodGet, "http://node"+path, by, nil))
			wantProblem(t, w, scafo.CodeNotFound)
			if l := w.Header().Get("Location"); l != "" {
				t.Errorf("%s redirects to %s", path, l)
			}
		}
	}
	r := httptest.NewRequest(http.MethodOptions, "http://node/", nil)
	r.URL.Path = "*"
	wantProblem(t, f.do(r), scafo.CodeNotFound)
}

func TestOtherMethods(t *testing.T) {
	f := newFleet(t)
	for path, c := range map[string]struct {
		methods []string
		allow   string
	}{
		"/.well-known/scafo/health":            {[]string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "PROPFIND"}, "GET, HEAD"},
		"/v1/state":                            {[]string{"POST", "DELETE"}, "GET, HEAD"},
		"/v1/applications":                     {[]string{"POST", "PUT"}, "GET, HEAD"},
		"/v1/applications/shop":                {[]string{"POST", "PUT"}, "DELETE, GET, HEAD"},
		"/v1/applications/shop/deploys":        {[]string{"GET", "PUT", "HEAD"}, "POST"},
		"/v1/deploys/shop.0123456789abcdef":    {[]string{"POST", "DELETE"}, "GET, HEAD"},
		"/v1/ingress/routes":                   {[]string{"POST"}, "GET, HEAD"},
		"/v1/peer/hints":                       {[]string{"GET"}, "POST"},
		"/v1/applications/shop/block":          {[]string{"GET", "PUT", "DELETE", "PATCH"}, "POST"},
		"/v1/applications/shop/replicas":       {[]string{"GET", "PUT", "DELETE"}, "POST"},
		"/v1/fleet/freeze":                     {[]string{"PUT", "PATCH"}, "DELETE, GET, HEAD, POST"},
		"/v1/operators":                        {[]string{"PUT", "DELETE"}, "GET, HEAD, POST"},
		"/v1/operators/op-1":                   {[]string{"GET", "POST", "PUT"}, "DELETE"},
		"/v1/applications/No-Name-%2F/deploys": {[]string{"GET"}, "POST"},
	} {
		for _, m := range c.methods {
			w := f.do(request(m, path, "", nil))
			if m != http.MethodHead {
				wantProblem(t, w, scafo.CodeMethodNotAllowed)
			}
			if got := w.Header().Get("Allow"); w.Code != 405 || got != c.allow {
				t.Errorf("%s %s: %d, Allow %q, want %q", m, path, w.Code, got, c.allow)
			}
		}
	}
}

func TestHead(t *testing.T) {
	f := newFleet(t)
	s := httptest.NewServer(f.handler)
	defer s.Close()
	res, err := http.Head(s.URL + "/.well-known/scafo/health")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); res.StatusCode != 200 || len(b) != 0 || res.ContentLength <= 0 {
		t.Errorf("%d, %d bytes, length %d", res.StatusCode, len(b), res.ContentLength)
	}
}

func TestPartsThatAreMissingHaveNoRoutes(t *testing.T) {
	f := newFleet(t)
	if _, err := api.New(api.Deps{Node: "node-a"}); err == nil {
		t.Error("an API without a verifier")
	}
	_ = f
}

func TestStateWhole(t *testing.T) {
	f := newFleet(t)
	// A node that has not done anything yet.
	for _, by := range []string{"admin", "node-b", "narrow-admin"} {
		wantJSON(t, f.get("/v1/state", by), `{"node":null,"lease":null,"coordinator":null,"processes":[],"placements":[]}`)
	}
	wantJSON(t, f.get("/v1/state", "tenant"), `{"node":null,"lease":null,"coordinator":null,"processes":[],"placements":[],"scoped":true}`)
	f.loop.err = scafo.Errorf(scafo.CodeStoreUnavailable, "the bucket is away")
	wantProblem(t, f.get("/v1/state", "admin"), scafo.CodeStoreUnavailable)
}

// complete gives a state what none is without.
func complete(d *scafo.DaemonState) {
	d.Node.PublicKey = jwk(d.Node.ID)
	for i := range d.Processes {
		d.Processes[i].State = scafo.ProcessReady
	}
	for i := range d.Placements {
		d.Placements[i].Nodes, d.Placements[i].Fence = []string{d.Node.ID}, 7
	}
}

func TestStateNarrows(t *testing.T) {
	f := newFleet(t)
	unplaced := []scafo.Unplaced{{Application: "shop", Wanted: "2"}, {Application: "secret", Wanted: "1"}}
	f.loop.state = scafo.DaemonState{
		Node:        &scafo.Node{Header: scafo.Header{V: 1, Write: "nonce"}, ID: "node-a"},
		Lease:       &scafo.Lease{Header: scafo.Header{V: 1, Write: "nonce"}, Node: "node-a", Fence: 7},
		Coordinator: &scafo.CoordinatorView{Node: "node-a", Fence: 7, Self: true, Unplaced: &unplaced},
		Processes:   []scafo.ProcessStatus{{Application: "secret"}, {Application: "shop", Internal: "http://10.9.8.7:1"}, {Application: "blog-x"}, {Application: "blog"}},
		Placements:  []scafo.PlacementView{{Application: "blog-x"}, {Application: "secret"}},
		Reconcile:   &scafo.ReconcileStatus{Error: "secret did not start"},
		Unreadable:  map[string]string{"_scafo/applications/secret.json": "a newer release wrote it"},
		Bucket: &scafo.BucketUse{
			Requests: []scafo.BucketRequests{{Op: "get", Purpose: "revision", Count: 3}},
			Nodes:    []scafo.FleetNode{{Node: "node-z", Address: "http://10.9.8.7:7420"}},
		},
	}
	complete(&f.loop.state)
	var whole, scoped scafo.DaemonState
	get := func(by string, into *scafo.DaemonState) string {
		w := f.get("/v1/state", by)
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
			t.Fatal(err)
		}
		return w.Body.String()
	}
	for _, by := range []string{"admin", "node-b", "narrow-admin"} {
		whole = scafo.DaemonState{}
		text := get(by, &whole)
		if whole.Scoped || len(whole.Processes) != 4 || len(whole.Placements) != 2 || len(*whole.Coordinator.Unplaced) != 2 || whole.Reconcile.Error == "" || whole.Bucket == nil || len(whole.Unreadable) != 1 {
			t.Errorf("%s: %s", by, text)
		}
		if strings.Contains(text, "nonce") {
			t.Errorf("write nonces are shown: %s", text)
		}
	}
	if text := get("node-b", &scafo.DaemonState{}); !strings.Contains(text, "10.9.8.7") {
		t.Errorf("a node is not told where other nodes' runtimes listen: %s", text)
	}
	text := get("tenant", &scoped)
	if strings.Contains(text, "10.9.8.7") {
		t.Errorf("discloses the fleet's own network: %s", text)
	}
	if strings.Contains(text, "secret") || strings.Contains(text, `"blog"`) {
		t.Errorf("discloses what the key does not reach: %s", text)
	}
	if !scoped.Scoped || len(scoped.Processes) != 2 || len(scoped.Placements) != 1 || len(*scoped.Coordinator.Unplaced) != 1 || scoped.Lease.Fence != 7 || scoped.Node.ID != "node-a" || scoped.Bucket != nil {
		t.Errorf("%s", text)
	}
	// Filtering is for the answer; what the loop keeps stays whole.
	if len(unplaced) != 2 || len(f.loop.state.Processes) != 4 || f.loop.state.Node.Write != "nonce" || f.loop.state.Reconcile.Error != "secret did not start" {
		t.Error("the loop's own state was changed")
	}
	// The list of the coordinator is there when it is empty, and only then.
	unplaced = unplaced[1:]
	if text := get("tenant", &scoped); !strings.Contains(text, `"unplaced":[]`) {
		t.Errorf("%s", text)
	}
	f.loop.state.Coordinator.Unplaced = nil
	if text := get("tenant", &scoped); strings.Contains(text, "unplaced") {
		t.Errorf("%s", text)
	}
}

func TestApplications(t *testing.T) {
	f := newFleet(t)
	labels := func(a *scafo.Application) { a.Labels = map[string]string{"plan": "pro"} }
	for _, name := range []string{"zoo", "shop", "blog-b", "blog-a", "blog"} {
		f.application(name, labels)
	}
	if _, err := f.registry.UpdateApplication(t.Context(), "blog-a", func(a *scafo.Application) error {
		a.Blocked = &scafo.Stamp{By: "admin"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	list := func(by string) (names []string, text string, scoped bool) {
		w := f.get("/v1/applications", by)
		var l struct {
			Applications []scafo.Application
			Scoped       bool
		}
		if err := json.Unmarshal(w.Body.Bytes(), &l); err != nil || w.Code != 200 {
			t.Fatal(w.Code, w.Body, err)
		}
		for _, a := range l.Applications {
			names = append(names, a.Name)
		}
		return names, w.Body.String(), l.Scoped
	}
	for _, by := range []string{"admin", "narrow-admin"} {
		names, text, scoped := list(by)
		if got := strings.Join(names, " "); got != "blog blog-a blog-b shop zoo" || scoped || strings.Contains(text, "scoped") || !strings.Contains(text, "pro") {
			t.Errorf("%s: %s", by, text)
		}
	}
	names, text, scoped := list("tenant")
	if got := strings.Join(names, " "); got != "blog-a blog-b shop" || !scoped || strings.Contains(text, "labels") || !strings.Contains(text, `"blocked"`) {
		t.Errorf("%s", text)
	}

	var one struct{ Application scafo.Application }
	w := f.get("/v1/applications/shop", "admin")
	if err := json.Unmarshal(w.Body.Bytes(), &one); err != nil || one.Application.Name != "shop" || one.Application.Labels["plan"] != "pro" || one.Application.Write != "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := f.get("/v1/applications/shop", "tenant"); w.Code != 200 || strings.Contains(w.Body.String(), "labels") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	wantProblem(t, f.get("/v1/applications/nothing", "admin"), scafo.CodeNotFound)
	wantProblem(t, f.get("/v1/applications/blog-nothing", "tenant"), scafo.CodeNotFound)
	wantProblem(t, f.get("/v1/applications/nothing", "tenant"), scafo.CodeAuthScope)
	for _, slug := range []string{"Shop", "-shop", "shop-", "a.b", "a%2Fb", "%2e%2e", "a%20b", strings.Repeat("a", 64), "sh%C3%B6p", "a%00b"} {
		wantProblem(t, f.get("/v1/applications/"+slug, "admin"), scafo.CodeInvalidSlug)
		wantProblem(t, f.do(request("POST", "/v1/applications/"+slug+"/deploys", "tenant", nil)), scafo.CodeInvalidSlug)
	}
	// An escape that spells an ordinary letter is that letter.
	if w := f.get("/v1/applications/sh%6Fp", "admin"); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestAnEmptyListIsAList(t *testing.T) {
	f := newFleet(t)
	wantJSON(t, f.get("/v1/applications", "admin"), `{"applications":[]}`)
	wantJSON(t, f.get("/v1/applications", "tenant"), `{"applications":[],"scoped":true}`)
}

func TestRouting(t *testing.T) {
	f := newFleet(t)
	const path = "/v1/ingress/routes"
	w := f.get(path, "ingress")
	d := wantProblem(t, w, scafo.CodeDraining)
	if w.Code != 503 || w.Header().Get("Retry-After") == "" || w.Header().Get("ETag") != "" || d.Detail == "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	f.loop.ready, f.loop.body, f.loop.etag = true, routingDocument, `"abc"`
	w = f.get(path+"?prefer=self", "ingress")
	wantJSON(t, w, routingDocument)
	if w.Header().Get("ETag") != `"abc"` || f.loop.prefer != "self" {
		t.Errorf("ETag %q, prefer %q", w.Header().Get("ETag"), f.loop.prefer)
	}
	f.get(path+"?prefer=node-z", "ingress")
	if f.loop.prefer != "node-z" {
		t.Errorf("prefer %q", f.loop.prefer)
	}
	f.get(path, "ingress")
	if f.loop.prefer != "" {
		t.Errorf("prefer %q", f.loop.prefer)
	}
	wantProblem(t, f.get(path+"?prefer=%zz", "ingress"), scafo.CodeInvalidInput)
	for header, code := range map[string]int{
		`"abc"`: 304, `W/"abc"`: 304, `"x", "abc"`: 304, `"x","abc","y"`: 304, `*`: 304,
		`"abcd"`: 200, `abc`: 200, `"x"`: 200, ``: 200,
	} {
		r := request(http.MethodGet, path, "ingress", nil)
		r.Header.Set("If-None-Match", header)
		w := f.do(r)
		if w.Code != code || code == 304 && w.Body.Len() != 0 || w.Header().Get("ETag") != `"abc"` {
			t.Errorf("If-None-Match %s: %d %s %v", header, w.Code, w.Body, w.Header())
		}
	}
}

// Who asks to be told waits for another document, up to the time that it names.
func TestRoutingWaits(t *testing.T) {
	const path = "/v1/ingress/routes"
	wait := func(f *fleet, etag, prefer string) *httptest.ResponseRecorder {
		r := request(http.MethodGet, path, "ingress", nil)
		if etag != "" {
			r.Header.Set("If-None-Match", etag)
		}
		r.Header.Set("Prefer", prefer)
		return f.do(r)
	}
	t.Run("the time passes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			f.loop.ready, f.loop.body, f.loop.etag = true, routingDocument, `"abc"`
			for prefer, want := range map[string]time.Duration{
				"wait=5": 5 * time.Second, "respond-async, wait=7": 7 * time.Second, `Wait = "3"; x=y`: 3 * time.Second,
				"wait=30": api.MaxWait, "wait=31": api.MaxWait, "wait=2147483647": api.MaxWait,
				"wait=0": 0, "wait=-1": 0, "wait": 0, "wait=x": 0, "waits=5": 0, "": 0,
			} {
				began := time.Now()
				if w := wait(f, `"abc"`, prefer); w.Code != 304 {
					t.Errorf("Prefer: %s: %d", prefer, w.Code)
				}
				if took := time.Since(began); took != want {
					t.Errorf("Prefer: %s waited %v, want %v", prefer, took, want)
				}
			}
			// Whoever does not have the document gets it at once.
			began := time.Now()
			for _, etag := range []string{"", `"older"`} {
				if w := wait(f, etag, "wait=5"); w.Code != 200 || time.Since(began) != 0 {
					t.Errorf("If-None-Match %s: %d after %v", etag, w.Code, time.Since(began))
				}
			}
		})
	})
	t.Run("a change ends it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			f.loop.changed, f.loop.asking = make(chan struct{}), make(chan struct{}, 1)
			answer := make(chan *httptest.ResponseRecorder, 1)
			go func() { answer <- wait(f, "", "wait=30") }() // before the first pass
			<-f.loop.asking
			synctest.Wait()
			time.Sleep(time.Second)
			f.loop.ready, f.loop.body, f.loop.etag = true, routingDocument, `"abc"`
			began := time.Now()
			close(f.loop.changed)
			if w := <-answer; w.Code != 200 || w.Header().Get("ETag") != `"abc"` || time.Since(began) != 0 {
				t.Errorf("%d %v after %v", w.Code, w.Header(), time.Since(began))
			}
		})
	})
	t.Run("the node stops", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			f.loop.ready, f.loop.body, f.loop.etag = true, routingDocument, `"abc"`
			time.AfterFunc(time.Second, func() { close(f.closing) })
			began := time.Now()
			if w := wait(f, `"abc"`, "wait=30"); w.Code != 304 || time.Since(began) != time.Second {
				t.Errorf("%d after %v", w.Code, time.Since(began))
			}
		})
	})
	t.Run("a caller that left", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			f.loop.ready, f.loop.body, f.loop.etag = true, routingDocument, `"abc"`
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			r := request(http.MethodGet, path, "ingress", nil).WithContext(ctx)
			r.Header.Set("If-None-Match", `"abc"`)
			r.Header.Set("Prefer", "wait=30")
			began := time.Now()
			f.do(r)
			if took := time.Since(began); took != time.Second {
				t.Errorf("it waited %v for a caller that left after 1s", took)
			}
		})
	})
}

func TestPeerHints(t *testing.T) {
	f := newFleet(t)
	post := func(body string) *httptest.ResponseRecorder {
		return f.do(request(http.MethodPost, "/v1/peer/hints", "node-b", strings.NewReader(body)))
	}
	wantJSON(t, post(`{"keys":["_scafo/a.json"],"await":{"application":"shop","version":"v1","deploySeq":3,"timeoutMs":500}}`), `{"node":"node-a","processes":[]}`)
	want := scafo.PeerAwait{Application: "shop", Version: "v1", DeploySeq: 3, TimeoutMS: 500}
	if f.loop.from != "node-b" || len(f.loop.hint.Keys) != 1 || *f.loop.hint.Await != want {
		t.Errorf("from %q: %+v", f.loop.from, f.loop.hint)
	}
	for _, body := range []string{"", "[]", "{", `{"keys":7}`, `{"keys":[]} {}`} {
		wantProblem(t, post(body), scafo.CodeInvalidInput)
	}
	keys := func(n int) string { return `{"keys":[` + strings.TrimSuffix(strings.Repeat(`"k",`, n), ",") + `]}` }
	if w := post(keys(api.MaxHintKeys)); w.Code != 200 {
		t.Errorf("%d keys: %d", api.MaxHintKeys, w.Code)
	}
	wantProblem(t, post(keys(api.MaxHintKeys+1)), scafo.CodeInvalidInput)
}

func TestPeerHintTokensCountOnce(t *testing.T) {
	f := newFleet(t)
	authorization := bearer("node-b")
	post := func(path, method string) *httptest.ResponseRecorder {
		r := request(method, path, "", strings.NewReader(`{"keys":[]}`))
		r.Header.Set("Authorization", authorization)
		return f.do(r)
	}
	if w := post("/v1/peer/hints", "POST"); w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	wantProblem(t, post("/v1/peer/hints", "POST"), scafo.CodeAuthInvalid)
	wantProblem(t, post("/v1/state", "GET"), scafo.CodeAuthInvalid)
	if f.loop.hints != 1 {
		t.Errorf("%d hints", f.loop.hints)
	}
}

// countingBody says how much of it was read.
type countingBody struct {
	n    int64
	left int64
}

func (b *countingBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), b.left)
	for i := range p[:n] {
		p[i] = ' '
	}
	b.n, b.left = b.n+n, b.left-n
	return int(n), nil
}

func TestJSONBodiesAreBounded(t *testing.T) {
	f := newFleet(t)
	const path = "/v1/peer/hints"
	fill := func(n int) string {
		s := `{"keys":[]}`
		return s + strings.Repeat(" ", n-len(s))
	}
	if w := f.do(request("POST", path, "node-b", strings.NewReader(fill(api.DefaultJSONBytes)))); w.Code != 200 {
		t.Errorf("%d bytes: %d %s", api.DefaultJSONBytes, w.Code, w.Body)
	}
	// Declared: refused unread.
	declared := &countingBody{left: 1 << 30}
	r := request("POST", path, "node-b", declared)
	r.ContentLength = api.DefaultJSONBytes + 1
	wantProblem(t, f.do(r), scafo.CodeResourceLimit)
	if declared.n != 0 {
		t.Errorf("%d bytes of a body were read that said that it is too large", declared.n)
	}
	// Undeclared: read up to the bound, and no further.
	stream := &countingBody{left: 1 << 30}
	r = request("POST", path, "node-b", stream)
	r.ContentLength = -1
	wantProblem(t, f.do(r), scafo.CodeResourceLimit)
	if stream.n > 2*api.DefaultJSONBytes {
		t.Errorf("%d bytes were read", stream.n)
	}
}

func TestDeployIsHandedOver(t *testing.T) {
	f := newFleet(t)
	count := 3
	m := scafo.DeployMetadata{Replicas: &scafo.Replicas{Count: count}, NodeSelector: map[string]string{"region": "eu"}}
	header, err := m.Header()
	if err != nil {
		t.Fatal(err)
	}
	var got deploy.Request
	var body []byte
	f.deploys.accept = func(_ context.Context, r deploy.Request) (scafo.DeployStatus, error) {
		got = r
		body, _ = io.ReadAll(r.Body)
		return scafo.DeployStatus{ID: "shop.0123456789abcdef", Application: "shop", State: scafo.DeployAccepted}, nil
	}
	r := request("POST", "/v1/applications/shop/deploys", "tenant", strings.NewReader("artifact"))
	r.Header.Set("x-scafo-deploy", header)
	w := f.do(r)
	if w.Code != 202 || w.Header().Get("Location") != "/v1/deploys/shop.0123456789abcdef" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if s := strings.TrimSpace(w.Body.String()); s != `{"id":"shop.0123456789abcdef","application":"shop","state":"accepted"}` {
		t.Errorf("%s", s)
	}
	if got.Application != "shop" || got.Caller != "tenant" || got.OIDC != nil || got.Metadata.Replicas.Count != count || got.Metadata.NodeSelector["region"] != "eu" || string(body) != "artifact" {
		t.Errorf("%+v, body %q", got, body)
	}
	// No body: the service is told that there is none.
	f.deploys.accept = func(_ context.Context, r deploy.Request) (scafo.DeployStatus, error) {
		got = r
		return scafo.DeployStatus{}, scafo.Malformed("there is no artifact")
	}
	r = request("POST", "/v1/applications/shop/deploys", "node-b", nil)
	r.Header.Set("x-scafo-deploy", header)
	wantProblem(t, f.do(r), scafo.CodeInvalidInput)
	if got.Body != nil || got.Caller != "node-b" {
		t.Errorf("%+v", got)
	}
}

func TestDeployRefusals(t *testing.T) {
	f := newFleet(t)
	header, err := scafo.DeployMetadata{}.Header()
	if err != nil {
		t.Fatal(err)
	}
	for code, status := range map[scafo.Code]int{
		scafo.CodeDeploysFrozen: 409, scafo.CodeApplicationBlocked: 409, scafo.CodeVersionSkew: 409, scafo.CodeCapabilityMissing: 409,
		scafo.CodeDeployOverloaded: 429, scafo.CodeDeployTimeout: 408, scafo.CodeResourceLimit: 413, scafo.CodeStoreUnavailable: 503,
		scafo.CodeInvalidInput: 400, scafo.CodeApplicationDeleting: 409,
	} {
		f.deploys.accept = func(context.Context, deploy.Request) (scafo.DeployStatus, error) {
			return scafo.DeployStatus{}, scafo.Errorf(code, "because")
		}
		r := request("POST", "/v1/applications/shop/deploys", "tenant", strings.NewReader("x"))
		r.Header.Set(scafo.DeployHeader, header)
		w := f.do(r)
		if d := wantProblem(t, w, code); w.Code != status || d.Detail != "because" {
			t.Errorf("%s: %d %+v", code, w.Code, d)
		}
		if after := w.Header().Get("Retry-After"); code == scafo.CodeDeployOverloaded && after != "1" {
			t.Errorf("Retry-After %q", after)
		}
	}
}

func TestDeployHeaderIsChecked(t *testing.T) {
	f := newFleet(t)
	for name, values := range map[string][]string{
		"none": nil, "empty": {""}, "padded": {"e30="}, "no base64": {"{}"}, "twice": {"e30", "e30"}, "no object": {"W10"},
	} {
		body := &countingBody{left: 10}
		r := request("POST", "/v1/applications/shop/deploys", "tenant", body)
		r.ContentLength = 10
		for _, v := range values {
			r.Header.Add("X-Scafo-Deploy", v)
		}
		d := wantProblem(t, f.do(r), scafo.CodeInvalidInput)
		if d.Title != "Malformed request" || body.n != 0 {
			t.Errorf("%s: title %q, %d bytes of the body read", name, d.Title, body.n)
		}
		// The caller is somebody before the header is anything.
		r = request("POST", "/v1/applications/shop/deploys", "nobody", strings.NewReader("x"))
		for _, v := range values {
			r.Header.Add("X-Scafo-Deploy", v)
		}
		wantProblem(t, f.do(r), scafo.CodeAuthInvalid)
	}
	if n := f.deploys.calls.Load(); n != 0 {
		t.Errorf("%d deploys went through", n)
	}
}

// Who follows a deploy hears of its end at once, from the node that carries it out.
func TestDeployStatusWaits(t *testing.T) {
	const path = "/v1/deploys/shop.0123456789abcdef"
	follow := func(t *testing.T, f *fleet, etag string, want int) *httptest.ResponseRecorder {
		t.Helper()
		r := request(http.MethodGet, path, "admin", nil)
		r.Header.Set("Prefer", "wait=10")
		if etag != "" {
			r.Header.Set("If-None-Match", etag)
		}
		w := f.do(r)
		if w.Code != want || w.Header().Get("ETag") == "" || want == 304 && w.Body.Len() != 0 {
			t.Fatalf("%d %v %s, want %d", w.Code, w.Header(), w.Body, want)
		}
		return w
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		var state atomic.Value
		state.Store(scafo.DeployUploading)
		f.deploys.status = func(id scafo.DeployID) (scafo.DeployStatus, error) {
			return scafo.DeployStatus{ID: id.String(), Application: id.Application, State: state.Load().(scafo.DeployState)}, nil
		}
		began := time.Now()
		etag := follow(t, f, "", 200).Header().Get("ETag")
		follow(t, f, `"another"`, 200)
		follow(t, f, etag, 304) // another node's: it would not hear of a change
		if took := time.Since(began); took != 0 {
			t.Errorf("polls that nobody may keep waiting took %v", took)
		}
		f.deploys.changed = make(chan struct{})
		follow(t, f, etag, 304)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("a poll without news took %v", took)
		}
		began = time.Now()
		time.AfterFunc(3*time.Second, func() {
			state.Store(scafo.DeployDeployed)
			close(f.deploys.changed)
		})
		w := follow(t, f, etag, 200)
		if took := time.Since(began); took != 3*time.Second || w.Header().Get("ETag") == etag || !strings.Contains(w.Body.String(), `"deployed"`) {
			t.Errorf("after %v: %v %s", took, w.Header(), w.Body)
		}
	})
}

func TestDeployStatus(t *testing.T) {
	f := newFleet(t)
	f.deploys.status = func(id scafo.DeployID) (scafo.DeployStatus, error) {
		switch id.Hex {
		case "0123456789abcdef":
			return scafo.DeployStatus{ID: id.String(), Application: id.Application, State: scafo.DeployFailed, Code: scafo.CodePublishFailed, Detail: "no"}, nil
		case "00000000000000aa":
			return scafo.DeployStatus{ID: id.String(), Application: "another"}, nil
		}
		return scafo.DeployStatus{}, scafo.Errorf(scafo.CodeNotFound, "no such deploy")
	}
	for _, by := range []string{"admin", "tenant", "node-b"} {
		wantJSON(t, f.get("/v1/deploys/shop.0123456789abcdef", by),
			`{"id":"shop.0123456789abcdef","application":"shop","state":"failed","code":"publish-failed","detail":"no"}`)
	}
	wantProblem(t, f.get("/v1/deploys/shop.1123456789abcdef", "admin"), scafo.CodeNotFound)
	wantProblem(t, f.get("/v1/deploys/shop.00000000000000aa", "admin"), scafo.CodeNotFound)
	wantProblem(t, f.get("/v1/deploys/secret.0123456789abcdef", "tenant"), scafo.CodeAuthScope)
	before := f.deploys.calls.Load()
	for _, id := range []string{"shop", "shop.", "shop.0123456789ABCDEF", "shop.0123456789abcde", "shop.0123456789abcdef0", "Shop.0123456789abcdef", ".0123456789abcdef", "a%2Fb.0123456789abcdef", "shop.0123456789abcdeg"} {
		// No deploy id names no application: whoever is known is told not-found, and
		// nobody else is told anything.
		for _, by := range []string{"admin", "tenant", "node-b"} {
			wantProblem(t, f.get("/v1/deploys/"+id, by), scafo.CodeNotFound)
		}
		wantProblem(t, f.get("/v1/deploys/"+id, "nobody"), scafo.CodeAuthInvalid)
	}
	if n := f.deploys.calls.Load(); n != before {
		t.Errorf("%d lookups of what is no id", n-before)
	}
}

// Against a real server: a refused deploy asks for no body, an accepted one does.
func TestExpectContinue(t *testing.T) {
	f := newFleet(t)
	refuse := true
	f.deploys.accept = func(_ context.Context, r deploy.Request) (scafo.DeployStatus, error) {
		if refuse {
			return scafo.DeployStatus{}, scafo.Errorf(scafo.CodeDeploysFrozen, "frozen")
		}
		n, err := io.Copy(io.Discard, r.Body)
		return scafo.DeployStatus{ID: "shop.0123456789abcdef", Application: "shop", State: scafo.DeployAccepted, Detail: fmt.Sprint(n)}, err
	}
	s := httptest.NewServer(f.handler)
	defer s.Close()
	c := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}
	defer c.CloseIdleConnections()
	header, err := scafo.DeployMetadata{}.Header()
	if err != nil {
		t.Fatal(err)
	}
	const size = 1 << 20
	send := func(by string) (*http.Response, int64) {
		body := &countingBody{left: size}
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/v1/applications/shop/deploys", body)
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = size
		r.Header.Set("Authorization", bearer(by))
		r.Header.Set("Expect", "100-continue")
		r.Header.Set(scafo.DeployHeader, header)
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return res, body.n
	}
	for by, code := range map[string]int{"tenant": 409, "nobody": 401} {
		if res, sent := send(by); res.StatusCode != code || sent != 0 {
			t.Errorf("%s: %d, %d bytes sent", by, res.StatusCode, sent)
		}
	}
	refuse = false
	if res, sent := send("tenant"); res.StatusCode != 202 || sent != size {
		t.Errorf("%d, %d bytes sent", res.StatusCode, sent)
	}
}

// A body that goes quiet ends at the deadline that its reader set.
func TestBodyDeadline(t *testing.T) {
	f := newFleet(t)
	f.deploys.accept = func(_ context.Context, r deploy.Request) (scafo.DeployStatus, error) {
		d, ok := r.Body.(interface{ SetReadDeadline(time.Time) error })
		if !ok {
			return scafo.DeployStatus{}, errors.New("no deadline can be set")
		}
		if err := d.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			return scafo.DeployStatus{}, err
		}
		_, err := io.ReadAll(r.Body)
		return scafo.DeployStatus{}, scafo.Wrap(err, scafo.CodeDeployTimeout, "the artifact took too long")
	}
	s := httptest.NewServer(f.handler)
	defer s.Close()
	quiet, stop := io.Pipe()
	defer stop.Close()
	header, _ := scafo.DeployMetadata{}.Header()
	r, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/v1/applications/shop/deploys", quiet)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", bearer("tenant"))
	r.Header.Set(scafo.DeployHeader, header)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); res.StatusCode != 408 {
		t.Errorf("%d %s", res.StatusCode, b)
	}
}

func TestPanicsAndUnknownErrors(t *testing.T) {
	f := newFleet(t)
	header, _ := scafo.DeployMetadata{}.Header()
	for name, accept := range map[string]func(context.Context, deploy.Request) (scafo.DeployStatus, error){
		"panic": func(context.Context, deploy.Request) (scafo.DeployStatus, error) { panic("secret-cause") },
		"error": func(context.Context, deploy.Request) (scafo.DeployStatus, error) {
			return scafo.DeployStatus{}, errors.New("secret-cause")
		},
	} {
		f.log.Reset()
		f.deploys.accept = accept
		r := request("POST", "/v1/applications/shop/deploys", "tenant", strings.NewReader("x"))
		r.Header.Set(scafo.DeployHeader, header)
		w := f.do(r)
		d := wantProblem(t, w, scafo.CodeInternal)
		if d.Reference == "" || bytes.Contains(w.Body.Bytes(), []byte("secret-cause")) {
			t.Errorf("%s: %s", name, w.Body)
		}
		if log := f.log.String(); !strings.Contains(log, d.Reference) || !strings.Contains(log, "secret-cause") {
			t.Errorf("%s: the log has %s", name, log)
		}
	}
}
