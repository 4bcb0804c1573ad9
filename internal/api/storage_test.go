package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/openapitest"
	"github.com/scafo/scafo/internal/problem"
	"github.com/scafo/scafo/internal/storage"
)

// ingress speaks to the storage of a node over HTTP.
type ingress struct {
	t   *testing.T
	url string
}

func newIngress(t *testing.T, f *fleet) ingress {
	t.Helper()
	h, err := api.New(api.Deps{
		Node: "node-a", Storage: storage.New(f.registry, storage.Options{}), Loop: f.loop,
		Verifier: auth.New(f.registry, auth.Options{IngressTokens: []string{"first", ingressToken}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(openapitest.Handler(t, h))
	t.Cleanup(s.Close)
	return ingress{t, s.URL}
}

type reply struct {
	status int
	header http.Header
	body   string
}

func (i ingress) ask(method, path string, body io.Reader, header ...string) reply {
	i.t.Helper()
	r, err := http.NewRequestWithContext(i.t.Context(), method, i.url+path, body)
	if err != nil {
		i.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+ingressToken)
	for n := 0; n < len(header); n += 2 {
		r.Header.Set(header[n], header[n+1])
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		i.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		i.t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(b)}
}

func (i ingress) want(r reply, status int, code scafo.Code) {
	i.t.Helper()
	if r.status != status {
		i.t.Errorf("%d %s, want %d", r.status, r.body, status)
	}
	if code == "" {
		return
	}
	var d problem.Document
	if err := json.Unmarshal([]byte(r.body), &d); err != nil || d.Code != code || r.header.Get("Content-Type") != problem.ContentType {
		i.t.Errorf("%s, want a problem of %s", r.body, code)
	}
}

func TestStorageOverHTTP(t *testing.T) {
	i := newIngress(t, newFleet(t))
	value := []byte{0, 0xff, '\r', '\n', 0xc3}
	put := i.ask("PUT", "/v1/storage/objects/a/b%20c.crt", bytes.NewReader(value))
	i.want(put, 204, "")
	if put.body != "" || put.header.Get("Content-Type") != "" {
		t.Errorf("204 with %q of %s", put.body, put.header.Get("Content-Type"))
	}
	got := i.ask("GET", "/v1/storage/objects/a/b%20c.crt", nil)
	i.want(got, 200, "")
	if got.body != string(value) || got.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%q of %s", got.body, got.header.Get("Content-Type"))
	}
	i.want(i.ask("PUT", "/v1/storage/objects/a", strings.NewReader("beside")), 204, "")
	stat := i.ask("GET", "/v1/storage/stat?key=a/b%20c.crt", nil)
	i.want(stat, 200, "")
	var st scafo.StorageStat
	if err := json.Unmarshal([]byte(stat.body), &st); err != nil || st.Key != "a/b c.crt" || st.Size != 5 || !st.IsTerminal || st.Modified.IsZero() {
		t.Errorf("%s, %v", stat.body, err)
	}
	for query, want := range map[string][]string{
		"prefix=a&recursive=true": {"a/b c.crt"}, "prefix=a": {"a/b c.crt"}, "": {"a"}, "prefix=": {"a"},
		"recursive=1": {"a", "a/b c.crt"}, "recursive=True": {"a"}, "recursive=yes": {"a"}, "recursive=": {"a"}, "recursive=0": {"a"},
	} {
		l := i.ask("GET", "/v1/storage/list?"+query, nil)
		var keys []string
		if err := json.Unmarshal([]byte(l.body), &keys); err != nil || l.status != 200 || !slices.Equal(keys, want) {
			t.Errorf("%s: %d %s, want %v", query, l.status, l.body, want)
		}
	}
	i.want(i.ask("GET", "/v1/storage/list?prefix=other", nil), 404, scafo.CodeNotFound)
	i.want(i.ask("GET", "/v1/storage/stat?key=other", nil), 404, scafo.CodeNotFound)
	i.want(i.ask("GET", "/v1/storage/objects/other", nil), 404, scafo.CodeNotFound)
	i.want(i.ask("DELETE", "/v1/storage/objects/other", nil), 404, scafo.CodeNotFound)
	i.want(i.ask("DELETE", "/v1/storage/objects/a", nil), 204, "")
	i.want(i.ask("GET", "/v1/storage/objects/a/b%20c.crt", nil), 404, scafo.CodeNotFound)
	i.want(i.ask("GET", "/v1/storage/list", nil), 404, scafo.CodeNotFound)
}

func TestStorageRefusesKeys(t *testing.T) {
	i := newIngress(t, newFleet(t))
	for _, key := range []string{"", "/a", "a//b", "a/", "a/../b", "..", "./a", "a/.", "a%2F..%2Fb", "a%2Fb", "%2e%2e/a", "%2E", "a%00", "a%0A", "%C3%A9", strings.Repeat("a", 1024)} {
		for _, r := range []reply{
			i.ask("PUT", "/v1/storage/objects/"+key, strings.NewReader("x")), i.ask("GET", "/v1/storage/objects/"+key, nil), i.ask("DELETE", "/v1/storage/objects/"+key, nil),
			i.ask("POST", "/v1/storage/locks/"+key, nil), i.ask("DELETE", "/v1/storage/locks/"+key, nil),
		} {
			if r.status != 400 {
				t.Errorf("%q: %d", key, r.status)
			}
			i.want(r, 400, scafo.CodeInvalidInput)
		}
	}
	for _, q := range []string{"stat", "stat?key=", "stat?key=/a", "stat?key=a%2F..%2Fb", "stat?key=a/", "list?prefix=..", "list?prefix=/", "list?prefix=a//b", "list?prefix=%zz"} {
		i.want(i.ask("GET", "/v1/storage/"+q, nil), 400, scafo.CodeInvalidInput)
	}
	for _, path := range []string{"", "/", "/objects", "/locks", "/lists", "/stat/a"} {
		i.want(i.ask("GET", "/v1/storage"+path, nil), 404, scafo.CodeNotFound)
	}
	i.want(i.ask("POST", "/v1/storage/objects/a", nil), 405, scafo.CodeMethodNotAllowed)
	i.want(i.ask("GET", "/v1/storage/locks/a", nil), 405, scafo.CodeMethodNotAllowed)
}

func TestStorageVersions(t *testing.T) {
	i := newIngress(t, newFleet(t))
	for version, status := range map[string]int{"": 404, "1": 404, "2": 400, "0": 400, "01": 400, "v1": 400} {
		r := i.ask("GET", "/v1/storage/objects/a", nil, "X-Scafo-Storage-Version", version)
		if r.status != status {
			t.Errorf("version %q: %d, want %d", version, r.status, status)
		}
	}
	for _, c := range [][2]string{{"PUT", "objects/a"}, {"DELETE", "objects/a"}, {"GET", "list"}, {"GET", "stat?key=a"}, {"POST", "locks/a"}, {"DELETE", "locks/a"}} {
		i.want(i.ask(c[0], "/v1/storage/"+c[1], nil, "X-Scafo-Storage-Version", "2"), 400, scafo.CodeInvalidInput)
	}
}

// Every storage route takes the ingress's token and no other, and says so before it
// says anything else.
func TestStorageTakesTheIngressToken(t *testing.T) {
	i := newIngress(t, newFleet(t))
	for _, c := range [][2]string{
		{"PUT", "objects/a"}, {"GET", "objects/a"}, {"DELETE", "objects/a"}, {"GET", "list"}, {"GET", "stat?key=a"},
		{"POST", "locks/a"}, {"DELETE", "locks/a"}, {"GET", "objects/.."}, {"GET", "objects/"}, {"POST", "locks/a//b"},
	} {
		for _, auth := range []string{"", "Bearer ", "Bearer wrong", "Bearer " + ingressToken + "x", "Basic " + ingressToken, bearer("admin"), bearer("node-b")} {
			r := i.ask(c[0], "/v1/storage/"+c[1], nil, "Authorization", auth, "X-Scafo-Storage-Version", "9")
			i.want(r, 401, scafo.CodeAuthInvalid)
		}
		if r := i.ask(c[0], "/v1/storage/"+c[1], nil, "Authorization", "Bearer first"); r.status == 401 {
			t.Errorf("%s %s: the other admitted token is refused", c[0], c[1])
		}
	}
}

func TestStorageBounds(t *testing.T) {
	i := newIngress(t, newFleet(t))
	most := scafo.MaxStorageObject
	i.want(i.ask("PUT", "/v1/storage/objects/n", bytes.NewReader(make([]byte, most))), 204, "")
	i.want(i.ask("PUT", "/v1/storage/objects/n", bytes.NewReader(make([]byte, most+1))), 413, scafo.CodeResourceLimit)
	// Without a length it is known only once it has come.
	i.want(i.ask("PUT", "/v1/storage/objects/n", io.MultiReader(bytes.NewReader(make([]byte, most+1)))), 413, scafo.CodeResourceLimit)
	if got := i.ask("GET", "/v1/storage/objects/n", nil); len(got.body) != most {
		t.Errorf("%d bytes are left", len(got.body))
	}
}

func TestStorageWithoutAStore(t *testing.T) {
	f := newFleet(t)
	i := newIngress(t, f)
	i.want(i.ask("PUT", "/v1/storage/objects/a", strings.NewReader("x")), 204, "")
	f.bucket.SetDown(true)
	for _, c := range [][2]string{{"PUT", "objects/a"}, {"GET", "objects/a"}, {"DELETE", "objects/a"}, {"GET", "list"}, {"GET", "stat?key=a"}, {"GET", "objects/none"}, {"POST", "locks/a"}, {"DELETE", "locks/a"}} {
		i.want(i.ask(c[0], "/v1/storage/"+c[1], nil), 503, scafo.CodeStoreUnavailable)
	}
}

func TestLocksOverHTTP(t *testing.T) {
	i := newIngress(t, newFleet(t))
	lock := func(status int, header ...string) reply {
		t.Helper()
		r := i.ask("POST", "/v1/storage/locks/issue/a", nil, header...)
		code := scafo.Code("")
		if status == 409 {
			code = scafo.CodeCASConflict
		}
		i.want(r, status, code)
		return r
	}
	unlock := func(header ...string) {
		t.Helper()
		i.want(i.ask("DELETE", "/v1/storage/locks/issue/a", nil, header...), 204, "")
	}
	unlock()
	if s := lock(204).header.Get("X-Scafo-Lock-Seconds"); s != "600" {
		t.Errorf("granted for %q seconds", s)
	}
	lock(409)
	unlock()
	const holder, seconds = "X-Scafo-Lock-Holder", "X-Scafo-Lock-Seconds"
	if s := lock(204, holder, "one", seconds, "30").header.Get(seconds); s != "30" {
		t.Errorf("granted for %q seconds", s)
	}
	if s := lock(204, holder, "one", seconds, "999999999999").header.Get(seconds); s != "600" {
		t.Errorf("granted for %q seconds", s)
	}
	lock(409, holder, "two")
	unlock(holder, "two")
	lock(409)
	unlock(holder, "one")
	lock(204, holder, "two")
	for _, bad := range [][]string{{holder, "a b"}, {holder, strings.Repeat("x", 129)}, {seconds, "0"}, {seconds, "-1"}, {seconds, "1.5"}, {seconds, "ten"}} {
		i.want(i.ask("POST", "/v1/storage/locks/b", nil, bad...), 400, scafo.CodeInvalidInput)
	}
	i.want(i.ask("DELETE", "/v1/storage/locks/b", nil, holder, "a b"), 400, scafo.CodeInvalidInput)
}

func TestTwentyLockersOnTwoNodes(t *testing.T) {
	f := newFleet(t)
	nodes := []ingress{newIngress(t, f), newIngress(t, f)}
	for round := range 10 {
		var mu sync.Mutex
		var wg sync.WaitGroup
		got := map[int]int{}
		for n := range 20 {
			wg.Go(func() {
				r := nodes[n%2].ask("POST", fmt.Sprintf("/v1/storage/locks/r%d", round), nil)
				mu.Lock()
				defer mu.Unlock()
				got[r.status]++
			})
		}
		wg.Wait()
		if got[204] != 1 || got[409] != 19 {
			t.Fatalf("round %d: %v", round, got)
		}
	}
}

// renderings says what a test lets it say.
type renderings struct {
	body, etag, prefer string
	ready              bool
}

func (*renderings) Formats() []string { return []string{"traefik"} }

func (r *renderings) Render(_, prefer string) ([]byte, string, bool, error) {
	r.prefer = prefer
	return []byte(r.body), r.etag, r.ready, nil
}

func TestRenderedRoutes(t *testing.T) {
	f := newFleet(t)
	rendered := &renderings{body: "{}", etag: `"1"`}
	h, err := api.New(api.Deps{
		Node: "node-a", Renderings: rendered, Verifier: auth.New(f.registry, auth.Options{IngressTokens: []string{ingressToken}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(openapitest.Handler(t, h))
	defer s.Close()
	i := ingress{t, s.URL}
	const path = "/v1/ingress/routes/traefik"
	i.want(i.ask("GET", path, nil, "Authorization", bearer("admin")), 401, scafo.CodeAuthInvalid)
	i.want(i.ask("GET", "/v1/ingress/routes/nginx", nil, "Authorization", ""), 401, scafo.CodeAuthInvalid)
	i.want(i.ask("GET", path, nil), 503, scafo.CodeDraining)
	unknown := i.ask("GET", "/v1/ingress/routes/nginx", nil)
	i.want(unknown, 404, scafo.CodeNotFound)
	if !strings.Contains(unknown.body, "traefik") {
		t.Errorf("an unknown format is told %s", unknown.body)
	}
	rendered.ready = true
	got := i.ask("GET", path+"?prefer=self", nil)
	i.want(got, 200, "")
	if got.body != "{}" || got.header.Get("ETag") != `"1"` || got.header.Get("Content-Type") != "application/json" || rendered.prefer != "self" {
		t.Errorf("%+v, prefer %q", got, rendered.prefer)
	}
	i.want(i.ask("GET", path, nil, "If-None-Match", `"1"`), 304, "")
	i.want(i.ask("GET", path, nil, "If-None-Match", `"2"`), 200, "")
	i.want(i.ask("GET", path+"?prefer=%zz", nil), 400, scafo.CodeInvalidInput)
	i.want(i.ask("POST", path, nil), 405, scafo.CodeMethodNotAllowed)
}
