// Package token makes and reads the tokens that nodes and operators present to
// each other: compact JWS (RFC 7515), signed with Ed25519, living for at most a
// minute, used once.
//
// It is pure: time, keys and token ids are arguments. Which key belongs to a kid,
// and whether a token was used before, is for package auth to find out.
package token

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/scafo/scafo"
)

const (
	// Audience is the aud of every token.
	Audience = "scafo-node"
	// Algorithm is the one alg that is accepted.
	Algorithm = "EdDSA"
	// MaxLifetime bounds exp - iat.
	MaxLifetime = 60 * time.Second
	// Skew is how far the clocks of signer and verifier may differ, at both ends.
	Skew = 30 * time.Second
	// IDBytes is how many random bytes a jti encodes.
	IDBytes = 16
	// MaxLength bounds a token's characters. The longest honest one (an id of 63
	// characters) has 421.
	MaxLength = 2048
	// maxTime is the last second that a NumericDate may name: beyond it only
	// overflow is to be had.
	maxTime = 1 << 40
)

// Claims are what a token says, after every check that needs neither a key nor a
// clock. The signature is not verified yet.
type Claims struct {
	KeyID    string // kid, equal to sub; it passed the id grammar
	IssuedAt time.Time
	Expires  time.Time
	ID       string // jti, as it was spelled: 22 characters, canonical

	signed    string // header.claims
	signature [ed25519.SignatureSize]byte
}

// Verify reports whether key signed the token.
func (c *Claims) Verify(key ed25519.PublicKey) bool {
	return len(key) == ed25519.PublicKeySize && ed25519.Verify(key, []byte(c.signed), c.signature[:])
}

// ValidAt checks the token's times against a clock: not issued later than Skew
// from now, and not expired for Skew or longer.
func (c *Claims) ValidAt(now time.Time) error {
	if c.IssuedAt.After(now.Add(Skew)) {
		return refuse("issued-in-the-future")
	}
	if !now.Before(c.Expires.Add(Skew)) {
		return refuse("expired")
	}
	return nil
}

// Refusal is why a token is refused. It is for logs and counters: callers are
// told that the token is refused, and nothing more.
type Refusal string

func (r Refusal) Error() string { return "token refused: " + string(r) }

func refuse(reason string) error { return Refusal(reason) }

var encoding = base64.RawURLEncoding.Strict()

// Mint signs a token of the full lifetime. jti must be random and new.
func Mint(key ed25519.PrivateKey, kid string, now time.Time, jti [IDBytes]byte) string {
	iat := now.Unix()
	exp := iat + int64(MaxLifetime/time.Second)
	// kid and the encoded jti have no character that JSON would escape; a kid
	// outside the id grammar makes a token that no node accepts.
	header := `{"alg":"` + Algorithm + `","kid":` + strconv.Quote(kid) + `}`
	claims := `{"sub":` + strconv.Quote(kid) + `,"aud":"` + Audience + `","iat":` + strconv.FormatInt(iat, 10) +
		`,"exp":` + strconv.FormatInt(exp, 10) + `,"jti":"` + encoding.EncodeToString(jti[:]) + `"}`
	signed := encoding.EncodeToString([]byte(header)) + "." + encoding.EncodeToString([]byte(claims))
	return signed + "." + encoding.EncodeToString(ed25519.Sign(key, []byte(signed)))
}

// Parse takes a compact JWS apart and holds it to every rule that needs neither
// key nor clock. The error is a [Refusal].
func Parse(s string) (*Claims, error) {
	header, claims, signature, err := split(s)
	if err != nil {
		return nil, err
	}
	c := &Claims{signed: s[:len(header)+1+len(claims)]}
	if c.KeyID, err = parseHeader(header); err != nil {
		return nil, err
	}
	if err := c.parseClaims(claims); err != nil {
		return nil, err
	}
	if len(signature) != encoding.EncodedLen(len(c.signature)) {
		return nil, refuse("signature-length")
	}
	if _, err := encoding.Decode(c.signature[:], []byte(signature)); err != nil {
		return nil, refuse("signature-encoding")
	}
	return c, nil
}

// split checks the alphabet before anything is decoded (the decoder skips line
// breaks) and that there are exactly three segments, none of them empty.
func split(s string) (header, claims, signature string, err error) {
	if s == "" {
		return "", "", "", refuse("missing")
	}
	if len(s) > MaxLength {
		return "", "", "", refuse("too-long")
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return "", "", "", refuse("alphabet")
		}
	}
	parts := strings.Split(s, ".")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return "", "", "", refuse("segments")
	}
	return parts[0], parts[1], parts[2], nil
}

// parseHeader returns the kid. Beside alg and kid only typ may be there, and it
// must say JWT: nothing that names or carries a key, changes the encoding, or
// must be understood (crit) is worth accepting from a signer that has no use
// for it.
func parseHeader(segment string) (kid string, err error) {
	m, err := decodeSegment(segment, "header")
	if err != nil {
		return "", err
	}
	for _, e := range m {
		switch e.name {
		case "alg", "kid":
		case "typ":
			if t, ok := e.text(); !ok || !strings.EqualFold(t, "JWT") {
				return "", refuse("header-typ")
			}
		default:
			return "", refuse("header-member")
		}
	}
	if alg, ok := m.text("alg"); !ok || alg != Algorithm {
		return "", refuse("algorithm")
	}
	kid, ok := m.text("kid")
	if !ok || !scafo.ValidName(kid) {
		return "", refuse("key-id")
	}
	return kid, nil
}

// parseClaims reads the five claims. Others are ignored, as RFC 7519 has it,
// unless they differ from one of the five by case alone; nbf is honoured through
// IssuedAt, the later of the two.
func (c *Claims) parseClaims(segment string) error {
	m, err := decodeSegment(segment, "claims")
	if err != nil {
		return err
	}
	if sub, ok := m.text("sub"); !ok || sub != c.KeyID {
		return refuse("subject")
	}
	// A list is refused, also one that names us alone: one spelling.
	if aud, ok := m.text("aud"); !ok || aud != Audience {
		return refuse("audience")
	}
	iat, ok := m.seconds("iat")
	if !ok {
		return refuse("issued-at")
	}
	exp, ok := m.seconds("exp")
	if !ok {
		return refuse("expiry")
	}
	if exp <= iat || exp-iat > int64(MaxLifetime/time.Second) {
		return refuse("lifetime")
	}
	jti, ok := m.text("jti")
	if !ok || !validID(jti) {
		return refuse("token-id")
	}
	if m.has("nbf") {
		nbf, ok := m.seconds("nbf")
		if !ok {
			return refuse("not-before")
		}
		iat = max(iat, nbf)
	}
	c.IssuedAt, c.Expires, c.ID = time.Unix(iat, 0).UTC(), time.Unix(exp, 0).UTC(), jti
	return nil
}

// validID reports whether s is the canonical base64url of exactly IDBytes bytes.
func validID(s string) bool {
	if len(s) != encoding.EncodedLen(IDBytes) {
		return false
	}
	var b [IDBytes]byte
	n, err := encoding.Decode(b[:], []byte(s))
	// The decoder skips line breaks, which a JSON string may hold.
	return err == nil && n == IDBytes && encoding.EncodeToString(b[:]) == s
}

func decodeSegment(segment, what string) (members, error) {
	b, err := encoding.DecodeString(segment)
	if err != nil {
		return nil, refuse(what + "-encoding")
	}
	m, err := parseObject(b)
	if err != nil {
		return nil, refuse(fmt.Sprintf("%s-%v", what, err))
	}
	return m, nil
}
