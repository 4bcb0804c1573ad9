package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
)

// domain is what a domain route answered.
type domain struct {
	Application   scafo.Application `json:"application"`
	Host          string            `json:"host"`
	PlatformHosts []string          `json:"platformHosts"`
}

func gotDomain(t *testing.T, w *httptest.ResponseRecorder) (d domain) {
	t.Helper()
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return d
}

func (f *fleet) claim(by, name, host string) *httptest.ResponseRecorder {
	f.t.Helper()
	return f.send("POST", "/v1/applications/"+name+"/domains/"+host, by, "")
}

func (f *fleet) release(by, name, host string) *httptest.ResponseRecorder {
	f.t.Helper()
	return f.send("DELETE", "/v1/applications/"+name+"/domains/"+host, by, "")
}

// shown is the answer as it came, without the times and ids that are new each time.
func shown(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	d := gotDomain(t, w)
	return fmt.Sprintf("%s %v %v", d.Host, d.Application.Domains, d.PlatformHosts)
}

func TestClaimAndRelease(t *testing.T) { synctest.Test(t, testClaimAndRelease) }

func testClaimAndRelease(t *testing.T) {
	defer time.Sleep(time.Minute) // what is announced for nobody who waits
	f := newFleet(t)
	f.application("shop", func(a *scafo.Application) { a.Labels = map[string]string{"plan": "pro"} })
	for _, c := range []struct{ method, host, want string }{
		{"POST", "Shop.EXAMPLE", "shop.example [{shop.example false}] [shop.apps.example.com shop.localhost]"},
		{"POST", "shop.example", "shop.example [{shop.example false}] [shop.apps.example.com shop.localhost]"},
		// Only 1 asks for the subdomains.
		{"POST", "shop.example?wildcard=true", "shop.example [{shop.example false}] [shop.apps.example.com shop.localhost]"},
		{"POST", "shop.example?wildcard=0&wildcard=1", "shop.example [{shop.example false}] [shop.apps.example.com shop.localhost]"},
		{"POST", "shop.example?wildcard=1", "shop.example [{shop.example true}] [shop.apps.example.com shop.localhost]"},
		{"POST", "shop.example", "shop.example [{shop.example true}] [shop.apps.example.com shop.localhost]"},
		{"POST", "x.shop.example", "x.shop.example [{shop.example true} {x.shop.example false}] [shop.apps.example.com shop.localhost]"},
		{"DELETE", "SHOP.example", "shop.example [{x.shop.example false}] [shop.apps.example.com shop.localhost]"},
		{"POST", "shop.example", "shop.example [{x.shop.example false} {shop.example false}] [shop.apps.example.com shop.localhost]"},
		{"DELETE", "shop.example?wildcard=1", "shop.example [{x.shop.example false}] [shop.apps.example.com shop.localhost]"},
		{"DELETE", "x.shop.example", "x.shop.example [] [shop.apps.example.com shop.localhost]"},
	} {
		w := f.send(c.method, "/v1/applications/shop/domains/"+c.host, "admin", "")
		if got := shown(t, w); got != c.want {
			t.Errorf("%s %s:\n got %s\nwant %s", c.method, c.host, got, c.want)
		}
		if d := gotDomain(t, w); d.Application.Write != "" || d.Application.Labels["plan"] != "pro" {
			t.Errorf("%+v", d.Application)
		}
	}
	// A tenant sees no labels; a release of what is none of its domains says so.
	if d := gotDomain(t, f.claim("tenant", "shop", "y.example")); d.Application.Labels != nil {
		t.Errorf("%+v", d.Application)
	}
	if n := f.events("event=domain.claimed", "actor=admin", "application=shop", "host=shop.example", "wildcard=true"); n != 1 {
		t.Errorf("%d events:\n%s", n, &f.log)
	}
	if n := f.events("event=domain.released", "actor=admin", "host=shop.example"); n != 2 {
		t.Errorf("%d events:\n%s", n, &f.log)
	}
}

// With no platform domains the list is an empty one.
func TestNoPlatformHosts(t *testing.T) {
	f := newFleet(t)
	f.application("shop", nil)
	defer func(was []string) { platformDomains = was }(platformDomains)
	platformDomains = nil
	f.handler = f.node()
	if w := f.claim("admin", "shop", "shop.apps.example.com"); !strings.Contains(w.Body.String(), `"platformHosts":[]`) {
		t.Errorf("%s", w.Body)
	}
}

// What the claim rule refuses is named before anything of the application is read,
// and whoever asks.
func TestHostsThatAreNoneToClaim(t *testing.T) {
	f := newFleet(t)
	label := strings.Repeat("a", 63)
	long := strings.Join([]string{label, label, label, strings.Repeat("b", 61)}, ".")
	if len(long) != 253 {
		t.Fatal(len(long))
	}
	f.get("/v1/state", "tenant")
	for _, c := range []struct{ host, rule string }{
		{"example", "fewer than two labels"}, {"shop.example.", "ends with a dot"}, {"*.example.com", "wildcard"},
		{"shop.example:443", "port"}, {"https:%2F%2Fshop.example", "scheme"}, {"shop.example%2Fx", "path"},
		{"my_shop.example", "underscore"}, {"-shop.example", "hyphen"}, {"shop-.example", "hyphen"}, {"192.0.2.1", "all digits"},
		{"shop..example", "empty label"}, {".shop.example", "empty label"}, {label + "a.example", "longer than 63"}, {long + "c", "longer than 253"},
		{"b%C3%BCcher.example", "xn--"}, {"shop%20.example", "a-z, 0-9 and hyphen"}, {"%E2%84%AAelvin.example", "xn--"},
		{"apps.example.com", "apps.example.com"}, {"SHOP.apps.example.com", "apps.example.com"}, {"a.b.localhost", "localhost"},
	} {
		for _, method := range []string{"POST", "DELETE"} {
			for _, name := range []string{"shop", "blog-nothing"} { // neither is there
				before := f.bucket.Counts()["get"]
				w := f.send(method, "/v1/applications/"+name+"/domains/"+c.host, "tenant", "")
				platform := strings.Contains(strings.ToLower(c.host), "apps.") || strings.HasSuffix(c.host, "localhost")
				if method == "DELETE" && platform {
					// It is looked at whether it was claimed before it came under a platform domain.
					if w.Code != 400 {
						wantProblem(t, w, scafo.CodeInvalidInput)
					}
					continue
				}
				if d := wantProblem(t, w, scafo.CodeInvalidInput); !strings.Contains(d.Detail, c.rule) {
					t.Errorf("%s %s: %s, want the rule %q", method, c.host, d.Detail, c.rule)
				}
				if n := f.bucket.Counts()["get"] - before; n != 1 {
					t.Errorf("%s %s: %d reads, the caller's own record is one", method, c.host, n)
				}
			}
		}
	}
	f.application("shop", nil)
	if d := gotDomain(t, f.claim("admin", "shop", long+"?wildcard=1")); d.Host != long {
		t.Errorf("%+v", d)
	}
	gotDomain(t, f.claim("admin", "shop", "xn--bcher-kva.example"))
	gotDomain(t, f.claim("admin", "shop", "notapps.example.com"))
	gotDomain(t, f.release("admin", "shop", long))
}

// A host that was claimed before this node had its platform domain can be released,
// and not be claimed.
func TestReleaseUnderAPlatformDomain(t *testing.T) {
	f := newFleet(t)
	f.application("shop", nil)
	const host = "old.apps.example.com"
	if err := claimed("shop", host, false)(f.registry); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, f.claim("tenant", "shop", host), scafo.CodeInvalidInput)
	gotDomain(t, f.release("tenant", "shop", host))
	wantProblem(t, f.release("tenant", "shop", host), scafo.CodeInvalidInput)
}

// Scope is looked at before the host, and before any I/O of the application.
func TestScopeOfDomains(t *testing.T) {
	f := newFleet(t)
	if _, _, err := f.registry.AddOperator(t.Context(), operator("envs", scafo.RoleOperator, "shop", "shop-*")); err != nil {
		t.Fatal(err)
	}
	f.application("shop", nil)
	f.application("blog-x", nil)
	for _, c := range []struct {
		by, name, host string
		let            bool
	}{
		{"tenant", "shop", "a.example", true},
		{"tenant", "shop", "a.example?wildcard=1", false},
		{"tenant", "blog-x", "b.example?wildcard=1", true}, // blog-* reaches blog-x-*
		{"envs", "shop", "a.example?wildcard=1", true},
		{"narrow-admin", "shop", "c.example?wildcard=1", false},
		{"narrow-admin", "shop", "not%20a%20host?wildcard=1", false},
		{"narrow-admin", "blog-x", "not%20a%20host", false},
		{"admin", "shop", "d.example?wildcard=1", true},
	} {
		f.get("/v1/state", c.by)
		before := f.bucket.Counts()["get"]
		w := f.claim(c.by, c.name, c.host)
		if c.let {
			gotDomain(t, w)
			continue
		}
		wantProblem(t, w, scafo.CodeAuthScope)
		if n := f.bucket.Counts()["get"] - before; n != 1 {
			t.Errorf("%s of %s by %s: %d reads, the caller's own record is one", c.host, c.name, c.by, n)
		}
	}
	wantProblem(t, f.release("narrow-admin", "blog-x", "b.example"), scafo.CodeAuthScope)
}

func TestDomainRefusals(t *testing.T) {
	f := newFleet(t)
	wantProblem(t, f.claim("admin", "shop", "a.example"), scafo.CodeNotFound)
	wantProblem(t, f.release("admin", "shop", "a.example"), scafo.CodeNotFound)
	f.application("shop", nil)
	gotDomain(t, f.claim("admin", "shop", "a.example"))
	gotDomain(t, f.claim("admin", "shop", "b.example"))
	got(t, f.send("POST", "/v1/applications/shop/block", "admin", ""))
	// Also what it has: a claim of a blocked application is refused.
	wantProblem(t, f.claim("tenant", "shop", "c.example"), scafo.CodeApplicationBlocked)
	wantProblem(t, f.claim("tenant", "shop", "a.example"), scafo.CodeApplicationBlocked)
	gotDomain(t, f.release("tenant", "shop", "b.example"))
	if d := f.stored("shop").Domains; !slices.Equal(d, []scafo.Domain{{Host: "a.example"}}) {
		t.Errorf("a blocked application keeps its claims: %v", d)
	}
	got(t, f.send("POST", "/v1/applications/shop/unblock", "admin", ""))
	// A retired one keeps them too, and may claim: it can be brought back.
	got(t, f.send("POST", "/v1/applications/shop/retire", "admin", ""))
	gotDomain(t, f.claim("tenant", "shop", "c.example"))
	if err := setUp(func(a *scafo.Application) { a.Deleting = &scafo.Deleting{Fence: 1, By: "admin", At: a.CreatedAt} })(f.registry); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, f.claim("tenant", "shop", "d.example"), scafo.CodeApplicationDeleting)
	wantProblem(t, f.release("tenant", "shop", "a.example"), scafo.CodeApplicationDeleting)
}

func TestSixtyFourDomains(t *testing.T) { synctest.Test(t, testSixtyFour) }

func testSixtyFour(t *testing.T) {
	defer time.Sleep(time.Minute) // what is announced for nobody who waits
	f := newFleet(t)
	f.application("shop", nil)
	for i := range scafo.MaxDomains {
		gotDomain(t, f.claim("admin", "shop", fmt.Sprintf("h%d.example", i)))
	}
	if n := len(f.stored("shop").Domains); n != 64 {
		t.Errorf("%d domains", n)
	}
	if d := wantProblem(t, f.claim("admin", "shop", "more.example"), scafo.CodeInvalidInput); !strings.Contains(d.Detail, "64") {
		t.Errorf("%s", d.Detail)
	}
	// One of them may be asked for again, and widened; a place may be made.
	gotDomain(t, f.claim("admin", "shop", "h7.example"))
	gotDomain(t, f.claim("admin", "shop", "h7.example?wildcard=1"))
	gotDomain(t, f.release("admin", "shop", "h9.example"))
	gotDomain(t, f.claim("admin", "shop", "more.example"))
}

// Who holds a host is named to those alone whose scope reaches the holder.
func TestHoldersAreDisclosedByScope(t *testing.T) { synctest.Test(t, testHolders) }

func testHolders(t *testing.T) {
	defer time.Sleep(time.Minute) // what is announced for nobody who waits
	f := newFleet(t)
	f.application("shop", nil)
	f.application("blog-x", nil)
	f.application("secret", nil)
	for _, c := range []struct{ name, host string }{{"secret", "a.example?wildcard=1"}, {"secret", "hidden.b.example"}, {"blog-x", "c.example?wildcard=1"}, {"blog-x", "seen.d.example"}} {
		gotDomain(t, f.claim("admin", c.name, c.host))
	}
	if _, _, err := f.registry.AddOperator(t.Context(), operator("wide", scafo.RoleOperator, "shop*", "blog-*")); err != nil {
		t.Fatal(err)
	}
	const other = "another application of this installation"
	for _, c := range []struct{ by, host, want string }{
		{"wide", "a.example", "a.example is held by " + other},
		{"wide", "x.a.example", "a.example is held with its subdomains by " + other},
		{"wide", "b.example?wildcard=1", "a host one label under b.example is held by " + other},
		{"admin", "a.example", "a.example is held by the application secret"},
		{"admin", "x.a.example", "a.example is held with its subdomains by the application secret"},
		{"admin", "b.example?wildcard=1", "hidden.b.example is held by the application secret"},
		{"wide", "c.example", "c.example is held by the application blog-x"},
		{"wide", "x.c.example", "c.example is held with its subdomains by the application blog-x"},
		{"wide", "d.example?wildcard=1", "seen.d.example is held by the application blog-x"},
		{"narrow-admin", "c.example", "c.example is held by " + other},
	} {
		d := wantProblem(t, f.claim(c.by, "shop", c.host), scafo.CodeReferenceHeld)
		if d.Detail != c.want {
			t.Errorf("%s of %s:\n got %s\nwant %s", c.by, c.host, d.Detail, c.want)
		}
	}
	if domains := f.stored("shop").Domains; len(domains) != 0 {
		t.Errorf("refused claims left %v", domains)
	}
}

// A release cannot tell a host of another application from one that nobody has: the
// same document, after the same requests.
func TestReleaseOfAnothersHost(t *testing.T) {
	f := newFleet(t)
	f.application("shop", nil)
	f.application("other", nil)
	gotDomain(t, f.claim("admin", "other", "x-held.example"))
	gotDomain(t, f.claim("admin", "shop", "x-gone.example"))
	gotDomain(t, f.release("admin", "shop", "x-gone.example"))
	var said []string
	for _, host := range []string{"x-held.example", "x-none.example", "x-gone.example"} {
		f.get("/v1/state", "tenant")
		before := f.bucket.Counts()
		w := f.release("tenant", "shop", host)
		d := wantProblem(t, w, scafo.CodeNotFound)
		after := f.bucket.Counts()
		said = append(said, strings.ReplaceAll(d.Detail, host, "HOST")+fmt.Sprint(after["get"]-before["get"], after["replace"]-before["replace"]))
	}
	if said[0] != said[1] || said[1] != said[2] || !strings.Contains(said[0], "HOST is not a domain of application shop") {
		t.Errorf("%q", said)
	}
	if c, err := claimOf(f.registry, "x-held.example"); err != nil || c.State != scafo.ClaimHeld || c.Application != "other" {
		t.Errorf("%+v %v", c, err)
	}
}
