package token

import (
	"crypto/ed25519"

	"filippo.io/edwards25519"

	"github.com/scafo/scafo"
)

// ParsePublicKey reads the JWK of an Ed25519 public key (RFC 8037). The refusal
// is invalid-input and safe to show. It is what registration calls, and what a
// verifier calls again on the record that it read.
//
// A key of small order is refused: under it one fixed signature verifies for
// every message. So is an encoding that is not the canonical one of its point,
// so that one key has one spelling.
func ParsePublicKey(k scafo.PublicKey) (ed25519.PublicKey, error) {
	if k.Kty != "OKP" || k.Crv != "Ed25519" {
		return nil, scafo.Errorf(scafo.CodeInvalidInput, `publicKey must have kty "OKP" and crv "Ed25519"`)
	}
	if len(k.X) != encoding.EncodedLen(ed25519.PublicKeySize) {
		return nil, scafo.Errorf(scafo.CodeInvalidInput, "publicKey.x must be the unpadded base64url of 32 bytes")
	}
	x, err := encoding.DecodeString(k.X)
	if err != nil || len(x) != ed25519.PublicKeySize {
		return nil, scafo.Errorf(scafo.CodeInvalidInput, "publicKey.x must be the unpadded base64url of 32 bytes")
	}
	p, err := new(edwards25519.Point).SetBytes(x)
	if err != nil || string(p.Bytes()) != string(x) {
		return nil, scafo.Errorf(scafo.CodeInvalidInput, "publicKey.x is not the encoding of a point of the curve")
	}
	if new(edwards25519.Point).MultByCofactor(p).Equal(edwards25519.NewIdentityPoint()) == 1 {
		return nil, scafo.Errorf(scafo.CodeInvalidInput, "publicKey.x is a key of small order, under which anybody can sign")
	}
	return ed25519.PublicKey(x), nil
}

// PublicJWK is the JWK of a public key.
func PublicJWK(k ed25519.PublicKey) scafo.PublicKey {
	return scafo.PublicKey{Kty: "OKP", Crv: "Ed25519", X: encoding.EncodeToString(k)}
}
