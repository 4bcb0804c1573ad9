package registry

import (
	"context"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/token"
)

// uidBytes is how many random bytes a uid has: enough that no two lives of a name
// ever share one, and short in paths.
const uidBytes = 8

// InitFleet makes the fleet of this bucket with its first admin key. It refuses a
// bucket that has one. The fleet and the trust in its founder begin with one
// write; what follows from it is completed by whoever comes next when this call
// dies half-way, and the same founder may simply call again.
func (r *Registry) InitFleet(ctx context.Context, founder scafo.Operator) (scafo.Fleet, error) {
	founder.Header = scafo.Header{V: scafo.FormatVersion}
	if err := checkOperator(&founder); err != nil {
		return scafo.Fleet{}, err
	}
	if founder.Role != scafo.RoleAdmin || !founder.Applications.All() {
		return scafo.Fleet{}, scafo.Errorf(scafo.CodeInvalidInput, "the first operator of a fleet is an admin whose key reaches every application")
	}
	created := false
	d, err := Update(ctx, r, FleetKey, func(d *Doc[scafo.Fleet]) error {
		created = !d.Exists
		if d.Exists {
			return ErrKeep
		}
		if founder.CreatedAt.IsZero() {
			founder.CreatedAt = r.Now()
		}
		d.Value = scafo.Fleet{ID: r.Nonce(uidBytes), CreatedAt: r.Now(), Founder: founder}
		return nil
	})
	if err != nil {
		return scafo.Fleet{}, err
	}
	completed, err := r.completeInit(ctx, d.Value.Founder)
	if err != nil {
		return scafo.Fleet{}, err
	}
	f := d.Value.Founder
	if created || completed && f.ID == founder.ID && f.PublicKey == founder.PublicKey {
		return d.Value, r.Announce(ctx, FleetKey, OperatorKey(f.ID))
	}
	return d.Value, scafo.Errorf(scafo.CodeReferenceHeld, "this bucket already has a fleet, made %s by operator %s",
		d.Value.CreatedAt.Format("2006-01-02"), f.ID)
}

// completeInit makes what follows from a fleet: its founder's id, record and
// place in the index. The index comes last and is never removed, so that it says
// whether anything is left to do; the record is created only where there never was
// one, so that a late completion revives no key that was revoked since.
func (r *Registry) completeInit(ctx context.Context, founder scafo.Operator) (completed bool, err error) {
	index, err := Load[scafo.OperatorIndex](ctx, r, OperatorIndexKey)
	if err != nil || index.ETag != "" {
		return false, err
	}
	if err := r.claimID(ctx, founder.ID, kindOperator, founder.PublicKey); err != nil {
		return false, err
	}
	_, err = Update(ctx, r, OperatorKey(founder.ID), func(d *Doc[scafo.Operator]) error {
		if d.ETag != "" {
			return ErrKeep
		}
		d.Value = founder
		return nil
	})
	if err != nil {
		return false, err
	}
	_, err = Update(ctx, r, OperatorIndexKey, func(d *Doc[scafo.OperatorIndex]) error {
		if d.ETag != "" {
			return ErrKeep
		}
		d.Value.Operators = map[string]scafo.Role{founder.ID: founder.Role}
		return nil
	})
	return err == nil, err
}

// Fleet is the fleet of this bucket, or not-found.
func (r *Registry) Fleet(ctx context.Context) (scafo.Fleet, error) {
	d, err := Load[scafo.Fleet](ctx, r, FleetKey)
	if err == nil && !d.Exists {
		err = scafo.Errorf(scafo.CodeNotFound, "this bucket has no fleet: scafo init makes one")
	}
	return d.Value, err
}

// Freeze is the freeze of the fleet's deploys, or nil.
func (r *Registry) Freeze(ctx context.Context) (*scafo.Freeze, error) {
	d, err := Load[scafo.Freeze](ctx, r, FreezeKey)
	if err != nil || !d.Exists {
		return nil, err
	}
	return &d.Value, nil
}

// The kinds of ids.
const (
	kindOperator = "operator"
	kindNode     = "node"
)

// claimID claims an id for a kind and a key, for good. Who holds the claim
// already may claim again; every other claim is reference-held. A key under which
// anybody could sign (of small order) is never registered.
func (r *Registry) claimID(ctx context.Context, id, kind string, key scafo.PublicKey) error {
	if _, err := token.ParsePublicKey(key); err != nil {
		return err
	}
	_, err := Update(ctx, r, IDKey(id), func(d *Doc[scafo.IDClaim]) error {
		if !d.Exists {
			d.Value = scafo.IDClaim{ID: id, Kind: kind, PublicKey: key}
			return nil
		}
		switch {
		case d.Value.Kind != kind:
			return scafo.Errorf(scafo.CodeReferenceHeld, "the id %s belongs to another kind of key: operators and nodes share their ids", id)
		case d.Value.PublicKey != key:
			return scafo.Errorf(scafo.CodeReferenceHeld, "the id %s belongs to another key, for good", id)
		}
		return ErrKeep
	})
	return err
}
