package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
)

// How a deploy is followed.
const (
	pollFirst = 25 * time.Millisecond
	pollMost  = time.Second
	// pollWait is for how long a node is asked to keep an answer without news back.
	pollWait = 10 * time.Second
	// pollPatience is how long nodes may be out of reach: one is restarted meanwhile.
	pollPatience = time.Minute
	// deployPatience is longer than what a node gives a deploy.
	deployPatience = 15 * time.Minute
	// answerPatience is how long the address may take to answer once the nodes are
	// ready: an ingress follows within seconds.
	answerPatience = 15 * time.Second
	answerTimeout  = 5 * time.Second
	answerMost     = 500 * time.Millisecond
)

// healthPath is answered by the application's process and not by the application,
// so that a look at it has no effect.
const healthPath = "/.well-known/celld/health"

// growing is a pause that grows by a quarter each time.
type growing struct{ next, most time.Duration }

func (g *growing) wait(ctx context.Context) error {
	d := g.next
	g.next = min(g.next+g.next/4, g.most)
	return sleep(ctx, d)
}

// follow polls a deploy until it ends. The node that carries it out answers when there
// is news; another one at once, and is asked again after a pause.
func (d *deployRun) follow(ctx context.Context, s scafo.DeployStatus) (scafo.DeployStatus, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, deployPatience, fmt.Errorf("the deploy %s did not end within %s; look again with scafo deploys show %s", s.ID, deployPatience, s.ID))
	defer cancel()
	pause := growing{pollFirst, pollMost}
	d.progress.step("publishing")
	published := false
	etag := ""
	for heard := time.Now(); ; {
		asked := time.Now()
		now, newETag, changed, err := d.client.AwaitDeploy(ctx, s.ID, etag, pollWait)
		switch {
		case err == nil:
			heard = time.Now()
		case ctx.Err() != nil:
			return s, d.interrupted(context.Cause(ctx), s.ID)
		case mayPass(err) && time.Since(heard) < pollPatience:
		default:
			return s, goneMeanwhile(err, s)
		}
		if err != nil || !changed {
			if time.Since(asked) < pollWait {
				if err := pause.wait(ctx); err != nil {
					return s, d.interrupted(err, s.ID)
				}
			}
			continue
		}
		s, etag = now, newETag
		if s.State == scafo.DeployFailed {
			return s, nil
		}
		if s.Deployment != "" && !published {
			published = true
			d.progress.done("published " + short(s.Deployment))
			d.progress.step("waiting for the nodes")
		}
		if s.State == scafo.DeployDeployed {
			return s, nil
		}
		if s.Step != "" {
			d.progress.step(s.Step)
		}
	}
}

// interrupted says that a deploy goes on without this command.
func (d *deployRun) interrupted(err error, id string) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("interrupted; the deploy goes on: scafo deploys show %s", id)
	}
	return err
}

// mayPass reports whether a failed poll says nothing about the deploy.
func mayPass(err error) bool {
	var u *client.Unreachable
	if errors.As(err, &u) {
		return true
	}
	switch scafo.CodeOf(err) {
	case scafo.CodeDraining, scafo.CodeStoreUnavailable:
		return true
	}
	return false
}

// short is a version as it is shown.
func short(version string) string {
	const most = 4
	if len(version) <= most {
		return version
	}
	return version[:most] + "…"
}

// address is where the application answers, waited for; empty where nobody says, and
// where no node runs it.
func (d *deployRun) address(ctx context.Context, s scafo.DeployStatus) string {
	var ready []string
	for _, n := range s.Nodes {
		if n.Version == s.Deployment {
			ready = append(ready, n.Node)
		}
	}
	if len(ready) == 0 {
		if a, err := d.client.Application(ctx, s.Application); err == nil && a.Retired != nil {
			d.progress.note(s.Application + " is retired, and no node runs it: scafo apps unretire " + s.Application + " brings it back")
		} else {
			d.progress.note("no node runs it at the moment: scafo status says why")
		}
		return ""
	}
	at := d.knownAddress(ctx, s.Application)
	if at != "" {
		d.progress.step("waiting for " + at)
		if !answers(ctx, at) {
			d.progress.note(at + " does not answer yet")
		}
	}
	d.progress.done("ready on " + strings.Join(ready, ", "))
	return at
}

// knownAddress is the application's address: the one that `scafo up` serves, or the
// first domain that it claimed.
func (d *deployRun) knownAddress(ctx context.Context, name string) string {
	if d.fleet.Workers != "" {
		return strings.ReplaceAll(d.fleet.Workers, "<name>", name)
	}
	// Not every key may read the record; then nobody says.
	a, err := d.client.Application(ctx, name)
	if err != nil || len(a.Domains) == 0 {
		return ""
	}
	return "https://" + a.Domains[0].Host
}

// answers waits until an ingress leads the address to the application.
func answers(ctx context.Context, at string) bool {
	u, err := url.Parse(at)
	if err != nil {
		return false
	}
	u.Path = healthPath
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	transport := &http.Transport{DialContext: dialLocalhost, TLSHandshakeTimeout: answerTimeout, DisableKeepAlives: true}
	if !localhost(u.Hostname()) {
		transport.Proxy = http.ProxyFromEnvironment
	}
	c := &http.Client{Transport: transport, Timeout: answerTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for pause := (growing{pollFirst, answerMost}); ; {
		err := served(ctx, c, u.String())
		var dns *net.DNSError
		switch {
		case err == nil:
			return true
		case errors.As(err, &dns) && dns.IsNotFound:
			return false // nobody leads there yet, and not within seconds
		}
		if pause.wait(ctx) != nil {
			return false
		}
	}
}

// served is nil when an answer came from behind the ingress.
func served(ctx context.Context, c *http.Client, at string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	res, err := c.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusNotFound, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return errors.New(res.Status)
	}
	return nil
}

func localhost(host string) bool {
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// dialLocalhost leads names below localhost to this machine (RFC 6761), which not
// every resolver does.
func dialLocalhost(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil && localhost(host) {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	d := net.Dialer{Timeout: answerTimeout}
	return d.DialContext(ctx, network, address)
}
