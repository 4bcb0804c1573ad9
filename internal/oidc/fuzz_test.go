package oidc_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/scafo/scafo"
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

// Whatever an issuer publishes as its keys, nothing panics and nothing verifies that
// was signed with a key that is not there.
func FuzzKeySet(f *testing.F) {
	c, k := newClock(), oidctest.NewKey(f, "k1", "ES256")
	i := oidctest.New(f, false)
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","kid":"k1","x":"AA","y":"AA"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"RSA","kid":"k1","n":"AQAB","e":"AQAB"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","x":"AA"}]}`))
	f.Add([]byte(`{"keys":[1,null,{}]}`))
	tok, err := oidc.Parse(k.Token(f, i.Claims(subject, c.now())))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, set []byte) {
		i.Misbehave(nil, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) })
		if err := oidc.New(loopback(c)).Verify(context.Background(), tok, policy(i.URL, subject)); err == nil {
			t.Errorf("a token verifies with %s", set)
		} else if scafo.CodeOf(err) == scafo.CodeTrustMismatch {
			t.Errorf("a token holds up with %s", set)
		}
	})
}
