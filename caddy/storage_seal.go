package caddy

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
)

// sealer encrypts values with AES-256-GCM, each bound to its key in the storage. A
// nil sealer leaves them as they are.
type sealer struct {
	keys []cipher.AEAD // the first one encrypts
}

// sealed begins every encrypted value.
var sealed = []byte("scafo-sealed-1\n")

const sealPurpose = "scafo ingress storage"

func newSealer(secrets []string) (*sealer, error) {
	if len(secrets) == 0 {
		return nil, nil
	}
	s := &sealer{}
	for _, secret := range secrets {
		key, err := hkdf.Key(sha256.New, []byte(secret), nil, sealPurpose, 32)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		s.keys = append(s.keys, aead)
	}
	return s, nil
}

// bound is what a value is bound to, so that none can be put in the place of another.
func bound(key string) []byte { return append(bytes.Clone(sealed), key...) }

// seal encrypts a value; its nonce is random and stands before the text.
func (s *sealer) seal(key string, value []byte) []byte {
	if s == nil {
		return value
	}
	//nolint:gosec // no nonce is given: this AEAD draws a random one itself
	return s.keys[0].Seal(bytes.Clone(sealed), nil, value, bound(key))
}

var errSealed = errors.New("it is encrypted with a key that is not configured here, or damaged")

// open is the value as it was. One from before there was a key is plain.
func (s *sealer) open(key string, stored []byte) ([]byte, error) {
	text, ok := bytes.CutPrefix(stored, sealed)
	if !ok {
		return stored, nil
	}
	if s == nil {
		return nil, errSealed
	}
	for _, k := range s.keys {
		if value, err := k.Open(nil, nil, text, bound(key)); err == nil {
			if value == nil {
				value = []byte{}
			}
			return value, nil
		}
	}
	return nil, errSealed
}
