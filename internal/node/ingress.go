package node

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"path/filepath"

	"github.com/scafo/scafo/internal/route"
)

const ingressTokenBytes = 32

// IngressTokens are the tokens that admit an ingress: the configured ones, or one
// that is minted at the first start and kept. The first of them lies in the state
// directory's ingress-token file.
func IngressTokens(dir string, configured []string) ([]string, error) {
	path := filepath.Join(dir, ingressFile)
	if len(configured) > 0 {
		if err := replaceFile(path, configured[0]+"\n"); err != nil {
			return nil, fmt.Errorf("the ingress token: %w", err)
		}
		return configured, nil
	}
	b := make([]byte, ingressTokenBytes)
	if _, err := rand.Read(b); err != nil {
		return nil, err
	}
	t, err := keep(path, base64.RawURLEncoding.EncodeToString(b))
	if err != nil {
		return nil, fmt.Errorf("the ingress token: %w", err)
	}
	return []string{t}, nil
}

// IngressTokenFile is where the first ingress token lies.
func IngressTokenFile(dir string) string { return filepath.Join(dir, ingressFile) }

// renderings are the routing document in the formats that ingresses read natively.
func (n *Node) renderings() *route.Renderings {
	c := n.c.Ingress.Traefik
	t := route.Traefik{
		CertResolver: c.CertResolver, EntryPoints: c.EntryPoints, Middlewares: c.Middlewares, WildcardDomains: c.WildcardDomains,
	}
	return route.NewRenderings(n.loop.Routing, t, func(problems []route.Problem) {
		for _, p := range problems {
			n.log.Warn("left out of the routes for Traefik", "event", "route.left-out", "application", p.Application, "host", p.Host, "detail", p.Detail)
		}
	})
}
