package registry_test

import (
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

func rule(issuer string, subjects ...string) scafo.TrustRule {
	return scafo.TrustRule{Issuer: issuer, Subjects: subjects}
}

func TestTrust(t *testing.T) {
	b := memory.New()
	r := registry.New(b, registry.Options{})
	ctx := t.Context()
	expect := func(what string, want int) {
		t.Helper()
		p, err := r.TrustPolicy(ctx, "shop")
		if err != nil || p.Application != "shop" || len(p.Rules) != want {
			t.Errorf("%s: %+v %v, want %d rules", what, p, err, want)
		}
	}
	trust := func(want bool, rule scafo.TrustRule) {
		t.Helper()
		if _, changed, err := r.Trust(ctx, "shop", rule, false); err != nil || changed != want {
			t.Errorf("changed %v, %v", changed, err)
		}
	}
	distrust := func(want bool, issuer, subject string) {
		t.Helper()
		if _, removed, err := r.Distrust(ctx, "shop", issuer, subject); err != nil || removed != want {
			t.Errorf("removed %v, %v", removed, err)
		}
	}
	expect("none", 0)
	distrust(false, "", "")
	trust(true, rule("https://a", "x"))
	trust(false, rule("https://a", "x"))
	trust(true, rule("https://b", "x"))
	expect("two", 2)
	distrust(true, "https://a", "x")
	distrust(true, "", "")
	expect("removed", 0)
	trust(true, rule("https://a", "y")) // over the tombstone
	expect("again", 1)
	if _, _, err := r.Trust(ctx, "shop", rule("http://a", "y"), false); scafo.CodeOf(err) != scafo.CodeInvalidInput {
		t.Errorf("an issuer without TLS: %v", err)
	}
	expect("after a refusal", 1)
	check.Bucket(t, b)
}

func TestTrustAtOnce(t *testing.T) {
	b := memory.New()
	var wg sync.WaitGroup
	for n := range 8 {
		r := registry.New(b, registry.Options{})
		wg.Go(func() {
			if _, changed, err := r.Trust(t.Context(), "shop", rule("https://a", string(rune('a'+n))), false); err != nil || !changed {
				t.Error(changed, err)
			}
		})
	}
	wg.Wait()
	p, err := registry.New(b, registry.Options{}).TrustPolicy(t.Context(), "shop")
	if err != nil || len(p.Rules) != 1 || len(p.Rules[0].Subjects) != 8 {
		t.Errorf("%+v %v", p, err)
	}
}

// What is being deleted is trusted by nobody any more, and nothing is left to the next
// application of its name.
func TestTrustOfWhatIsDeleted(t *testing.T) {
	b := memory.New()
	r := registry.New(b, registry.Options{})
	ctx := t.Context()
	if _, _, err := r.CreateApplication(ctx, "shop", "admin", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.UpdateApplication(ctx, "shop", func(a *scafo.Application) error {
		a.Deleting = &scafo.Deleting{At: time.Now(), By: "admin"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Trust(ctx, "shop", rule("https://a", "x"), false); scafo.CodeOf(err) != scafo.CodeApplicationDeleting {
		t.Error(err)
	}
	if p, err := r.TrustPolicy(ctx, "shop"); err != nil || len(p.Rules) != 0 {
		t.Errorf("%+v %v", p, err)
	}
}
