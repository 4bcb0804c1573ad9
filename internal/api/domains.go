package api

import (
	"context"
	"errors"
	"net/url"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// domainAnswer is what both domain routes answer.
type domainAnswer struct {
	Application   scafo.Application `json:"application"`
	Host          string            `json:"host"`
	PlatformHosts []string          `json:"platformHosts"`
}

func (s *server) domainAnswer(c *call, a scafo.Application, host string) (answer, error) {
	return ok(domainAnswer{
		Application: applicationFor(c.principal, a), Host: host,
		PlatformHosts: scafo.PlatformHosts(c.params["name"], s.PlatformDomains),
	})
}

func errUnderPlatform(host, platform string) error {
	return scafo.Errorf(scafo.CodeInvalidInput, "%s is not a host to claim: it is %s, or under it, where every host follows from an application's name", host, platform)
}

func (s *server) claimDomain(ctx context.Context, c *call) (answer, error) {
	name := c.params["name"]
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return answer{}, scafo.Wrap(err, scafo.CodeInvalidInput, "the query does not read")
	}
	wildcard := q.Get("wildcard") == "1"
	// The subdomains are also those of <name>-<env>, so the key must reach all of these.
	if wildcard && !c.principal.Scope.Covers(scafo.Scope{name + "-*"}) {
		return answer{}, scafo.Errorf(scafo.CodeAuthScope, "this key does not reach every application whose name begins with %s-: the subdomains decide what these answer on", name)
	}
	host, err := scafo.ParseHost(c.params["host"])
	if err != nil {
		return answer{}, err
	}
	if p := scafo.UnderPlatform(host, s.PlatformDomains); p != "" {
		return answer{}, errUnderPlatform(host, p)
	}
	if err := s.noBody(c); err != nil {
		return answer{}, err
	}
	a, changed, err := s.Domains.ClaimDomain(ctx, name, host, wildcard)
	if changed {
		s.event(c, "domain.claimed", "application", name, "host", host, "wildcard", wildcard)
	}
	if err != nil {
		return answer{}, disclosed(c, err)
	}
	return s.domainAnswer(c, a, host)
}

// disclosed names who holds a host, where the caller's scope reaches them.
func disclosed(c *call, err error) error {
	var held *registry.HeldError
	if !errors.As(err, &held) || !c.principal.Reaches(held.Application) {
		return err
	}
	return scafo.Wrap(err, scafo.CodeReferenceHeld, "%s", held.Detail(held.Application))
}

func (s *server) releaseDomain(ctx context.Context, c *call) (answer, error) {
	name := c.params["name"]
	host, err := scafo.ParseHost(c.params["host"])
	if err != nil {
		return answer{}, err
	}
	if err := s.noBody(c); err != nil {
		return answer{}, err
	}
	a, changed, err := s.Domains.ReleaseDomain(ctx, name, host)
	if changed {
		s.event(c, "domain.released", "application", name, "host", host)
	}
	if p := scafo.UnderPlatform(host, s.PlatformDomains); p != "" && scafo.CodeOf(err) == scafo.CodeNotFound {
		// One that was claimed before the node had the platform domain can be released.
		return answer{}, errUnderPlatform(host, p)
	}
	if err != nil {
		return answer{}, err
	}
	return s.domainAnswer(c, a, host)
}
