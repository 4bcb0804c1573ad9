package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/token/tokentest"
)

type operator struct {
	ID, Role, Supersedes string
	Applications         []string
	PublicKey            map[string]any
}

type operatorList struct {
	Operators []operator
	Scoped    bool
}

type oneOperator struct{ Operator operator }

func (l operatorList) ids() (out []string) {
	for _, o := range l.Operators {
		out = append(out, o.ID)
	}
	return out
}

func (s *suite) operators(t *testing.T) {
	t.Run("registrations", s.registrations)
	t.Run("refusals", s.refusedRegistrations)
	t.Run("rotation", s.rotation)
	t.Run("list", s.operatorList)
}

func (s *suite) register(t *testing.T, by tokentest.Signer, body string) operator {
	t.Helper()
	return read[oneOperator](t, s.post(t, "/v1/operators", by, body)).Operator
}

func (s *suite) registrations(t *testing.T) {
	// The least tier for a fresh key; no private part is kept.
	fresh := s.signer(t, "fresh")
	body := strings.Replace(grant(fresh, scope(s.prefix+"-a", s.prefix+"-b*")), `"x":`, `"d":"c2VjcmV0LXBhcnQtb2YtYS1rZXk","use":"sig","x":`, 1)
	a := s.post(t, "/v1/operators", s.admin, body)
	if op := read[oneOperator](t, a).Operator; op.Role != "operator" || fmt.Sprint(op.Applications) != fmt.Sprintf("[%s-a %s-b*]", s.prefix, s.prefix) || len(op.PublicKey) != 3 {
		t.Errorf("%s", a)
	}
	if list := s.get(t, "/v1/operators", s.admin); strings.Contains(string(list.body), "c2VjcmV0") {
		t.Error("the private part of a key was kept")
	}
	// The same again is the same; anything else under that id is held.
	s.post(t, "/v1/operators", s.admin, body).want(t, 200)
	s.post(t, "/v1/operators", s.admin, grant(fresh, scope(s.prefix+"-a"))).refused(t, 409, "reference-held")
	other := s.signer(t, "fresh")
	s.post(t, "/v1/operators", s.admin, grant(other, scope(s.prefix+"-a", s.prefix+"-b*"))).refused(t, 409, "reference-held")
	// A node's id is taken too.
	node := read[struct{ Node struct{ ID string } }](t, s.get(t, "/v1/state", s.admin)).Node.ID
	other.ID = node
	s.post(t, "/v1/operators", s.admin, grant(other, scope(s.prefix+"-a"))).refused(t, 409, "reference-held")
	s.delete(t, "/v1/operators/"+fresh.ID, s.admin).want(t, 200)
	s.get(t, "/v1/operators", fresh).refused(t, 401, "auth-invalid")
	s.delete(t, "/v1/operators/"+fresh.ID, s.admin).refused(t, 404, "not-found")
	// An id stays claimed for good.
	other.ID = fresh.ID
	s.post(t, "/v1/operators", s.admin, grant(other, scope(s.prefix+"-a"))).refused(t, 409, "reference-held")
}

func (s *suite) refusedRegistrations(t *testing.T) {
	k := s.signer(t, "refused")
	reach := scope(s.tenantPrefix)
	invalid := map[string]string{
		"no body":              "",
		"not JSON":             "{",
		"no object":            "[]",
		"no id":                strings.Replace(grant(k, reach), `"id"`, `"ID"`, 1),
		"an empty id":          strings.Replace(grant(k, reach), k.ID, "", 1),
		"an id that is none":   strings.Replace(grant(k, reach), k.ID, "Not/An-Id", 1),
		"an id that climbs":    strings.Replace(grant(k, reach), k.ID, "../operators/x", 1),
		"no key":               fmt.Sprintf(`{"id":%q,%s}`, k.ID, reach),
		"another kty":          strings.Replace(grant(k, reach), `"OKP"`, `"EC"`, 1),
		"another crv":          strings.Replace(grant(k, reach), `"Ed25519"`, `"X25519"`, 1),
		"no x":                 strings.Replace(grant(k, reach), x(k), "", 1),
		"a short x":            strings.Replace(grant(k, reach), x(k), "AAAA", 1),
		"a key of small order": strings.Replace(grant(k, reach), x(k), "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", 1),
		"another role":         grant(k, reach, `"role":"root"`),
		"role is null":         grant(k, reach, `"role":null`),
		"no scope":             grant(k),
		"an empty scope":       grant(k, `"applications":[]`),
		"* beside names":       grant(k, scope("*", s.tenantPrefix)),
		"* inside":             grant(k, scope("sh*p")),
		"two *":                grant(k, scope("shop**")),
		"no name":              grant(k, scope("Shop")),
		"scope is a string":    grant(k, `"applications":"shop"`),
	}
	for name, body := range invalid {
		if a := s.post(t, "/v1/operators", s.admin, body); a.status != 400 {
			t.Errorf("%s: %s, want 400", name, a)
		} else {
			a.refused(t, 400, "invalid-input")
		}
	}
	scoped := map[string]string{
		"an admin":               grant(k, reach, `"role":"admin"`),
		"a wider scope":          grant(k, scope(s.prefix+"*")),
		"another application":    grant(k, scope(s.vault)),
		"*":                      grant(k, scope("*")),
		"supersedes another key": grant(k, reach, fmt.Sprintf(`"supersedes":%q`, s.admin.ID)),
	}
	for name, body := range scoped {
		if a := s.post(t, "/v1/operators", s.tenant, body); a.status != 403 {
			t.Errorf("%s: %s, want 403", name, a)
		} else if p := a.refused(t, 403, "auth-scope"); strings.Contains(p.Detail, s.tenantPrefix) {
			t.Errorf("%s: the detail says what the key reaches: %s", name, p.Detail)
		}
	}
	s.post(t, "/v1/operators", s.admin, grant(k, reach, fmt.Sprintf(`"supersedes":%q`, s.tenant.ID))).refused(t, 403, "auth-scope")
	s.get(t, "/v1/operators", k).refused(t, 401, "auth-invalid")
}

func (s *suite) rotation(t *testing.T) {
	old, next := s.signer(t, "old"), s.signer(t, "next")
	s.trust(t, old, "operator", s.tenantPrefix+"-x")
	supersedes := fmt.Sprintf(`"supersedes":%q`, old.ID)
	for range 2 { // an interrupted rotation is repeated
		if op := s.register(t, old, grant(next, supersedes)); op.Role != "operator" || fmt.Sprint(op.Applications) != "["+s.tenantPrefix+"-x]" || op.Supersedes != old.ID {
			t.Errorf("a replacement inherits tier and scope: %+v", op)
		}
	}
	s.delete(t, "/v1/operators/"+next.ID, next).refused(t, 400, "invalid-input")
	s.delete(t, "/v1/operators/"+next.ID, old).refused(t, 403, "auth-scope")
	s.delete(t, "/v1/operators/"+s.admin.ID, next).refused(t, 403, "auth-scope")
	s.delete(t, "/v1/operators/"+s.prefix+"-none", next).refused(t, 403, "auth-scope")
	for _, by := range []tokentest.Signer{old, next} {
		l := read[operatorList](t, s.get(t, "/v1/operators", by))
		if !l.Scoped || len(l.Operators) != 2 || !sorted(l.ids()) {
			t.Errorf("%s sees %v, scoped %v", by.ID, l.ids(), l.Scoped)
		}
	}
	a := s.delete(t, "/v1/operators/"+old.ID, next)
	if got := read[map[string]string](t, a); got["removed"] != old.ID {
		t.Errorf("%s", a)
	}
	// No cache helps a revoked key on the routes of operators.
	for range 2 * len(s.target.Nodes) {
		s.get(t, "/v1/operators", old).refused(t, 401, "auth-invalid")
		s.get(t, "/v1/operators", next).want(t, 200)
	}
	// An operator may replace itself by a key that reaches everything.
	wide := s.signer(t, "wide")
	s.post(t, "/v1/operators", next, grant(wide, scope("*"))).refused(t, 403, "auth-scope")
	s.delete(t, "/v1/operators/"+next.ID, s.admin).want(t, 200)
}

func (s *suite) operatorList(t *testing.T) {
	a := s.get(t, "/v1/operators", s.admin)
	l := read[operatorList](t, a)
	if l.Scoped || strings.Contains(string(a.body), "scoped") || !sorted(l.ids()) || len(l.Operators) < 2 {
		t.Errorf("an admin sees %v, scoped %v", l.ids(), l.Scoped)
	}
	a = s.get(t, "/v1/operators", s.tenant)
	if l := read[operatorList](t, a); !l.Scoped || fmt.Sprint(l.ids()) != "["+s.tenant.ID+"]" {
		t.Errorf("a tenant sees %s", a)
	}
	s.delete(t, "/v1/operators/"+s.admin.ID, s.admin).refused(t, 400, "invalid-input")
	var raw struct{ Operators []map[string]json.RawMessage }
	if err := json.Unmarshal(a.body, &raw); err != nil || raw.Operators[0]["write"] != nil {
		t.Errorf("%s", a)
	}
}
