package auth

import (
	"sync"
	"time"

	"github.com/scafo/scafo/internal/token"
)

// usedFor is how long a token could be presented again: its life and the skew at
// both ends.
const usedFor = token.MaxLifetime + 2*token.Skew

// usedSet remembers the tokens that this node accepted, as long as they could come
// again. Only tokens with a good signature get in, so its size is what the fleet's
// own keys sign in four minutes. It is two generations: when the younger one is
// usedFor old, the older one is dropped.
type usedSet struct {
	mu         sync.Mutex // guards everything below
	young, old map[usedID]struct{}
	since      time.Time // when young began
}

type usedID struct{ kid, jti string }

// add reports whether the token is new, and remembers it.
func (u *usedSet) add(now time.Time, kid, jti string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if age := now.Sub(u.since); u.young == nil || age >= usedFor {
		u.old, u.young, u.since = u.young, map[usedID]struct{}{}, now
		if age >= 2*usedFor {
			u.old = nil
		}
	}
	id := usedID{kid, jti}
	if _, seen := u.young[id]; seen {
		return false
	}
	if _, seen := u.old[id]; seen {
		return false
	}
	u.young[id] = struct{}{}
	return true
}

// forget takes back an add whose token was not accepted after all.
func (u *usedSet) forget(kid, jti string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.young, usedID{kid, jti})
	delete(u.old, usedID{kid, jti})
}
