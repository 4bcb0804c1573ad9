package registry

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
)

// ReleaseDomain takes a host from an application: from its list, then by the release
// of the claim. not-found, always in the same words, when it is not a domain of the
// application, whoever else has it. changed says whether anything was written, also
// beside an error.
func (r *Registry) ReleaseDomain(ctx context.Context, name, host string) (app scafo.Application, changed bool, err error) {
	ctx, cancel, err := finish(ctx)
	if err != nil {
		return app, false, err
	}
	defer cancel()
	err = r.retry(ctx, ClaimKey(host), func() error {
		// A claim of the same host may list it after it was taken out: it is done once
		// neither document has it.
		unlisted, d, err := r.unlist(ctx, name, host)
		if err != nil {
			return err
		}
		app = d.Value
		changed = changed || unlisted
		released, err := r.releaseClaim(ctx, host, name, app.UID)
		if err != nil {
			return err
		}
		changed = changed || released
		switch {
		case unlisted || released:
			return errClaimMoved
		case !changed:
			return scafo.Errorf(scafo.CodeNotFound, "%s is not a domain of application %s", host, name)
		}
		return nil
	})
	if err != nil {
		return app, changed, err
	}
	return app, changed, r.Announce(ctx, ApplicationKey(name), ClaimKey(host))
}

// unlist takes a host out of an application's list.
func (r *Registry) unlist(ctx context.Context, name, host string) (unlisted bool, d Doc[scafo.Application], err error) {
	d, err = Update(ctx, r, ApplicationKey(name), func(d *Doc[scafo.Application]) error {
		unlisted = false
		if !d.Exists {
			return errNoApplication(name)
		}
		if d.Value.Deleting != nil {
			return errDeleting(name)
		}
		i := listed(d.Value, host)
		if i < 0 {
			return ErrKeep
		}
		d.Value.Domains = slices.Delete(slices.Clone(d.Value.Domains), i, i+1)
		unlisted = true
		return nil
	})
	return unlisted, d, err
}

// releaseClaim releases the claim of a host, if it is of that life of an application.
func (r *Registry) releaseClaim(ctx context.Context, host, name, uid string) (released bool, err error) {
	_, err = Update(ctx, r, ClaimKey(host), func(d *Doc[scafo.Claim]) error {
		released = false
		if !d.Exists || !d.Value.Active() || !d.Value.Of(name, uid) {
			return ErrKeep
		}
		release(&d.Value)
		d.Value.Doubted = false
		released = true
		return nil
	})
	return released, err
}

// ReleaseClaims releases the claims of one life of an application whose deletion has
// begun: of the hosts that its record lists, and of those beside them that the caller
// knows of (a snapshot has the claims that are not listed, or not yet). It returns the
// keys of the claims that it released, in order; also beside an error: called again it
// goes on with what is left. The record itself is not changed. A claim that is made
// while the deletion begins is refused by the record, and taken back by its maker, or
// by the coordinator.
func (r *Registry) ReleaseClaims(ctx context.Context, app, uid string, known ...string) (released []string, err error) {
	d, err := Load[scafo.Application](ctx, r, ApplicationKey(app))
	if err != nil {
		return nil, err
	}
	hosts := slices.Clone(known)
	if d.Exists && d.Value.UID == uid {
		for _, dom := range d.Value.Domains {
			hosts = append(hosts, dom.Host)
		}
	}
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	done := make([]bool, len(hosts))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, h := range hosts {
		g.Go(func() (err error) {
			done[i], err = r.releaseClaim(gctx, h, app, uid)
			return err
		})
	}
	err = g.Wait()
	for i, h := range hosts {
		if done[i] {
			released = append(released, ClaimKey(h))
		}
	}
	slices.Sort(released)
	if len(released) > 0 {
		err = errors.Join(err, r.Announce(ctx, released...))
	}
	return released, err
}

// SettleClaim makes a claim what [plan.StaleClaim] says that it should be, if it is
// still the very write that was seen. It is safe whoever calls it, and when: what is
// claimed meanwhile stays claimed.
func (r *Registry) SettleClaim(ctx context.Context, host, write string) (after scafo.Claim, changed bool, err error) {
	d, err := Load[scafo.Claim](ctx, r, ClaimKey(host))
	if err != nil || !d.Exists || d.Value.Write != write {
		return d.Value, false, err
	}
	after, err = r.settleClaim(ctx, d)
	if errors.Is(err, errClaimMoved) {
		return after, false, nil
	}
	if err != nil {
		return after, false, err
	}
	return after, true, r.Announce(ctx, d.Key)
}

// settleClaim takes back what of a claim nobody completed or lists. A held claim is
// marked first: a claimant who relies on it after that either sees the mark, or has
// listed it before, which the look at the list then finds.
func (r *Registry) settleClaim(ctx context.Context, d Doc[scafo.Claim]) (scafo.Claim, error) {
	if d.Value.State == scafo.ClaimHeld {
		var err error
		if d, err = r.moveClaim(ctx, d, func(v *scafo.Claim) { v.Doubted = true }); err != nil {
			return d.Value, err
		}
	}
	app, err := Load[scafo.Application](ctx, r, ApplicationKey(d.Value.Application))
	if err != nil {
		return d.Value, err
	}
	apps := map[string]scafo.Application{}
	if app.Exists {
		apps[d.Value.Application] = app.Value
	}
	after, _ := plan.StaleClaim(d.Value, apps)
	d, err = r.moveClaim(ctx, d, func(v *scafo.Claim) {
		after.Header = v.Header
		*v = after
	})
	return d.Value, err
}

// SettleListing makes what an application lists of a host what its claim says: an
// entry without a claim goes, and one that covers more than the claim covers that. It
// does nothing where the claim may yet come to be held.
func (r *Registry) SettleListing(ctx context.Context, name, uid, host string) (changed bool, err error) {
	changed, err = r.settleListing(ctx, name, uid, host)
	if errors.Is(err, errClaimMoved) {
		return false, nil
	}
	if err != nil || !changed {
		return false, err
	}
	return true, r.Announce(ctx, ApplicationKey(name))
}

// settleListing is SettleListing, without the announcement, and with errClaimMoved
// when the application changed meanwhile.
func (r *Registry) settleListing(ctx context.Context, name, uid, host string) (changed bool, err error) {
	app, err := Load[scafo.Application](ctx, r, ApplicationKey(name))
	if err != nil {
		return false, err
	}
	i := listed(app.Value, host)
	if !app.Exists || app.Value.UID != uid || app.Value.Deleting != nil || i < 0 {
		return false, nil
	}
	// The claim is read after the list, and whoever writes it writes the list too.
	c, err := Load[scafo.Claim](ctx, r, ClaimKey(host))
	if err != nil {
		return false, err
	}
	stale := plan.StaleListing(app.Value, app.Value.Domains[i], c.Value)
	if stale == plan.ListingStands {
		return false, nil
	}
	etag := app.ETag
	_, err = updateFrom(ctx, r, &app, app.Key, func(d *Doc[scafo.Application]) error {
		if d.ETag != etag {
			return errClaimMoved
		}
		d.Value.Domains = slices.Clone(d.Value.Domains)
		if stale == plan.ListingGoes {
			d.Value.Domains = slices.Delete(d.Value.Domains, i, i+1)
		} else {
			d.Value.Domains[i].Wildcard = false
		}
		return nil
	})
	return err == nil, err
}
