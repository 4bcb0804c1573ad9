package auth

import (
	"context"
	"errors"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/oidc"
	"github.com/scafo/scafo/internal/token"
)

// maxPolicyReads bounds how many trust policies are read at once: anyone can send
// what looks like a workload token, and each costs a read before it can be refused.
const maxPolicyReads = 16

// Workloads is what a [Verifier] needs to accept workload tokens.
type Workloads struct {
	// Trust reads an application's trust policy afresh; where there is none it has no
	// rules.
	Trust func(ctx context.Context, application string) (scafo.TrustPolicy, error)
	OIDC  *oidc.Verifier
}

// Workload verifies a workload token against the trust policy of an application, which
// is read on every call. Such a token is not single use. The errors are auth-invalid,
// trust-mismatch, and store-unavailable where the policy could not be read.
func (v *Verifier) Workload(ctx context.Context, application, bearer string) (Principal, error) {
	if v.workloads == nil {
		return Principal{}, v.refuse(token.Refusal("workload-token"))
	}
	t, err := oidc.Parse(bearer)
	if err != nil {
		return Principal{}, v.refuse(err)
	}
	// Before the bucket is asked: most tokens that do not hold up are old ones.
	if err := t.ValidAt(v.now()); err != nil {
		return Principal{}, v.refuse(err)
	}
	policy, err := v.policy(ctx, application)
	if err != nil {
		return Principal{}, v.refuse(err)
	}
	if err := v.workloads.OIDC.Verify(ctx, t, policy); err != nil {
		var refusal token.Refusal
		switch {
		case scafo.CodeOf(err) == scafo.CodeTrustMismatch:
			v.verdict("trust-mismatch")
			return Principal{}, err
		case !errors.As(err, &refusal): // the caller went away
			return Principal{}, v.refuse(errors.Join(token.Refusal("abandoned"), err))
		}
		return Principal{}, v.refuse(err)
	}
	said := t.Provenance()
	return Principal{Kind: KindWorkload, ID: said.Subject, Application: application, OIDC: &said}, nil
}

func (v *Verifier) policy(ctx context.Context, application string) (scafo.TrustPolicy, error) {
	select {
	case v.reading <- struct{}{}:
	case <-ctx.Done():
		return scafo.TrustPolicy{}, errors.Join(token.Refusal("abandoned"), ctx.Err())
	}
	defer func() { <-v.reading }()
	p, err := v.workloads.Trust(ctx, application)
	if err != nil {
		return p, unavailable(err, "the application's trust policy could not be read")
	}
	return p, nil
}

// RefuseWorkload is the refusal of a workload token on a route that takes none.
func (v *Verifier) RefuseWorkload() error { return v.refuse(token.Refusal("workload-token")) }

// AcceptedWorkload counts a call whose workload token held up.
func (v *Verifier) AcceptedWorkload() { v.verdict("accepted") }
