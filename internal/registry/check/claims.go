package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/registry"
)

// domains checks what an application lists: once each, and only what it holds. A
// deletion that has begun releases the claims and leaves the list.
func (c *checker) domains(key string, app scafo.Application) {
	if len(app.Domains) > scafo.MaxDomains {
		c.say("%s has %d domains", key, len(app.Domains))
	}
	for i, dom := range app.Domains {
		if slices.ContainsFunc(app.Domains[:i], func(d scafo.Domain) bool { return d.Host == dom.Host }) {
			c.say("%s lists %s twice", key, dom.Host)
		}
		claim, ok := c.claims[registry.ClaimKey(dom.Host)]
		switch {
		case app.Deleting != nil:
		case !ok || claim.Value.State != scafo.ClaimHeld || !claim.Value.Of(app.Name, app.UID):
			c.say("%s lists %s, which it does not hold", key, dom.Host)
		case dom.Wildcard && !claim.Value.Wildcard:
			c.say("%s lists the subdomains of %s, which it does not hold", key, dom.Host)
		}
	}
}

// everyClaim checks each claim by itself, and that no two that are held exclude each
// other. It compares each with all others, and so knows nothing of keys and listings.
func (c *checker) everyClaim() {
	var held []scafo.Claim
	for k, d := range c.claims {
		v := d.Value
		if host, err := scafo.ParseHost(v.Host); err != nil || host != v.Host {
			c.say("%s is of host %q: %v", k, v.Host, err)
		}
		if !scafo.ValidName(v.Application) || !hexID(v.UID, 16) || v.At.IsZero() {
			c.say("%s is of application %q, uid %q, at %s", k, v.Application, v.UID, v.At)
		}
		switch v.State {
		case scafo.ClaimHeld:
			held = append(held, v)
		case scafo.ClaimPending, scafo.ClaimReleased:
			// What was held is asked for more, and doubted; nothing else is.
			if v.PendingWildcard || v.Doubted && v.State == scafo.ClaimPending {
				c.say("%s is %s, with subdomains pending %v and doubted %v", k, v.State, v.PendingWildcard, v.Doubted)
			}
		default:
			c.say("%s has state %q", k, v.State)
		}
	}
	slices.SortFunc(held, func(a, b scafo.Claim) int { return strings.Compare(a.Host, b.Host) })
	for i, a := range held {
		for _, b := range held[i+1:] {
			// What is only asked for is not held yet.
			a.PendingWildcard, b.PendingWildcard = false, false
			if a.Conflicts(b) {
				c.say("%s is held by %s and %s by %s, and exclude each other", a.Host, a.Application, b.Host, b.Application)
			}
		}
	}
}

// Settled fails the test for every claim that is half-done: where nobody died, each
// claim is held and listed, with the same subdomains, or released.
func Settled(t testing.TB, b bucket.Bucket) {
	t.Helper()
	problems, err := unsettled(context.Background(), b)
	if err != nil {
		t.Errorf("the claims cannot be checked: %v", err)
	}
	for _, p := range problems {
		t.Errorf("in the bucket: %s", p)
	}
}

func unsettled(ctx context.Context, b bucket.Bucket) (problems []string, err error) {
	r := registry.New(b, registry.Options{})
	apps, err := r.Applications(ctx)
	if err != nil {
		return nil, err
	}
	err = bucket.Walk(ctx, b, registry.DomainPrefix, func(i bucket.Info) error {
		d, err := registry.Load[scafo.Claim](ctx, r, i.Key)
		if err != nil || d.Value.State == scafo.ClaimReleased {
			return err
		}
		v := d.Value
		listed := slices.ContainsFunc(apps, func(a scafo.Application) bool {
			return v.Of(a.Name, a.UID) && slices.Contains(a.Domains, scafo.Domain{Host: v.Host, Wildcard: v.Wildcard})
		})
		if v.State != scafo.ClaimHeld || v.PendingWildcard || v.Doubted || !listed {
			problems = append(problems, fmt.Sprintf("%s is half-done: %+v, listed %v", i.Key, v, listed))
		}
		return nil
	})
	return problems, err
}
