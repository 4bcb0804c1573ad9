package deletion

import (
	"context"
	"errors"
	"slices"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// Claims gives up the hosts of one life of an application whose deletion has begun:
// those that its record lists, and of the known ones those that it claims. It returns
// the keys of the claims that it released, also beside an error.
type Claims interface {
	ReleaseClaims(ctx context.Context, app, uid string, known ...string) (released []string, err error)
}

// claims releases claims by nothing but compare-and-swap. A claim says its uid, so that
// of another life is left alone whenever this comes to it.
type claims struct{ r *registry.Registry }

func (c claims) ReleaseClaims(ctx context.Context, app, uid string, known ...string) (released []string, err error) {
	hosts := slices.Clone(known)
	a, err := c.r.Application(ctx, app)
	if err != nil && scafo.CodeOf(err) != scafo.CodeNotFound {
		return nil, err
	}
	err = nil // one that is gone lists nothing
	if a.UID == uid {
		for _, d := range a.Domains {
			hosts = append(hosts, d.Host)
		}
	}
	slices.Sort(hosts)
	for _, host := range slices.Compact(hosts) {
		done, rerr := c.release(ctx, host, uid)
		if rerr != nil {
			err = rerr
			break
		}
		if done {
			released = append(released, registry.ClaimKey(host))
		}
	}
	if len(released) > 0 {
		err = errors.Join(err, c.r.Announce(ctx, released...))
	}
	return released, err
}

func (c claims) release(ctx context.Context, host, uid string) (released bool, err error) {
	_, err = registry.Update(ctx, c.r, registry.ClaimKey(host), func(d *registry.Doc[scafo.Claim]) error {
		released = false
		if !d.Exists || d.Value.UID != uid || d.Value.State == scafo.ClaimReleased {
			return registry.ErrKeep
		}
		d.Value.State, d.Value.PendingWildcard, released = scafo.ClaimReleased, false, true
		return nil
	})
	return released && err == nil, err
}
