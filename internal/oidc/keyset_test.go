package oidc

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/oidc/oidctest"
)

// FuzzKeySet: whatever an issuer publishes as its keys, nothing panics, no weak key is
// taken, each fits algorithms of its own kind alone, and none verifies what another key
// signed.
func FuzzKeySet(f *testing.F) {
	const subject = "repo:acme/shop:ref:refs/heads/main"
	algorithms := []string{"RS256", "PS384", "ES256", "ES384", "ES512", "EdDSA"}
	i := oidctest.New(f, false)
	var tokens []*Token
	var published []map[string]any
	for _, a := range algorithms {
		published = append(published, oidctest.NewKey(f, "k-"+a, a).JWK())
		other := oidctest.NewKey(f, "k", a)
		if a == "RS256" || a == "PS384" { // RSA keys are shared by those that ask alike
			other = oidctest.OtherRSA(f, "k", a)
		}
		t, err := Parse(other.Token(f, i.Claims(subject, time.Now())))
		if err != nil {
			f.Fatal(err)
		}
		tokens = append(tokens, t)
		one, err := json.Marshal(map[string]any{"keys": published[len(published)-1:]})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(one)
	}
	all, err := json.Marshal(map[string]any{"keys": published})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(all)
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","kid":"k1","x":"AA","y":"AA"},{"kty":"RSA","kid":"k1","n":"AQAB","e":"AQAB"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","x":"AA"},{"kty":"oct","k":"AA"},1,null,{}]}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		var set keySet
		if json.Unmarshal(document, &set) != nil {
			return
		}
		keys := set.usable()
		if len(keys) > maxKeys || len(keys) > len(set.Keys) {
			t.Fatalf("%d keys of %d", len(keys), len(set.Keys))
		}
		for _, k := range keys {
			if !strong(k.public) || k.algorithm != "" && !Supported(k.algorithm) {
				t.Errorf("%+v is taken of %s", k, document)
			}
			fits := 0
			for _, a := range append(algorithms, "none", "HS256", "RS256 ", "es256", "") {
				if k.fits(a) {
					fits++
				}
			}
			if fits > 2 {
				t.Errorf("%+v fits %d kinds of algorithms", k, fits)
			}
			for _, tok := range tokens {
				if k.fits(tok.Algorithm) && k.verifies(tok) {
					t.Errorf("%+v verifies what another key signed, of %s", k, document)
				}
			}
		}
	})
}
