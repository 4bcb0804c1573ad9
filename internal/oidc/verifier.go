package oidc

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/scafo/scafo"
)

const (
	// keysFor is how long the keys of an issuer are used before they are read again.
	keysFor = 300 * time.Second
	// backOff is how long an issuer is left alone after it failed.
	backOff = 30 * time.Second
	// refetchEvery is how often a token with an unknown key id may have the keys read
	// before their time: a rotation is noticed, and a flood of such tokens costs one
	// request in this time.
	refetchEvery = 30 * time.Second
	// maxIssuers bounds the issuers that are remembered.
	maxIssuers = 64
	// maxCandidates bounds the keys of one id that a token is tried with.
	maxCandidates = 4
)

// Verifier verifies workload tokens. It is safe for concurrent use.
type Verifier struct {
	fetch *fetcher
	now   func() time.Time

	mu      sync.Mutex // guards what follows, not what an entry holds
	issuers map[string]*issuer
}

// New makes a verifier.
func New(o Options) *Verifier {
	now := o.Now
	if now == nil {
		now = time.Now
	}
	return &Verifier{fetch: newFetcher(o), now: now, issuers: map[string]*issuer{}}
}

// issuer is what is known of one issuer.
type issuer struct {
	used time.Time // guarded by the verifier's mutex

	// turn has room for one: who is in it may read and change what follows. It is a
	// channel, so that who waits can leave.
	turn      chan struct{}
	keys      []key
	fetched   time.Time // when keys were read
	refetched time.Time // when an unknown key id had them read before their time
	failed    time.Time // when they could not be read last
	failure   error
}

// Verify holds a token to a trust policy. The errors:
//
//   - auth-invalid for a token that does not hold up, or whose issuer the policy does
//     not name for its audience: nothing is asked of such an issuer, so nothing is
//     known of the token
//   - trust-mismatch for one that holds up and whose subject the policy does not admit
func (v *Verifier) Verify(ctx context.Context, t *Token, policy scafo.TrustPolicy) error {
	if err := t.ValidAt(v.now()); err != nil {
		return err
	}
	rules := policy.Admits(t.Issuer)
	if len(rules) == 0 {
		return refuse("issuer-not-trusted")
	}
	rules = slices.DeleteFunc(rules, func(r scafo.TrustRule) bool { return !slices.Contains(t.Audience, r.EffectiveAudience()) })
	if len(rules) == 0 {
		return refuse("audience")
	}
	if err := v.signed(ctx, t); err != nil {
		return err
	}
	if !slices.ContainsFunc(rules, func(r scafo.TrustRule) bool { return r.AdmitsSubject(t.Subject) }) {
		return scafo.Errorf(scafo.CodeTrustMismatch, "the application's trust policy does not admit the subject %q of this issuer", t.Subject)
	}
	return nil
}

// signed checks the signature with the keys of the token's issuer, which a policy
// names.
func (v *Verifier) signed(ctx context.Context, t *Token) error {
	i := v.issuer(t.Issuer)
	select {
	case i.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	candidates, err := v.candidates(ctx, i, t)
	<-i.turn
	if err != nil {
		return fmt.Errorf("%w: %s: %w", refuse("issuer-unreachable"), t.Issuer, err)
	}
	if len(candidates) == 0 {
		return refuse("key")
	}
	for _, k := range candidates[:min(len(candidates), maxCandidates)] {
		if k.verifies(t) {
			return nil
		}
	}
	return refuse("signature")
}

// issuer is the entry of an issuer. Where there are too many, the one that was used
// least recently goes.
func (v *Verifier) issuer(name string) *issuer {
	v.mu.Lock()
	defer v.mu.Unlock()
	i, ok := v.issuers[name]
	if !ok {
		if len(v.issuers) >= maxIssuers {
			oldest := ""
			for n, e := range v.issuers {
				if oldest == "" || e.used.Before(v.issuers[oldest].used) {
					oldest = n
				}
			}
			delete(v.issuers, oldest)
		}
		i = &issuer{turn: make(chan struct{}, 1)}
		v.issuers[name] = i
	}
	i.used = v.now()
	return i
}

// candidates are the keys that may have signed a token. The caller has its turn.
func (v *Verifier) candidates(ctx context.Context, i *issuer, t *Token) ([]key, error) {
	now := v.now()
	fresh := !i.fetched.IsZero() && now.Sub(i.fetched) < keysFor
	if fresh {
		found := i.fitting(t)
		if len(found) > 0 || t.KeyID == "" || now.Sub(i.refetched) < refetchEvery {
			return found, nil
		}
		i.refetched = now
	} else if !i.failed.IsZero() && now.Sub(i.failed) < backOff {
		return nil, fmt.Errorf("left alone until %s: %w", i.failed.Add(backOff).UTC().Format(time.RFC3339), i.failure)
	}
	// Whoever waits for the same keys is not to wait for another request because this
	// caller went away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.fetch.most)
	defer cancel()
	keys, err := v.fetch.keys(ctx, t.Issuer)
	switch {
	case err == nil:
		i.keys, i.fetched, i.failed, i.failure = keys, v.now(), time.Time{}, nil
	case fresh:
		// The keys that are known are good for as long as they would have been.
		return nil, nil
	default:
		i.keys, i.fetched, i.failed, i.failure = nil, time.Time{}, v.now(), err
		return nil, err
	}
	return i.fitting(t), nil
}

// fitting are the keys of the token's key id that fit its algorithm. A token without a
// key id has the one key that fits, if there is only one (OpenID Connect Core 1.0,
// section 10.1).
func (i *issuer) fitting(t *Token) []key {
	var found []key
	for _, k := range i.keys {
		if k.fits(t.Algorithm) && (t.KeyID == "" || k.id == t.KeyID) {
			found = append(found, k)
		}
	}
	if t.KeyID == "" && len(found) > 1 {
		return nil
	}
	return found
}
