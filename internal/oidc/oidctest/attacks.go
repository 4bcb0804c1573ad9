package oidctest

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
	"strings"
	"testing"
	"time"
)

// maxLength is that of package oidc, whose own tests import this one.
const maxLength = 16 << 10

// Attack is a token that must not be accepted.
type Attack struct {
	Name, Bearer string
	// Mismatch: the token is good, and of a subject that is not admitted. Any other is
	// to be refused as one that does not hold up.
	Mismatch bool
}

// Header reports whether a request's header carries the token as it is spelled.
func (a Attack) Header() bool {
	return strings.TrimSpace(a.Bearer) == a.Bearer && !strings.ContainsAny(a.Bearer, "\r\n\x00")
}

// Target is what attacks are made against: an issuer with several keys, and a stranger
// whom no policy names and who would vouch for what names it.
type Target struct {
	Issuer, Stranger *Issuer
	Subject          string // the one that is admitted

	ec, rs, ed, stranger Key
}

// NewTarget starts both.
func NewTarget(t testing.TB, subject string) *Target {
	t.Helper()
	x := &Target{
		Subject: subject, ec: NewKey(t, "ec", "ES256"), rs: NewKey(t, "rs", "RS256"),
		ed: NewKey(t, "ed", "EdDSA"), stranger: NewKey(t, "stranger", "ES256"),
	}
	x.Issuer = New(t, false, x.ec, x.rs, x.ed, NewKey(t, "ec2", "ES256"))
	x.Stranger = New(t, false, x.stranger)
	return x
}

// Good is a token that is accepted, for each kind of key.
func (x *Target) Good(t testing.TB, now time.Time) map[string]string {
	all := map[string]string{}
	for _, k := range []Key{x.ec, x.rs, x.ed} {
		all[k.Algorithm] = k.Token(t, x.Issuer.Claims(x.Subject, now))
	}
	return all
}

// Attacks makes them all.
func (x *Target) Attacks(t testing.TB, now time.Time) []Attack {
	t.Helper()
	a := &attacks{Target: x, t: t, now: now}
	a.algorithms()
	a.headers()
	a.bodies()
	a.encodings()
	a.mismatches()
	return a.all
}

// Quiet checks that the attacks, and good tokens before them, cost the issuer what it
// costs to know its keys, and that nobody asked the stranger for anything.
func (x *Target) Quiet(t testing.TB) {
	t.Helper()
	if all, _ := x.Issuer.Asked(); all == 0 || all > 4 {
		t.Errorf("the attacks cost the issuer %d requests", all)
	}
	if all, _ := x.Stranger.Asked(); all != 0 {
		t.Errorf("the stranger was asked %d times", all)
	}
}

// attacks makes them.
type attacks struct {
	*Target
	t   testing.TB
	now time.Time
	all []Attack
}

func (a *attacks) add(name, bearer string) {
	a.all = append(a.all, Attack{Name: name, Bearer: bearer})
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
	c := a.Issuer.Claims(a.Subject, a.now)
	if value == nil {
		delete(c, claim)
	} else {
		c[claim] = value
	}
	a.add(name, a.ec.Token(a.t, c))
}

func (a *attacks) good() string {
	b, err := json.Marshal(a.Issuer.Claims(a.Subject, a.now))
	if err != nil {
		a.t.Fatal(err)
	}
	return string(b)
}

func (a *attacks) algorithms() {
	good := a.good()
	unsigned := func(header string) string {
		return B64([]byte(header)) + "." + B64([]byte(good)) + "."
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
		text := B64([]byte(`{"alg":"HS256","kid":"rs"}`)) + "." + B64([]byte(good))
		m := hmac.New(sha256.New, secret)
		m.Write([]byte(text))
		a.add("HS256 with the public key as "+name, text+"."+B64(m.Sum(nil)))
	}
	// A key of the issuer under an algorithm that is not its own.
	other := func(name string, k Key, alg, kid string) {
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
	own("jku of the issuer", `{"alg":"ES256","kid":"stranger","jku":"`+a.Issuer.URL+`/keys"}`)
	own("jku of a stranger", `{"alg":"ES256","kid":"stranger","jku":"`+a.Stranger.URL+`/keys"}`)
	own("x5u", `{"alg":"ES256","kid":"stranger","x5u":"`+a.Stranger.URL+`/keys"}`)
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
	a.changed("issuer a list", "iss", []string{a.Issuer.URL})
	a.changed("issuer a stranger", "iss", "https://issuer.example")
	a.add("issuer a stranger who vouches for it", a.stranger.Token(a.t, a.Stranger.Claims(a.Subject, a.now)))
	a.changed("issuer a stranger, the key an admitted issuer's", "iss", a.Stranger.URL)
	a.changed("issuer two", "iss", a.Issuer.URL+" "+a.Stranger.URL)
	a.changed("issuer with a fragment", "iss", a.Issuer.URL+"#"+a.Stranger.URL)
	a.changed("issuer with a slash more", "iss", a.Issuer.URL+"/")
	a.changed("issuer with a path", "iss", a.Issuer.URL+"/x")
	a.changed("issuer with a user", "iss", strings.Replace(a.Issuer.URL, "://", "://a@", 1))
	a.changed("expired", "exp", a.now.Unix()-60)
	a.changed("no expiry", "exp", nil)
	a.changed("expiry a text", "exp", fmt.Sprint(a.now.Unix()+300))
	a.changed("not yet", "nbf", a.now.Unix()+120)
	a.changed("issued in the future", "iat", a.now.Unix()+120)
	a.changed("no subject", "sub", nil)
	a.changed("subject empty", "sub", "")
	a.changed("subject a number", "sub", 1)
	a.changed("subject too long", "sub", a.Subject+strings.Repeat("x", 2000))
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
	good := a.ec.Token(a.t, a.Issuer.Claims(a.Subject, a.now))
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
	a.add("signature of zeros", p[0]+"."+p[1]+"."+B64(make([]byte, 64)))
	a.add("claims of another token", p[0]+"."+strings.Split(a.ec.Token(a.t, a.Issuer.Claims(a.Subject+"x", a.now)), ".")[1]+"."+p[2])
	a.add("too long", p[0]+"."+strings.Repeat("A", maxLength)+"."+p[2])
	a.add("JSON serialization", `{"payload":"`+p[1]+`","protected":"`+p[0]+`","signature":"`+p[2]+`"}`)
	sum := sha256.Sum256([]byte(p[0] + "." + p[1]))
	der, err := ecdsa.SignASN1(rand.Reader, a.ec.Private.(*ecdsa.PrivateKey), sum[:])
	if err != nil {
		a.t.Fatal(err)
	}
	a.add("signature in DER", p[0]+"."+p[1]+"."+B64(der))
}

func (a *attacks) mismatches() {
	for name, sub := range map[string]string{
		"a subject with the admitted one before it": a.Subject + ":pull_request",
		"a subject with the admitted one behind it": "x" + a.Subject,
		"a repository that shares a prefix":         "repo:acme/shop-evil:ref:refs/heads/main",
		"an owner that shares a suffix":             "repo:evil-acme/shop:ref:refs/heads/main",
		"a look-alike of another script":            strings.Replace(a.Subject, "e", "е", 1),
		"a subject in another case":                 strings.ToUpper(a.Subject),
		"a composed letter where none is":           strings.Replace(a.Subject, "o", "ö", 1),
		"a pull request":                            "repo:acme/shop:pull_request",
		"a subject with a line break":               a.Subject + "\n",
		"a subject with a NUL":                      a.Subject + "\x00",
		"a subject that is a pattern":               "*",
	} {
		a.all = append(a.all, Attack{name, a.ec.Token(a.t, a.Issuer.Claims(sub, a.now)), true})
	}
}
