package auth

import (
	"crypto/sha256"
	"crypto/subtle"
)

// ingressTokens are the admitted opaque tokens, hashed: hashes have one length,
// so that comparing them takes the same time whatever was presented.
type ingressTokens [][sha256.Size]byte

func newIngressTokens(tokens []string) ingressTokens {
	var t ingressTokens
	for _, s := range tokens {
		if s != "" {
			t = append(t, sha256.Sum256([]byte(s)))
		}
	}
	return t
}

// admit compares with every admitted token, also after one fitted.
func (t ingressTokens) admit(presented string) bool {
	h := sha256.Sum256([]byte(presented))
	found := 0
	for i := range t {
		found |= subtle.ConstantTimeCompare(h[:], t[i][:])
	}
	return found == 1
}
