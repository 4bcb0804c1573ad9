package oidc_test

import (
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/oidc"
	"github.com/scafo/scafo/internal/oidc/oidctest"
)

// attack is a token that must not be accepted.
type attack struct {
	name, bearer, want string
}

// attacks makes them. ec, rs and ed are keys of the issuer; stranger is none.
type attacks struct {
	t                    *testing.T
	i                    *oidctest.Issuer
	now                  time.Time
	ec, rs, ed, stranger oidctest.Key
	all                  []attack
}

func (a *attacks) add(name, bearer string) {
	a.all = append(a.all, attack{name, bearer, "auth-invalid"})
}

// header adds a token with good claims and a header as it is spelled, signed by ec.
func (a *attacks) header(name, header string) {
	a.add(name, a.ec.Sign(a.t, header, a.good()))
}

func (a *attacks) claims(name, claims string) {
	a.add(name, a.ec.Sign(a.t, `{"alg":"ES256","kid":"ec"}`, claims))
}

// changed adds a token whose good claims are changed, signed by ec.
func (a *attacks) changed(name, claim string, value any) {
	c := a.i.Claims(subject, a.now)
	if value == nil {
		delete(c, claim)
	} else {
		c[claim] = value
	}
	a.add(name, a.ec.Token(a.t, c))
}

func (a *attacks) good() string {
	b, err := json.Marshal(a.i.Claims(subject, a.now))
	if err != nil {
		a.t.Fatal(err)
	}
	return string(b)
}

func (a *attacks) algorithms() {
	good := a.good()
	unsigned := func(header string) string {
		return oidctest.B64([]byte(header)) + "." + oidctest.B64([]byte(good)) + "."
	}
	a.add("none", unsigned(`{"alg":"none"}`))
	a.add("none with a signature", unsigned(`{"alg":"none"}`)+"AAAA")
	a.header("none, signed", `{"alg":"none","kid":"ec"}`)
	for _, alg := range []string{"None", "nOnE", "", "HS256", "HS384", "HS512", "ES256K", "RS1", "RSA1_5", "dir", "es256", "ES256 ", "Ed448", "ESP256"} {
		a.header(fmt.Sprintf("algorithm %q", alg), fmt.Sprintf(`{"alg":%q,"kid":"ec"}`, alg))
	}
	a.header("no algorithm", `{"kid":"ec"}`)
	a.header("algorithm a number", `{"alg":1,"kid":"ec"}`)
	a.header("algorithm a list", `{"alg":["ES256"],"kid":"ec"}`)
	a.header("algorithm null", `{"alg":null,"kid":"ec"}`)
	// The public key as a shared secret, in every form that it has.
	public := a.rs.Private.Public().(*rsa.PublicKey)
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		a.t.Fatal(err)
	}
	jwk, _ := json.Marshal(a.rs.JWK())
	for name, secret := range map[string][]byte{"PEM": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), "DER": der, "JWK": jwk, "modulus": public.N.Bytes()} {
		text := oidctest.B64([]byte(`{"alg":"HS256","kid":"rs"}`)) + "." + oidctest.B64([]byte(good))
		m := hmac.New(sha256.New, secret)
		m.Write([]byte(text))
		a.add("HS256 with the public key as "+name, text+"."+oidctest.B64(m.Sum(nil)))
	}
	// A key of the issuer under an algorithm that is not its own.
	other := func(name string, k oidctest.Key, alg, kid string) {
		k.Algorithm = alg
		a.add(name, k.Sign(a.t, fmt.Sprintf(`{"alg":%q,"kid":%q}`, alg, kid), good))
	}
	other("the RSA key is for RS256", a.rs, "PS256", "rs")
	other("the RSA key with a longer hash", a.rs, "RS512", "rs")
	other("the P-256 key with SHA-384", a.ec, "ES384", "ec")
	other("the P-256 key with SHA-512", a.ec, "ES512", "ec")
	other("RSA under the id of the P-256 key", a.rs, "RS256", "ec")
	other("P-256 under the id of the RSA key", a.ec, "ES256", "rs")
	a.add("ES256 in the header, signed with Ed25519", a.ed.Sign(a.t, `{"alg":"ES256","kid":"ec"}`, good))
	a.add("EdDSA in the header, signed with P-256", a.ec.Sign(a.t, `{"alg":"EdDSA","kid":"ed"}`, good))
}

func (a *attacks) headers() {
	jwk, _ := json.Marshal(a.stranger.JWK())
	own := func(name, header string) { a.add(name, a.stranger.Sign(a.t, header, a.good())) }
	own("embedded jwk", `{"alg":"ES256","jwk":`+string(jwk)+`}`)
	own("embedded jwk under a known id", `{"alg":"ES256","kid":"ec","jwk":`+string(jwk)+`}`)
	own("jku of the issuer", `{"alg":"ES256","kid":"stranger","jku":"`+a.i.URL+`/keys"}`)
	own("jku of a stranger", `{"alg":"ES256","kid":"stranger","jku":"http://127.0.0.1:1/keys"}`)
	own("x5u", `{"alg":"ES256","kid":"stranger","x5u":"http://127.0.0.1:1/cert"}`)
	own("x5c", `{"alg":"ES256","kid":"stranger","x5c":["AAAA"]}`)
	own("unknown key id", `{"alg":"ES256","kid":"stranger"}`)
	own("known key id, another's signature", `{"alg":"ES256","kid":"ec"}`)
	a.header("crit", `{"alg":"ES256","kid":"ec","crit":["exp"]}`)
	a.header("crit, empty", `{"alg":"ES256","kid":"ec","crit":[]}`)
	a.header("b64", `{"alg":"ES256","kid":"ec","b64":false,"crit":["b64"]}`)
	a.header("no key id where keys share an algorithm", `{"alg":"ES256"}`)
	a.header("key id empty", `{"alg":"ES256","kid":""}`)
	a.header("key id a number", `{"alg":"ES256","kid":1}`)
	a.header("key id null", `{"alg":"ES256","kid":null}`)
	a.header("key id a path", `{"alg":"ES256","kid":"../../keys/ec"}`)
	a.header("key id a query", `{"alg":"ES256","kid":"ec' OR '1'='1"}`)
	a.header("key id too long", `{"alg":"ES256","kid":"`+strings.Repeat("k", 600)+`"}`)
	a.header("key id in another case", `{"alg":"ES256","kid":"EC"}`)
	a.header("algorithm twice", `{"alg":"none","alg":"ES256","kid":"ec"}`)
	a.header("key id twice", `{"alg":"ES256","kid":"ec","kid":"ec"}`)
	a.header("algorithm in another case beside it", `{"ALG":"none","alg":"ES256","kid":"ec"}`)
	a.header("algorithm in another case alone", `{"Alg":"ES256","kid":"ec"}`)
	a.header("typ of something else", `{"alg":"ES256","kid":"ec","typ":"secevent+jwt"}`)
	a.header("typ a number", `{"alg":"ES256","kid":"ec","typ":1}`)
	a.header("no object", `["ES256"]`)
	a.header("two documents", `{"alg":"ES256","kid":"ec"}{}`)
	a.header("not UTF-8", "{\"alg\":\"ES256\",\"kid\":\"ec\xff\"}")
	a.header("byte-order mark", "\ufeff{\"alg\":\"ES256\",\"kid\":\"ec\"}")
	a.header("empty", ``)
}

func (a *attacks) bodies() {
	a.changed("no issuer", "iss", nil)
	a.changed("issuer a list", "iss", []string{a.i.URL})
	a.changed("issuer a stranger", "iss", "https://issuer.example")
	a.changed("issuer with a slash more", "iss", a.i.URL+"/")
	a.changed("issuer with a path", "iss", a.i.URL+"/x")
	a.changed("issuer with a user", "iss", strings.Replace(a.i.URL, "://", "://a@", 1))
	a.changed("no subject", "sub", nil)
	a.changed("subject empty", "sub", "")
	a.changed("subject a number", "sub", 1)
	a.changed("subject too long", "sub", subject+strings.Repeat("x", 2000))
	a.changed("no audience", "aud", nil)
	a.changed("audience of another", "aud", "elsewhere")
	a.changed("audience longer", "aud", "scafo-node-2")
	a.changed("audience in another case", "aud", "Scafo-Node")
	a.changed("audience a list without ours", "aud", []string{"a", "b"})
	a.changed("audience an empty list", "aud", []string{})
	a.changed("audience a list of numbers", "aud", []any{"scafo-node", 1})
	a.changed("audience a list with null", "aud", []any{"scafo-node", nil})
	a.changed("audience an object", "aud", map[string]string{"scafo-node": "scafo-node"})
	a.changed("audience two in one text", "aud", "other scafo-node")
	good := a.good()
	a.claims("subject twice", strings.Replace(good, `"sub":`, `"sub":"repo:acme/other","sub":`, 1))
	a.claims("issuer twice", strings.Replace(good, `"iss":`, `"iss":"https://issuer.example","iss":`, 1))
	a.claims("expiry twice", strings.Replace(good, `"exp":`, `"exp":1,"exp":`, 1))
	a.claims("subject in another case beside it", strings.Replace(good, `"sub":`, `"Sub":"x","sub":`, 1))
	a.claims("subject in another case alone", strings.Replace(good, `"sub":`, `"SUB":`, 1))
	a.claims("a list", `[`+good+`]`)
	a.claims("two documents", good+good)
	a.claims("not JSON", good[:len(good)-1])
	a.claims("no claims", `{}`)
	a.claims("expiry with an exponent", strings.Replace(good, `"exp":`, `"exp":9e9,"x":`, 1))
	many := strings.Builder{}
	for n := range 200 {
		fmt.Fprintf(&many, `"m%d":1,`, n)
	}
	a.claims("too many members", `{`+many.String()+good[1:])
	a.claims("deep nesting", strings.Replace(good, `"ref":`, `"deep":`+strings.Repeat("[", 12000)+`,"ref":`, 1))
}

func (a *attacks) encodings() {
	good := a.ec.Token(a.t, a.i.Claims(subject, a.now))
	p := strings.Split(good, ".")
	last := p[2][len(p[2])-1]
	a.add("signature with other unused bits", good[:len(good)-1]+string(last+1))
	a.add("padding", good+"==")
	a.add("a line break", p[0]+"."+p[1]+".\n"+p[2])
	a.add("a space", good+" ")
	a.add("standard base64", p[0]+"."+p[1]+"."+strings.Repeat("+/", 43))
	a.add("two segments", p[0]+"."+p[1])
	a.add("four segments", good+"."+p[2])
	a.add("five segments, as if encrypted", good+".."+p[2])
	a.add("empty signature", p[0]+"."+p[1]+".")
	a.add("empty header", "."+p[1]+"."+p[2])
	a.add("signature cut", good[:len(good)-4])
	a.add("signature longer", good+"AAAA")
	a.add("signature of zeros", p[0]+"."+p[1]+"."+oidctest.B64(make([]byte, 64)))
	a.add("claims of another token", p[0]+"."+strings.Split(a.ec.Token(a.t, a.i.Claims(subject+"x", a.now)), ".")[1]+"."+p[2])
	a.add("too long", p[0]+"."+strings.Repeat("A", oidc.MaxLength)+"."+p[2])
	a.add("JSON serialization", `{"payload":"`+p[1]+`","protected":"`+p[0]+`","signature":"`+p[2]+`"}`)
	sum := sha256.Sum256([]byte(p[0] + "." + p[1]))
	der, err := ecdsa.SignASN1(rand.Reader, a.ec.Private.(*ecdsa.PrivateKey), sum[:])
	if err != nil {
		a.t.Fatal(err)
	}
	a.add("signature in DER", p[0]+"."+p[1]+"."+oidctest.B64(der))
}

func (a *attacks) mismatches() {
	for name, sub := range map[string]string{
		"a subject with the admitted one before it": subject + ":pull_request",
		"a subject with the admitted one behind it": "x" + subject,
		"a repository that shares a prefix":         "repo:acme/shop-evil:ref:refs/heads/main",
		"an owner that shares a suffix":             "repo:evil-acme/shop:ref:refs/heads/main",
		"a look-alike of another script":            strings.Replace(subject, "e", "е", 1),
		"a subject in another case":                 strings.ToUpper(subject),
		"a composed letter where none is":           strings.Replace(subject, "o", "ö", 1),
		"a pull request":                            "repo:acme/shop:pull_request",
		"a subject with a line break":               subject + "\n",
		"a subject with a NUL":                      subject + "\x00",
		"a subject that is a pattern":               "*",
	} {
		a.all = append(a.all, attack{name, a.ec.Token(a.t, a.i.Claims(sub, a.now)), "trust-mismatch"})
	}
}

func TestAttacks(t *testing.T) {
	c := newClock()
	a := &attacks{
		t: t, now: c.now(),
		ec: oidctest.NewKey(t, "ec", "ES256"), rs: oidctest.NewKey(t, "rs", "RS256"),
		ed: oidctest.NewKey(t, "ed", "EdDSA"), stranger: oidctest.NewKey(t, "stranger", "ES256"),
	}
	second := oidctest.NewKey(t, "ec2", "ES256")
	a.i = oidctest.New(t, false, a.ec, a.rs, a.ed, second)
	v := oidc.New(loopback(c))
	p := policy(a.i.URL, subject)
	for _, k := range []oidctest.Key{a.ec, a.rs, a.ed} {
		if err := verify(v, k.Token(t, a.i.Claims(subject, a.now)), p); err != nil {
			t.Fatalf("the good token of %s: %v", k.ID, err)
		}
	}
	a.algorithms()
	a.headers()
	a.bodies()
	a.encodings()
	a.mismatches()
	if len(a.all) < 80 {
		t.Errorf("only %d attacks", len(a.all))
	}
	for _, at := range a.all {
		if got := outcome(verify(v, at.bearer, p)); got != at.want {
			t.Errorf("%s: %s, want %s", at.name, got, at.want)
		}
	}
	if all, _ := a.i.Asked(); all > 4 {
		t.Errorf("the attacks cost the issuer %d requests", all)
	}
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
