// Package oidc verifies workload tokens: the ID tokens of OpenID Connect that a
// pipeline's provider signs for a job (OpenID Connect Core 1.0, section 2; JWS, RFC
// 7515; JWT, RFC 7519).
//
// Nothing is fetched for an issuer that the trust policy at hand does not name, and
// nothing from an address that a policy's issuer does not lead to.
package oidc

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/token"
)

const (
	// MaxLength bounds a workload token's characters. Those of the known providers
	// have one to three thousand.
	MaxLength = 16 << 10
	// Skew is how far the clocks of issuer and verifier may differ.
	Skew = 30 * time.Second

	maxMembers = 128     // of one object
	maxKeyID   = 512     // bytes of a kid
	maxSubject = 1024    // bytes of a sub
	maxClaim   = 512     // bytes of a claim that is kept as provenance
	maxTime    = 1 << 40 // the last second that a NumericDate may name
)

// Token is a workload token before its signature is verified: what it says is a
// claim of whoever sent it.
type Token struct {
	Algorithm string
	KeyID     string // empty where the header names none
	Issuer    string
	Subject   string
	Audience  []string

	expires   float64
	notBefore float64 // 0 where there is none
	issued    float64 // 0 where there is none
	claims    object

	signed    string
	payload   []byte // the claims, decoded
	signature []byte
	compact   string
}

func refuse(reason string) error { return token.Refusal(reason) }

var encoding = base64.RawURLEncoding.Strict()

// Parse takes a compact JWS apart and holds it to every rule that needs no key, no
// clock and no policy. The error is a [token.Refusal].
func Parse(s string) (*Token, error) {
	parts, err := split(s)
	if err != nil {
		return nil, err
	}
	t := &Token{compact: s, signed: s[:len(parts[0])+1+len(parts[1])]}
	if err := t.parseHeader(parts[0]); err != nil {
		return nil, err
	}
	if err := t.parseClaims(parts[1]); err != nil {
		return nil, err
	}
	if t.signature, err = encoding.DecodeString(parts[2]); err != nil {
		return nil, refuse("signature-encoding")
	}
	return t, nil
}

// Issued reports whether a bearer token looks like a workload token: its claims name
// an issuer, which those of nodes and operators never do. It is for choosing the
// verifier, not for believing anything.
func Issued(bearer string) bool {
	parts, err := split(bearer)
	if err != nil {
		return false
	}
	claims, _, err := decode(parts[1])
	return err == nil && claims.get("iss") != ""
}

// split checks the alphabet before anything is decoded (a decoder would skip line
// breaks) and that there are exactly three segments, none of them empty.
func split(s string) (parts [3]string, err error) {
	if len(s) > MaxLength {
		return parts, refuse("too-long")
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return parts, refuse("alphabet")
		}
	}
	list := strings.Split(s, ".")
	if len(list) != 3 || list[0] == "" || list[1] == "" || list[2] == "" {
		return parts, refuse("segments")
	}
	return [3]string(list), nil
}

// object is a JSON object whose names differ by more than case. It is a list, since the
// few members of a token are found sooner so than they are put into a map.
type object []member

type member struct {
	name, folded string
	value        string // as it is spelled: a JSON value, which is never empty
}

// get is a member's value; empty where there is none.
func (o object) get(name string) string {
	for i := range o {
		if o[i].name == name {
			return o[i].value
		}
	}
	return ""
}

// decode reads a segment: canonical base64url of one JSON object. encoding/json would
// take the last of two members of one name, and match names without case.
func decode(segment string) (o object, text []byte, err error) {
	b, err := encoding.DecodeString(segment)
	if err != nil {
		return nil, nil, refuse("encoding")
	}
	if !utf8.Valid(b) {
		return nil, nil, refuse("utf-8")
	}
	if o, err = parseObject(b); err != nil {
		return nil, nil, refuse("json")
	}
	return o, b, nil
}

var errObject = errors.New("not one JSON object with distinct names")

func parseObject(b []byte) (object, error) {
	if !json.Valid(b) {
		return nil, errObject
	}
	// From here on the text is known to be one JSON value: what follows takes it
	// apart, and never looks behind its end.
	s := string(b)
	at := skipSpace(s, 0)
	if s[at] != '{' {
		return nil, errObject
	}
	o := make(object, 0, 16)
	for at = skipSpace(s, at+1); s[at] != '}'; {
		end := valueEnd(s, at)
		name, ok := text(s[at:end])
		folded := strings.ToLower(name)
		if !ok || len(o) == maxMembers || slices.ContainsFunc(o, func(m member) bool { return m.folded == folded }) {
			return nil, errObject
		}
		// A name that differs from a known one by case alone is a trap set for some
		// other reader.
		if folded != name && known[folded] {
			return nil, errObject
		}
		at = skipSpace(s, skipSpace(s, end)+1) // behind the colon
		end = valueEnd(s, at)
		o = append(o, member{name: name, folded: folded, value: s[at:end]})
		if at = skipSpace(s, end); s[at] == ',' {
			at = skipSpace(s, at+1)
		}
	}
	return o, nil
}

// skipSpace is where the first byte at or behind at is that is no white space.
func skipSpace(s string, at int) int {
	for at < len(s) && (s[at] == ' ' || s[at] == '\t' || s[at] == '\r' || s[at] == '\n') {
		at++
	}
	return at
}

// valueEnd is where the value that begins at at ends, in valid JSON.
func valueEnd(s string, at int) int {
	depth := 0
	for ; at < len(s); at++ {
		switch s[at] {
		case '"':
			for at++; at < len(s) && s[at] != '"'; at++ {
				if s[at] == '\\' {
					at++
				}
			}
			if depth == 0 {
				return at + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // behind a number, or a literal
				return at
			}
			if depth--; depth == 0 {
				return at + 1
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return at
			}
		}
	}
	return at
}

// text is a JSON value that is a string.
func text(raw string) (string, bool) {
	if n := len(raw); n >= 2 && raw[0] == '"' && strings.IndexByte(raw, '\\') < 0 {
		return raw[1 : n-1], true // valid JSON without an escape is what it says
	}
	var s *string
	if json.Unmarshal([]byte(raw), &s) != nil || s == nil {
		return "", false
	}
	return *s, true
}

// known are the names that have a meaning to readers of JWS and JWT.
var known = map[string]bool{
	"alg": true, "kid": true, "typ": true, "crit": true, "b64": true, "jwk": true, "jku": true, "x5u": true, "x5c": true,
	"iss": true, "sub": true, "aud": true, "exp": true, "nbf": true, "iat": true, "jti": true,
}

// text is the value of a member that is a string.
func (o object) text(name string) (string, bool) { return text(o.get(name)) }

// date is a NumericDate: seconds, maybe with a fraction (RFC 7519, section 2).
func (o object) date(name string) (float64, bool) {
	raw := o.get(name)
	if raw == "" || strings.Trim(raw, "0123456789.") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(raw, 64)
	return f, err == nil && !math.IsInf(f, 0) && f > 0 && f <= maxTime
}

func (t *Token) parseHeader(segment string) error {
	h, _, err := decode(segment)
	if err != nil {
		return err
	}
	// Nothing that carries or fetches a key, changes the encoding, or must be
	// understood is taken from whoever sent the token.
	for _, name := range []string{"crit", "b64", "jwk", "jku", "x5u", "x5c"} {
		if h.get(name) != "" {
			return refuse("header-" + name)
		}
	}
	var ok bool
	if t.Algorithm, ok = h.text("alg"); !ok || !Supported(t.Algorithm) {
		return refuse("algorithm")
	}
	if h.get("kid") != "" {
		if t.KeyID, ok = h.text("kid"); !ok || t.KeyID == "" || len(t.KeyID) > maxKeyID {
			return refuse("key-id")
		}
	}
	if h.get("typ") != "" {
		// at+jwt is what RFC 9068 calls an access token that is a JWT.
		if typ, ok := h.text("typ"); !ok || (!strings.EqualFold(typ, "JWT") && !strings.EqualFold(typ, "at+jwt")) {
			return refuse("header-typ")
		}
	}
	return nil
}

func (t *Token) parseClaims(segment string) error {
	c, text, err := decode(segment)
	if err != nil {
		return err
	}
	t.claims, t.payload = c, text
	var ok bool
	if t.Issuer, ok = c.text("iss"); !ok || t.Issuer == "" || len(t.Issuer) > scafo.MaxTrustText {
		return refuse("issuer")
	}
	if t.Subject, ok = c.text("sub"); !ok || t.Subject == "" || len(t.Subject) > maxSubject {
		return refuse("subject")
	}
	if one, isText := c.text("aud"); isText {
		t.Audience = []string{one}
	} else if !isList(c.get("aud"), &t.Audience) {
		return refuse("audience")
	}
	if t.expires, ok = c.date("exp"); !ok {
		return refuse("expiry")
	}
	for name, to := range map[string]*float64{"nbf": &t.notBefore, "iat": &t.issued} {
		if c.get(name) == "" {
			continue
		}
		if *to, ok = c.date(name); !ok {
			return refuse("not-a-date")
		}
	}
	return nil
}

// isList reads a list of strings; null is none, also as an item.
func isList(raw string, to *[]string) bool {
	var list []*string
	if json.Unmarshal([]byte(raw), &list) != nil || len(list) == 0 {
		return false
	}
	for _, s := range list {
		if s == nil {
			return false
		}
		*to = append(*to, *s)
	}
	return true
}

// ValidAt checks the token's times against a clock, [Skew] allowed at each end.
func (t *Token) ValidAt(now time.Time) error {
	at, skew := float64(now.UnixNano())/1e9, Skew.Seconds()
	switch {
	case at >= t.expires+skew:
		return refuse("expired")
	case t.notBefore > at+skew:
		return refuse("not-yet-valid")
	case t.issued > at+skew:
		return refuse("issued-in-the-future")
	}
	return nil
}

// Provenance is what the token says of the job that it was signed for, by the names
// that GitHub and GitLab give it.
func (t *Token) Provenance() scafo.Provenance {
	return scafo.Provenance{
		Issuer: t.Issuer, Subject: t.Subject,
		Repository: t.first("repository", "project_path"),
		Ref:        t.first("ref"),
		Commit:     t.first("sha"),
		Run:        t.first("run_id", "pipeline_id"),
	}
}

// first is the first of the claims that is a text, or a whole number, of a length
// worth keeping.
func (t *Token) first(names ...string) string {
	for _, name := range names {
		s, ok := t.claims.text(name)
		if !ok {
			var n json.Number
			if raw := t.claims.get(name); raw == "" || raw[0] == '"' || json.Unmarshal([]byte(raw), &n) != nil {
				continue
			}
			s = n.String()
		}
		if s != "" && len(s) <= maxClaim {
			return s
		}
	}
	return ""
}
