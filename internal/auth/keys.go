package auth

import (
	"context"
	"crypto/ed25519"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/token"
)

const (
	// KeyTTL is how long a key is believed without reading its record again: the
	// revocation bound.
	KeyTTL = 60 * time.Second
	// UnknownTTL is how long an id without a record is known to have none. It is
	// what a new key may have to wait for on a node that was asked too early.
	UnknownTTL = 5 * time.Second
	// MaxKeys bounds the cached keys, MaxUnknown the cached ids without one.
	MaxKeys    = 10_000
	MaxUnknown = 10_000
	// UnknownBurst and UnknownPerSecond bound what strangers can make a node ask of
	// the bucket: each lookup of an id that turns out to have no record takes one
	// from a budget. When it is spent, lookups of ids that are not cached wait, for
	// at most LookupWait.
	UnknownBurst     = 256
	UnknownPerSecond = 32
	LookupWait       = 2 * time.Second
	// lookupTimeout bounds one lookup, which callers share.
	lookupTimeout = 10 * time.Second
)

// knownKey is a key that has a record.
type knownKey struct {
	principal Principal
	key       ed25519.PublicKey
	spelled   scafo.PublicKey // key, as its record has it
	read      time.Time       // when the reading of its record began
}

var errUnknown = token.Refusal("unknown-key")

// keyCache finds the key of an id: the operator's record first, else the node's.
type keyCache struct {
	records Records
	now     func() time.Time
	flights singleflight.Group

	mu      sync.Mutex // guards everything below
	known   map[string]knownKey
	unknown map[string]time.Time // when the lookup began that found no record
	forgot  time.Time            // when something was last forgotten
	budget  float64              // lookups of unknown ids that are left
	filled  time.Time            // when budget was last filled up
}

func newKeyCache(records Records, now func() time.Time) *keyCache {
	return &keyCache{
		records: records, now: now, known: map[string]knownKey{}, unknown: map[string]time.Time{},
		budget: UnknownBurst, filled: now(),
	}
}

// get is the key of an id, at most KeyTTL old. The id passed the grammar.
func (c *keyCache) get(ctx context.Context, id string) (knownKey, error) {
	k, ok, err := c.cached(id)
	if ok || err != nil {
		return k, err
	}
	if err := c.wait(ctx); err != nil {
		return knownKey{}, err
	}
	k, err = c.lookup(ctx, id)
	if !errors.Is(err, errUnknown) {
		c.giveBack()
	}
	return k, err
}

// fresh reads the record of an id whatever is cached.
func (c *keyCache) fresh(ctx context.Context, id string) (knownKey, error) {
	began := c.now()
	k, err := c.read(ctx, id)
	c.store(began, id, k, err)
	return k, err
}

func (c *keyCache) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, id)
	delete(c.unknown, id)
	c.forgot = c.now()
}

func (c *keyCache) forgetAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.known)
	clear(c.unknown)
	c.forgot = c.now()
}

func (c *keyCache) cached(id string) (knownKey, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if k, ok := c.known[id]; ok && now.Sub(k.read) < KeyTTL {
		return k, true, nil
	}
	if at, ok := c.unknown[id]; ok && now.Sub(at) < UnknownTTL {
		return knownKey{}, false, errUnknown
	}
	return knownKey{}, false, nil
}

// wait takes one lookup from the budget, once there is one in it.
func (c *keyCache) wait(ctx context.Context) error {
	deadline := c.now().Add(LookupWait)
	for {
		short := c.take()
		if short <= 0 {
			return nil
		}
		if c.now().Add(short).After(deadline) {
			return scafo.Errorf(scafo.CodeStoreUnavailable, "too many unknown keys are being looked up; try again")
		}
		t := time.NewTimer(short)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return scafo.Wrap(context.Cause(ctx), scafo.CodeStoreUnavailable, "the call ended before its key was looked up")
		}
	}
}

// take fills the budget up and takes one lookup from it, or says how long until
// there is one.
func (c *keyCache) take() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if d := now.Sub(c.filled); d > 0 {
		c.budget = min(UnknownBurst, c.budget+d.Seconds()*UnknownPerSecond)
	}
	c.filled = now
	if c.budget >= 1 {
		c.budget--
		return 0
	}
	return time.Duration((1-c.budget)/UnknownPerSecond*float64(time.Second)) + time.Millisecond
}

// giveBack returns a lookup that strangers are not to blame for.
func (c *keyCache) giveBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.budget = min(UnknownBurst, c.budget+1)
}

// lookup reads the record of an id, once for all callers that ask at the same
// time. It does not end with the caller that happened to be first.
func (c *keyCache) lookup(ctx context.Context, id string) (knownKey, error) {
	shared := context.WithoutCancel(ctx)
	ch := c.flights.DoChan(id, func() (any, error) {
		ctx, cancel := context.WithTimeout(shared, lookupTimeout)
		defer cancel()
		began := c.now()
		k, err := c.read(ctx, id)
		c.store(began, id, k, err)
		return k, err
	})
	select {
	case r := <-ch:
		k, _ := r.Val.(knownKey)
		return k, r.Err
	case <-ctx.Done():
		return knownKey{}, scafo.Wrap(context.Cause(ctx), scafo.CodeStoreUnavailable, "the call ended before its key was looked up")
	}
}

// store keeps what a lookup found that began at some time. One that began before
// something was forgotten may have read what was there before, and is not kept.
func (c *keyCache) store(began time.Time, id string, k knownKey, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !began.After(c.forgot) {
		return
	}
	switch {
	case err == nil:
		delete(c.unknown, id)
		if old, ok := c.known[id]; ok && old.read.After(k.read) {
			return // a lookup that began later came first
		}
		makeRoom(c.known, MaxKeys, func(k knownKey) bool { return c.now().Sub(k.read) >= KeyTTL })
		c.known[id] = k
	case errors.Is(err, errUnknown):
		delete(c.known, id)
		makeRoom(c.unknown, MaxUnknown, func(at time.Time) bool { return c.now().Sub(at) >= UnknownTTL })
		c.unknown[id] = c.now()
	}
}

// makeRoom drops what is stale from a full map, or anything if nothing is.
func makeRoom[V any](m map[string]V, most int, stale func(V) bool) {
	if len(m) < most {
		return
	}
	for id, v := range m {
		if stale(v) {
			delete(m, id)
		}
	}
	for id := range m {
		if len(m) < most {
			return
		}
		delete(m, id)
	}
}

// read reads the record of an id: errUnknown when there is none that counts.
func (c *keyCache) read(ctx context.Context, id string) (knownKey, error) {
	ctx = meter.With(ctx, "auth")
	began := c.now()
	op, err := c.records.Operator(ctx, id)
	switch {
	case err == nil:
		return c.recordKey(began, op.PublicKey, Principal{Kind: KindOperator, ID: id, Role: op.Role, Scope: op.Applications, Supersedes: op.Supersedes})
	case scafo.CodeOf(err) != scafo.CodeNotFound:
		return knownKey{}, unavailable(err, "the key's record cannot be read")
	}
	node, err := c.records.Node(ctx, id)
	switch {
	case err == nil && node.Removed == nil:
		return c.recordKey(began, node.PublicKey, Principal{Kind: KindNode, ID: id})
	case err == nil, scafo.CodeOf(err) == scafo.CodeNotFound:
		return knownKey{}, errUnknown
	}
	return knownKey{}, unavailable(err, "the key's record cannot be read")
}

// recordKey refuses a recorded key that registration would not have taken. One that
// is cached already was looked at then.
func (c *keyCache) recordKey(read time.Time, k scafo.PublicKey, p Principal) (knownKey, error) {
	c.mu.Lock()
	cached, ok := c.known[p.ID]
	c.mu.Unlock()
	if ok && cached.spelled == k {
		return knownKey{principal: p, key: cached.key, spelled: k, read: read}, nil
	}
	key, err := token.ParsePublicKey(k)
	if err != nil {
		return knownKey{}, errUnknown
	}
	return knownKey{principal: p, key: key, spelled: k, read: read}, nil
}
