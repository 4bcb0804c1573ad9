package api_test

import (
	"fmt"
	"slices"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// claimed has an application claim a host beforehand.
func claimed(name, host string, wildcard bool) func(*registry.Registry) error {
	return func(r *registry.Registry) error {
		_, _, err := r.ClaimDomain(ctxBackground, name, host, wildcard)
		return err
	}
}

// putClaim writes a claim as it is.
func putClaim(r *registry.Registry, c scafo.Claim) error {
	c.At = r.Now()
	_, err := registry.Update(ctxBackground, r, registry.ClaimKey(c.Host), func(d *registry.Doc[scafo.Claim]) error {
		c.Header, d.Value = d.Value.Header, c
		return nil
	})
	return err
}

// halfDone leaves a claim of shop's that nobody completed.
func halfDone(r *registry.Registry, state scafo.ClaimState, doubted bool) error {
	a, err := r.Application(ctxBackground, "shop")
	if err != nil {
		return err
	}
	return putClaim(r, scafo.Claim{Host: "shop.example", Application: "shop", UID: a.UID, State: state, Doubted: doubted})
}

// formerLife leaves claims of lives that are over: of the host, and of one that covers
// it.
func formerLife(r *registry.Registry, host string) error {
	err := putClaim(r, scafo.Claim{Host: host, Application: "shop", UID: "0123456789abcdef", State: scafo.ClaimHeld})
	if err != nil {
		return err
	}
	return putClaim(r, scafo.Claim{Host: "x." + host, Application: "gone", UID: "0123456789abcdef", State: scafo.ClaimHeld})
}

func claimOf(r *registry.Registry, host string) (scafo.Claim, error) {
	d, err := registry.Load[scafo.Claim](ctxBackground, r, registry.ClaimKey(host))
	return d.Value, err
}

// holdsDomain says that shop holds a host, in both documents.
func holdsDomain(host string, wildcard bool) func(*registry.Registry) error {
	return func(r *registry.Registry) error {
		a, err := r.Application(ctxBackground, "shop")
		if err != nil {
			return err
		}
		c, err := claimOf(r, host)
		if err != nil {
			return err
		}
		if c.State != scafo.ClaimHeld || !c.Of("shop", a.UID) || c.Wildcard != wildcard || c.Doubted || !slices.Contains(a.Domains, scafo.Domain{Host: host, Wildcard: wildcard}) {
			return fmt.Errorf("the claim is %+v, the list %v", c, a.Domains)
		}
		return nil
	}
}

// holdsNoDomain says that neither document has it.
func holdsNoDomain(host string) func(*registry.Registry) error {
	return func(r *registry.Registry) error {
		a, err := r.Application(ctxBackground, "shop")
		if err != nil {
			return err
		}
		c, err := claimOf(r, host)
		if err != nil {
			return err
		}
		if c.Active() || slices.ContainsFunc(a.Domains, func(d scafo.Domain) bool { return d.Host == host }) {
			return fmt.Errorf("the claim is %+v, the list %v", c, a.Domains)
		}
		return nil
	}
}
