package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
)

// grant is the body of a registration: a key of its own for each id.
func grant(id string, more ...string) string {
	key, _ := json.Marshal(jwk(id))
	return fmt.Sprintf(`{"id":%q,"publicKey":%s%s}`, id, key, strings.Join(append([]string{""}, more...), ","))
}

func (f *fleet) register(by, body string) scafo.Operator {
	f.t.Helper()
	w := f.send("POST", "/v1/operators", by, body)
	var a struct{ Operator *scafo.Operator }
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != http.StatusOK || a.Operator == nil {
		f.t.Fatalf("%s by %s: %d %s", body, by, w.Code, w.Body)
	}
	if strings.Contains(w.Body.String(), `"write"`) {
		f.t.Errorf("the registry's nonce is shown: %s", w.Body)
	}
	return *a.Operator
}

func (f *fleet) listed(by string) (ids []string, scoped bool) {
	f.t.Helper()
	w := f.get("/v1/operators", by)
	var l struct {
		Operators []scafo.Operator
		Scoped    bool
	}
	if err := json.Unmarshal(w.Body.Bytes(), &l); err != nil || w.Code != http.StatusOK || strings.Contains(w.Body.String(), `"write"`) {
		f.t.Fatal(w.Code, w.Body)
	}
	if !l.Scoped && strings.Contains(w.Body.String(), "scoped") {
		f.t.Errorf("scoped is there and false: %s", w.Body)
	}
	for _, op := range l.Operators {
		ids = append(ids, op.ID)
	}
	return ids, l.Scoped
}

func TestOperatorLineage(t *testing.T) {
	f := newFleet(t)
	f.register("admin", grant("zz", `"applications":["shop"]`))
	f.register("admin", grant("aa", `"role":"admin"`, `"applications":["*"]`))
	f.register("tenant", grant("tenant-2", `"supersedes":"tenant"`))
	f.register("tenant-2", grant("tenant-3", `"supersedes":"tenant-2"`))
	f.register("tenant", grant("tenant-b", `"supersedes":"tenant"`))
	f.register("tenant", grant("child", `"applications":["shop"]`)) // granted, and no lineage
	all := []string{"aa", "admin", "child", "narrow-admin", "tenant", "tenant-2", "tenant-3", "tenant-b", "zz"}
	for by, want := range map[string][]string{
		"admin": all, "narrow-admin": all, "aa": all,
		"tenant":   {"tenant", "tenant-2", "tenant-b"},
		"tenant-2": {"tenant", "tenant-2", "tenant-3"},
		"tenant-3": {"tenant-2", "tenant-3"},
		"tenant-b": {"tenant", "tenant-b"},
		"child":    {"child"},
		"zz":       {"zz"},
	} {
		if ids, scoped := f.listed(by); !slices.Equal(ids, want) || scoped == (len(want) == len(all)) {
			t.Errorf("%s sees %v, scoped %v; want %v", by, ids, scoped, want)
		}
	}
}

func TestRegistrationDefaults(t *testing.T) {
	f := newFleet(t)
	for name, c := range map[string]struct {
		by, body string
		want     scafo.Operator
	}{
		"a fresh key":           {"admin", grant("a", `"applications":["shop","blog-*"]`), scafo.Operator{ID: "a", Role: "operator", Applications: scafo.Scope{"shop", "blog-*"}}},
		"a fresh admin":         {"admin", grant("b", `"role":"admin"`, `"applications":["*"]`), scafo.Operator{ID: "b", Role: "admin", Applications: scafo.Scope{"*"}}},
		"an admin's successor":  {"narrow-admin", grant("c", `"supersedes":"narrow-admin"`), scafo.Operator{ID: "c", Role: "admin", Applications: scafo.Scope{"shop"}, Supersedes: "narrow-admin"}},
		"a tenant's successor":  {"tenant", grant("d", `"supersedes":"tenant"`), scafo.Operator{ID: "d", Role: "operator", Applications: scafo.Scope{"shop", "blog-*"}, Supersedes: "tenant"}},
		"a narrower successor":  {"tenant", grant("e", `"supersedes":"tenant"`, `"applications":["blog-a"]`), scafo.Operator{ID: "e", Role: "operator", Applications: scafo.Scope{"blog-a"}, Supersedes: "tenant"}},
		"a lesser successor":    {"admin", grant("g", `"supersedes":"admin"`, `"role":"operator"`), scafo.Operator{ID: "g", Role: "operator", Applications: scafo.Scope{"*"}, Supersedes: "admin"}},
		"of a tenant":           {"tenant", grant("h", `"applications":["shop","blog-x-*"]`), scafo.Operator{ID: "h", Role: "operator", Applications: scafo.Scope{"shop", "blog-x-*"}}},
		"a narrow second admin": {"narrow-admin", grant("i", `"role":"admin"`, `"applications":["shop"]`), scafo.Operator{ID: "i", Role: "admin", Applications: scafo.Scope{"shop"}}},
	} {
		wantProblem(t, f.get("/v1/operators", c.want.ID), scafo.CodeAuthInvalid)
		op := f.register(c.by, c.body)
		if op.CreatedAt.IsZero() || op.CreatedBy != c.by || op.V != 1 {
			t.Errorf("%s: %+v", name, op)
		}
		c.want.PublicKey, c.want.CreatedAt, c.want.CreatedBy, c.want.Header = jwk(c.want.ID), op.CreatedAt, c.by, op.Header
		if fmt.Sprintf("%+v", op) != fmt.Sprintf("%+v", c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, op, c.want)
		}
		// The key works at once, also where its id was asked for before.
		if _, scoped := f.listed(op.ID); scoped == (op.Role == scafo.RoleAdmin) {
			t.Errorf("%s: scoped %v", name, scoped)
		}
	}
}

func TestPrivateKeysAreNeverKept(t *testing.T) {
	f := newFleet(t)
	k := jwk("careless")
	w := f.send("POST", "/v1/operators", "admin", fmt.Sprintf(
		`{"id":"careless","publicKey":{"kty":"OKP","crv":"Ed25519","x":%q,"d":"PRIVATE-MATERIAL","use":"sig"},"applications":["shop"]}`, k.X))
	if w.Code != http.StatusOK || strings.Contains(w.Body.String(), "PRIVATE") {
		t.Fatal(w.Code, w.Body)
	}
	o, err := f.bucket.Get(t.Context(), "_scafo/operators/careless.json")
	if err != nil || strings.Contains(string(o.Body), "PRIVATE") || strings.Contains(f.log.String(), "PRIVATE") {
		t.Errorf("%s %v", o.Body, err)
	}
}

func TestRegistrationsThatAreRefused(t *testing.T) {
	f := newFleet(t)
	// An operator whose scope is everything is no admin all the same.
	f.register("admin", grant("wild", `"supersedes":"admin"`, `"role":"operator"`))
	x := jwk("k").X
	key := func(s string) string { return `{"id":"k","applications":["shop"],"publicKey":` + s + `}` }
	const invalid, scope, held = scafo.CodeInvalidInput, scafo.CodeAuthScope, scafo.CodeReferenceHeld
	for name, c := range map[string]struct {
		by, body string
		code     scafo.Code
	}{
		"no body":                        {"admin", ``, invalid},
		"no object":                      {"admin", `[]`, invalid},
		"no id":                          {"admin", strings.Replace(grant("k", `"applications":["shop"]`), `"id"`, `"ID"`, 1), invalid},
		"an id that is none":             {"admin", grant("../k", `"applications":["shop"]`), invalid},
		"an id with capitals":            {"admin", grant("K", `"applications":["shop"]`), invalid},
		"an empty id":                    {"admin", grant("", `"applications":["shop"]`), invalid},
		"no key":                         {"admin", `{"id":"k","applications":["shop"]}`, invalid},
		"a key of null":                  {"admin", key(`null`), invalid},
		"a key of text":                  {"admin", key(`"x"`), invalid},
		"another kty":                    {"admin", key(`{"kty":"EC","crv":"Ed25519","x":"` + x + `"}`), invalid},
		"another curve":                  {"admin", key(`{"kty":"OKP","crv":"X25519","x":"` + x + `"}`), invalid},
		"no x":                           {"admin", key(`{"kty":"OKP","crv":"Ed25519"}`), invalid},
		"an empty x":                     {"admin", key(`{"kty":"OKP","crv":"Ed25519","x":""}`), invalid},
		"a short x":                      {"admin", key(`{"kty":"OKP","crv":"Ed25519","x":"AAAA"}`), invalid},
		"two x":                          {"admin", key(`{"kty":"OKP","crv":"Ed25519","x":"` + x + `","x":"` + x + `"}`), invalid},
		"a key of small order":           {"admin", key(`{"kty":"OKP","crv":"Ed25519","x":"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`), invalid},
		"another key of small order":     {"admin", key(`{"kty":"OKP","crv":"Ed25519","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`), invalid},
		"a role that is none":            {"admin", grant("k", `"role":"root"`, `"applications":["shop"]`), invalid},
		"a role of null":                 {"admin", grant("k", `"role":null`, `"applications":["shop"]`), invalid},
		"a fresh key without a scope":    {"admin", grant("k"), invalid},
		"a tenant's, without a scope":    {"tenant", grant("k"), invalid},
		"a scope of null":                {"admin", grant("k", `"applications":null`), invalid},
		"an empty scope":                 {"admin", grant("k", `"applications":[]`), invalid},
		"an empty scope of a successor":  {"admin", grant("k", `"supersedes":"admin"`, `"applications":[]`), invalid},
		"a scope of text":                {"admin", grant("k", `"applications":"*"`), invalid},
		"a scope of numbers":             {"admin", grant("k", `"applications":[1]`), invalid},
		"a star beside names":            {"admin", grant("k", `"applications":["*","shop"]`), invalid},
		"a star in front":                {"admin", grant("k", `"applications":["*-shop"]`), invalid},
		"a star within":                  {"admin", grant("k", `"applications":["sh*op"]`), invalid},
		"two stars":                      {"admin", grant("k", `"applications":["shop-**"]`), invalid},
		"an empty name":                  {"admin", grant("k", `"applications":[""]`), invalid},
		"no name":                        {"admin", grant("k", `"applications":["Shop"]`), invalid},
		"itself":                         {"admin", grant("admin", `"supersedes":"admin"`), invalid},
		"supersedes nothing":             {"admin", grant("k", `"supersedes":null`), invalid},
		"supersedes another":             {"admin", grant("k", `"supersedes":"tenant"`), scope},
		"supersedes an empty id":         {"admin", grant("k", `"supersedes":""`), scope},
		"supersedes nobody":              {"tenant", grant("k", `"supersedes":"nobody"`), scope},
		"a tenant makes an admin":        {"tenant", grant("k", `"role":"admin"`, `"applications":["shop"]`), scope},
		"a tenant becomes an admin":      {"tenant", grant("k", `"role":"admin"`, `"supersedes":"tenant"`), scope},
		"past a tenant's scope":          {"tenant", grant("k", `"applications":["shop","other"]`), scope},
		"past a prefix":                  {"tenant", grant("k", `"applications":["blog*"]`), scope},
		"past a name":                    {"tenant", grant("k", `"applications":["shop*"]`), scope},
		"a successor past the scope":     {"tenant", grant("k", `"supersedes":"tenant"`, `"applications":["*"]`), scope},
		"past a narrow admin's scope":    {"narrow-admin", grant("k", `"applications":["*"]`), scope},
		"past it, as a successor":        {"narrow-admin", grant("k", `"supersedes":"narrow-admin"`, `"applications":["*"]`), scope},
		"everything, by no admin":        {"wild", grant("k", `"applications":["*"]`), scope},
		"an id that is an operator's":    {"admin", grant("tenant", `"applications":["shop"]`), held},
		"its own id":                     {"tenant", grant("tenant", `"applications":["shop"]`), held},
		"an id that is a node's":         {"admin", grant("node-b", `"applications":["shop"]`), held},
		"a known id with another key":    {"admin", strings.Replace(grant("k", `"applications":["shop"]`), `"id":"k"`, `"id":"wild"`, 1), held},
		"an operator's id, another role": {"admin", grant("tenant", `"role":"admin"`, `"applications":["shop","blog-*"]`), held},
	} {
		d := wantProblem(t, f.send("POST", "/v1/operators", c.by, c.body), c.code)
		if t.Failed() {
			t.Fatalf("%s: %+v", name, d)
		}
		if c.by == "tenant" && c.code == scope && strings.Contains(d.Detail, "blog") {
			t.Errorf("%s discloses the scope: %s", name, d.Detail)
		}
	}
	if ids, _ := f.listed("admin"); slices.Contains(ids, "k") {
		t.Errorf("a refused key is trusted: %v", ids)
	}
	// But it may replace itself as wide as it is, and grant what is less.
	f.register("wild", grant("wild-2", `"supersedes":"wild"`, `"applications":["*"]`))
	f.register("wild", grant("wild-3", `"applications":["shop*"]`))
}

func TestRegistrationsMayBeRepeated(t *testing.T) {
	f := newFleet(t)
	for by, body := range map[string]string{
		"tenant": grant("tenant-2", `"supersedes":"tenant"`),
		"admin":  grant("fresh", `"applications":["shop"]`),
	} {
		first := f.register(by, body)
		if again := f.register(by, body); fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", first) {
			t.Errorf("%+v, then %+v", first, again)
		}
		if n := f.events("event=operator.added", "actor="+by, "operator="+first.ID); n != 1 {
			t.Errorf("%d events", n)
		}
	}
}

func TestRevocation(t *testing.T) {
	f := newFleet(t)
	f.register("tenant", grant("tenant-2", `"supersedes":"tenant"`))
	f.register("tenant", grant("child", `"applications":["shop"]`))
	revoke := func(by, id string) (int, string) {
		w := f.send("DELETE", "/v1/operators/"+id, by, "")
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	refuse := func(code scafo.Code, by, id string) {
		t.Helper()
		wantProblem(t, f.send("DELETE", "/v1/operators/"+id, by, ""), code)
	}
	// Its own key first of all, whatever the tier.
	refuse(scafo.CodeInvalidInput, "admin", "admin")
	refuse(scafo.CodeInvalidInput, "tenant", "tenant")
	// Then who may, whether or not the key is there.
	for _, id := range []string{"admin", "child", "narrow-admin", "tenant-2", "nobody", "Not-An-Id", "node-b"} {
		refuse(scafo.CodeAuthScope, "tenant", id)
	}
	refuse(scafo.CodeAuthScope, "tenant-2", "child")
	refuse(scafo.CodeAuthScope, "tenant-2", "admin")
	refuse(scafo.CodeAuthScope, "child", "tenant")
	// Then whether it is there.
	for _, id := range []string{"nobody", "Not-An-Id", "node-b", "..%2Fnodes%2Fnode-b", strings.Repeat("a", 64)} {
		refuse(scafo.CodeNotFound, "admin", id)
	}
	if code, body := revoke("tenant-2", "tenant"); code != 200 || body != `{"removed":"tenant"}` {
		t.Errorf("%d %s", code, body)
	}
	refuse(scafo.CodeNotFound, "tenant-2", "tenant")
	wantProblem(t, f.get("/v1/operators", "tenant"), scafo.CodeAuthInvalid)
	// On a route for nodes too, where its key was cached, at once.
	wantProblem(t, f.get("/v1/state", "tenant"), scafo.CodeAuthInvalid)
	if code, body := revoke("narrow-admin", "admin"); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	refuse(scafo.CodeInvalidInput, "narrow-admin", "narrow-admin")
	for _, id := range []string{"tenant-2", "child"} {
		if code, body := revoke("narrow-admin", id); code != 200 {
			t.Errorf("%d %s", code, body)
		}
	}
	if n := f.events("event=operator.removed", "actor=narrow-admin"); n != 3 {
		t.Errorf("%d events:\n%s", n, &f.log)
	}
	// An id stays claimed for good, by its key.
	wantProblem(t, f.send("POST", "/v1/operators", "narrow-admin", strings.Replace(grant("other", `"applications":["shop"]`), `"other"`, `"child"`, 1)), scafo.CodeReferenceHeld)
	f.register("narrow-admin", grant("child", `"applications":["shop"]`))
}

// The last admin stays when a key of no admin was registered in its place.
func TestLastAdmin(t *testing.T) {
	f := newFleet(t)
	f.must(f.registry.RemoveOperator(t.Context(), "narrow-admin"))
	f.register("admin", grant("lesser", `"supersedes":"admin"`, `"role":"operator"`))
	d := wantProblem(t, f.send("DELETE", "/v1/operators/admin", "lesser", ""), scafo.CodeReferenceHeld)
	if !strings.Contains(d.Detail, "last admin") {
		t.Error(d.Detail)
	}
	f.register("admin", grant("second", `"role":"admin"`, `"applications":["shop"]`))
	if w := f.send("DELETE", "/v1/operators/admin", "lesser", ""); w.Code != http.StatusOK {
		t.Error(w.Code, w.Body)
	}
}

// A key that another node registers or revokes counts there at once where that node
// hears of it, and within the bound of a cached key where it does not.
func TestRevocationBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		if w := f.get("/v1/state", "tenant"); w.Code != http.StatusOK {
			t.Fatal(w.Code, w.Body)
		}
		f.must(f.registry.RemoveOperator(t.Context(), "tenant")) // elsewhere
		if w := f.get("/v1/state", "tenant"); w.Code != http.StatusOK {
			t.Fatal("the cache is of no use: ", w.Code, w.Body)
		}
		wantProblem(t, f.get("/v1/operators", "tenant"), scafo.CodeAuthInvalid)
		// Reading the record afresh corrected the cache.
		wantProblem(t, f.get("/v1/state", "tenant"), scafo.CodeAuthInvalid)

		// Where nothing does, it takes 60 seconds.
		if w := f.get("/v1/state", "narrow-admin"); w.Code != http.StatusOK {
			t.Fatal(w.Code, w.Body)
		}
		f.must(f.registry.RemoveOperator(t.Context(), "narrow-admin"))
		time.Sleep(60*time.Second - time.Millisecond)
		if w := f.get("/v1/state", "narrow-admin"); w.Code != http.StatusOK {
			t.Fatal("within the minute: ", w.Code, w.Body)
		}
		time.Sleep(time.Millisecond)
		wantProblem(t, f.get("/v1/state", "narrow-admin"), scafo.CodeAuthInvalid)
	})
}
