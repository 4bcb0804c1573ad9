//go:build system

package system

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// traefik is a real Traefik that polls a node, as docs/how-to/use-traefik.md has it.
type traefik struct {
	*program
	t           testing.TB
	http, https int
	client      *http.Client
}

// startTraefik starts one in front of a machine. With an authority it has a resolver
// "le", which proves names below wildcards by DNS and the others over HTTP; httpPort is
// where the authority asks. dynamic is what the operator has in a file.
func startTraefik(t testing.TB, m *machine, a *authority, httpPort int, dynamic string) *traefik {
	t.Helper()
	dir := t.TempDir()
	i := &traefik{t: t, http: httpPort, https: freePort(t)}
	static := fmt.Sprintf(`
global: {checkNewVersion: false, sendAnonymousUsage: false}
entryPoints:
  web: {address: "127.0.0.1:%d", http: {redirections: {entryPoint: {to: ":%d"}}}}
  websecure: {address: "127.0.0.1:%d"}
providers:
  providersThrottleDuration: 100ms
  http:
    endpoint: "%s/v1/ingress/routes/traefik"
    headers: {Authorization: "Bearer %s"}
    pollInterval: 300ms
  file: {filename: %q, watch: false}
`, i.http, i.https, i.https, m.url, clusterIngressToken, filepath.Join(dir, "dynamic.yml"))
	var env []string
	if a != nil {
		static += fmt.Sprintf(`
certificatesResolvers:
  le:
    acme:
      email: ops@example.com
      storage: %q
      caServer: %q
      httpChallenge: {entryPoint: web}
      dnsChallenge: {provider: httpreq, propagation: {disableChecks: true}}
`, filepath.Join(dir, "acme.json"), a.directory)
		env = []string{"LEGO_CA_CERTIFICATES=" + a.rootFile, "LEGO_DISABLE_CNAME_SUPPORT=true", "HTTPREQ_ENDPOINT=" + a.zone(t)}
	}
	for name, content := range map[string]string{"traefik.yml": static, "dynamic.yml": dynamic} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i.program = start(t, env, builtProgram(t, "TRAEFIK_VERSION", "traefik", "traefik"), "--configFile="+filepath.Join(dir, "traefik.yml"))
	i.client = &http.Client{Timeout: patience, Transport: &http.Transport{
		MaxIdleConnsPerHost: 8, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // shake looks at certificates
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", i.https))
		},
	}}
	t.Cleanup(i.client.CloseIdleConnections)
	return i
}

// zone is the DNS of the authority as a DNS provider that takes HTTP requests.
func (a *authority) zone(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ FQDN, Value string }
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		b, err := json.Marshal(map[string]string{"host": asked.FQDN, "value": asked.Value})
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		path := map[string]string{"/present": "/set-txt", "/cleanup": "/clear-txt"}[r.URL.Path]
		res, err := http.Post(a.names+path, "application/json", bytes.NewReader(b))
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		w.WriteHeader(res.StatusCode)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// ask asks Traefik over HTTPS, with forwarding headers of the visitor's own.
func (i *traefik) ask(host string) (res *http.Response, body string, err error) {
	req, err := http.NewRequestWithContext(i.t.Context(), http.MethodGet, "https://"+host+"/", nil)
	if err != nil {
		return nil, "", err
	}
	req.Header = http.Header{"X-Forwarded-Host": {"evil"}, "X-Forwarded-Proto": {"gopher"}, "Forwarded": {"for=6.6.6.6"}}
	if res, err = i.client.Do(req); err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

// answers is nil when the host answers with that status, and, if it is not empty, by
// that body.
func (i *traefik) answers(host string, status int, body string) error {
	res, got, err := i.ask(host)
	if err != nil {
		return err
	}
	if res.StatusCode != status || body != "" && got != body {
		return fmt.Errorf("%s: %d %.100q", host, res.StatusCode, got)
	}
	return nil
}

func (i *traefik) eventually(host string, status int, body string) {
	i.t.Helper()
	eventually(i.t, fmt.Sprintf("%s answers %d", host, status), func() error { return i.answers(host, status, body) })
}

// shake is a handshake; roots may be nil, for any certificate at all.
func (i *traefik) shake(host string, roots *x509.CertPool) (*x509.Certificate, error) {
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", i.https), &tls.Config{
		ServerName: host, RootCAs: roots, InsecureSkipVerify: roots == nil, //nolint:gosec // the test looks at it
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0], nil
}

// invented is a machine that is not there: it says in the bucket that it serves
// applications, which servers of this test answer for. A real node, which runs nothing
// itself, places them on it and tells of them.
type invented struct {
	t    testing.TB
	reg  *registry.Registry
	id   string
	beat scafo.Heartbeat
}

func (c *cluster) invent(reg *registry.Registry, id string) *invented {
	c.t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = reg.RegisterNode(c.t.Context(), scafo.Node{
		ID: id, Address: fmt.Sprintf("http://127.0.0.1:%d", freePort(c.t)), Version: scafo.Version,
		PublicKey: scafo.PublicKey{Kty: "OKP", Crv: "Ed25519", X: base64.RawURLEncoding.EncodeToString(public)},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	n := &invented{t: c.t, reg: reg, id: id, beat: scafo.Heartbeat{Node: id, BootID: "a boot of " + id, At: time.Now()}}
	n.say()
	return n
}

func (n *invented) say() {
	n.t.Helper()
	n.beat.At = time.Now()
	if err := n.reg.WriteHeartbeat(n.t.Context(), n.beat, true); err != nil {
		n.t.Fatal(err)
	}
}

func (n *invented) serve(app scafo.Application, url string) {
	n.beat.Processes = append(n.beat.Processes, scafo.ProcessStatus{
		Application: app.Name, UID: app.UID, State: scafo.ProcessReady, URL: url, Deployment: app.Deployment, Wanted: app.Deployment,
	})
}

// applications makes applications that have a version.
func applications(t testing.TB, reg *registry.Registry, names ...string) []scafo.Application {
	t.Helper()
	apps := make([]scafo.Application, len(names))
	keys := make([]string, len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i, name := range names {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			d, _, err := reg.AddApplication(t.Context(), name, "a test", func(a *scafo.Application) {
				a.Deployment, a.DeploySeq, a.DeploymentSeq = "v1", 1, 1
			})
			apps[i], keys[i], errs[i] = d.Value, registry.ApplicationKey(name), err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if err := reg.Announce(t.Context(), keys...); err != nil {
		t.Fatal(err)
	}
	return apps
}

func named(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return out
}

// A real Traefik behind a real node: one application, none, forty and two thousand, with
// certificates of a real authority. What one claim spoils is that claim alone, and what a
// node refuses while it restarts changes nothing.
func TestTraefik(t *testing.T) {
	c := newCluster(t, 1, "--celld-command", "none", "--ingress-traefik-cert-resolver", "le", "--ingress-traefik-wildcard-domains", "apps.test",
		"--ingress-traefik-entry-points", "websecure", "--ingress-traefik-middlewares", "mark@file", "--reconcile-interval-seconds", "1")
	reg := registry.New(c.bucket(), registry.Options{Node: "outside"})
	httpPort := freePort(t)
	acme := startAuthority(t, httpPort, freePort(t), 90*24*time.Hour)
	i := startTraefik(t, c.machines[0], acme, httpPort, "http: {middlewares: {mark: {headers: {customResponseHeaders: {X-Operator: was here}}}}}\n")
	answering := func(name string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s host=%s xfh=%s xfp=%s forwarded=%q", name, r.Host, r.Header.Get("X-Forwarded-Host"), r.Header.Get("X-Forwarded-Proto"), r.Header.Get("Forwarded"))
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	says := func(name, host string) string {
		return fmt.Sprintf(`%s host=%s xfh=%s xfp=https forwarded=""`, name, host, host)
	}
	one, two := answering("one"), answering("two")
	there := c.invent(reg, "there")

	shop := applications(t, reg, "shop")[0]
	there.serve(shop, one)
	there.say()
	i.eventually("shop.apps.test", http.StatusOK, says("one", "shop.apps.test"))
	res, _, err := i.ask("shop.apps.test")
	if err != nil || res.Header.Get("X-Operator") != "was here" {
		t.Errorf("the operator's own middleware: %v %v", res, err)
	}
	c.must("apps", "block", "shop")
	i.eventually("shop.apps.test", http.StatusNotFound, "")
	c.must("apps", "unblock", "shop")
	i.eventually("shop.apps.test", http.StatusOK, "")

	for k, app := range applications(t, reg, named("app", 40)...) {
		there.serve(app, []string{one, two}[k%2])
	}
	there.say()
	for k, name := range named("app", 40) {
		i.eventually(name+".apps.test", http.StatusOK, says([]string{"one", "two"}[k%2], name+".apps.test"))
	}
	i.claims(c, reg, there, two, says)
	i.certificates(acme)
	i.restart(c, reg, there, one)
	began := time.Now()
	for _, app := range applications(t, reg, named("many", 1957)...) {
		there.serve(app, one)
	}
	there.say()
	t.Logf("%d applications written after %s", len(there.beat.Processes), time.Since(began).Round(10*time.Millisecond))
	for _, name := range []string{"many-0", "many-999", "many-1956", "shop", "app-39"} {
		i.eventually(name+".apps.test", http.StatusOK, "")
	}
	t.Logf("%d applications served after %s", len(there.beat.Processes), time.Since(began).Round(10*time.Millisecond))
	if _, err := i.shake("many-1956.apps.test", acme.issued); err != nil {
		t.Error(err)
	}
	acme.ordered(t, "two thousand applications below one wildcard", 5)
	for line := range strings.Lines(i.out.String()) {
		if contains(line, " ERR ") && !contains(line, "Provider error, retrying in") {
			t.Errorf("Traefik complains: %s", line)
		}
	}
}

// claims are hosts of an application's own: one exactly, one with what is below it, which
// another application answers in one place, and one that no rule can name.
func (i *traefik) claims(c *cluster, reg *registry.Registry, there *invented, two string, says func(name, host string) string) {
	i.t.Helper()
	c.must("domains", "add", "app-0", "shop.example")
	c.must("domains", "add", "app-0", "wild.example", "--wildcard")
	there.serve(applications(i.t, reg, "app-0-a")[0], two) // an environment: a.wild.example is its host
	there.say()
	poison := "x`) || PathPrefix(`/"
	app, err := reg.Application(i.t.Context(), "app-2")
	if err != nil {
		i.t.Fatal(err)
	}
	key := registry.DomainPrefix + "poison.json"
	_, err = registry.Update(i.t.Context(), reg, key, func(d *registry.Doc[scafo.Claim]) error {
		d.Value = scafo.Claim{Host: poison, Application: app.Name, UID: app.UID, State: scafo.ClaimHeld}
		return nil
	})
	if err != nil {
		i.t.Fatal(err)
	}
	_, err = reg.UpdateApplication(i.t.Context(), app.Name, func(a *scafo.Application) error {
		a.Domains = append(a.Domains, scafo.Domain{Host: poison}, scafo.Domain{Host: "after.example"})
		return nil
	})
	if err != nil {
		i.t.Fatal(err)
	}
	if err := reg.Announce(i.t.Context(), key, registry.ApplicationKey(app.Name)); err != nil {
		i.t.Fatal(err)
	}
	c.must("domains", "add", "app-2", "after.example")
	i.eventually("after.example", http.StatusOK, says("one", "after.example"))
	i.eventually("shop.example", http.StatusOK, says("one", "shop.example"))
	i.eventually("wild.example", http.StatusOK, says("one", "wild.example"))
	i.eventually("any.wild.example", http.StatusOK, says("one", "any.wild.example"))
	i.eventually("a.wild.example", http.StatusOK, says("two", "a.wild.example"))
	i.eventually("a.b.wild.example", http.StatusNotFound, "")
	i.eventually("stranger.example", http.StatusNotFound, "")
}

// certificates are ordered for what is named exactly, and by DNS for the wildcard that
// covers all platform hosts; never for what somebody asks for.
func (i *traefik) certificates(a *authority) {
	i.t.Helper()
	for host, name := range map[string]string{
		"shop.example": "shop.example", "wild.example": "wild.example", "shop.apps.test": "*.apps.test", "app-39.apps.test": "*.apps.test",
	} {
		eventually(i.t, host+" has its certificate", func() error {
			cert, err := i.shake(host, a.issued)
			if err != nil {
				return err
			}
			if !slices.Equal(cert.DNSNames, []string{name}) {
				return fmt.Errorf("it is for %v", cert.DNSNames)
			}
			return nil
		})
	}
	for _, host := range []string{"any.wild.example", "stranger.example"} {
		if _, err := i.shake(host, a.issued); err == nil {
			i.t.Errorf("%s has a certificate", host)
		}
	}
}

// restart takes the node away under requests, and brings it back. What changed meanwhile
// is heard afterwards.
func (i *traefik) restart(c *cluster, reg *registry.Registry, there *invented, url string) {
	i.t.Helper()
	asking := startLoad(i.t, "while the node restarts", 2, func(context.Context) error {
		time.Sleep(5 * time.Millisecond)
		return i.answers("shop.apps.test", http.StatusOK, "")
	})
	m := c.machines[0]
	m.stop(i.t)
	there.serve(applications(i.t, reg, "meanwhile")[0], url)
	there.say()
	c.run(m)
	i.eventually("meanwhile.apps.test", http.StatusOK, "")
	asking.stop(i.t)
}
