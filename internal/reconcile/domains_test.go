package reconcile

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

// domainsOf is what an application lists, and the states of some claims.
func (w *world) domainsOf(name string, hosts ...string) string {
	w.t.Helper()
	a, err := w.reg.Application(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	s := fmt.Sprint(a.Domains)
	for _, h := range hosts {
		d, err := registry.Load[scafo.Claim](w.t.Context(), w.reg, registry.ClaimKey(h))
		if err != nil {
			w.t.Fatal(err)
		}
		s += " " + string(d.Value.State)
	}
	return s
}

// A node that dies before or after any request of a claim, or of a release, while it
// is alone with it: a quarter of an hour later the claim is either whole or gone, and
// the host is free where it is gone.
func TestHalfDoneClaimsAreSettled(t *testing.T) {
	claim := func(host string, wildcard bool) func(*registry.Registry, *testing.T) error {
		return func(r *registry.Registry, t *testing.T) error {
			_, _, err := r.ClaimDomain(t.Context(), "app-0", host, wildcard)
			return err
		}
	}
	release := func(r *registry.Registry, t *testing.T) error {
		_, _, err := r.ReleaseDomain(t.Context(), "app-0", "shop.example")
		return err
	}
	for _, c := range []struct {
		name          string
		prepare, then func(*registry.Registry, *testing.T) error
	}{
		{"claim", nil, claim("shop.example", false)},
		{"claim with subdomains", nil, claim("shop.example", true)},
		{"widen", claim("shop.example", false), claim("shop.example", true)},
		{"release", claim("shop.example", true), release},
	} {
		for _, kind := range []fault.Kind{fault.CrashBefore, fault.CrashAfter} {
			t.Run(fmt.Sprint(c.name, kind), func(t *testing.T) {
				for skip, more := 0, true; more && !t.Failed(); skip++ {
					synctest.Test(t, func(t *testing.T) { more = dieWithin(t, c.prepare, c.then, kind, skip) })
				}
			})
		}
	}
}

func dieWithin(t *testing.T, prepare, then func(*registry.Registry, *testing.T) error, kind fault.Kind, skip int) bool {
	w := newWorld(t)
	defer w.end()
	settled(t, w, 1, "a")
	if prepare != nil {
		if err := prepare(w.reg, t); err != nil {
			t.Fatal(err)
		}
	}
	store := fault.New(w.store)
	dies := store.Inject(fault.Rule{Kind: kind, Skip: skip, Times: 1})
	err := then(registry.New(store, registry.Options{}), t)
	acknowledged := w.domainsOf("app-0", "shop.example")
	// What was begun and never announced is found when everything is listed.
	time.Sleep(time.Minute)
	w.node("a").loop.c.Store.Relist()
	time.Sleep(15 * time.Minute)
	check.Settled(t, w.store)
	if now := w.domainsOf("app-0", "shop.example"); err == nil && now != acknowledged {
		t.Errorf("at request %d: acknowledged as %s, and now %s", skip, acknowledged, now)
	}
	if a, _ := w.reg.Application(t.Context(), "app-0"); !slices.ContainsFunc(a.Domains, func(d scafo.Domain) bool { return d.Host == "shop.example" }) {
		w.deploy("a", "other", "v1")
		if _, _, err := w.reg.ClaimDomain(t.Context(), "other", "shop.example", true); err != nil {
			t.Errorf("at request %d: nobody has it, and it is not free: %v", skip, err)
		}
	}
	return dies.Hits() > 0
}

// What an application lists and does not hold leaves its list.
func TestListingsThatNobodyHoldsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 1, "a")
		if _, _, err := w.reg.ClaimDomain(t.Context(), "app-0", "held.example", false); err != nil {
			t.Fatal(err)
		}
		w.update("app-0", func(a *scafo.Application) {
			a.Domains = []scafo.Domain{{Host: "gone.example"}, {Host: "held.example", Wildcard: true}}
		})
		time.Sleep(9*time.Minute + 50*time.Second)
		if got := w.domainsOf("app-0"); got != "[{gone.example false} {held.example true}]" {
			t.Fatalf("before ten minutes: %s", got)
		}
		w.until(time.Minute, "the list is what is held", func() bool {
			return w.domainsOf("app-0", "held.example") == "[{held.example false}] held"
		})
		check.Settled(t, w.store)
	})
}

// A claimed host is in the routing document as soon as the claim is answered, on every
// node, and out of it once it is released; a block takes it out and keeps the claim.
func TestRoutesFollowClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 1, "a", "b")
		routed := func(node string) (hosts []string) {
			doc, _, _ := w.node(node).loop.Routing("")
			for _, r := range doc.Routes {
				hosts = append(hosts, r.Host)
			}
			return hosts
		}
		everywhere := func(what string, named bool) {
			t.Helper()
			w.until(2*time.Second, what, func() bool {
				return slices.Contains(routed("a"), "shop.example") == named && slices.Contains(routed("b"), "shop.example") == named
			})
		}
		must := func(_ scafo.Application, _ bool, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		r := w.node("b").reg
		must(r.ClaimDomain(t.Context(), "app-0", "shop.example", false))
		everywhere("the claimed host is routed", true)
		must(r.BlockApplication(t.Context(), "app-0", "op"))
		everywhere("a blocked application's host is not", false)
		if _, _, err := r.ClaimDomain(t.Context(), "app-0", "more.example", false); scafo.CodeOf(err) != scafo.CodeApplicationBlocked {
			t.Errorf("%v", err)
		}
		must(r.UnblockApplication(t.Context(), "app-0"))
		w.until(20*time.Second, "it is back", func() bool { return slices.Contains(routed("a"), "shop.example") })
		must(r.ReleaseDomain(t.Context(), "app-0", "shop.example"))
		everywhere("the released host is not routed", false)
		if _, _, err := r.ReleaseDomain(t.Context(), "app-0", "shop.example"); scafo.CodeOf(err) != scafo.CodeNotFound {
			t.Errorf("%v", err)
		}
	})
}
