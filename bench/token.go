package main

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/scafo/scafo/internal/token"
	"github.com/scafo/scafo/internal/token/keyfile"
)

const (
	tokenGoal  = 1.3
	tokenBatch = 2000
)

// benchToken verifies one token again and again, in turns with a bare verify of the
// same signature.
func benchToken(_ context.Context, b *bench) error {
	k, err := keyfile.New("bench")
	if err != nil {
		return err
	}
	now := time.Now()
	t, err := k.Token(now)
	if err != nil {
		return err
	}
	public, err := token.ParsePublicKey(k.Public())
	if err != nil {
		return err
	}
	message := []byte(t)
	signature := ed25519.Sign(k.Private, message)
	var whole, bare []time.Duration
	for range b.rounds {
		began := time.Now()
		for range tokenBatch {
			c, err := token.Parse(t)
			if err != nil || !c.Verify(public) || c.ValidAt(now) != nil {
				return fmt.Errorf("the token does not verify: %w", err)
			}
		}
		whole = append(whole, time.Since(began)/tokenBatch)
		began = time.Now()
		for range tokenBatch {
			if !ed25519.Verify(public, message, signature) {
				return fmt.Errorf("the signature does not verify")
			}
		}
		bare = append(bare, time.Since(began)/tokenBatch)
	}
	b.ratio("a token parsed and verified", us(median(whole)), us(median(bare)), median(ratios(whole, bare)), tokenGoal)
	return nil
}
