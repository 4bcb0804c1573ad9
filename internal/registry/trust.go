package registry

import (
	"context"

	"github.com/scafo/scafo"
)

// TrustPolicy is an application's trust policy, read afresh. Where there is none it
// has no rules: nothing is trusted then.
func (r *Registry) TrustPolicy(ctx context.Context, application string) (scafo.TrustPolicy, error) {
	d, err := Load[scafo.TrustPolicy](ctx, r, TrustKey(application))
	if err != nil || !d.Exists {
		return scafo.TrustPolicy{Application: application}, err
	}
	return d.Value, nil
}

// Trust adds a rule to the trust policy of an application, which need not exist: a
// pipeline may make it with its first deploy. allowLoopback admits issuers at
// http://127.0.0.1. Errors are invalid-input, and application-deleting.
func (r *Registry) Trust(ctx context.Context, application string, rule scafo.TrustRule, allowLoopback bool) (p scafo.TrustPolicy, changed bool, err error) {
	if err := r.notDeleting(ctx, application); err != nil {
		return p, false, err
	}
	d, err := Update(ctx, r, TrustKey(application), func(d *Doc[scafo.TrustPolicy]) error {
		if !d.Exists {
			d.Value = scafo.TrustPolicy{Application: application}
		}
		if changed = d.Value.Add(rule); !changed {
			return ErrKeep
		}
		return d.Value.Validate(allowLoopback)
	})
	if err != nil {
		return d.Value, false, err
	}
	// A deletion that began in between may have looked for the policy before it was
	// there: it is not left to the next application of this name.
	if err := r.notDeleting(ctx, application); err != nil {
		if _, removed := Remove[scafo.TrustPolicy](ctx, r, TrustKey(application), nil); removed != nil {
			return d.Value, changed, removed
		}
		return d.Value, changed, err
	}
	return d.Value, changed, r.Announce(ctx, TrustKey(application))
}

// Distrust takes rules away from an application's trust policy: those of an issuer, or
// all where it is empty; of them one subject, where that is given. Where no rule is
// left the policy goes. removed is false where there was nothing to take away.
func (r *Registry) Distrust(ctx context.Context, application, issuer, subject string) (p scafo.TrustPolicy, removed bool, err error) {
	d, err := Update(ctx, r, TrustKey(application), func(d *Doc[scafo.TrustPolicy]) error {
		if !d.Exists {
			return ErrKeep
		}
		if removed = d.Value.Remove(issuer, subject); !removed {
			return ErrKeep
		}
		return nil
	})
	if err != nil || !removed {
		return d.Value, false, err
	}
	if len(d.Value.Rules) == 0 {
		// A rule that was added in between keeps the policy.
		_, err = Remove(ctx, r, TrustKey(application), func(p scafo.TrustPolicy) error {
			if len(p.Rules) > 0 {
				return ErrKeep
			}
			return nil
		})
		if err != nil {
			return d.Value, true, err
		}
	}
	return d.Value, true, r.Announce(ctx, TrustKey(application))
}

func (r *Registry) notDeleting(ctx context.Context, application string) error {
	d, err := Load[scafo.Application](ctx, r, ApplicationKey(application))
	if err != nil {
		return err
	}
	if d.Exists && d.Value.Deleting != nil {
		return scafo.Errorf(scafo.CodeApplicationDeleting, "application %s is being deleted", application)
	}
	return nil
}
