package caddy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddytls"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/coder/websocket"

	"github.com/scafo/scafo"
)

// node is a fake node that serves one routing document.
type node struct {
	*httptest.Server
	mu     sync.Mutex
	body   []byte
	etag   string
	status int
	full   int // answers with a body
	polls  int
}

const token = "an-ingress-token-of-the-test"

func newNode(t *testing.T, doc scafo.FleetRouting) *node {
	n := &node{status: http.StatusOK}
	n.set(t, doc)
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.polls++
		switch {
		case r.URL.Path != "/v1/ingress/routes":
			http.NotFound(w, r)
		case r.Header.Get("Authorization") != "Bearer "+token:
			w.WriteHeader(http.StatusUnauthorized)
		case n.status != http.StatusOK:
			w.WriteHeader(n.status)
		case r.Header.Get("If-None-Match") == n.etag:
			w.WriteHeader(http.StatusNotModified)
		default:
			n.full++
			w.Header().Set("ETag", n.etag)
			_, _ = w.Write(n.body)
		}
	}))
	t.Cleanup(n.Close)
	return n
}

func (n *node) set(t *testing.T, doc scafo.FleetRouting) {
	t.Helper()
	doc.V = scafo.FormatVersion
	if doc.Routes == nil {
		doc.Routes = []scafo.Route{}
	}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	n.raw(b)
}

func (n *node) raw(b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.body, n.etag = b, fmt.Sprintf("%q", fmt.Sprint(len(b), time.Now().UnixNano()))
}

func (n *node) answer(status int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status = status
}

func (n *node) counts() (polls, full int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.polls, n.full
}

// ingress starts Caddy with the options and returns a function that asks it.
func ingress(t *testing.T, o Options) func(host, path string, header ...string) *http.Response {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.HTTPPort, o.Listen, o.HTTPOnly, o.LogLevel = l.Addr().(*net.TCPAddr).Port, "127.0.0.1", true, "ERROR"
	l.Close()
	if err := caddy.Run(o.Config()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return func(host, path string, header ...string) *http.Response {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", o.HTTPPort, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
}

// eventually waits until the condition holds: documents are polled each second.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func text(t *testing.T, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func upstream(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func TestTheDocumentDecidesWhoAnswers(t *testing.T) {
	shop := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/untyped" {
			w.Header()["Content-Type"] = nil
		}
		fmt.Fprintf(w, "shop host=%s xfh=%s xfp=%s xff=%s fwd=%s", r.Host, r.Header.Get("X-Forwarded-Host"), r.Header.Get("X-Forwarded-Proto"), r.Header.Get("X-Forwarded-For"), r.Header.Get("Forwarded"))
	})
	api := upstream(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "api") })
	n := newNode(t, scafo.FleetRouting{
		Routes:    []scafo.Route{{Host: "shop.example", Application: "shop", Upstreams: []scafo.Upstream{{Node: "a", URL: shop}}}},
		Wildcards: []scafo.WildcardRoute{{Base: "shop.example", Application: "shop", Upstreams: []scafo.Upstream{{Node: "a", URL: shop}}}},
		API:       []scafo.APIHost{{Host: "apps.example", Upstreams: []scafo.Upstream{{Node: "a", URL: api}}}},
		Unserved:  []scafo.UnservedHost{{Host: "down.example", Application: "down", Reason: "crash-looping"}},
	})
	ask := ingress(t, Options{Fleet: Fleet{Name: "main", Nodes: []string{n.URL}, Token: token}})
	eventually(t, "the first document", func() bool { return ask("shop.example", "/").StatusCode == 200 })

	got := text(t, ask("Shop.Example:8080", "/", "X-Forwarded-Host", "evil", "X-Forwarded-Proto", "gopher", "X-Forwarded-For", "6.6.6.6", "Forwarded", "for=6.6.6.6"))
	if want := "shop host=Shop.Example:8080 xfh=Shop.Example:8080 xfp=http xff=127.0.0.1 fwd="; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if res := ask("shop.example", "/untyped"); res.StatusCode != 200 || res.Header.Values("Content-Type") != nil {
		t.Errorf("an answer without a type got one: %d %v", res.StatusCode, res.Header)
	}
	if got := text(t, ask("any.shop.example", "/")); !strings.HasPrefix(got, "shop ") {
		t.Errorf("a single label under a wildcard: %s", got)
	}
	if res := ask("a.b.shop.example", "/"); res.StatusCode != 404 {
		t.Errorf("two labels under a wildcard: %d", res.StatusCode)
	}
	if got := text(t, ask("apps.example", "/v1/state")); got != "api" {
		t.Errorf("API host: %s", got)
	}

	res := ask("down.example", "/")
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || res.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("unserved: %d %v", res.StatusCode, res.Header)
	}
	var problem struct {
		Status int
		Code   string
	}
	if err := json.NewDecoder(res.Body).Decode(&problem); err != nil || problem.Status != 503 || problem.Code != "draining" {
		t.Errorf("problem document: %+v %v", problem, err)
	}
	res = ask("a&b.example", "/", "Accept", "text/html,*/*")
	if body := text(t, res); res.StatusCode != 404 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") || !strings.Contains(body, "a&amp;b.example") {
		t.Errorf("page for a browser: %d %s", res.StatusCode, body)
	}
}

func TestASwapNeedsNoReloadAndARefusalKeepsTheRoutes(t *testing.T) {
	one := upstream(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "one") })
	two := upstream(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "two") })
	doc := func(u string) scafo.FleetRouting {
		return scafo.FleetRouting{Routes: []scafo.Route{{Host: "x.example", Upstreams: []scafo.Upstream{{URL: u}}}}}
	}
	n := newNode(t, doc(one))
	ask := ingress(t, Options{Fleet: Fleet{Name: "main", Nodes: []string{n.URL}, Token: token}})
	eventually(t, "one", func() bool { return text(t, ask("x.example", "/")) == "one" })
	polls, _ := n.counts()
	eventually(t, "two more polls", func() bool { p, _ := n.counts(); return p >= polls+2 })
	if _, full := n.counts(); full != 1 {
		t.Errorf("%d full answers: a poll must say which document it has", full)
	}
	n.set(t, doc(two))
	eventually(t, "two", func() bool { return text(t, ask("x.example", "/")) == "two" })

	for name, spoil := range map[string]func(){
		"503":     func() { n.answer(503) },
		"401":     func() { n.answer(401) },
		"garbage": func() { n.answer(200); n.raw([]byte("<html>")) },
		"other":   func() { n.raw([]byte(`{"hello":1}`)) },
		"newer":   func() { n.raw([]byte(`{"v":2,"routes":[]}`)) },
	} {
		spoil()
		polls, _ := n.counts()
		eventually(t, name, func() bool { p, _ := n.counts(); return p >= polls+2 })
		if got := text(t, ask("x.example", "/")); got != "two" {
			t.Errorf("%s: the last good routes are gone: %s", name, got)
		}
	}
}

func TestAnotherNodeAndAnotherUpstreamAreTried(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	deadURL := "http://" + dead.Addr().String()
	dead.Close()
	alive := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "alive %d", len(b))
	})
	n := newNode(t, scafo.FleetRouting{Routes: []scafo.Route{{Host: "x.example", Upstreams: []scafo.Upstream{{URL: deadURL}, {URL: alive}}}}})
	ask := ingress(t, Options{Fleet: Fleet{Name: "main", Nodes: []string{deadURL, n.URL}, Token: token, Prefer: "self"}})
	eventually(t, "the second node's document", func() bool { return ask("x.example", "/").StatusCode == 200 })
	for range 20 {
		if got := text(t, ask("x.example", "/")); got != "alive 0" {
			t.Fatal(got)
		}
	}
}

func TestTheLastDocumentOutlivesARestart(t *testing.T) {
	state := t.TempDir()
	up := upstream(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "up") })
	n := newNode(t, scafo.FleetRouting{Routes: []scafo.Route{{Host: "x.example", Upstreams: []scafo.Upstream{{URL: up}}}}})
	o := Options{Fleet: Fleet{Name: "main", Nodes: []string{n.URL}, Token: token}, State: state}
	ask := ingress(t, o)
	eventually(t, "a document", func() bool { return ask("x.example", "/").StatusCode == 200 })
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	n.Close()
	kept := filepath.Join(state, "routes-main.json")
	if info, err := os.Stat(kept); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	ask = ingress(t, o)
	if got := text(t, ask("x.example", "/")); got != "up" {
		t.Errorf("after a restart without nodes: %s", got)
	}
}

func TestWithoutADocumentNothingIsKnown(t *testing.T) {
	n := newNode(t, scafo.FleetRouting{})
	n.answer(503)
	ask := ingress(t, Options{Fleet: Fleet{Name: "main", Nodes: []string{n.URL}, Token: token}})
	if res := ask("x.example", "/"); res.StatusCode != 503 {
		t.Errorf("no document yet: %d, want 503: a 404 would say that the host does not exist", res.StatusCode)
	}
}

func TestAWebSocketOutlivesItsRoute(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, b) != nil {
				return
			}
		}
	})
	n := newNode(t, scafo.FleetRouting{Routes: []scafo.Route{{Host: "x.example", Upstreams: []scafo.Upstream{{URL: up}}}}})
	ask := ingress(t, Options{Fleet: Fleet{Name: "main", Nodes: []string{n.URL}, Token: token}})
	var base *url.URL
	eventually(t, "a document", func() bool {
		res := ask("x.example", "/")
		base = res.Request.URL
		return res.StatusCode != 503
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+base.Host, &websocket.DialOptions{Host: "x.example"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	n.set(t, scafo.FleetRouting{})
	eventually(t, "the route's withdrawal", func() bool { return ask("x.example", "/").StatusCode == 404 })
	if err := c.Write(ctx, websocket.MessageText, []byte("still here")); err != nil {
		t.Fatal(err)
	}
	if _, b, err := c.Read(ctx); err != nil || string(b) != "still here" {
		t.Errorf("%q %v", b, err)
	}
}

func TestOneMalformedRouteCostsThatRoute(t *testing.T) {
	doc := `{"v":1,"routes":[
		{"host":"good.example","upstreams":[{"url":"http://127.0.0.1:1"}]},
		{"host":7},
		{"host":"*.wild.example","upstreams":[{"url":"http://127.0.0.1:1"}]},
		{"host":"half.example","upstreams":[{"url":"not a url"},{"url":"http://127.0.0.1"}]},
		{"host":"none.example","upstreams":[{"url":"ftp://x"}]}
	],"unserved":[{"host":"down.example"}],"wildcards":[{"base":"w.example","upstreams":[{"url":"http://127.0.0.1:2"}]}]}`
	tab, skipped, err := parseDocument([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	if len(skipped) != 4 {
		t.Errorf("skipped %v", skipped)
	}
	if e := tab.lookup("good.example"); e == nil || e.dials[0] != "127.0.0.1:1" {
		t.Errorf("good: %+v", e)
	}
	if e := tab.lookup("half.example"); e == nil || len(e.dials) != 1 || e.dials[0] != "127.0.0.1:80" {
		t.Errorf("half: %+v", e)
	}
	if e := tab.lookup("none.example"); e == nil || e.unserved == "" {
		t.Errorf("none: %+v", e)
	}
	for host, want := range map[string]bool{"good.example": true, "half.example": true, "none.example": false, "down.example": false, "x.w.example": false, "w.example": false} {
		if tab.issuable(host) != want {
			t.Errorf("issuable(%s) = %v", host, !want)
		}
	}
}

func TestPermission(t *testing.T) {
	p := &poller{}
	tab, _, err := parseDocument([]byte(`{"v":1,"routes":[{"host":"a.example","upstreams":[{"url":"http://127.0.0.1:1"}]}],"wildcards":[{"base":"a.example","upstreams":[{"url":"http://127.0.0.1:1"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	perm := &Permission{app: &App{pollers: []*poller{p}, renewals: newRenewals(nil, nil), counted: uncounted(t)}}
	if err := perm.CertificateAllowed(t.Context(), "a.example"); err == nil {
		t.Error("without a document nothing is allowed")
	}
	p.table.Store(tab)
	if err := perm.CertificateAllowed(t.Context(), "A.example"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"x.a.example", "b.example", ""} {
		if err := perm.CertificateAllowed(t.Context(), name); err == nil || !strings.Contains(err.Error(), caddytls.ErrPermissionDenied.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTwoFleetsThatNameOneHost(t *testing.T) {
	parse := func(doc string) *poller {
		p := &poller{}
		tab, _, err := parseDocument([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		p.table.Store(tab)
		return p
	}
	first := parse(`{"v":1,"routes":[{"host":"both.example","upstreams":[{"url":"http://127.0.0.1:1"}]}],"unserved":[{"host":"moved.example"}]}`)
	second := parse(`{"v":1,"routes":[{"host":"both.example","upstreams":[{"url":"http://127.0.0.1:2"}]},{"host":"moved.example","upstreams":[{"url":"http://127.0.0.1:2"}]}]}`)
	app := &App{pollers: []*poller{first, second}}
	if e, _ := app.lookup("both.example"); e.dials[0] != "127.0.0.1:1" {
		t.Error("the first fleet does not win")
	}
	if e, _ := app.lookup("moved.example"); e.unserved != "" {
		t.Error("a fleet that serves the host does not win over one that does not")
	}
	app.pollers = append(app.pollers, &poller{})
	if _, known := app.lookup("unknown.example"); known {
		t.Error("while one fleet has said nothing, an unknown host is not known to be missing")
	}
}

func TestCaddyfile(t *testing.T) {
	adapter := caddyconfig.GetAdapter("caddyfile")
	b, warnings, err := adapter.Adapt([]byte(`{
	scafo {
		fleet main {
			node http://10.0.0.1:7420 http://10.0.0.2:7420
			token {env.SCAFO_INGRESS_TOKEN}
			prefer self
		}
	}
	on_demand_tls {
		permission scafo
	}
}
https:// {
	tls {
		on_demand
	}
	scafo {
		flush_interval -1
	}
}
`), nil)
	if err != nil {
		t.Fatal(err, warnings)
	}
	for _, want := range []string{
		`"scafo":{"fleets":[{"name":"main","nodes":["http://10.0.0.1:7420","http://10.0.0.2:7420"],"token":"{env.SCAFO_INGRESS_TOKEN}","prefer":"self"}]}`,
		`{"handler":"scafo"}`, `"dynamic_upstreams":{"source":"scafo"}`, `"flush_interval":-1`, `"permission":{"module":"scafo"}`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s\nlacks %s", b, want)
		}
	}
	for _, bad := range []string{"{\n scafo {\n fleet\n }\n}", "{\n scafo {\n herd x {\n }\n }\n}", "{\n scafo {\n fleet x {\n nod http://x\n }\n }\n}"} {
		if _, _, err := adapter.Adapt([]byte(bad), nil); err == nil {
			t.Errorf("taken: %s", bad)
		}
	}
}

func TestFleetsAreValidated(t *testing.T) {
	for _, f := range []Fleet{{Name: "a", Token: "t"}, {Name: "a", Token: "t", Nodes: []string{"10.0.0.1"}}, {Name: "a", Nodes: []string{"http://x"}}} {
		if f.validate() == nil {
			t.Errorf("%+v is taken", f)
		}
	}
}
