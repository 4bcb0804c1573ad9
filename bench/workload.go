package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/oidc"
)

const (
	workloadGoal  = 1.5
	workloadBatch = 2000
	workloadBits  = 2048
)

// signer is a key of an issuer, and the bare check of its signatures.
type signer struct {
	algorithm string
	public    any
	sign      func(digest []byte) ([]byte, error)
	verify    func(digest, signature []byte) bool
}

func signers() ([]signer, error) {
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	rs, err := rsa.GenerateKey(rand.Reader, workloadBits)
	if err != nil {
		return nil, err
	}
	return []signer{
		{
			"ES256", &ec.PublicKey,
			func(digest []byte) ([]byte, error) {
				r, s, err := ecdsa.Sign(rand.Reader, ec, digest)
				if err != nil {
					return nil, err
				}
				out := make([]byte, 64)
				r.FillBytes(out[:32])
				s.FillBytes(out[32:])
				return out, nil
			},
			nil, // see bare: it takes the signature apart once
		},
		{
			"RS256", &rs.PublicKey,
			func(digest []byte) ([]byte, error) {
				return rsa.SignPKCS1v15(rand.Reader, rs, crypto.SHA256, digest)
			},
			func(digest, signature []byte) bool {
				return rsa.VerifyPKCS1v15(&rs.PublicKey, crypto.SHA256, digest, signature) == nil
			},
		},
	}, nil
}

// bare is the check of this one signature, and of nothing else.
func (s signer) bare(text string, signature []byte) func() bool {
	check := s.verify
	if public, ok := s.public.(*ecdsa.PublicKey); ok {
		r, t := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])
		check = func(digest, _ []byte) bool { return ecdsa.Verify(public, digest, r, t) }
	}
	return func() bool {
		digest := sha256.Sum256([]byte(text))
		return check(digest[:], signature)
	}
}

// benchWorkload verifies a workload token again and again, its issuer's keys known,
// in turns with the bare check of its signature.
func benchWorkload(ctx context.Context, b *bench) error {
	all, err := signers()
	if err != nil {
		return err
	}
	var keys jose.JSONWebKeySet
	for _, s := range all {
		keys.Keys = append(keys.Keys, jose.JSONWebKey{Key: s.public, KeyID: s.algorithm, Algorithm: s.algorithm, Use: "sig"})
	}
	mux := http.NewServeMux()
	issuer := httptest.NewServer(mux)
	defer issuer.Close()
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
		}
	}
	mux.Handle("/.well-known/openid-configuration", answer(map[string]any{"issuer": issuer.URL, "jwks_uri": issuer.URL + "/keys"}))
	mux.Handle("/keys", answer(keys))
	policy := scafo.TrustPolicy{Rules: []scafo.TrustRule{{Issuer: issuer.URL, Subjects: []string{"repo:acme/shop:*"}}}}
	verifier := oidc.New(oidc.Options{AllowLoopback: true})
	for _, s := range all {
		if err := workloadRow(ctx, b, s, verifier, policy); err != nil {
			return fmt.Errorf("%s: %w", s.algorithm, err)
		}
	}
	return nil
}

func workloadRow(ctx context.Context, b *bench, s signer, verifier *oidc.Verifier, policy scafo.TrustPolicy) error {
	text, signature, err := s.token(policy.Rules[0])
	if err != nil {
		return err
	}
	compact := text + "." + base64.RawURLEncoding.EncodeToString(signature)
	verify := func() error {
		t, err := oidc.Parse(compact)
		if err != nil {
			return err
		}
		return verifier.Verify(ctx, t, policy)
	}
	if err := verify(); err != nil { // and the issuer's keys are known
		return fmt.Errorf("the token does not verify: %w", err)
	}
	check := s.bare(text, signature)
	var whole, bare []time.Duration
	for range b.rounds {
		began := time.Now()
		for range workloadBatch {
			if err := verify(); err != nil {
				return fmt.Errorf("the token does not verify: %w", err)
			}
		}
		whole = append(whole, time.Since(began)/workloadBatch)
		began = time.Now()
		for range workloadBatch {
			if !check() {
				return errors.New("the signature does not verify")
			}
		}
		bare = append(bare, time.Since(began)/workloadBatch)
	}
	b.ratio("a workload token parsed and verified, against a bare "+s.algorithm+" verify", us(median(whole)), us(median(bare)), median(ratios(whole, bare)), workloadGoal)
	return b.aboveIdleHere(fmt.Sprintf("memory that verifying %d of them takes", workloadBatch), func() error {
		for range workloadBatch {
			if err := verify(); err != nil {
				return err
			}
		}
		return nil
	})
}

// token is what a job of a pipeline is given, and its signature.
func (s signer) token(rule scafo.TrustRule) (text string, signature []byte, err error) {
	now := time.Now().Unix()
	header, err := json.Marshal(map[string]any{"alg": s.algorithm, "typ": "JWT", "kid": s.algorithm})
	if err != nil {
		return "", nil, err
	}
	claims, err := json.Marshal(map[string]any{
		"iss": rule.Issuer, "sub": "repo:acme/shop:ref:refs/heads/main", "aud": rule.EffectiveAudience(),
		"iat": now, "nbf": now, "exp": now + 3600, "jti": "job-1",
		"repository": "acme/shop", "ref": "refs/heads/main", "sha": "0123456789abcdef0123456789abcdef01234567", "run_id": "4711",
	})
	if err != nil {
		return "", nil, err
	}
	text = base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(claims)
	digest := sha256.Sum256([]byte(text))
	signature, err = s.sign(digest[:])
	return text, signature, err
}
