package registry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

// domainWorld is a registry with some applications.
type domainWorld struct {
	t *testing.T
	b bucket.Bucket
	r *registry.Registry
}

func newDomains(t *testing.T, apps ...string) *domainWorld {
	t.Helper()
	b := memory.New()
	w := &domainWorld{t: t, b: b, r: open(b)}
	for _, a := range apps {
		if _, _, err := w.r.CreateApplication(t.Context(), a, "op", nil); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { check.Bucket(t, b) })
	return w
}

func (w *domainWorld) claim(app, host string, wildcard bool) error {
	w.t.Helper()
	_, _, err := w.r.ClaimDomain(w.t.Context(), app, host, wildcard)
	return err
}

func (w *domainWorld) release(app, host string) error {
	w.t.Helper()
	_, _, err := w.r.ReleaseDomain(w.t.Context(), app, host)
	return err
}

// must claims what nothing speaks against.
func (w *domainWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *domainWorld) refused(err error, code scafo.Code) {
	w.t.Helper()
	if scafo.CodeOf(err) != code {
		w.t.Errorf("%v, want %s", err, code)
	}
}

// stands is the claim as it stands in the bucket.
func (w *domainWorld) stands(host string) scafo.Claim {
	w.t.Helper()
	d, err := registry.Load[scafo.Claim](w.t.Context(), w.r, registry.ClaimKey(host))
	w.must(err)
	return d.Value
}

// put writes a claim as somebody who died half-way would have left it.
func (w *domainWorld) put(c scafo.Claim) {
	w.t.Helper()
	if c.UID == "" {
		c.UID = w.app(c.Application).UID
	}
	c.At = w.r.Now()
	_, err := registry.Update(w.t.Context(), w.r, registry.ClaimKey(c.Host), func(d *registry.Doc[scafo.Claim]) error {
		c.Header, d.Value = d.Value.Header, c
		return nil
	})
	w.must(err)
}

func (w *domainWorld) change(name string, f func(*scafo.Application)) {
	w.t.Helper()
	_, err := w.r.UpdateApplication(w.t.Context(), name, func(a *scafo.Application) error { f(a); return nil })
	w.must(err)
}

func (w *domainWorld) app(name string) scafo.Application {
	w.t.Helper()
	a, err := w.r.Application(w.t.Context(), name)
	w.must(err)
	return a
}

// domains is what the application lists: a host, with a * where the subdomains are
// covered.
func (w *domainWorld) domains(name string) (out []string) {
	for _, d := range w.app(name).Domains {
		if d.Wildcard {
			d.Host += "*"
		}
		out = append(out, d.Host)
	}
	return out
}

func (w *domainWorld) lists(name string, want ...string) {
	w.t.Helper()
	if got := w.domains(name); !slices.Equal(got, want) {
		w.t.Errorf("%s lists %v, want %v", name, got, want)
	}
}

func TestClaimsExcludeEachOther(t *testing.T) {
	for _, c := range []struct {
		name     string
		first    string
		wild     bool
		second   string
		wildcard bool
		held     string // what the refusal is about; empty for none
		relation registry.Relation
	}{
		{"the same", "a.example", false, "a.example", false, "a.example", registry.SameHost},
		{"another", "a.example", false, "b.example", true, "", 0},
		{"below one that does not cover", "a.example", false, "x.a.example", true, "", 0},
		{"below one that covers", "a.example", true, "x.a.example", false, "a.example", registry.ParentHost},
		{"two labels below", "a.example", true, "y.x.a.example", false, "", 0},
		{"above", "x.a.example", false, "a.example", false, "", 0},
		{"above, with its subdomains", "x.a.example", false, "a.example", true, "x.a.example", registry.ChildHost},
		{"two labels above", "y.x.a.example", true, "a.example", true, "", 0},
		{"beside", "x.a.example", true, "y.a.example", true, "", 0},
		{"a name that ends the same", "a.example", true, "xa.example", true, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newDomains(t, "one", "two")
			w.must(w.claim("one", c.first, c.wild))
			err := w.claim("two", c.second, c.wildcard)
			if c.held == "" {
				w.must(err)
				return
			}
			w.refused(err, scafo.CodeReferenceHeld)
			var held *registry.HeldError
			if !errors.As(err, &held) || held.Host != c.held || held.Relation != c.relation || held.Application != "one" || held.Pending {
				t.Errorf("%+v", held)
			}
			w.lists("two")
			// Nothing of the loser is left, and once the first one goes it may.
			if s := w.stands(c.second); s.Application == "two" && s.State != scafo.ClaimReleased {
				t.Errorf("the loser's claim is %+v", s)
			}
			w.must(w.release("one", c.first))
			w.must(w.claim("two", c.second, c.wildcard))
			// One application's own hosts are no matter.
			w.must(w.claim("two", "x."+c.second, true))
		})
	}
}

func TestClaimsAreNeverDowngraded(t *testing.T) {
	w := newDomains(t, "shop")
	for _, wildcard := range []bool{false, false, true, false, true} {
		app, _, err := w.r.ClaimDomain(t.Context(), "shop", "shop.example", wildcard)
		w.must(err)
		if fmt.Sprint(app.Domains) != fmt.Sprint(w.app("shop").Domains) {
			t.Errorf("answered %v", app.Domains)
		}
	}
	w.lists("shop", "shop.example*")
	if c := w.stands("shop.example"); !c.Wildcard || c.PendingWildcard || c.State != scafo.ClaimHeld {
		t.Errorf("%+v", c)
	}
	before := w.stands("shop.example").Write
	if _, changed, err := w.r.ClaimDomain(t.Context(), "shop", "shop.example", false); err != nil || changed || w.stands("shop.example").Write != before {
		t.Errorf("a claim that is there was made again: %v %v", changed, err)
	}
}

func TestReleaseClaims(t *testing.T) {
	w := newDomains(t, "shop", "other")
	for _, h := range []string{"b.example", "a.example"} {
		w.must(w.claim("shop", h, true))
	}
	w.must(w.claim("other", "other.example", false))
	w.put(scafo.Claim{Host: "half.example", Application: "shop", State: scafo.ClaimPending})
	uid := w.app("shop").UID
	w.change("shop", func(a *scafo.Application) { a.Deleting = &scafo.Deleting{Fence: 1, At: w.r.Now(), By: "op"} })
	known := []string{"half.example", "other.example", "nobody.example", "a.example"}
	got, err := w.r.ReleaseClaims(t.Context(), "shop", uid, known...)
	w.must(err)
	if want := []string{registry.ClaimKey("a.example"), registry.ClaimKey("b.example"), registry.ClaimKey("half.example")}; !slices.Equal(got, want) {
		t.Errorf("released %v, want %v", got, want)
	}
	if c := w.stands("other.example"); c.State != scafo.ClaimHeld {
		t.Errorf("another's claim is %+v", c)
	}
	if got, err := w.r.ReleaseClaims(t.Context(), "shop", uid, known...); err != nil || len(got) > 0 {
		t.Errorf("again: %v %v", got, err)
	}
	if got, err := w.r.ReleaseClaims(t.Context(), "other", "0123456789abcdef", "other.example"); err != nil || len(got) > 0 {
		t.Errorf("another life's: %v %v", got, err)
	}
	w.refused(w.claim("shop", "new.example", false), scafo.CodeApplicationDeleting)
	w.refused(w.release("shop", "a.example"), scafo.CodeApplicationDeleting)
	w.must(w.claim("other", "a.example", true))
}

// What somebody left half-done is completed by its owner's next call, and keeps others
// away until then.
func TestHalfDoneClaims(t *testing.T) {
	for name, c := range map[string]scafo.Claim{
		"pending":                     {State: scafo.ClaimPending},
		"pending with subdomains":     {State: scafo.ClaimPending, Wildcard: true},
		"held and not listed":         {State: scafo.ClaimHeld},
		"held and in doubt":           {State: scafo.ClaimHeld, Doubted: true},
		"held, its subdomains wanted": {State: scafo.ClaimHeld, PendingWildcard: true},
		"held with subdomains":        {State: scafo.ClaimHeld, Wildcard: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDomains(t, "shop", "other")
			c.Host, c.Application = "shop.example", "shop"
			w.put(c)
			err := w.claim("other", "shop.example", false)
			w.refused(err, scafo.CodeReferenceHeld)
			var held *registry.HeldError
			if !errors.As(err, &held) || held.Pending != (c.State == scafo.ClaimPending) {
				t.Errorf("%+v", held)
			}
			if below := w.claim("other", "x.shop.example", false); (below != nil) != c.Covers() {
				t.Errorf("a host below: %v", below)
			}
			if !c.Covers() {
				w.must(w.release("other", "x.shop.example"))
			}
			// A plain call takes what is held with its subdomains, and not what was only
			// asked for.
			w.must(w.claim("shop", "shop.example", false))
			if now := w.stands("shop.example"); now.State != scafo.ClaimHeld || now.Doubted || now.Wildcard != (c.State == scafo.ClaimHeld && c.Wildcard) {
				t.Errorf("%+v", now)
			}
			w.must(w.claim("shop", "shop.example", true))
			w.lists("shop", "shop.example*")
			check.Settled(t, w.b)
			w.must(w.release("shop", "shop.example"))
			w.put(c)
			w.must(w.release("shop", "shop.example"))
			w.must(w.claim("other", "shop.example", true))
			check.Settled(t, w.b)
		})
	}
}

// Claims of lives that are over keep nobody away, also where the name lives again.
func TestClaimsOfFormerLives(t *testing.T) {
	w := newDomains(t, "shop")
	old := func(host, app string, wildcard bool) {
		w.put(scafo.Claim{Host: host, Application: app, UID: "00000000000000ff", Wildcard: wildcard, State: scafo.ClaimHeld})
	}
	old("shop.example", "shop", false)
	old("a.shop.example", "gone", true)
	old("b.shop.example", "shop", false)
	w.must(w.claim("shop", "shop.example", true))
	old("example.com", "gone", true)
	w.must(w.claim("shop", "x.example.com", false))
	w.lists("shop", "shop.example*", "x.example.com")
	for _, h := range []string{"a.shop.example", "b.shop.example", "example.com"} {
		if c := w.stands(h); c.State != scafo.ClaimReleased {
			t.Errorf("%+v", c)
		}
	}
	w.refused(w.release("shop", "b.shop.example"), scafo.CodeNotFound)
	check.Settled(t, w.b)
}

// The coordinator marks a claim that nobody lists and reads the list, the owner lists
// it and looks once more, and only then the coordinator goes on.
func TestSettlingMeetsAClaim(t *testing.T) {
	w := newDomains(t, "shop")
	w.put(scafo.Claim{Host: "shop.example", Application: "shop", State: scafo.ClaimHeld})
	key := registry.ClaimKey("shop.example")
	settles, claims := fault.New(w.b), fault.New(w.b)
	marked, resume, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	// The second write of the claim is the release.
	settles.Inject(fault.Rule{Op: fault.Replace, Key: key, Skip: 1, Times: 1, Before: func(context.Context, fault.Call) { close(marked); <-resume }})
	claims.Inject(fault.Rule{Op: fault.Replace, Key: registry.ApplicationKey("shop"), Times: 1, Before: func(context.Context, fault.Call) {
		go func() {
			_, _, err := open(settles).SettleClaim(context.Background(), "shop.example", w.stands("shop.example").Write)
			done <- err
		}()
		<-marked
	}})
	_, _, err := open(claims).ClaimDomain(t.Context(), "shop", "shop.example", false)
	w.must(err)
	close(resume)
	w.must(<-done)
	w.lists("shop", "shop.example")
	check.Settled(t, w.b)
}

// The coordinator finds an entry without a claim, the owner claims the host anew, and
// only then the coordinator goes on.
func TestSettlingAListingMeetsAClaim(t *testing.T) {
	w := newDomains(t, "shop")
	w.change("shop", func(a *scafo.Application) { a.Domains = []scafo.Domain{{Host: "shop.example"}} })
	settles := fault.New(w.b)
	settles.Inject(fault.Rule{Op: fault.Replace, Key: registry.ApplicationKey("shop"), Times: 1, Before: func(context.Context, fault.Call) {
		w.must(w.claim("shop", "shop.example", false))
	}})
	changed, err := open(settles).SettleListing(t.Context(), "shop", w.app("shop").UID, "shop.example")
	if err != nil || changed {
		t.Errorf("%v %v", changed, err)
	}
	w.lists("shop", "shop.example")
	check.Settled(t, w.b)
}

// A claim with its subdomains is about to be listed, is released, and is made again
// without them: what is listed then is what is claimed, whoever comes last.
func TestListingMeetsAReleaseAndASmallerClaim(t *testing.T) {
	w := newDomains(t, "shop")
	w.must(w.claim("shop", "shop.example", true))
	w.change("shop", func(a *scafo.Application) { a.Domains = nil }) // as if it died before it was listed
	lists := fault.New(w.b)
	lists.Inject(fault.Rule{Op: fault.Replace, Key: registry.ApplicationKey("shop"), Times: 1, Before: func(context.Context, fault.Call) {
		w.must(w.release("shop", "shop.example"))
		w.must(w.claim("shop", "shop.example", false))
	}})
	_, _, err := open(lists).ClaimDomain(t.Context(), "shop", "shop.example", false)
	w.must(err)
	w.lists("shop", "shop.example")
	check.Bucket(t, w.b)
	check.Settled(t, w.b)
}

// A claim is released just before it is listed, and another application takes what
// covers the host: the call is refused in the end, and what it listed goes again,
// also where the application changes meanwhile.
func TestARefusedClaimListsNothing(t *testing.T) {
	for name, bar := range map[string]func(w *domainWorld) error{
		"the host":   func(w *domainWorld) error { return w.claim("rival", "x.shop.example", false) },
		"its parent": func(w *domainWorld) error { return w.claim("rival", "shop.example", true) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newDomains(t, "shop", "rival")
			lists := fault.New(w.b)
			write := fault.Rule{Op: fault.Replace, Key: registry.ApplicationKey("shop"), Times: 1}
			first, second := write, write
			first.Before = func(context.Context, fault.Call) {
				w.must(w.release("shop", "x.shop.example"))
				w.must(bar(w))
			}
			second.Before = func(context.Context, fault.Call) {
				w.change("shop", func(a *scafo.Application) { a.Labels = map[string]string{"seen": "twice"} })
			}
			lists.Inject(first)
			lists.Inject(second)
			_, _, err := open(lists).ClaimDomain(t.Context(), "shop", "x.shop.example", false)
			w.refused(err, scafo.CodeReferenceHeld)
			w.lists("shop")
			if w.app("shop").Labels["seen"] != "twice" {
				t.Error("the application did not change: the test shows less than it says")
			}
			check.Settled(t, w.b)
		})
	}
}

// A child of a host with a thousand hosts below it: one page of a listing is not all.
func TestManyHostsBelow(t *testing.T) {
	w := newDomains(t, "shop", "other")
	for i := range 1100 {
		w.put(scafo.Claim{Host: fmt.Sprintf("h%04d.shop.example", i), Application: "shop", State: scafo.ClaimReleased})
	}
	w.must(w.claim("other", "zz.shop.example", false))
	w.refused(w.claim("shop", "shop.example", true), scafo.CodeReferenceHeld)
	w.must(w.release("other", "zz.shop.example"))
	w.must(w.claim("other", "a.zz.shop.example", false))
	w.must(w.claim("shop", "shop.example", true))
}

// A caller who goes away in between leaves nothing half-done, and one who is gone
// begins nothing.
func TestClaimsOfCallersWhoLeave(t *testing.T) {
	w := newDomains(t, "shop")
	for _, c := range []struct {
		what string
		do   func(context.Context, *registry.Registry) error
		want []string
	}{
		{"claim", func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.ClaimDomain(ctx, "shop", "shop.example", true)
			return err
		}, []string{"shop.example*"}},
		{"release", func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.ReleaseDomain(ctx, "shop", "shop.example")
			return err
		}, nil},
	} {
		ctx, leave := context.WithCancel(t.Context())
		store := fault.New(w.b)
		store.Inject(fault.Rule{Op: fault.Replace, Times: 1, Before: func(context.Context, fault.Call) { leave() }})
		store.Inject(fault.Rule{Op: fault.Create, Times: 1, Before: func(context.Context, fault.Call) { leave() }})
		w.must(c.do(ctx, open(store)))
		if ctx.Err() == nil {
			t.Errorf("%s: nobody left", c.what)
		}
		w.lists("shop", c.want...)
		check.Settled(t, w.b)
		before := w.stands("shop.example").Write
		w.refused(c.do(ctx, open(w.b)), scafo.CodeStoreUnavailable)
		if w.stands("shop.example").Write != before {
			t.Errorf("%s: begun for a caller who had gone", c.what)
		}
	}
}
