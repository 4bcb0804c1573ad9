// Package tokentest makes tokens that no node may accept: every rule of the token
// broken on its own, everything else in order.
package tokentest

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
)

// Signer is who a bad token pretends to be, or is.
type Signer struct {
	ID      string
	Private ed25519.PrivateKey
}

// Bad is one case.
type Bad struct {
	Name string
	// Authorization are the values of that header; none sends no header.
	Authorization []string
}

// B64 is unpadded base64url.
func B64(b string) string { return base64.RawURLEncoding.EncodeToString([]byte(b)) }

// JTI is a well-formed token id made from a seed.
func JTI(seed string) string {
	h := sha256.Sum256([]byte(seed))
	return base64.RawURLEncoding.EncodeToString(h[:16])
}

// Sign makes a compact JWS of any header and claims, as they are spelled.
func Sign(key ed25519.PrivateKey, header, claims string) string {
	signed := B64(header) + "." + B64(claims)
	return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(signed)))
}

// Good is a token that a node accepts.
func Good(s Signer, now time.Time, seed string) string {
	return Sign(s.Private, header(s.ID), claims(s.ID, now.Unix(), now.Unix()+60, JTI(seed)))
}

func header(kid string) string { return fmt.Sprintf(`{"alg":"EdDSA","kid":"%s"}`, kid) }

func claims(sub string, iat, exp int64, jti string) string {
	return fmt.Sprintf(`{"sub":"%s","aud":"scafo-node","iat":%d,"exp":%d,"jti":"%s"}`, sub, iat, exp, jti)
}

// All is every case. s has a record and its key; stranger has neither; other has a
// record and a key of its own.
func All(s, other, stranger Signer, now time.Time) []Bad {
	b := &builder{s: s, now: now}
	b.authorization()
	b.encoding()
	b.headers(other, stranger)
	b.claims()
	b.times()
	b.signatures(other, stranger)
	return b.all
}

type builder struct {
	s   Signer
	now time.Time
	all []Bad
}

func (b *builder) add(name string, authorization ...string) {
	b.all = append(b.all, Bad{Name: name, Authorization: authorization})
}

func (b *builder) bearer(name, token string) { b.add(name, "Bearer "+token) }

// signed adds a token with any header and claims and a good signature.
func (b *builder) signed(name, header, claims string) {
	b.bearer(name, Sign(b.s.Private, header, claims))
}

// good is a fresh token for a case to spoil.
func (b *builder) good() string { return Good(b.s, b.now, fmt.Sprint("bad-", len(b.all))) }

func (b *builder) header() string { return header(b.s.ID) }

// claim is the good claims with one part of their text replaced.
func (b *builder) claim(old, new string) string {
	c := claims(b.s.ID, b.now.Unix(), b.now.Unix()+60, JTI(fmt.Sprint("bad-", len(b.all))))
	if old != "" && !strings.Contains(c, old) {
		panic("nothing to replace: " + old)
	}
	return strings.Replace(c, old, new, 1)
}

func (b *builder) authorization() {
	b.add("no header")
	b.add("empty header", "")
	b.add("scheme alone", "Bearer")
	b.add("scheme and a space", "Bearer ")
	b.add("no scheme", b.good())
	b.add("another scheme", "Basic "+b.good())
	b.add("a look-alike scheme", "Bearers "+b.good())
	b.add("two headers", "Bearer "+b.good(), "Bearer "+b.good())
	b.add("two tokens in one header", "Bearer "+b.good()+", Bearer "+b.good())
	b.add("quoted", `Bearer "`+b.good()+`"`)
	b.add("two spaces", "Bearer  "+b.good())
	b.add("an ingress token", "Bearer ingress-secret")
}

func (b *builder) encoding() {
	parts := func() []string { return strings.Split(b.good(), ".") }
	p := parts()
	b.bearer("one segment", p[0])
	b.bearer("two segments", p[0]+"."+p[1])
	b.bearer("four segments", strings.Join(append(parts(), "AA"), "."))
	b.bearer("a trailing dot", b.good()+".")
	b.bearer("empty header segment", "."+p[1]+"."+p[2])
	b.bearer("empty claims segment", p[0]+".."+p[2])
	b.bearer("empty signature", p[0]+"."+p[1]+".")
	b.bearer("padded segments", p[0]+"=."+p[1]+"."+p[2])
	b.bearer("standard base64", p[0]+"."+p[1]+"."+strings.NewReplacer("-", "+", "_", "/").Replace(p[2])+"+/")
	b.bearer("a space inside", p[0]+". "+p[1]+"."+p[2])
	b.bearer("a percent escape", p[0]+"%2E"+p[1]+"."+p[2])
	b.bearer("not ASCII", p[0]+".\u00e9"+p[1]+"."+p[2])
	b.bearer("non-canonical signature tail", b.good()[:len(b.good())-1]+"B")
	b.bearer("impossible base64 length", p[0]+"."+p[1]+"."+p[2]+"AAA")
	b.bearer("longer than any token", Sign(b.s.Private, b.header(), b.claim(`{`, `{"pad":"`+strings.Repeat("x", 2048)+`",`)))
	b.bearer("header is no base64 of JSON", Sign(b.s.Private, "not json", b.claim("", "")))
	b.bearer("JSON serialization", B64(`{"payload":"","signatures":[]}`))
	b.bearer("five segments of an encrypted token", "a.b.c.d.e")
}

func (b *builder) headers(other, stranger Signer) {
	h := func(name, text string) { b.signed("header: "+name, text, b.claim("", "")) }
	id := b.s.ID
	h("alg none", fmt.Sprintf(`{"alg":"none","kid":"%s"}`, id))
	h("alg in another case", fmt.Sprintf(`{"alg":"eddsa","kid":"%s"}`, id))
	h("alg Ed25519", fmt.Sprintf(`{"alg":"Ed25519","kid":"%s"}`, id))
	h("alg HS256", fmt.Sprintf(`{"alg":"HS256","kid":"%s"}`, id))
	h("alg ES256", fmt.Sprintf(`{"alg":"ES256","kid":"%s"}`, id))
	h("alg missing", fmt.Sprintf(`{"kid":"%s"}`, id))
	h("alg null", fmt.Sprintf(`{"alg":null,"kid":"%s"}`, id))
	h("alg a list", fmt.Sprintf(`{"alg":["EdDSA"],"kid":"%s"}`, id))
	h("alg twice", fmt.Sprintf(`{"alg":"EdDSA","alg":"EdDSA","kid":"%s"}`, id))
	h("alg and ALG", fmt.Sprintf(`{"alg":"EdDSA","ALG":"none","kid":"%s"}`, id))
	h("alg escaped twice", fmt.Sprintf(`{"alg":"EdDSA","\u0061lg":"EdDSA","kid":"%s"}`, id))
	h("kid missing", `{"alg":"EdDSA"}`)
	h("kid empty", `{"alg":"EdDSA","kid":""}`)
	h("kid a number", `{"alg":"EdDSA","kid":7}`)
	h("kid twice", fmt.Sprintf(`{"alg":"EdDSA","kid":"%s","kid":"%s"}`, other.ID, id))
	h("kid in another case", fmt.Sprintf(`{"alg":"EdDSA","kid":"%s"}`, strings.ToUpper(id)))
	h("kid with the Kelvin sign as k", fmt.Sprintf(`{"alg":"EdDSA","`+"\u212a"+`id":"%s"}`, id))
	h("kid climbs", `{"alg":"EdDSA","kid":"../operators/`+id+`"}`)
	h("kid with a slash", `{"alg":"EdDSA","kid":"`+id+`/x"}`)
	h("kid with a line break", `{"alg":"EdDSA","kid":"`+id+`\n"}`)
	h("kid with a NUL", `{"alg":"EdDSA","kid":"`+id+`\u0000"}`)
	h("kid too long", `{"alg":"EdDSA","kid":"`+strings.Repeat("a", 64)+`"}`)
	h("kid of a stranger", header(stranger.ID))
	h("kid of somebody else", header(other.ID))
	h("crit", fmt.Sprintf(`{"alg":"EdDSA","kid":"%s","crit":["exp"],"exp":1}`, id))
	h("crit empty", fmt.Sprintf(`{"alg":"EdDSA","kid":"%s","crit":null}`, id))
	h("embedded jwk", fmt.Sprintf(`{"alg":"EdDSA","kid":"%s","jwk":{"kty":"OKP"}}`, id))
	h("jku", fmt.Sprintf(`{"alg":"EdDSA","kid":"%s","jku":"https://evil.example/jwks"}`, id))
	h("x5u", fmt.Sprintf(`{"alg":"EdDSA","kid":"%s","x5u":"https://evil.example/cert"}`, id))
	h("b64 false", fmt.Sprintf(`{"alg":"EdDSA","kid":"%s","b64":false}`, id))
	h("typ of something else", fmt.Sprintf(`{"alg":"EdDSA","kid":"%s","typ":"dpop+jwt"}`, id))
	h("a list", `["EdDSA"]`)
	h("trailing data", b.header()+`{}`)
	h("invalid UTF-8", "{\"alg\":\"EdDSA\",\"kid\":\""+id+"\",\"typ\":\"\xff\"}")
	h("byte-order mark", "\ufeff"+b.header())
	h("single quotes", `{'alg':'EdDSA'}`)
}

func (b *builder) claims() {
	c := func(name, old, new string) { b.signed("claims: "+name, b.header(), b.claim(old, new)) }
	sub := `"sub":"` + b.s.ID + `"`
	c("sub missing", sub+",", "")
	c("sub of somebody else", sub, `"sub":"somebody"`)
	c("sub null", sub, `"sub":null`)
	c("sub twice", sub, `"sub":"somebody",`+sub)
	c("Sub beside sub", sub, `"Sub":"somebody",`+sub)
	c("sub with a trailing space", sub, `"sub":"`+b.s.ID+` "`)
	c("aud missing", `"aud":"scafo-node",`, "")
	c("aud of another service", `"aud":"scafo-node"`, `"aud":"scafo"`)
	c("aud longer", `"aud":"scafo-node"`, `"aud":"scafo-node-2"`)
	c("aud in another case", `"aud":"scafo-node"`, `"aud":"Scafo-Node"`)
	c("aud a list", `"aud":"scafo-node"`, `"aud":["scafo-node"]`)
	c("aud a list of two", `"aud":"scafo-node"`, `"aud":["other","scafo-node"]`)
	c("aud twice", `"aud":"scafo-node"`, `"aud":"other","aud":"scafo-node"`)
	c("jti missing", `,"jti"`, `,"id"`)
	c("jti empty", JTI(fmt.Sprint("bad-", len(b.all))), "")
	c("jti too short", JTI(fmt.Sprint("bad-", len(b.all))), "AAAAAAAAAAAAAAAAAAAA")
	c("jti too long", JTI(fmt.Sprint("bad-", len(b.all))), "AAAAAAAAAAAAAAAAAAAAAAAA")
	c("jti non-canonical", JTI(fmt.Sprint("bad-", len(b.all))), "AAAAAAAAAAAAAAAAAAAAAB")
	c("jti padded", JTI(fmt.Sprint("bad-", len(b.all))), "AAAAAAAAAAAAAAAAAAAAAA==")
	c("jti of standard base64", JTI(fmt.Sprint("bad-", len(b.all))), "+/AAAAAAAAAAAAAAAAAAAA")
	c("jti a number", `"`+JTI(fmt.Sprint("bad-", len(b.all)))+`"`, "1234567890123456789012")
	c("a line break in jti", JTI(fmt.Sprint("bad-", len(b.all))), `AAAAAAAAAAA\nAAAAAAAAAAA`)
	c("a nested claim", `{`, `{"cnf":{"jkt":"x"},`)
	c("too many claims", `{`, `{`+strings.Join(many(20), ",")+`,`)
	b.signed("claims: an empty object", b.header(), "{}")
	b.signed("claims: null", b.header(), "null")
	b.signed("claims: a string", b.header(), `"scafo"`)
	b.signed("claims: unfinished", b.header(), `{"sub":`)
	b.signed("claims: trailing comma", b.header(), b.claim(`"}`, `",}`))
}

func many(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(`"c%d":1`, i)
	}
	return out
}

func (b *builder) times() {
	iat, exp := fmt.Sprintf(`"iat":%d`, b.now.Unix()), fmt.Sprintf(`"exp":%d`, b.now.Unix()+60)
	c := func(name, old, new string) { b.signed("times: "+name, b.header(), b.claim(old, new)) }
	at := func(name string, iat, exp time.Duration) {
		jti := JTI(fmt.Sprint("bad-", len(b.all)))
		b.signed("times: "+name, b.header(), claims(b.s.ID, b.now.Add(iat).Unix(), b.now.Add(exp).Unix(), jti))
	}
	at("a lifetime of 61 s", 0, 61*time.Second)
	at("a lifetime of an hour", 0, time.Hour)
	at("no lifetime", 0, 0)
	at("expires before it was issued", 0, -10*time.Second)
	at("expired 30 s ago", -60*time.Second, -30*time.Second)
	at("expired 31 s ago", -61*time.Second, -31*time.Second)
	at("expired an hour ago", -time.Hour-time.Minute, -time.Hour)
	at("issued 31 s ahead", 31*time.Second, 91*time.Second)
	at("issued an hour ahead", time.Hour, time.Hour+time.Minute)
	c("iat missing", iat+",", "")
	c("exp missing", exp+",", "")
	c("iat a string", iat, fmt.Sprintf(`"iat":"%d"`, b.now.Unix()))
	c("exp a string", exp, fmt.Sprintf(`"exp":"%d"`, b.now.Unix()+60))
	c("iat a fraction", iat, iat+".0")
	c("exp a fraction", exp, exp+".5")
	c("iat an exponent", iat, iat+"e0")
	c("exp an exponent", exp, `"exp":2e9`)
	c("exp beyond 64 bits", exp, `"exp":99999999999999999999`)
	c("iat negative", iat, `"iat":-1`)
	c("exp null", exp, `"exp":null`)
	c("exp twice", exp, `"exp":1,`+exp)
	c("EXP beside exp", exp, `"EXP":1,`+exp)
	c("nbf 31 s ahead", iat, fmt.Sprintf(`"nbf":%d,%s`, b.now.Unix()+31, iat))
	c("nbf a string", iat, `"nbf":"0",`+iat)
}

func (b *builder) signatures(other, stranger Signer) {
	p := strings.Split(b.good(), ".")
	q := strings.Split(Good(b.s, b.now, "other claims"), ".")
	b.bearer("signature of other claims", p[0]+"."+p[1]+"."+q[2])
	b.bearer("signature of zeros", p[0]+"."+p[1]+"."+B64(strings.Repeat("\x00", 64)))
	b.bearer("signature of 63 bytes", p[0]+"."+p[1]+"."+B64(strings.Repeat("\x01", 63)))
	b.bearer("signature of 65 bytes", p[0]+"."+p[1]+"."+B64(strings.Repeat("\x01", 65)))
	b.bearer("signed by somebody else", Sign(other.Private, b.header(), b.claim("", "")))
	b.bearer("signed by a stranger", Sign(stranger.Private, b.header(), b.claim("", "")))
	b.bearer("a stranger's own token", Good(stranger, b.now, "stranger"))
	b.bearer("S is not reduced", p[0]+"."+p[1]+"."+unreduced(p[2]))
	public, _ := b.s.Private.Public().(ed25519.PublicKey)
	signed := B64(fmt.Sprintf(`{"alg":"HS256","kid":"%s"}`, b.s.ID)) + "." + p[1]
	mac := hmac.New(sha256.New, public)
	mac.Write([]byte(signed))
	b.bearer("HMAC with the public key", signed+"."+base64.RawURLEncoding.EncodeToString(mac.Sum(nil)))
	b.bearer("alg none and no signature", B64(fmt.Sprintf(`{"alg":"none","kid":"%s"}`, b.s.ID))+"."+p[1]+".")
	b.bearer("claims changed after signing", p[0]+"."+B64(b.claim(`"jti"`, `"x":1,"jti"`))+"."+p[2])
}

// unreduced adds the order of the group to S: the same equation holds, and a
// verifier that does not look lets one signature have two spellings.
func unreduced(signature string) string {
	order := [32]byte{0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 31: 0x10}
	s, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil {
		panic(err)
	}
	carry := 0
	for i := range order {
		sum := int(s[32+i]) + int(order[i]) + carry
		s[32+i], carry = byte(sum), sum>>8
	}
	return base64.RawURLEncoding.EncodeToString(s)
}
