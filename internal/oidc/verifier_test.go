package oidc_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/oidc"
	"github.com/scafo/scafo/internal/oidc/oidctest"
	"github.com/scafo/scafo/internal/token"
)

const subject = "repo:acme/shop:ref:refs/heads/main"

// clock is a clock that tests move.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func policy(issuer string, subjects ...string) scafo.TrustPolicy {
	return scafo.TrustPolicy{Application: "shop", Rules: []scafo.TrustRule{{Issuer: issuer, Subjects: subjects}}}
}

func loopback(c *clock) oidc.Options {
	return oidc.Options{AllowLoopback: true, Now: c.now, Timeout: 300 * time.Millisecond}
}

// verify is Parse and Verify, as a caller has them.
func verify(v *oidc.Verifier, bearer string, p scafo.TrustPolicy) error {
	t, err := oidc.Parse(bearer)
	if err != nil {
		return err
	}
	return v.Verify(context.Background(), t, p)
}

// outcome is what a caller would be answered.
func outcome(err error) string {
	var r token.Refusal
	switch {
	case err == nil:
		return "accepted"
	case scafo.CodeOf(err) == scafo.CodeTrustMismatch:
		return "trust-mismatch"
	case errors.As(err, &r):
		return "auth-invalid"
	}
	return "another error: " + err.Error()
}

func TestEveryAlgorithm(t *testing.T) {
	for _, secure := range []bool{true, false} {
		for _, alg := range oidctest.Algorithms {
			t.Run(fmt.Sprintf("%s, TLS %v", alg, secure), func(t *testing.T) {
				c := newClock()
				k := oidctest.NewKey(t, "k1", alg)
				i := oidctest.New(t, secure, k)
				o := loopback(c)
				o.Timeout = 0
				if secure {
					o.Roots = x509.NewCertPool()
					o.Roots.AddCert(i.Server.Certificate())
				}
				tok, err := oidc.Parse(k.Token(t, i.Claims(subject, c.now())))
				if err != nil {
					t.Fatal(err)
				}
				if err := oidc.New(o).Verify(t.Context(), tok, policy(i.URL, subject)); err != nil {
					t.Fatal(err)
				}
				want := scafo.Provenance{Issuer: i.URL, Subject: subject, Repository: "acme/shop", Ref: "refs/heads/main", Commit: "0123456789abcdef", Run: "4711"}
				if got := tok.Provenance(); got != want {
					t.Errorf("provenance %+v, want %+v", got, want)
				}
			})
		}
	}
}

func TestGitLabProvenance(t *testing.T) {
	c, k := newClock(), oidctest.NewKey(t, "k1", "ES256")
	i := oidctest.New(t, false, k)
	claims := map[string]any{"iss": i.URL, "sub": "s", "aud": []string{"other", "scafo-node"}, "exp": c.now().Unix() + 60, "project_path": "acme/web/shop", "ref": "main", "sha": "abc", "pipeline_id": 815}
	tok, err := oidc.Parse(k.Token(t, claims))
	if err != nil {
		t.Fatal(err)
	}
	if err := oidc.New(loopback(c)).Verify(t.Context(), tok, policy(i.URL, "s")); err != nil {
		t.Fatal(err)
	}
	want := scafo.Provenance{Issuer: i.URL, Subject: "s", Repository: "acme/web/shop", Ref: "main", Commit: "abc", Run: "815"}
	if got := tok.Provenance(); got != want {
		t.Errorf("provenance %+v, want %+v", got, want)
	}
}

// Signatures whose numbers begin with zero bytes have the full length all the same.
func TestLeadingZeros(t *testing.T) {
	c, k := newClock(), oidctest.NewKey(t, "k1", "ES256")
	i := oidctest.New(t, false, k)
	v := oidc.New(loopback(c))
	claims := i.Claims(subject, c.now())
	for found, n := 0, 0; found < 300; n++ {
		claims["jti"] = fmt.Sprint(n)
		tok := k.Token(t, claims)
		sig := tok[strings.LastIndexByte(tok, '.')+1:]
		// Eight zero bits are an A and a letter up to P. The second number begins in
		// the middle of a letter, so only the first one is looked for.
		if sig[0] != 'A' || sig[1] < 'A' || sig[1] > 'P' {
			continue
		}
		found++
		if err := verify(v, tok, policy(i.URL, subject)); err != nil {
			t.Fatalf("%s: %v", tok, err)
		}
		if short := tok[:len(tok)-len(sig)] + sig[2:]; outcome(verify(v, short, policy(i.URL, subject))) != "auth-invalid" {
			t.Fatalf("a signature without its zeros is accepted: %s", short)
		}
	}
}

func TestTimes(t *testing.T) {
	c, k := newClock(), oidctest.NewKey(t, "k1", "ES256")
	i := oidctest.New(t, false, k)
	v := oidc.New(loopback(c))
	now := c.now().Unix()
	cases := []struct {
		name, claim string
		value       any
		want        string
	}{
		{"expired within the skew", "exp", now - 29, "accepted"},
		{"expired by the skew", "exp", now - 30, "auth-invalid"},
		{"expired long ago", "exp", now - 3600, "auth-invalid"},
		{"not yet valid within the skew", "nbf", now + 30, "accepted"},
		{"not yet valid", "nbf", now + 31, "auth-invalid"},
		{"issued within the skew", "iat", now + 30, "accepted"},
		{"issued in the future", "iat", now + 31, "auth-invalid"},
		{"a fraction", "exp", float64(now) + 0.5, "accepted"},
		{"no expiry", "exp", nil, "auth-invalid"},
		{"expiry a text", "exp", fmt.Sprint(now + 60), "auth-invalid"},
		{"expiry negative", "exp", -1, "auth-invalid"},
		{"expiry beyond all measure", "exp", 1 << 50, "auth-invalid"},
		{"not-before a text", "nbf", "now", "auth-invalid"},
		{"issued-at a list", "iat", []int{1}, "auth-invalid"},
	}
	for _, tc := range cases {
		claims := i.Claims(subject, c.now())
		claims[tc.claim] = tc.value
		if tc.value == nil {
			delete(claims, tc.claim)
		}
		if got := outcome(verify(v, k.Token(t, claims), policy(i.URL, subject))); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	for _, leave := range []string{"nbf", "iat"} {
		claims := i.Claims(subject, c.now())
		delete(claims, leave)
		if err := verify(v, k.Token(t, claims), policy(i.URL, subject)); err != nil {
			t.Errorf("without %s: %v", leave, err)
		}
	}
}

// A policy is compared byte for byte, but for the * of its subjects.
func TestPolicies(t *testing.T) {
	c, k := newClock(), oidctest.NewKey(t, "k1", "ES256")
	i := oidctest.New(t, false, k)
	v := oidc.New(loopback(c))
	tok := k.Token(t, i.Claims(subject, c.now()))
	other := func(rules ...scafo.TrustRule) scafo.TrustPolicy { return scafo.TrustPolicy{Rules: rules} }
	cases := []struct {
		name string
		p    scafo.TrustPolicy
		want string
	}{
		{"none", scafo.TrustPolicy{}, "auth-invalid"},
		{"exact", policy(i.URL, subject), "accepted"},
		{"one of several", policy(i.URL, "x", subject), "accepted"},
		{"a run", policy(i.URL, "repo:acme/shop:ref:refs/heads/*"), "accepted"},
		{"an empty run", policy(i.URL, subject+"*"), "accepted"},
		{"runs", policy(i.URL, "*acme/*:refs/*/main"), "accepted"},
		{"anything", policy(i.URL, "*"), "accepted"},
		{"a prefix is not enough", policy(i.URL, "repo:acme/shop"), "trust-mismatch"},
		{"a longer one", policy(i.URL, subject+"-2"), "trust-mismatch"},
		{"another case", policy(i.URL, strings.ToUpper(subject)), "trust-mismatch"},
		{"a look-alike", policy(i.URL, strings.Replace(subject, "a", "а", 1)), "trust-mismatch"},
		{"a ? is no wildcard", policy(i.URL, "repo:acme/shop:ref:refs/heads/mai?"), "trust-mismatch"},
		{"no subject", policy(i.URL), "trust-mismatch"},
		{"a run that overlaps", policy(i.URL, "repo:acme/shop:ref:refs/heads/main*main"), "trust-mismatch"},
		{"issuer with a slash", policy(i.URL+"/", subject), "auth-invalid"},
		{"issuer in another case", policy(strings.ToUpper(i.URL), subject), "auth-invalid"},
		{"another audience", other(scafo.TrustRule{Issuer: i.URL, Subjects: []string{"*"}, Audience: "elsewhere"}), "auth-invalid"},
		{"the subject under another audience alone", other(
			scafo.TrustRule{Issuer: i.URL, Subjects: []string{subject}, Audience: "elsewhere"},
			scafo.TrustRule{Issuer: i.URL, Subjects: []string{"x"}}), "trust-mismatch"},
		{"the second rule", other(scafo.TrustRule{Issuer: i.URL, Subjects: []string{"x"}}, scafo.TrustRule{Issuer: i.URL, Subjects: []string{subject}}), "accepted"},
	}
	for _, tc := range cases {
		if got := outcome(verify(v, tok, tc.p)); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

// Nothing leaves the node for an issuer that the policy does not name, nor for a token
// that is wrong by itself.
func TestNothingIsFetchedForStrangers(t *testing.T) {
	c, k := newClock(), oidctest.NewKey(t, "k1", "ES256")
	named, stranger := oidctest.New(t, false, k), oidctest.New(t, false, k)
	v := oidc.New(loopback(c))
	expired := named.Claims(subject, c.now().Add(-time.Hour))
	elsewhere := named.Claims(subject, c.now())
	elsewhere["aud"] = "elsewhere"
	for _, tok := range []string{k.Token(t, stranger.Claims(subject, c.now())), k.Token(t, expired), k.Token(t, elsewhere)} {
		if got := outcome(verify(v, tok, policy(named.URL, "*"))); got != "auth-invalid" {
			t.Error(got)
		}
	}
	for _, i := range []*oidctest.Issuer{named, stranger} {
		if n, _ := i.Asked(); n != 0 {
			t.Errorf("%d requests", n)
		}
	}
}

// An issuer whose name ends with a slash is asked at an address with one slash.
func TestTrailingSlash(t *testing.T) {
	c, k := newClock(), oidctest.NewKey(t, "k1", "ES256")
	i := oidctest.New(t, false, k)
	i.URL += "/"
	v := oidc.New(loopback(c))
	tok := k.Token(t, i.Claims(subject, c.now()))
	if err := verify(v, tok, policy(i.URL, subject)); err != nil {
		t.Fatal(err)
	}
	if got := outcome(verify(v, tok, policy(strings.TrimSuffix(i.URL, "/"), subject))); got != "auth-invalid" {
		t.Error(got)
	}
	// What a policy names with a slash may not call itself otherwise.
	j := oidctest.New(t, false, k)
	claims := j.Claims(subject, c.now())
	claims["iss"] = j.URL + "/"
	if got := outcome(verify(v, k.Token(t, claims), policy(j.URL+"/", subject))); got != "auth-invalid" {
		t.Errorf("discovery of another name: %s", got)
	}
}

// An issuer that fails is left alone for 30 s; keys are used for 300 s.
func TestCacheAndBackOff(t *testing.T) {
	c, k := newClock(), oidctest.NewKey(t, "k1", "ES256")
	i := oidctest.New(t, false, k)
	v := oidc.New(loopback(c))
	tok := func() string { return k.Token(t, i.Claims(subject, c.now())) }
	p := policy(i.URL, subject)
	expect := func(what, want string, keys int64) {
		t.Helper()
		got := outcome(verify(v, tok(), p))
		if _, n := i.Asked(); got != want || n != keys {
			t.Errorf("%s: %s after %d looks at the keys, want %s after %d", what, got, n, want, keys)
		}
	}
	expect("first", "accepted", 1)
	c.add(299 * time.Second)
	expect("within 300 s", "accepted", 1)
	i.Misbehave(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, nil)
	expect("the issuer is down, the keys are known", "accepted", 1)
	c.add(time.Second)
	expect("after 300 s, down", "auth-invalid", 1)
	all, _ := i.Asked()
	i.Misbehave(nil, nil)
	c.add(29 * time.Second)
	expect("back, but left alone", "auth-invalid", 1)
	if again, _ := i.Asked(); again != all {
		t.Errorf("%d requests within the back-off", again-all)
	}
	c.add(time.Second)
	expect("after the back-off", "accepted", 2)
}

// A rotation is noticed by its first token; tokens with invented key ids cost one look
// in 30 s.
func TestRotation(t *testing.T) {
	c := newClock()
	one, two, three := oidctest.NewKey(t, "k1", "ES256"), oidctest.NewKey(t, "k2", "EdDSA"), oidctest.NewKey(t, "k3", "ES384")
	i := oidctest.New(t, false, one)
	v := oidc.New(loopback(c))
	p := policy(i.URL, subject)
	try := func(k oidctest.Key) string { return outcome(verify(v, k.Token(t, i.Claims(subject, c.now())), p)) }
	if got := try(one); got != "accepted" {
		t.Fatal(got)
	}
	i.Publish(one, two) // with overlap
	if a, b := try(two), try(one); a != "accepted" || b != "accepted" {
		t.Fatal(a, b)
	}
	_, before := i.Asked()
	for n := range 200 {
		if got := try(oidctest.Key{ID: fmt.Sprint("invented", n), Algorithm: "ES256", Private: one.Private}); got != "auth-invalid" {
			t.Fatal(got)
		}
	}
	if _, after := i.Asked(); after != before {
		t.Errorf("%d looks for invented key ids", after-before)
	}
	i.Publish(three) // without overlap
	if got := try(three); got != "auth-invalid" {
		t.Errorf("the second look came too early: %s", got)
	}
	c.add(30 * time.Second)
	if a, b := try(three), try(one); a != "accepted" || b != "auth-invalid" {
		t.Errorf("after a rotation without overlap: new key %s, old key %s", a, b)
	}
	// A look for an unknown key id that fails takes no key away.
	c.add(30 * time.Second)
	i.Misbehave(nil, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	if a, b := try(one), try(three); a != "auth-invalid" || b != "accepted" {
		t.Errorf("while the issuer is down: unknown key %s, known key %s", a, b)
	}
}

// At most 64 issuers are remembered: the one that was used least recently goes.
func TestIssuersAreBounded(t *testing.T) {
	c, k := newClock(), oidctest.NewKey(t, "k1", "ES256")
	v := oidc.New(loopback(c))
	var issuers []*oidctest.Issuer
	ask := func(i *oidctest.Issuer) {
		t.Helper()
		if err := verify(v, k.Token(t, i.Claims(subject, c.now())), policy(i.URL, subject)); err != nil {
			t.Fatal(err)
		}
		c.add(time.Millisecond)
	}
	for range 65 {
		i := oidctest.New(t, false, k)
		issuers = append(issuers, i)
		ask(i)
	}
	ask(issuers[64])
	ask(issuers[1])
	ask(issuers[0])
	for n, want := range map[int]int64{0: 2, 1: 1, 64: 1} {
		if _, got := issuers[n].Asked(); got != want {
			t.Errorf("issuer %d was asked %d times for its keys, want %d", n, got, want)
		}
	}
}

// Many callers at once cost one look.
func TestOneLookForMany(t *testing.T) {
	c, k := newClock(), oidctest.NewKey(t, "k1", "ES256")
	i := oidctest.New(t, false, k)
	o := loopback(c)
	o.Timeout = 0
	v := oidc.New(o)
	tok := k.Token(t, i.Claims(subject, c.now()))
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := verify(v, tok, policy(i.URL, subject)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if all, _ := i.Asked(); all != 2 {
		t.Errorf("%d requests, want 2", all)
	}
}

// Who goes away while others fetch is not kept, and takes nothing from them.
func TestCallerThatGoesAway(t *testing.T) {
	c, k := newClock(), oidctest.NewKey(t, "k1", "ES256")
	i := oidctest.New(t, false, k)
	asked, answer := make(chan struct{}), make(chan struct{})
	i.Misbehave(nil, func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-answer
		oidctest.JSON(w, map[string]any{"keys": []any{k.JWK()}})
	})
	o := loopback(c)
	o.Timeout = time.Minute
	v := oidc.New(o)
	tok, err := oidc.Parse(k.Token(t, i.Claims(subject, c.now())))
	if err != nil {
		t.Fatal(err)
	}
	first := make(chan error, 1)
	gone, leave := context.WithCancel(t.Context())
	go func() { first <- v.Verify(gone, tok, policy(i.URL, subject)) }()
	<-asked
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if err := v.Verify(impatient, tok, policy(i.URL, subject)); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that went away: %v", err)
	}
	leave() // the one whose request it is goes too
	close(answer)
	if err := <-first; err != nil {
		t.Errorf("the fetch was cut short: %v", err)
	}
	if err := v.Verify(t.Context(), tok, policy(i.URL, subject)); err != nil {
		t.Error(err)
	}
}

// Tokens of one key have the same header, which is taken apart once. Each is still held
// to its own claims and its own signature, whatever came before it and beside it.
func TestTokensOfOneHeader(t *testing.T) {
	c := newClock()
	for _, alg := range []string{"ES256", "RS256", "PS384"} {
		k := oidctest.NewKey(t, "k1", alg)
		i := oidctest.New(t, false, k)
		v := oidc.New(loopback(c))
		var good, bad []string
		for n := range 20 {
			claims := i.Claims(subject, c.now())
			claims["run_id"] = fmt.Sprint(n)
			good = append(good, k.Token(t, claims))
		}
		for n, tok := range good {
			other := good[(n+1)%len(good)]
			at, otherAt := strings.LastIndex(tok, "."), strings.LastIndex(other, ".")
			bad = append(bad, tok[:at]+other[otherAt:])
		}
		var wg sync.WaitGroup
		for n := range good {
			for tok, want := range map[string]string{good[n]: "accepted", bad[n]: "auth-invalid"} {
				wg.Go(func() {
					if got := outcome(verify(v, tok, policy(i.URL, subject))); got != want {
						t.Errorf("%s: %s, want %s", alg, got, want)
					}
				})
			}
		}
		wg.Wait()
	}
}
