package registry_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
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
		app, changed, err := w.r.ClaimDomain(t.Context(), "shop", "shop.example", wildcard)
		w.must(err)
		if again := fmt.Sprint(app.Domains) == fmt.Sprint(w.app("shop").Domains); !again {
			t.Errorf("answered %v", app.Domains)
		}
		_ = changed
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
