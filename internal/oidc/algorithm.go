package oidc

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-jose/go-jose/v4"
)

// Bounds of RSA keys, in bits: below them a signature is worth nothing (RFC 7518,
// section 3.3), above them verifying one is work that a stranger can order.
const (
	minRSABits = 2048
	maxRSABits = 8192
)

// ed25519Name is EdDSA with Ed25519, by its fully specified name (RFC 9864).
const ed25519Name = "Ed25519"

// curves are the curves of the ECDSA algorithms (RFC 7518, section 3.4).
var curves = map[string]elliptic.Curve{"ES256": elliptic.P256(), "ES384": elliptic.P384(), "ES512": elliptic.P521()}

var rsaAlgorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}

// Supported reports whether tokens of an algorithm are accepted. Those that are keyed
// with a shared secret never are.
func Supported(algorithm string) bool {
	return curves[algorithm] != nil || slices.Contains(rsaAlgorithms, algorithm) || algorithm == "EdDSA" || algorithm == ed25519Name
}

// key is a public key of an issuer.
type key struct {
	id        string
	algorithm string // the only one that it is for; empty where the issuer does not say
	public    any    // *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey

	// last is the last header that a token of this key had: an issuer writes the same
	// one into each, and it is taken apart once.
	last *atomic.Pointer[parsedHeader]
}

// parsedHeader is a token's first segment, and what the library made of a token that
// begins with it.
type parsedHeader struct {
	segment string
	jws     *jose.JSONWebSignature
}

// fits reports whether the key may verify signatures of an algorithm: its type, and
// for a curve the very curve.
func (k key) fits(algorithm string) bool {
	if k.algorithm != "" && k.algorithm != algorithm && !(edwards(k.algorithm) && edwards(algorithm)) {
		return false
	}
	switch public := k.public.(type) {
	case *rsa.PublicKey:
		return slices.Contains(rsaAlgorithms, algorithm)
	case *ecdsa.PublicKey:
		return curves[algorithm] != nil && public.Curve == curves[algorithm]
	case ed25519.PublicKey:
		return edwards(algorithm)
	}
	return false
}

func edwards(algorithm string) bool { return algorithm == "EdDSA" || algorithm == ed25519Name }

// verifies reports whether the key signed the token. The key fits the algorithm.
func (k key) verifies(t *Token) bool {
	if public, ok := k.public.(ed25519.PublicKey); ok {
		return len(t.signature) == ed25519.SignatureSize && ed25519.Verify(public, []byte(t.signed), t.signature)
	}
	h := k.last.Load()
	if segment, _, _ := strings.Cut(t.compact, "."); h == nil || h.segment != segment {
		jws, err := jose.ParseSignedCompact(t.compact, []jose.SignatureAlgorithm{jose.SignatureAlgorithm(t.Algorithm)})
		if err != nil {
			return false
		}
		h = &parsedHeader{segment, jws}
		k.last.Store(h)
	}
	// The header is this token's own, letter by letter; signature and claims may not be.
	jws := *h.jws
	jws.Signatures = slices.Clone(jws.Signatures)
	jws.Signatures[0].Signature = t.signature
	return jws.DetachedVerify(t.payload, k.public) == nil
}

// parseKey reads one key of a JWK set. Keys that are not for verifying signatures of
// ours, or that nobody should have published, are none: a set may hold keys for other
// uses (RFC 7517, section 5).
func parseKey(raw json.RawMessage) (key, bool) {
	var about struct {
		Use string   `json:"use"`
		Ops []string `json:"key_ops"`
	}
	var k jose.JSONWebKey
	if json.Unmarshal(raw, &about) != nil || k.UnmarshalJSON(raw) != nil {
		return key{}, false
	}
	if (about.Use != "" && about.Use != "sig") || (about.Ops != nil && !slices.Contains(about.Ops, "verify")) {
		return key{}, false
	}
	if (k.Algorithm != "" && !Supported(k.Algorithm)) || !k.IsPublic() || !strong(k.Key) {
		return key{}, false
	}
	return key{id: k.KeyID, algorithm: k.Algorithm, public: k.Key, last: new(atomic.Pointer[parsedHeader])}, true
}

// strong reports whether a public key is one that signatures are accepted of.
func strong(public any) bool {
	switch k := public.(type) {
	case *rsa.PublicKey:
		bits := k.N.BitLen()
		return bits >= minRSABits && bits <= maxRSABits && k.E >= 3 && k.E&1 == 1
	case *ecdsa.PublicKey:
		return k.Curve == elliptic.P256() || k.Curve == elliptic.P384() || k.Curve == elliptic.P521()
	case ed25519.PublicKey:
		return len(k) == ed25519.PublicKeySize
	}
	return false
}
