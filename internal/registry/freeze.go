package registry

import (
	"context"

	"github.com/scafo/scafo"
)

// FreezeDeploys stops deploy intake for the whole fleet. While it is stopped
// already, the first freeze stays as it is and is returned. It is written anew all the
// same: a lift that was given up, and is still under way, must not come after the answer.
func (r *Registry) FreezeDeploys(ctx context.Context, by, reason string) (f scafo.Freeze, created bool, err error) {
	d, err := Update(ctx, r, FreezeKey, func(d *Doc[scafo.Freeze]) error {
		if created = !d.Exists; !created {
			return nil
		}
		d.Value = scafo.Freeze{FrozenAt: r.Now(), By: by, Reason: reason}
		return nil
	})
	if err != nil {
		return d.Value, false, err
	}
	// The first freeze is announced again: whoever made it may have died before.
	return d.Value, created, r.Announce(ctx, FreezeKey)
}

// LiftFreeze lets deploys in again. It reports whether there was a freeze.
func (r *Registry) LiftFreeze(ctx context.Context) (lifted bool, err error) {
	lifted, err = Remove[scafo.Freeze](ctx, r, FreezeKey, nil)
	if err != nil {
		return false, err
	}
	return lifted, r.Announce(ctx, FreezeKey)
}
