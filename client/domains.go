package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/scafo/scafo"
)

// DomainAnswer is the answer of [Client.ClaimDomain] and [Client.ReleaseDomain].
type DomainAnswer struct {
	Application scafo.Application `json:"application"`
	Host        string            `json:"host"` // as it is claimed, in lower case
	// PlatformHosts are where the application answers under the fleet's own domains.
	PlatformHosts []string `json:"platformHosts"`
}

// ClaimDomain has an application answer on a host, and with wildcard on every host
// one label under it. What it holds already is no failure, and a claim that covers
// the subdomains goes on to. It is reference-held where another application holds
// what was asked for.
func (c *Client) ClaimDomain(ctx context.Context, name, host string, wildcard bool) (DomainAnswer, error) {
	var a DomainAnswer
	path := domainPath(name, host)
	if wildcard {
		path += "?wildcard=1"
	}
	err := c.call(ctx, &request{method: http.MethodPost, path: path}, &a)
	return a, err
}

// ReleaseDomain has an application answer on a host no more; not-found when it is not
// one of its domains.
func (c *Client) ReleaseDomain(ctx context.Context, name, host string) (DomainAnswer, error) {
	var a DomainAnswer
	err := c.call(ctx, &request{method: http.MethodDelete, path: domainPath(name, host)}, &a)
	return a, err
}

func domainPath(name, host string) string {
	return "/v1/applications/" + url.PathEscape(name) + "/domains/" + url.PathEscape(host)
}
