//go:build system

package system

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/conformance"
	"github.com/scafo/scafo/internal/paralleltest"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// target is a cluster as the conformance suite needs it.
func (c *cluster) target() conformance.Target {
	c.t.Helper()
	k, _, err := keyfile.Load(filepath.Join(c.state, "admin.jwk"))
	if err != nil {
		c.t.Fatal(err)
	}
	target := conformance.Target{KeyID: k.ID, Key: k.Private, IngressToken: clusterIngressToken}
	for _, m := range c.machines {
		target.Nodes = append(target.Nodes, "http://"+m.api)
	}
	return target
}

// The specification, sentence by sentence, over HTTP: one node.
func TestConformanceOfOneNode(t *testing.T) {
	paralleltest.Early(t)
	conformance.Run(t, newCluster(t, 1).target())
}

// Two nodes, of which a random one gets each request.
func TestConformanceOfTwoNodes(t *testing.T) {
	paralleltest.Early(t)
	conformance.Run(t, newCluster(t, 2).target())
}

// One node behind scafo-caddy, which passes its API on at the bare platform domain.
func TestConformanceBehindCaddy(t *testing.T) {
	paralleltest.Early(t)
	c := newCluster(t, 1)
	m := c.machines[0]
	m.stop(t)
	m.args = append(m.args, "--api-public")
	c.run(m)
	port := freePort(t)
	start(t, []string{"SCAFO_INGRESS_TOKEN=" + clusterIngressToken}, bin(t, "scafo-caddy"), "run", "--node", m.url,
		"--listen", "127.0.0.1", "--http-port", strconv.Itoa(port), "--http-only", "--state", t.TempDir())
	transport := &http.Transport{
		ExpectContinueTimeout: patience, DisableCompression: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, "127.0.0.1:"+strconv.Itoa(port))
		},
	}
	defer transport.CloseIdleConnections()
	eventually(t, "the API answers behind the ingress", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://apps.test"+scafo.HealthPath, nil)
		if err != nil {
			return err
		}
		res, err := transport.RoundTrip(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("it answers %d", res.StatusCode)
		}
		return nil
	})
	target := c.target()
	target.Nodes, target.Transport = []string{"http://apps.test"}, transport
	conformance.Run(t, target)
}
