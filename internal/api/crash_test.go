package api_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/openapitest"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
	"github.com/scafo/scafo/internal/storage"
)

// nodeOver is a node that has just started, over a bucket.
func nodeOver(t *testing.T, b bucket.Bucket) http.Handler {
	t.Helper()
	r := registry.New(b, registry.Options{})
	log := slog.New(slog.DiscardHandler)
	h, err := api.New(api.Deps{
		Node: "node-a", Log: log, Verifier: auth.New(r, auth.Options{Log: log, IngressTokens: []string{ingressToken}}),
		Applications: api.Following(r, registry.NewFollower(r)), Setters: r, Freezes: r, Operators: r,
		Domains: r, PlatformDomains: platformDomains, Storage: storage.New(r, storage.Options{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return openapitest.Handler(t, h)
}

// fleetOver makes a fleet in a bucket: an admin, a tenant that was registered to
// replace another, and an application.
func fleetOver(t *testing.T, b bucket.Bucket) *registry.Registry {
	t.Helper()
	r := registry.New(b, registry.Options{})
	if _, err := r.InitFleet(t.Context(), operator("admin", scafo.RoleAdmin, "*")); err != nil {
		t.Fatal(err)
	}
	successor := operator("tenant", scafo.RoleOperator, "shop")
	successor.Supersedes = "former"
	for _, op := range []scafo.Operator{operator("former", scafo.RoleOperator, "shop"), successor, operator("second", scafo.RoleAdmin, "*")} {
		if _, _, err := r.AddOperator(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := r.CreateApplication(t.Context(), "shop", "admin", nil); err != nil {
		t.Fatal(err)
	}
	return r
}

func call(h http.Handler, method, path, by, body string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), request(method, path, by, strings.NewReader(body))
	if by == "ingress" {
		r.Header.Set(scafo.LockHolderHeader, lockHolder) // of what is repeated
	}
	h.ServeHTTP(w, r)
	return w
}

const lockHolder = "ingress-1"

// stored are the mutations of the ingress's storage.
func stored() map[string]mutation {
	key := func(s string) storage.Key {
		k, err := storage.ParseKey(s)
		if err != nil {
			panic(err)
		}
		return k
	}
	open := func(r *registry.Registry) *storage.Service { return storage.New(r, storage.Options{}) }
	put := func(keys ...string) func(*registry.Registry) error {
		return func(r *registry.Registry) error {
			for _, k := range keys {
				if err := open(r).Put(ctxBackground, key(k), []byte("old")); err != nil {
					return err
				}
			}
			return nil
		}
	}
	// values are all that there is beneath a.
	values := func(want map[string]string) func(*registry.Registry) error {
		return func(r *registry.Registry) error {
			for _, k := range []string{"a", "a/b", "a/c/d", "ab"} {
				got, err := open(r).Get(ctxBackground, key(k))
				if is, there := want[k]; there != (err == nil) || string(got) != is || err != nil && scafo.CodeOf(err) != scafo.CodeNotFound {
					return fmt.Errorf("%s is %q, %w", k, got, err)
				}
			}
			return nil
		}
	}
	locked := func(want bool) func(*registry.Registry) error {
		return func(r *registry.Registry) error {
			_, err := open(r).Acquire(ctxBackground, key("l"), "another", 0)
			if want && scafo.CodeOf(err) == scafo.CodeCASConflict {
				return nil
			}
			if want || err != nil {
				return fmt.Errorf("another one asks for the lock: %w", err)
			}
			return open(r).Release(ctxBackground, key("l"), "another")
		}
	}
	lock := func(r *registry.Registry) error {
		_, err := open(r).Acquire(ctxBackground, key("l"), lockHolder, 0)
		return err
	}
	const objects, locks = "/v1/storage/objects/", "/v1/storage/locks/"
	return map[string]mutation{
		"put an object":  {"PUT", objects + "a/b", "ingress", "new", put("a"), []int{204}, values(map[string]string{"a": "old", "a/b": "new"})},
		"put over one":   {"PUT", objects + "a", "ingress", "new", put("a", "a/b"), []int{204}, values(map[string]string{"a": "new", "a/b": "old"})},
		"remove objects": {"DELETE", objects + "a", "ingress", "", put("a", "a/b", "a/c/d", "ab"), []int{204, 404}, values(map[string]string{"ab": "old"})},
		"lock":           {"POST", locks + "l", "ingress", "", nil, []int{204}, locked(true)},
		"renew a lock":   {"POST", locks + "l", "ingress", "", lock, []int{204}, locked(true)},
		"unlock":         {"DELETE", locks + "l", "ingress", "", lock, []int{204}, locked(false)},
	}
}

// mutation is one call that changes something, and what is so once it was answered.
type mutation struct {
	method, path, by, body string
	prepare                func(r *registry.Registry) error
	// again are the statuses of a repetition; the first one is that of a call that
	// found nothing done yet.
	again []int
	holds func(r *registry.Registry) error
}

func holdsOf(what func(a scafo.Application) bool) func(*registry.Registry) error {
	return func(r *registry.Registry) error {
		a, err := r.Application(ctxBackground, "shop")
		if err == nil && !what(a) {
			err = fmt.Errorf("the application is %+v", a)
		}
		return err
	}
}

func setUp(change func(a *scafo.Application)) func(*registry.Registry) error {
	return func(r *registry.Registry) error {
		_, err := r.UpdateApplication(ctxBackground, "shop", func(a *scafo.Application) error { change(a); return nil })
		return err
	}
}

// operators checks which keys are trusted, and that all of them are listed.
func operators(want ...string) func(*registry.Registry) error {
	return func(r *registry.Registry) error {
		all, err := r.Operators(ctxBackground)
		if err != nil {
			return err
		}
		index, err := registry.Load[scafo.OperatorIndex](ctxBackground, r, registry.OperatorIndexKey)
		if err != nil {
			return err
		}
		var ids []string
		for _, op := range all {
			ids = append(ids, op.ID)
		}
		if listed := slices.Sorted(maps.Keys(index.Value.Operators)); !slices.Equal(ids, want) || !slices.Equal(listed, want) {
			return fmt.Errorf("trusted %v, listed %v; want %v", ids, listed, want)
		}
		return nil
	}
}

// mutations is every route here that changes something.
func mutations() map[string]mutation {
	ok := []int{200}
	all := map[string]mutation{
		"block":    {"POST", "/v1/applications/shop/block", "admin", "", nil, ok, holdsOf(func(a scafo.Application) bool { return a.Blocked != nil && a.Blocked.By == "admin" })},
		"unblock":  {"POST", "/v1/applications/shop/unblock", "admin", "", setUp(func(a *scafo.Application) { a.Blocked = &scafo.Stamp{By: "x"} }), ok, holdsOf(func(a scafo.Application) bool { return a.Blocked == nil })},
		"labels":   {"POST", "/v1/applications/shop/labels", "admin", `{"labels":{"a":"b"}}`, setUp(func(a *scafo.Application) { a.Labels = map[string]string{"c": "d"} }), ok, holdsOf(func(a scafo.Application) bool { return len(a.Labels) == 1 && a.Labels["a"] == "b" })},
		"retire":   {"POST", "/v1/applications/shop/retire", "tenant", "", nil, ok, holdsOf(func(a scafo.Application) bool { return a.Retired != nil && a.Retired.By == "tenant" })},
		"unretire": {"POST", "/v1/applications/shop/unretire", "tenant", "", setUp(func(a *scafo.Application) { a.Retired = &scafo.Stamp{By: "x"} }), ok, holdsOf(func(a scafo.Application) bool { return a.Retired == nil })},
		"selector": {"POST", "/v1/applications/shop/selector", "tenant", `{"selector":{"a":"b"}}`, nil, ok, holdsOf(func(a scafo.Application) bool { return a.Selector["a"] == "b" })},
		"replicas": {"POST", "/v1/applications/shop/replicas", "tenant", `{"replicas":"all"}`, nil, ok, holdsOf(func(a scafo.Application) bool { return a.Replicas.All })},
		"freeze": {"POST", "/v1/fleet/freeze", "admin", `{"reason":"why"}`, nil, ok, func(r *registry.Registry) error {
			f, err := r.Freeze(ctxBackground)
			if err == nil && (f == nil || f.By != "admin" || f.Reason != "why") {
				err = fmt.Errorf("the freeze is %+v", f)
			}
			return err
		}},
		"lift": {"DELETE", "/v1/fleet/freeze", "admin", "", func(r *registry.Registry) error {
			_, _, err := r.FreezeDeploys(ctxBackground, "admin", "")
			return err
		}, ok, func(r *registry.Registry) error {
			f, err := r.Freeze(ctxBackground)
			if err == nil && f != nil {
				err = fmt.Errorf("the freeze is %+v", f)
			}
			return err
		}},
		"claim":       {"POST", "/v1/applications/shop/domains/shop.example", "tenant", "", nil, ok, holdsDomain("shop.example", false)},
		"claim both":  {"POST", "/v1/applications/shop/domains/www.shop.example?wildcard=1", "admin", "", claimed("shop", "shop.example", true), ok, holdsDomain("www.shop.example", true)},
		"claim wider": {"POST", "/v1/applications/shop/domains/shop.example?wildcard=1", "admin", "", claimed("shop", "shop.example", false), ok, holdsDomain("shop.example", true)},
		"claim what is half-done": {"POST", "/v1/applications/shop/domains/shop.example", "tenant", "", func(r *registry.Registry) error {
			return halfDone(r, scafo.ClaimHeld, true)
		}, ok, holdsDomain("shop.example", false)},
		"claim of a former life": {"POST", "/v1/applications/shop/domains/shop.example", "tenant", "", func(r *registry.Registry) error {
			return formerLife(r, "shop.example")
		}, ok, holdsDomain("shop.example", false)},
		"release": {"DELETE", "/v1/applications/shop/domains/shop.example", "tenant", "", claimed("shop", "shop.example", true), []int{200, 404}, holdsNoDomain("shop.example")},
		"release what is half-done": {"DELETE", "/v1/applications/shop/domains/shop.example", "tenant", "", func(r *registry.Registry) error {
			return halfDone(r, scafo.ClaimPending, false)
		}, []int{200, 404}, holdsNoDomain("shop.example")},
		"register":    {"POST", "/v1/operators", "admin", grant("fresh", `"role":"admin"`, `"applications":["*"]`), nil, ok, operators("admin", "former", "fresh", "second", "tenant")},
		"replace":     {"POST", "/v1/operators", "tenant", grant("tenant-2", `"supersedes":"tenant"`), nil, ok, operators("admin", "former", "second", "tenant", "tenant-2")},
		"revoke":      {"DELETE", "/v1/operators/former", "tenant", "", nil, []int{200, 404}, operators("admin", "second", "tenant")},
		"revoke last": {"DELETE", "/v1/operators/second", "admin", "", nil, []int{200, 404}, operators("admin", "former", "tenant")},
		"register again": {"POST", "/v1/operators", "admin", grant("gone", `"applications":["shop"]`), func(r *registry.Registry) error {
			if _, _, err := r.AddOperator(ctxBackground, operator("gone", scafo.RoleOperator, "shop")); err != nil {
				return err
			}
			_, err := r.RemoveOperator(ctxBackground, "gone")
			return err
		}, ok, operators("admin", "former", "gone", "second", "tenant")},
	}
	maps.Copy(all, stored())
	return all
}

// Every mutating route, with every fault at every one of its requests to the bucket:
// what was acknowledged is so, and the same call again, to a node that knows
// nothing of the first, ends where one call alone would have.
func TestFaultsAtEveryRequest(t *testing.T) {
	kinds := []fault.Kind{fault.Unavailable, fault.Throttled, fault.LostNotApplied, fault.LostApplied, fault.Refused, fault.CrashBefore, fault.CrashAfter}
	for name, m := range mutations() {
		for _, kind := range kinds {
			t.Run(fmt.Sprintf("%s/%d", name, kind), func(t *testing.T) {
				for skip, more := 0, true; more && !t.Failed(); skip++ {
					synctest.Test(t, func(t *testing.T) { more = faultAt(t, m, kind, skip) })
				}
			})
		}
	}
}

// faultAt has one request of a mutation fail. It is false when the mutation has
// fewer requests.
func faultAt(t *testing.T, m mutation, kind fault.Kind, skip int) bool {
	b := memory.New()
	r := fleetOver(t, b)
	if m.prepare != nil {
		if err := m.prepare(r); err != nil {
			t.Fatal(err)
		}
	}
	store := fault.New(b)
	armed := store.Inject(fault.Rule{Kind: kind, Skip: skip, Times: 1})
	w := call(nodeOver(t, store), m.method, m.path, m.by, m.body)
	time.Sleep(time.Minute) // an announcement outlives the call that a crash ended
	switch {
	case w.Code == m.again[0]:
		if err := m.holds(r); err != nil {
			t.Errorf("at request %d: acknowledged, and %v", skip, err)
		}
	case armed.Hits() == 0:
		t.Errorf("without a fault: %d %s", w.Code, w.Body)
	case kind == fault.Refused && w.Code == http.StatusConflict && strings.HasPrefix(m.path, "/v1/storage/locks/"):
		// A lock is taken without waiting, or it is not: who was faster has it.
	case w.Code != http.StatusServiceUnavailable:
		t.Errorf("at request %d: %d %s", skip, w.Code, w.Body)
	}
	if w := call(nodeOver(t, b), m.method, m.path, m.by, m.body); !slices.Contains(m.again, w.Code) {
		t.Errorf("at request %d: again: %d %s", skip, w.Code, w.Body)
	}
	if err := m.holds(r); err != nil {
		t.Errorf("at request %d: %v", skip, err)
	}
	check.Bucket(t, b)
	return armed.Hits() > 0
}

var ctxBackground = context.Background()

// Every route that changes something is in a table of crash points: that above, or where
// it is said here.
func TestEveryChangeHasItsCrashPoints(t *testing.T) {
	elsewhere := map[string]string{
		"DELETE /v1/applications/:name":       "TestFaultsAtEveryRequestOfADeletion",
		"POST /v1/applications/:name/deploys": "TestEachCallFails and TestCrashAtEachCall of the package deploy",
		"POST /v1/peer/hints":                 "none: it changes nothing in the bucket",
	}
	wild := regexp.MustCompile(`:\w+`)
	for _, r := range api.Routes(everything(t)) {
		name := r.Method + " " + r.Path
		if r.Method == http.MethodGet || elsewhere[name] != "" {
			delete(elsewhere, name)
			continue
		}
		path := regexp.MustCompile("^" + strings.ReplaceAll(wild.ReplaceAllString(r.Path, `[^/]+`), "**", ".+") + "$")
		tried := false
		for _, m := range mutations() {
			at, _, _ := strings.Cut(m.path, "?")
			tried = tried || m.method == r.Method && path.MatchString(at)
		}
		if !tried {
			t.Errorf("%s has no crash points", name)
		}
	}
	for name := range elsewhere {
		t.Errorf("%s is no route", name)
	}
}
