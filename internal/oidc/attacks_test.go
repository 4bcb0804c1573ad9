package oidc_test

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/oidc"
	"github.com/scafo/scafo/internal/oidc/oidctest"
)

func TestAttacks(t *testing.T) {
	c := newClock()
	target := oidctest.NewTarget(t, subject)
	v := oidc.New(loopback(c))
	p := policy(target.Issuer.URL, subject)
	for alg, good := range target.Good(t, c.now()) {
		if err := verify(v, good, p); err != nil {
			t.Fatalf("the good token with %s: %v", alg, err)
		}
	}
	all := target.Attacks(t, c.now())
	if len(all) < 80 {
		t.Errorf("only %d attacks", len(all))
	}
	for _, a := range all {
		want := "auth-invalid"
		if a.Mismatch {
			want = "trust-mismatch"
		}
		if got := outcome(verify(v, a.Bearer, p)); got != want {
			t.Errorf("%s: %s, want %s", a.Name, got, want)
		}
	}
	target.Quiet(t)
}

// Keys that an issuer should not publish verify nothing.
func TestBadKeys(t *testing.T) {
	c := newClock()
	ec, rs := oidctest.NewKey(t, "k", "ES256"), oidctest.NewKey(t, "k", "RS256")
	with := func(k oidctest.Key, name string, value any) map[string]any {
		j := k.JWK()
		j[name] = value
		return j
	}
	scalar, err := ec.Private.(*ecdsa.PrivateKey).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	private := with(ec, "d", oidctest.B64(scalar))
	cases := []struct {
		name string
		k    oidctest.Key
		jwk  map[string]any
		want string
	}{
		{"as it should be", ec, ec.JWK(), "accepted"},
		{"operations with verify", ec, with(ec, "key_ops", []string{"verify"}), "accepted"},
		{"no use and no algorithm", ec, map[string]any{"kty": "EC", "crv": "P-256", "kid": "k", "x": ec.JWK()["x"], "y": ec.JWK()["y"]}, "accepted"},
		{"for encryption", ec, with(ec, "use", "enc"), "auth-invalid"},
		{"for signing alone", ec, with(ec, "key_ops", []string{"sign"}), "auth-invalid"},
		{"for no operation", ec, with(ec, "key_ops", []string{}), "auth-invalid"},
		{"for another algorithm", ec, with(ec, "alg", "ES384"), "auth-invalid"},
		{"for an unknown algorithm", ec, with(ec, "alg", "XX"), "auth-invalid"},
		{"private", ec, private, "auth-invalid"},
		{"not on its curve", ec, with(ec, "y", ec.JWK()["x"]), "auth-invalid"},
		{"of an unknown curve", ec, with(ec, "crv", "P-224"), "auth-invalid"},
		{"of no known type", ec, with(ec, "kty", "XX"), "auth-invalid"},
		{"symmetric", ec, map[string]any{"kty": "oct", "k": "AAAA", "kid": "k"}, "auth-invalid"},
		{"RSA", rs, rs.JWK(), "accepted"},
		{"RSA too short", rs, with(rs, "n", oidctest.B64(make([]byte, 128))), "auth-invalid"},
		{"RSA with the exponent one", rs, with(rs, "e", "AQ"), "auth-invalid"},
		{"RSA with an even exponent", rs, with(rs, "e", "Ag"), "auth-invalid"},
		{"RSA without a modulus", rs, with(rs, "n", ""), "auth-invalid"},
	}
	for _, tc := range cases {
		i := oidctest.New(t, false)
		i.PublishRaw(tc.jwk)
		if got := outcome(verify(oidc.New(loopback(c)), tc.k.Token(t, i.Claims(subject, c.now())), policy(i.URL, subject))); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	// One bad key spoils none of the others, and key ids may be there twice.
	i := oidctest.New(t, false)
	other := oidctest.NewKey(t, "k", "ES256")
	i.PublishRaw(map[string]any{"kty": 1}, private, other.JWK(), ec.JWK())
	if got := outcome(verify(oidc.New(loopback(c)), ec.Token(t, i.Claims(subject, c.now())), policy(i.URL, subject))); got != "accepted" {
		t.Errorf("among bad keys: %s", got)
	}
	// A token without a key id has the only key that fits it.
	i.PublishRaw(ec.JWK(), rs.JWK())
	if got := outcome(verify(oidc.New(loopback(c)), ec.Sign(t, `{"alg":"ES256"}`, string(mustJSON(t, i.Claims(subject, c.now())))), policy(i.URL, subject))); got != "accepted" {
		t.Errorf("without a key id: %s", got)
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Whatever an issuer does, the answer is the refusal, in bounded time.
func TestIssuersThatMisbehave(t *testing.T) {
	k := oidctest.NewKey(t, "k", "ES256")
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	elsewhere := oidctest.New(t, false, k)
	hang := func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}
	drip := func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case <-r.Context().Done():
				return
			case <-release:
				return
			case <-time.After(20 * time.Millisecond):
				_, _ = w.Write([]byte(" "))
				_ = http.NewResponseController(w).Flush()
			}
		}
	}
	huge := func(w http.ResponseWriter, _ *http.Request) {
		chunk := []byte(strings.Repeat(" ", 64<<10))
		for range 64 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
		_, _ = w.Write([]byte(`{}`))
	}
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(s)) }
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	both := map[string]http.HandlerFunc{
		"hangs": hang, "drips": drip, "is huge": huge, "answers HTML": text("<html>"), "answers nothing": text(""), "answers null": text("null"),
		"answers a list": text("[]"), "cuts its JSON": text(`{"keys":[`), "answers 500": status(500), "answers 404": status(404), "answers 204": status(204),
		"redirects to another host": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.Server.URL+r.URL.Path, http.StatusFound)
		},
		"redirects in circles":  func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) },
		"closes the connection": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"a header without end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
			w.WriteHeader(200)
		},
	}
	try := func(name string, discovery, jwks func(i *oidctest.Issuer) http.HandlerFunc, want string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClock()
			i := oidctest.New(t, false, k)
			var d, j http.HandlerFunc
			if discovery != nil {
				d = discovery(i)
			}
			if jwks != nil {
				j = jwks(i)
			}
			i.Misbehave(d, j)
			o := loopback(c)
			if want == "accepted" {
				o.Timeout = 0 // it is honest, and may take the time that an issuer is given
			}
			v := oidc.New(o)
			for range 3 {
				if got := outcome(verify(v, k.Token(t, i.Claims(subject, c.now())), policy(i.URL, subject))); got != want {
					t.Errorf("%s, want %s", got, want)
				}
			}
			if all, _ := i.Asked(); want != "accepted" && all > 5 {
				t.Errorf("%d requests: it was not left alone", all)
			}
		})
	}
	for name, h := range both {
		given := func(*oidctest.Issuer) http.HandlerFunc { return h }
		try("discovery "+name, given, nil, "auth-invalid")
		try("keys "+name, nil, given, "auth-invalid")
	}
	found := func(doc func(i *oidctest.Issuer) string) func(i *oidctest.Issuer) http.HandlerFunc {
		return func(i *oidctest.Issuer) http.HandlerFunc { return text(doc(i)) }
	}
	for name, uri := range map[string]string{
		"a file": "file:///etc/passwd", "a relative address": "/keys", "nothing": "", "plain http elsewhere": "http://192.0.2.1/keys",
		"a metadata service": "https://169.254.169.254/keys", "a private address": "https://10.0.0.1/keys", "an address with a user": "https://a:b@127.0.0.1/keys",
	} {
		try("keys at "+name, found(func(i *oidctest.Issuer) string {
			return fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, i.URL, uri)
		}), nil, "auth-invalid")
	}
	for name, as := range map[string]string{"another name": "https://issuer.example", "no name": ""} {
		try("discovery with "+name, found(func(i *oidctest.Issuer) string {
			return fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, as, i.Server.URL+"/keys")
		}), nil, "auth-invalid")
	}
	// Oddities that are honest.
	flood := func(*oidctest.Issuer) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			keys := []map[string]any{k.JWK()}
			for n := range 1000 {
				j := k.JWK()
				j["kid"] = fmt.Sprint("flood", n)
				keys = append(keys, j)
			}
			oidctest.JSON(w, map[string]any{"keys": keys})
		}
	}
	try("a thousand keys", nil, flood, "accepted")
	odd := func(*oidctest.Issuer) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			b, _ := json.Marshal(map[string]any{"keys": []any{k.JWK()}})
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = w.Write(b)
		}
	}
	try("keys of another content type", nil, odd, "accepted")
	moved := func(i *oidctest.Issuer) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.RawQuery == "" {
				http.Redirect(w, r, r.URL.Path+"?moved", http.StatusMovedPermanently)
				return
			}
			oidctest.JSON(w, map[string]any{"keys": []any{k.JWK()}})
		}
	}
	try("keys that moved within their host", nil, moved, "accepted")
}

// Without the switch for tests no issuer on this machine is asked for anything.
func TestLoopbackIsRefused(t *testing.T) {
	c, k := newClock(), oidctest.NewKey(t, "k", "ES256")
	for _, secure := range []bool{true, false} {
		i := oidctest.New(t, secure, k)
		o := oidc.Options{Now: c.now}
		if secure {
			o.Roots = x509.NewCertPool()
			o.Roots.AddCert(i.Server.Certificate())
		}
		if got := outcome(verify(oidc.New(o), k.Token(t, i.Claims(subject, c.now())), policy(i.URL, subject))); got != "auth-invalid" {
			t.Errorf("TLS %v: %s", secure, got)
		}
		if all, _ := i.Asked(); all != 0 {
			t.Errorf("TLS %v: %d requests arrived", secure, all)
		}
	}
}
