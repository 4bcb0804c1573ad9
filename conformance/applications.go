package conformance

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

type application struct {
	Name, UID, Deployment string
	Replicas              any
	Selector, Labels      map[string]string
	Blocked, Retired      *struct{ At, By string }
	Domains               []struct {
		Host     string
		Wildcard bool
	}
}

type oneApplication struct{ Application application }

type applicationList struct {
	Applications []application
	Scoped       bool
}

func (s *suite) set(t *testing.T, name, action string, by any, body string) answer {
	t.Helper()
	return s.post(t, "/v1/applications/"+name+"/"+action, by, body)
}

func (s *suite) record(t *testing.T, name string) application {
	t.Helper()
	return read[oneApplication](t, s.get(t, "/v1/applications/"+name, s.admin)).Application
}

// applications looks at settings that do not touch each other at the same time: an
// acknowledged change takes up to a second.
func (s *suite) applications(t *testing.T) {
	for name, f := range map[string]func(*testing.T){
		"read": s.readApplications, "block": s.blockAndUnblock, "settings": s.settings,
		"retire": func(t *testing.T) { s.retireAndUnretire(t); s.whoMaySet(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t)
		})
	}
}

func (s *suite) readApplications(t *testing.T) {
	s.set(t, s.shop, "labels", s.admin, `{"labels":{"plan":"pro"}}`).want(t, 200)
	s.set(t, s.shop, "block", s.admin, "").want(t, 200)
	names := func(l applicationList) (out []string) {
		for _, a := range l.Applications {
			out = append(out, a.Name)
		}
		return out
	}
	a := s.get(t, "/v1/applications", s.admin)
	l := read[applicationList](t, a)
	if got := names(l); l.Scoped || !sorted(got) || !strings.Contains(fmt.Sprint(got), s.vault) || strings.Contains(string(a.body), `"scoped"`) {
		t.Errorf("an admin sees %v, scoped %v", got, l.Scoped)
	}
	a = s.get(t, "/v1/applications", s.tenant)
	l = read[applicationList](t, a)
	if !l.Scoped || len(l.Applications) == 0 || l.Applications[0].Name != s.shop || l.Applications[0].Blocked == nil || strings.Contains(string(a.body), "labels") {
		t.Errorf("a tenant sees %s", a)
	}
	for _, name := range names(l) {
		if name != s.shop && !strings.HasPrefix(name, s.tenantPrefix+"-") {
			t.Errorf("a tenant sees %s", name)
		}
	}
	if got := s.record(t, s.shop); got.Labels["plan"] != "pro" || got.Blocked == nil {
		t.Errorf("%+v", got)
	}
	if a := s.get(t, "/v1/applications/"+s.shop, s.tenant).want(t, 200); strings.Contains(string(a.body), "labels") {
		t.Errorf("labels are the fleet's: %s", a)
	}
	s.get(t, "/v1/applications/"+s.prefix+"-none", s.admin).refused(t, 404, "not-found")
	s.get(t, "/v1/applications/"+s.tenantPrefix+"-none", s.tenant).refused(t, 404, "not-found")
	// Beyond a scope, what is there and what is not look alike.
	for _, name := range []string{s.vault, s.prefix + "-none"} {
		p := s.get(t, "/v1/applications/"+name, s.tenant).refused(t, 403, "auth-scope")
		if strings.Contains(p.Detail, s.tenantPrefix) {
			t.Errorf("the detail says what the key reaches: %s", p.Detail)
		}
	}
	for _, slug := range []string{"Shop", "-a", "a-", "a.b", "a%2Fb", "%2e%2e", "a%20b", strings.Repeat("a", 64), "%C3%A9"} {
		s.get(t, "/v1/applications/"+slug, s.admin).refused(t, 400, "invalid-slug")
		s.post(t, "/v1/applications/"+slug+"/retire", s.tenant, "").refused(t, 400, "invalid-slug")
	}
	s.set(t, s.shop, "unblock", s.admin, "").want(t, 200)
}

func (s *suite) blockAndUnblock(t *testing.T) {
	first := read[oneApplication](t, s.set(t, s.vault, "block", s.admin, "")).Application.Blocked
	if first == nil || first.By != s.admin.ID {
		t.Fatalf("blocked %+v", first)
	}
	if again := read[oneApplication](t, s.set(t, s.vault, "block", s.admin, "{}")).Application.Blocked; again == nil || *again != *first {
		t.Errorf("blocked again: %+v, first %+v", again, first)
	}
	s.deploy(t, s.vault, s.admin, "{}", worker(s.vault, "no")).refused(t, 409, "application-blocked")
	for range 2 {
		if a := read[oneApplication](t, s.set(t, s.vault, "unblock", s.admin, "")).Application; a.Blocked != nil {
			t.Errorf("unblocked: %+v", a)
		}
	}
}

func (s *suite) retireAndUnretire(t *testing.T) {
	first := read[oneApplication](t, s.set(t, s.shop, "retire", s.tenant, "")).Application.Retired
	if first == nil || first.By != s.tenant.ID {
		t.Fatalf("retired %+v", first)
	}
	if again := read[oneApplication](t, s.set(t, s.shop, "retire", s.admin, "")).Application.Retired; again == nil || *again != *first {
		t.Errorf("retired again: %+v, first %+v", again, first)
	}
	if a := read[oneApplication](t, s.set(t, s.shop, "unretire", s.tenant, "")).Application; a.Retired != nil {
		t.Errorf("unretired: %+v", a)
	}
}

func (s *suite) settings(t *testing.T) {
	set := func(action, body string) application {
		t.Helper()
		return read[oneApplication](t, s.set(t, s.vault, action, s.admin, body)).Application
	}
	set("labels", `{"labels":{"a":"1","b":"2"}}`)
	if a := set("labels", `{"labels":{"c":"3"}}`); len(a.Labels) != 1 || a.Labels["c"] != "3" {
		t.Errorf("labels are replaced as a whole: %v", a.Labels)
	}
	if a := set("labels", `{"labels":{}}`); len(a.Labels) != 0 {
		t.Errorf("labels %v", a.Labels)
	}
	if a := set("selector", `{"selector":{"no-node-has":"this"}}`); a.Selector["no-node-has"] != "this" {
		t.Errorf("a selector that nothing fulfils: %v", a.Selector)
	}
	if a := set("selector", `{"selector":null}`); len(a.Selector) != 0 {
		t.Errorf("selector %v", a.Selector)
	}
	if a := set("replicas", `{"replicas":"all"}`); a.Replicas != "all" {
		t.Errorf("replicas %v", a.Replicas)
	}
	if a := set("replicas", `{"replicas":3}`); a.Replicas != 3.0 {
		t.Errorf("replicas %v", a.Replicas)
	}
	if got := s.record(t, s.vault); got.Replicas != 3.0 {
		t.Errorf("%+v", got)
	}
	for action, bodies := range map[string][]string{
		"labels":   {"", "[]", "{", "{}", `{"labels":null}`, `{"labels":[]}`, `{"labels":{"a":1}}`, `{"labels":{"a":null}}`, `{"Labels":{}}`, `{"labels":{},"labels":{}}`, `{"labels":{}}{}`},
		"selector": {"", "{}", `{"selector":"a"}`, `{"selector":{"a":1}}`, `{"Selector":null}`, `"selector"`},
		"replicas": {"", "{}", `{"replicas":null}`, `{"replicas":0}`, `{"replicas":-1}`, `{"replicas":1.5}`, `{"replicas":"3"}`, `{"replicas":"ALL"}`, `{"replicas":""}`, `{"replicas":[1]}`, `{"replicas":1e30}`, `{"replicas":true}`},
	} {
		for _, body := range bodies {
			s.set(t, s.vault, action, s.admin, body).refused(t, 400, "invalid-input")
		}
	}
	if got := s.record(t, s.vault); got.Replicas != 3.0 || len(got.Labels) != 0 {
		t.Errorf("a refused setting changed something: %+v", got)
	}
}

func (s *suite) whoMaySet(t *testing.T) {
	bodies := map[string]string{"block": "", "unblock": "", "labels": `{"labels":{}}`, "retire": "", "unretire": "", "selector": `{"selector":null}`, "replicas": `{"replicas":1}`}
	for action, body := range bodies {
		s.set(t, s.prefix+"-none", action, s.admin, body).refused(t, 404, "not-found")
		s.set(t, s.vault, action, s.tenant, body).refused(t, 403, "auth-scope")
		s.set(t, s.prefix+"-none", action, s.tenant, body).refused(t, 403, "auth-scope")
		switch action {
		case "block", "unblock", "labels":
			// The scope first, then the tier, then whether there is such an application.
			s.set(t, s.shop, action, s.tenant, body).refused(t, 403, "auth-scope")
			s.set(t, s.tenantPrefix+"-none", action, s.tenant, body).refused(t, 403, "auth-scope")
		default:
			s.set(t, s.shop, action, s.tenant, body).want(t, http.StatusOK)
			s.set(t, s.tenantPrefix+"-none", action, s.tenant, body).refused(t, 404, "not-found")
		}
	}
}

// freeze stops deploys of the whole fleet for as long as it takes.
func (s *suite) freeze(t *testing.T) {
	if a := s.get(t, "/v1/fleet/freeze", s.admin); a.status != 404 {
		t.Fatalf("the fleet is frozen already, and stays so: %s", a)
	}
	const target = "/v1/fleet/freeze"
	if p := s.get(t, target, s.tenant).refused(t, 404, "not-found"); p.Title != "Deploys are not frozen" {
		t.Errorf("title %q", p.Title)
	}
	s.post(t, target, s.tenant, "").refused(t, 403, "auth-scope")
	s.delete(t, target, s.tenant).refused(t, 403, "auth-scope")
	for _, body := range []string{"[]", `"x"`, "null", "{", `{"reason":1}`, `{"reason":"two\nlines"}`, `{"reason":"a\u0007b"}`, fmt.Sprintf(`{"reason":%q}`, strings.Repeat("x", 201))} {
		s.post(t, target, s.admin, body).refused(t, 400, "invalid-input")
	}
	s.get(t, target, s.admin).refused(t, 404, "not-found")

	defer s.delete(t, target, s.admin)
	type freeze struct {
		Freeze struct {
			V                    int
			FrozenAt, By, Reason string
		}
		Created bool
	}
	first := read[freeze](t, s.post(t, target, s.admin, `{"reason":"  measured by a suite ","by":"somebody"}`))
	if !first.Created || first.Freeze.Reason != "measured by a suite" || first.Freeze.By != s.admin.ID || first.Freeze.V != 1 {
		t.Errorf("%+v", first)
	}
	again := read[freeze](t, s.post(t, target, s.admin, `{"reason":"another"}`))
	if again.Created || again.Freeze != first.Freeze {
		t.Errorf("frozen again: %+v, first %+v", again, first)
	}
	if got := read[freeze](t, s.get(t, target, s.tenant)); got.Freeze != first.Freeze {
		t.Errorf("%+v", got)
	}
	for _, node := range s.target.Nodes {
		r := deployment(s.tenantPrefix+"-frozen", s.tenant, "e30", worker("x", "x"))
		r.node = node
		if p := s.do(t, r).refused(t, 409, "deploys-frozen"); !strings.Contains(p.Detail, "measured by a suite") {
			t.Errorf("the refusal does not say why: %s", p.Detail)
		}
	}
	s.get(t, "/v1/applications/"+s.tenantPrefix+"-frozen", s.admin).refused(t, 404, "not-found")
	s.set(t, s.shop, "replicas", s.tenant, `{"replicas":1}`).want(t, 200)
	for i, want := range []bool{true, false} {
		if got := read[map[string]bool](t, s.delete(t, target, s.admin)); got["lifted"] != want {
			t.Errorf("lift %d: %v", i, got)
		}
	}
	s.post(t, target, s.admin, "").want(t, 200)
	s.delete(t, target, s.admin).want(t, 200)
}
