package oidc_test

import (
	"testing"

	"github.com/scafo/scafo/internal/oidc"
	"github.com/scafo/scafo/internal/oidc/oidctest"
)

// No text panics, and none that the issuer did not sign is accepted.
func FuzzToken(f *testing.F) {
	c, k := newClock(), oidctest.NewKey(f, "k1", "ES256")
	i := oidctest.New(f, false, k)
	v := oidc.New(loopback(c))
	good := k.Token(f, i.Claims(subject, c.now()))
	f.Add(good)
	f.Add("a.b.c")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, bearer string) {
		got := outcome(verify(v, bearer, policy(i.URL, subject)))
		if got == "accepted" && bearer != good {
			// Only the text of a signature may differ (ECDSA has two for each), never
			// what it signs.
			if tok, err := oidc.Parse(bearer); err != nil || tok.Subject != subject {
				t.Errorf("accepted: %s", bearer)
			}
		}
		if got != "accepted" && got != "auth-invalid" && got != "trust-mismatch" {
			t.Errorf("%s: %s", bearer, got)
		}
	})
}
