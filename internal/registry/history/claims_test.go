package history

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

// Hosts: one, and two below it, which it excludes where it covers its subdomains.
var (
	claimHosts = [...]string{"shop.test.example", "a.shop.test.example", "b.shop.test.example"}
	claimants  = [...]string{"one", "two", "three"}
)

// owned is who has a host: 0 for nobody, else the claimant's index and one.
type owned struct {
	by       int
	wildcard bool
}

type owners [len(claimHosts)]owned

type claimOp struct {
	what      string // claim, release, read
	who, host int
	wildcard  bool
}

type claimValue struct {
	refused string
	owner   int
}

func runClaim(ctx context.Context, r *registry.Registry, in any) (any, error) {
	op := in.(claimOp)
	var v claimValue
	var err error
	switch op.what {
	case "claim":
		_, _, err = r.ClaimDomain(ctx, claimants[op.who], claimHosts[op.host], op.wildcard)
	case "release":
		_, _, err = r.ReleaseDomain(ctx, claimants[op.who], claimHosts[op.host])
	case "read":
		v.owner, err = ownerOf(ctx, r, claimHosts[op.host])
	}
	v.refused, err = refusal(err)
	return v, err
}

// ownerOf is who has a host by the claim and by the list, as routes take it.
func ownerOf(ctx context.Context, r *registry.Registry, host string) (int, error) {
	c, err := registry.Load[scafo.Claim](ctx, r, registry.ClaimKey(host))
	if err != nil || c.Value.State != scafo.ClaimHeld {
		return 0, err
	}
	a, err := r.Application(ctx, c.Value.Application)
	if err != nil || !slices.ContainsFunc(a.Domains, func(d scafo.Domain) bool { return d.Host == host }) {
		return 0, err
	}
	return slices.Index(claimants[:], c.Value.Application) + 1, nil
}

// excludes reports whether a host that somebody else has keeps another one from being
// claimed.
func excludes(held int, heldWild bool, asked int, askedWild bool) bool {
	return held == asked || held == 0 && heldWild || asked == 0 && askedWild
}

func applyClaim(in, what any) (any, any) {
	s, op := in.(owners), what.(claimOp)
	switch op.what {
	case "claim":
		mine := s[op.host].by == op.who+1
		wild := op.wildcard || mine && s[op.host].wildcard
		for h, o := range s {
			if o.by != 0 && o.by != op.who+1 && excludes(h, o.wildcard, op.host, wild) {
				return s, claimValue{refused: string(scafo.CodeReferenceHeld)}
			}
		}
		s[op.host] = owned{op.who + 1, wild}
		return s, claimValue{}
	case "release":
		if s[op.host].by != op.who+1 {
			return s, claimValue{refused: string(scafo.CodeNotFound)}
		}
		s[op.host] = owned{}
		return s, claimValue{}
	default:
		return s, claimValue{owner: s[op.host].by}
	}
}

// Two claims that race may both lose, and what one of them has written on the way keeps
// a third one out: a refusal needs no more than a rival that was under way. A release
// and a claim of one application and host at once take each other's halves. That a claim
// succeeds is never excused.
func looseClaim(in, out, beside any) bool {
	op, v, b := in.(claimOp), out.(claimValue), beside.(claimOp)
	if b.what == "read" {
		return false
	}
	switch op.what {
	case "claim":
		return v.refused != "" && b.who != op.who
	case "release":
		return b.who == op.who && b.host == op.host
	}
	return false
}

// settleClaims is what the reaper of the coordinator does, as often as there is anything
// to do: what it takes back of a claim may leave an entry that stands no more.
func settleClaims(ctx context.Context, r *registry.Registry) error {
	for changed := true; changed; {
		changed = false
		for _, host := range claimHosts {
			one, err := settleHost(ctx, r, host)
			if err != nil {
				return err
			}
			changed = changed || one
		}
	}
	return nil
}

func settleHost(ctx context.Context, r *registry.Registry, host string) (changed bool, err error) {
	apps := map[string]scafo.Application{}
	for _, name := range claimants {
		if apps[name], err = r.Application(ctx, name); err != nil {
			return false, err
		}
	}
	c, err := registry.Load[scafo.Claim](ctx, r, registry.ClaimKey(host))
	if err != nil {
		return false, err
	}
	if _, why := plan.StaleClaim(c.Value, apps); why != "" {
		if _, changed, err = r.SettleClaim(ctx, host, c.Value.Write); err != nil {
			return false, err
		}
	}
	for _, a := range apps {
		one, err := r.SettleListing(ctx, a.Name, a.UID, host)
		if err != nil {
			return false, err
		}
		changed = changed || one
	}
	return changed, nil
}

var claims = subject{
	name: "claims",
	prepare: func(ctx context.Context, r *registry.Registry) error {
		for _, name := range claimants {
			if _, _, err := r.CreateApplication(ctx, name, "someone", nil); err != nil {
				return err
			}
		}
		return nil
	},
	next: func(rng *rand.Rand) any {
		op := claimOp{what: []string{"claim", "claim", "release"}[rng.IntN(3)], who: rng.IntN(len(claimants)), host: rng.IntN(len(claimHosts))}
		op.wildcard = op.what == "claim" && op.host == 0 && rng.IntN(2) == 0
		return op
	},
	run: runClaim, settle: settleClaims, first: owners{}, apply: applyClaim, loose: looseClaim,
	final: []any{claimOp{what: "read", host: 0}, claimOp{what: "read", host: 1}, claimOp{what: "read", host: 2}},
}
