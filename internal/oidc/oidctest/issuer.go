// Package oidctest is an issuer of workload tokens for tests: discovery, keys of every
// kind, and every way in which an issuer can misbehave.
package oidctest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "crypto/sha256" // the hashes of the algorithms
	_ "crypto/sha512"
)

// Key is a key that signs tokens.
type Key struct {
	ID        string
	Algorithm string
	Private   crypto.Signer
}

var (
	rsaOnce sync.Once
	rsaKeys [2]*rsa.PrivateKey // making one takes long enough to share them
)

func rsaKey(t testing.TB, n int) *rsa.PrivateKey {
	rsaOnce.Do(func() {
		for i := range rsaKeys {
			k, err := rsa.GenerateKey(rand.Reader, 2048)
			if err != nil {
				t.Fatal(err)
			}
			rsaKeys[i] = k
		}
	})
	return rsaKeys[n]
}

// Algorithms is every algorithm that a workload token may have.
var Algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}

// NewKey makes a key for an algorithm.
func NewKey(t testing.TB, id, algorithm string) Key {
	t.Helper()
	k := Key{ID: id, Algorithm: algorithm}
	var err error
	switch algorithm {
	case "ES256":
		k.Private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ES384":
		k.Private, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ES512":
		k.Private, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "EdDSA", "Ed25519":
		_, k.Private, err = ed25519.GenerateKey(rand.Reader)
	default:
		k.Private = rsaKey(t, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// OtherRSA is a second RSA key.
func OtherRSA(t testing.TB, id, algorithm string) Key {
	return Key{ID: id, Algorithm: algorithm, Private: rsaKey(t, 1)}
}

// B64 is unpadded base64url.
func B64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

var hashes = map[string]crypto.Hash{"256": crypto.SHA256, "384": crypto.SHA384, "512": crypto.SHA512}

// Signature signs a text as an algorithm has it (RFC 7518, RFC 8037).
func (k Key) Signature(t testing.TB, algorithm, text string) []byte {
	t.Helper()
	if p, ok := k.Private.(ed25519.PrivateKey); ok {
		return ed25519.Sign(p, []byte(text))
	}
	hash := hashes[algorithm[2:]]
	h := hash.New()
	h.Write([]byte(text))
	sum := h.Sum(nil)
	var sig []byte
	var err error
	switch p := k.Private.(type) {
	case *ecdsa.PrivateKey:
		r, s, e := ecdsa.Sign(rand.Reader, p, sum)
		size := (p.Curve.Params().BitSize + 7) / 8
		sig, err = make([]byte, 2*size), e
		if e == nil {
			r.FillBytes(sig[:size])
			s.FillBytes(sig[size:])
		}
	case *rsa.PrivateKey:
		if strings.HasPrefix(algorithm, "PS") {
			sig, err = rsa.SignPSS(rand.Reader, p, hash, sum, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
		} else {
			sig, err = rsa.SignPKCS1v15(rand.Reader, p, hash, sum)
		}
	default:
		t.Fatalf("no signature with %T", p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return sig
}

// Sign makes a compact JWS of any header and claims, as they are spelled.
func (k Key) Sign(t testing.TB, header, claims string) string {
	t.Helper()
	signed := B64([]byte(header)) + "." + B64([]byte(claims))
	return signed + "." + B64(k.Signature(t, k.Algorithm, signed))
}

// JWK is the public half as an issuer publishes it.
func (k Key) JWK() map[string]any {
	j := map[string]any{"kid": k.ID, "use": "sig", "alg": k.Algorithm}
	switch p := k.Private.Public().(type) {
	case *ecdsa.PublicKey:
		point, err := p.Bytes() // 4, x, y
		if err != nil {
			panic(err) // a key that was made here is on its curve
		}
		x, y := point[1:1+len(point)/2], point[1+len(point)/2:]
		j["kty"], j["crv"] = "EC", p.Curve.Params().Name
		j["x"], j["y"] = B64(x), B64(y)
	case ed25519.PublicKey:
		j["kty"], j["crv"], j["x"] = "OKP", "Ed25519", B64(p)
		delete(j, "alg") // go-jose and many issuers know it by its curve alone
	case *rsa.PublicKey:
		j["kty"], j["n"], j["e"] = "RSA", B64(p.N.Bytes()), "AQAB"
	}
	return j
}

// Issuer is a test's issuer.
type Issuer struct {
	Server *httptest.Server
	// URL is what it calls itself; tests may have it end with a slash.
	URL string

	mu   sync.Mutex // guards what follows
	keys []map[string]any
	// Discovery and Keys, when set, answer in the place of the honest documents.
	discovery, jwks http.HandlerFunc

	asked     atomic.Int64 // requests in all
	askedKeys atomic.Int64 // for keys
}

// New starts an issuer, over TLS or plainly, with these keys.
func New(t testing.TB, secure bool, keys ...Key) *Issuer {
	t.Helper()
	i := new(Issuer)
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		i.asked.Add(1)
		i.mu.Lock()
		h, url := i.discovery, i.URL
		i.mu.Unlock()
		if h != nil {
			h(w, r)
			return
		}
		JSON(w, map[string]any{"issuer": url, "jwks_uri": i.Server.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS256"}})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, r *http.Request) {
		i.asked.Add(1)
		i.askedKeys.Add(1)
		i.mu.Lock()
		h, keys := i.jwks, i.keys
		i.mu.Unlock()
		if h != nil {
			h(w, r)
			return
		}
		JSON(w, map[string]any{"keys": keys})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		i.asked.Add(1)
		http.Error(w, "nothing here", http.StatusNotFound)
	})
	if secure {
		i.Server = httptest.NewTLSServer(mux)
	} else {
		i.Server = httptest.NewServer(mux)
	}
	t.Cleanup(i.Server.Close)
	i.URL = i.Server.URL
	i.Publish(keys...)
	return i
}

// JSON answers with a document.
func JSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// Publish replaces the keys.
func (i *Issuer) Publish(keys ...Key) {
	list := []map[string]any{}
	for _, k := range keys {
		list = append(list, k.JWK())
	}
	i.PublishRaw(list...)
}

// PublishRaw replaces the keys by these documents.
func (i *Issuer) PublishRaw(keys ...map[string]any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = keys
}

// Misbehave has others answer for discovery and for keys; nil is the honest answer.
func (i *Issuer) Misbehave(discovery, jwks http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.discovery, i.jwks = discovery, jwks
}

// Asked is how many requests arrived, and how many of them for keys.
func (i *Issuer) Asked() (all, keys int64) { return i.asked.Load(), i.askedKeys.Load() }

// Claims are those of a good token of a subject, which tests may change.
func (i *Issuer) Claims(subject string, now time.Time) map[string]any {
	return map[string]any{
		"iss": i.URL, "sub": subject, "aud": "scafo-node",
		"iat": now.Unix(), "nbf": now.Unix() - 5, "exp": now.Unix() + 300,
		"jti": "job-1", "repository": "acme/shop", "ref": "refs/heads/main", "sha": "0123456789abcdef", "run_id": "4711",
	}
}

// Token signs claims as the key's algorithm has it.
func (k Key) Token(t testing.TB, claims map[string]any) string {
	t.Helper()
	header, err := json.Marshal(map[string]any{"alg": k.Algorithm, "typ": "JWT", "kid": k.ID})
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	return k.Sign(t, string(header), string(body))
}
