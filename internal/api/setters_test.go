package api_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
)

// send makes a call with a body, which may be empty.
func (f *fleet) send(method, path, by, body string) *httptest.ResponseRecorder {
	f.t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	return f.do(request(method, path, by, r))
}

// got is the record that a setter answered.
func got(t *testing.T, w *httptest.ResponseRecorder) scafo.Application {
	t.Helper()
	var a struct{ Application *scafo.Application }
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != http.StatusOK || a.Application == nil {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if a.Application.Write != "" {
		t.Errorf("the registry's nonce is shown: %s", w.Body)
	}
	return *a.Application
}

// stored is the record as the bucket has it.
func (f *fleet) stored(name string) scafo.Application {
	f.t.Helper()
	a, err := f.registry.Application(f.t.Context(), name)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// events counts the log lines of an event.
func (f *fleet) events(parts ...string) int {
	n := 0
	for line := range strings.SplitSeq(f.log.String(), "\n") {
		all := line != ""
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		if all {
			n++
		}
	}
	return n
}

func TestBlockAndUnblock(t *testing.T) {
	f := newFleet(t)
	f.application("shop", func(a *scafo.Application) {
		a.Replicas, a.Deployment, a.Labels = scafo.Replicas{Count: 3}, "v1", map[string]string{"plan": "pro"}
	})
	before := f.stored("shop")
	a := got(t, f.send("POST", "/v1/applications/shop/block", "admin", ""))
	if a.Blocked == nil || a.Blocked.By != "admin" || a.Blocked.At.IsZero() || a.Labels["plan"] != "pro" {
		t.Errorf("%+v", a)
	}
	// Twice is one block: its stamp does not move, whoever asks.
	again := got(t, f.send("POST", "/v1/applications/shop/block", "narrow-admin", ""))
	if *again.Blocked != *a.Blocked {
		t.Errorf("%+v, then %+v", a.Blocked, again.Blocked)
	}
	if n := f.events("event=application.blocked", "actor=admin", "application=shop", "changed=true"); n != 1 {
		t.Errorf("%d events of the block:\n%s", n, &f.log)
	}
	if n := f.events("event=application.blocked", "actor=narrow-admin", "application=shop", "changed=false"); n != 1 {
		t.Errorf("%d events of the second:\n%s", n, &f.log)
	}
	a = got(t, f.send("POST", "/v1/applications/shop/unblock", "narrow-admin", ""))
	after := f.stored("shop")
	after.Write = before.Write
	if a.Blocked != nil || fmt.Sprintf("%+v", after) != fmt.Sprintf("%+v", before) {
		t.Errorf("the prior state is not back:\n%+v\n%+v", before, after)
	}
	if a = got(t, f.send("POST", "/v1/applications/shop/unblock", "admin", "")); a.Blocked != nil {
		t.Errorf("%+v", a)
	}
	if n := f.events("event=application.unblocked", "application=shop"); n != 2 {
		t.Errorf("%d events:\n%s", n, &f.log)
	}
}

// The scope is looked at before the tier, and both before anything is read.
func TestScopeThenTier(t *testing.T) {
	f := newFleet(t)
	for _, action := range []string{"block", "unblock", "labels"} {
		for _, name := range []string{"shop", "blog-x", "other", "nothing"} {
			for _, by := range []string{"tenant", "narrow-admin"} {
				f.get("/v1/state", by)
				before := f.bucket.Counts()
				w := f.send("POST", "/v1/applications/"+name+"/"+action, by, `not even JSON`)
				reaches := name == "shop" || by == "tenant" && name == "blog-x"
				if by == "narrow-admin" && reaches {
					continue // let in
				}
				d := wantProblem(t, w, scafo.CodeAuthScope)
				if scopes := strings.Contains(d.Detail, "does not reach the application "+name); scopes == reaches {
					t.Errorf("%s of %s by %s: %s", action, name, by, d.Detail)
				}
				after := f.bucket.Counts()
				if n := after["get"] - before["get"]; n != 1 {
					t.Errorf("%s of %s by %s: %d reads, the caller's own record is one", action, name, by, n)
				}
			}
		}
	}
	wantProblem(t, f.send("POST", "/v1/applications/other/retire", "tenant", ""), scafo.CodeAuthScope)
	wantProblem(t, f.send("POST", "/v1/applications/nothing/replicas", "tenant", `{`), scafo.CodeAuthScope)
	wantProblem(t, f.send("POST", "/v1/applications/Not-A-Name/block", "tenant", ""), scafo.CodeInvalidSlug)
}

func TestSettersNeedAnApplication(t *testing.T) {
	f := newFleet(t)
	f.application("shop", nil)
	f.must(f.registry.UpdateApplication(t.Context(), "shop", func(a *scafo.Application) error {
		a.Deleting = &scafo.Deleting{Fence: 1, By: "admin"}
		return nil
	}))
	for action, body := range map[string]string{
		"block": "", "unblock": "", "labels": `{"labels":{}}`, "retire": "", "unretire": "", "selector": `{"selector":null}`, "replicas": `{"replicas":1}`,
	} {
		wantProblem(t, f.send("POST", "/v1/applications/nothing/"+action, "admin", body), scafo.CodeNotFound)
		wantProblem(t, f.send("POST", "/v1/applications/shop/"+action, "admin", body), scafo.CodeApplicationDeleting)
	}
	if _, err := f.registry.Application(t.Context(), "nothing"); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Errorf("a setter made an application: %v", err)
	}
	if n := f.events("event=application."); n != 0 {
		t.Errorf("events of what did not happen:\n%s", &f.log)
	}
}

func TestLabels(t *testing.T) {
	f := newFleet(t)
	f.application("shop", nil)
	set := func(body string) scafo.Application {
		t.Helper()
		return got(t, f.send("POST", "/v1/applications/shop/labels", "admin", body))
	}
	set(`{"labels":{"account":"acme","plan":"pro"}}`)
	if a := set(`{"labels":{"plan":"free","":"empty","ключ":"\u2028"},"other":1}`); !maps.Equal(a.Labels, map[string]string{"plan": "free", "": "empty", "ключ": "\u2028"}) {
		t.Errorf("%v", a.Labels)
	}
	if s := f.stored("shop"); len(s.Labels) != 3 {
		t.Errorf("%v", s.Labels)
	}
	for _, bad := range []string{
		``, `{}`, `{"labels":null}`, `{"labels":[]}`, `{"labels":"x"}`, `{"labels":{"a":1}}`, `{"labels":{"a":null}}`, `{"labels":{"a":{}}}`,
		`{"labels":{"a":"1","a":"2"}}`, `{"Labels":{}}`, `{"labels":{},"labels":{}}`, `[]`, `null`, `"labels"`, `{"labels":{}} {}`, `{"labels":{}`, "{\"labels\":{\"a\":\"\xff\"}}",
	} {
		wantProblem(t, f.send("POST", "/v1/applications/shop/labels", "admin", bad), scafo.CodeInvalidInput)
	}
	if a := set(`{"labels":{}}`); a.Labels != nil {
		t.Errorf("%v", a.Labels)
	}
}

func TestRetire(t *testing.T) {
	f := newFleet(t)
	f.application("shop", func(a *scafo.Application) { a.Labels = map[string]string{"plan": "pro"} })
	for _, by := range []string{"tenant", "node-b", "narrow-admin"} {
		a := got(t, f.send("POST", "/v1/applications/shop/retire", by, ""))
		if a.Retired == nil || a.Retired.By != by || (a.Labels == nil) != (by == "tenant") {
			t.Errorf("%s: %+v", by, a)
		}
		again := got(t, f.send("POST", "/v1/applications/shop/retire", "admin", `{}`))
		if *again.Retired != *a.Retired {
			t.Errorf("the grace period begins anew: %+v, then %+v", a.Retired, again.Retired)
		}
		if a = got(t, f.send("POST", "/v1/applications/shop/unretire", by, "")); a.Retired != nil {
			t.Errorf("%s: %+v", by, a)
		}
		if n := f.events("event=application.retired", "actor="+by, "application=shop"); n != 1 {
			t.Errorf("%d events of %s", n, by)
		}
	}
	if n := f.events("event=application.unretired"); n != 3 {
		t.Errorf("%d events", n)
	}
}

func TestSelector(t *testing.T) {
	f := newFleet(t)
	f.application("shop", nil)
	set := func(body string) scafo.Application {
		t.Helper()
		return got(t, f.send("POST", "/v1/applications/shop/selector", "tenant", body))
	}
	if a := set(`{"selector":{"region":"eu-west-1","tier":"fast"}}`); !maps.Equal(a.Selector, map[string]string{"region": "eu-west-1", "tier": "fast"}) {
		t.Errorf("%v", a.Selector)
	}
	for _, bad := range []string{
		``, `{}`, `{"selector":"x"}`, `{"selector":[]}`, `{"selector":{"a":1}}`, `{"selector":{"a":null}}`, `{"Selector":null}`, `{"selector":false}`, `{"selector":{"a":"1","a":"1"}}`,
	} {
		wantProblem(t, f.send("POST", "/v1/applications/shop/selector", "tenant", bad), scafo.CodeInvalidInput)
	}
	if s := f.stored("shop"); len(s.Selector) != 2 {
		t.Errorf("a refused body changed it: %v", s.Selector)
	}
	for _, none := range []string{`{"selector":null}`, `{"selector":{}}`} {
		set(`{"selector":{"region":"nowhere"}}`) // an unsatisfiable one is fine
		if a := set(none); a.Selector != nil {
			t.Errorf("%s: %v", none, a.Selector)
		}
	}
}

func TestReplicas(t *testing.T) {
	f := newFleet(t)
	f.application("shop", nil)
	for body, want := range map[string]string{
		`{"replicas":"all"}`: "all", `{"replicas":1}`: "1", `{"replicas":17}`: "17", `{"replicas":2.0}`: "2", `{"replicas":3e1}`: "30",
		`{"replicas":"\u0061ll"}`: "all", `{"replicas":9007199254740991}`: "9007199254740991",
	} {
		if a := got(t, f.send("POST", "/v1/applications/shop/replicas", "tenant", body)); a.Replicas.String() != want || f.stored("shop").Replicas != a.Replicas {
			t.Errorf("%s: %s", body, a.Replicas)
		}
	}
	for _, bad := range []string{
		``, `{}`, `{"replicas":null}`, `{"replicas":0}`, `{"replicas":-1}`, `{"replicas":1.5}`, `{"replicas":"1"}`, `{"replicas":"ALL"}`, `{"replicas":[]}`,
		`{"replicas":true}`, `{"replicas":1e400}`, `{"replicas":9007199254740992}`, `{"replicas":1e-1}`, `{"Replicas":1}`, `{"replicas":1,"replicas":2}`, `{"replicas":01}`,
	} {
		wantProblem(t, f.send("POST", "/v1/applications/shop/replicas", "tenant", bad), scafo.CodeInvalidInput)
	}
}

// Bodies of control requests are bounded, whether or not their length is said, and
// also where a route takes none.
func TestBodiesAreBounded(t *testing.T) {
	f := newFleet(t)
	f.application("shop", nil)
	pad := func(n int) string {
		const head, tail = `{"replicas":1,"pad":"`, `"}`
		return head + strings.Repeat("x", n-len(head)-len(tail)) + tail
	}
	type chunked struct{ io.Reader } // a body whose length nobody says
	for _, route := range []struct{ method, path string }{
		{"POST", "/v1/applications/shop/replicas"}, {"POST", "/v1/applications/shop/block"}, {"POST", "/v1/applications/shop/unblock"},
		{"POST", "/v1/applications/shop/retire"}, {"POST", "/v1/applications/shop/unretire"}, {"POST", "/v1/fleet/freeze"}, {"DELETE", "/v1/fleet/freeze"},
	} {
		for _, size := range []int{api.DefaultJSONBytes, api.DefaultJSONBytes + 1} {
			for _, said := range []bool{true, false} {
				var body io.Reader = strings.NewReader(pad(size))
				if !said {
					body = chunked{body}
				}
				w := f.do(request(route.method, route.path, "admin", body))
				if size > api.DefaultJSONBytes {
					wantProblem(t, w, scafo.CodeResourceLimit)
				} else if w.Code != http.StatusOK {
					t.Errorf("%s %s with %d bytes: %d %s", route.method, route.path, size, w.Code, w.Body)
				}
			}
		}
	}
	for _, route := range []struct{ method, path string }{
		{"POST", "/v1/applications/shop/labels"}, {"POST", "/v1/applications/shop/selector"}, {"POST", "/v1/operators"}, {"DELETE", "/v1/operators/x"},
	} {
		wantProblem(t, f.do(request(route.method, route.path, "admin", chunked{strings.NewReader(pad(api.DefaultJSONBytes + 1))})), scafo.CodeResourceLimit)
	}
}
