package check

import (
	"strings"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// noteLife remembers which names have had a life, and where runtimes keep something.
func (c *checker) noteLife(key string) error {
	err := into(c, key, c.applications)
	if name, ok := registry.KeyID(registry.ApplicationPrefix, key); ok {
		c.named[name] = true
	}
	return err
}

// alive reports whether a uid is the present life of a name; known is false for a name
// that never had a record.
func (c *checker) alive(name, uid string) (alive, known bool) {
	d, ok := c.applications[registry.ApplicationKey(name)]
	return ok && d.Value.UID == uid, c.named[name]
}

// formerLives checks that nothing is left of lives that have ended: neither what
// carries their uid, nor a host that they hold, nor a deploy that is not over.
func (c *checker) formerLives() {
	former := func(name, uid string) bool {
		alive, known := c.alive(name, uid)
		return known && !alive
	}
	for life, key := range c.runtimes {
		if name, uid, _ := strings.Cut(life, "/"); former(name, uid) {
			c.say("%s is of a life that has ended", key)
		}
	}
	for k, d := range c.deployments {
		if former(d.Value.Application, d.Value.UID) {
			c.say("%s is of a life that has ended", k)
		}
	}
	for k, d := range c.placements {
		if former(d.Value.Application, d.Value.UID) {
			c.say("%s is of a life that has ended", k)
		}
	}
	for k, d := range c.claims {
		if d.Value.State == scafo.ClaimHeld && former(d.Value.Application, d.Value.UID) {
			c.say("%s is held by a life that has ended", k)
		}
	}
	for k, d := range c.deploys {
		if !d.Value.State.Terminal() && former(d.Value.Application, d.Value.UID) {
			c.say("%s is not over, and of a life that has ended", k)
		}
	}
	for k, d := range c.applications {
		if del := d.Value.Deleting; del != nil && (del.Fence < 1 || c.lease.Exists && del.Fence > c.lease.Value.Fence) {
			c.say("%s is being deleted under fence %d, the lease has %d", k, del.Fence, c.lease.Value.Fence)
		}
	}
}
