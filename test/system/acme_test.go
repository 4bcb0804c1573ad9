//go:build system

package system

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/paralleltest"
)

// builtProgram is a program of others that `make test-system` builds, in the version
// that the Makefile names in the variable.
func builtProgram(t testing.TB, variable, folder, name string) string {
	t.Helper()
	makefile, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^` + variable + ` := (\S+)$`).FindSubmatch(makefile)
	if version == nil {
		t.Fatalf("the Makefile names no %s", variable)
	}
	cache := os.Getenv("SCAFO_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(dir, "scafo")
	}
	p := filepath.Join(cache, "bin", folder+"-"+string(version[1]), name)
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%s is missing: run make test-system", p)
	}
	return p
}

// pebbleProgram is one of the programs of the certificate authority for tests.
func pebbleProgram(t testing.TB, name string) string {
	t.Helper()
	return builtProgram(t, "PEBBLE_VERSION", "pebble", name)
}

// authority is a real ACME authority that rejects a third of all good nonces, and
// validates by connecting to the two ports.
type authority struct {
	*program
	directory string
	rootFile  string         // of its own TLS
	issued    *x509.CertPool // what its certificates lead to
	names     string         // base URL of where the DNS is told what to answer
}

func startAuthority(t testing.TB, httpPort, httpsPort int, validity time.Duration) *authority {
	t.Helper()
	dir := t.TempDir()
	api, management, dns, names := freePort(t), freePort(t), freePort(t), freePort(t)
	a := &authority{
		directory: fmt.Sprintf("https://127.0.0.1:%d/dir", api), rootFile: filepath.Join(dir, "root.pem"),
		names: fmt.Sprintf("http://127.0.0.1:%d", names),
	}
	certificate, key := selfSigned(t, dir, a.rootFile)
	config := filepath.Join(dir, "pebble.json")
	b, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": fmt.Sprintf("127.0.0.1:%d", api), "managementListenAddress": fmt.Sprintf("127.0.0.1:%d", management),
		"certificate": certificate, "privateKey": key, "httpPort": httpPort, "tlsPort": httpsPort, "keyAlgorithm": "ecdsa",
		"retryAfter": map[string]int{"authz": 1, "order": 1},
		// With several of them it picks one by chance.
		"profiles": map[string]any{"default": map[string]any{"description": "the only one", "validityPeriod": int(validity.Seconds())}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, b, 0o600); err != nil {
		t.Fatal(err)
	}
	// Every name leads to this machine.
	start(t, nil, pebbleProgram(t, "pebble-challtestsrv"), "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-defaultIPv6", "",
		"-dnsserver", fmt.Sprintf("127.0.0.1:%d", dns), "-management", fmt.Sprintf("127.0.0.1:%d", names))
	a.program = start(t, []string{"PEBBLE_WFE_NONCEREJECT=30", "PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0"}, pebbleProgram(t, "pebble"),
		"-strict", "-config", config, "-dnsserver", fmt.Sprintf("127.0.0.1:%d", dns))
	own := x509.NewCertPool()
	own.AppendCertsFromPEM(readFile(t, a.rootFile))
	client := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: own}}}
	t.Cleanup(client.CloseIdleConnections)
	eventually(t, "the authority answers", func() error {
		res, err := client.Get(a.directory)
		if err != nil {
			return err
		}
		return res.Body.Close()
	})
	res, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d/roots/0", management))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	issuer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a.issued = x509.NewCertPool()
	if !a.issued.AppendCertsFromPEM(issuer) {
		t.Fatalf("the authority's root: %q", issuer)
	}
	return a
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// selfSigned writes a certificate for 127.0.0.1, which is its own root.
func selfSigned(t testing.TB, dir, certificate string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	key = filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}

// orders is how many certificates were ordered so far.
func (a *authority) orders() int { return strings.Count(a.out.String(), "Added order ") }

// validations is how often it asked for a proof that a host is the ingress's, which it
// does at least once for each order.
func (a *authority) validations(host string) int {
	return strings.Count(a.out.String(), fmt.Sprintf("Value:%q", host))
}

// ordered holds the number of orders to what it should be.
func (a *authority) ordered(t testing.TB, after string, n int) {
	t.Helper()
	if got := a.orders(); got != n {
		t.Errorf("%s: %d orders, not %d", after, got, n)
	}
}

// secureIngress is a `scafo-caddy run` with certificates of the authority.
type secureIngress struct {
	*program
	t           testing.TB
	c           *cluster
	a           *authority
	name        string
	http, https int
}

// begin starts it, with nothing on disk from before.
func (i *secureIngress) begin() {
	i.t.Helper()
	i.program = start(i.t, []string{"SCAFO_INGRESS_TOKEN=" + clusterIngressToken}, bin(i.t, "scafo-caddy"), "run", "--node", i.c.machines[0].url,
		"--listen", "127.0.0.1", "--http-port", strconv.Itoa(i.http), "--https-port", strconv.Itoa(i.https), "--state", i.t.TempDir(),
		"--email", "ops@example.com", "--acme-directory", i.a.directory, "--acme-root", i.a.rootFile)
	eventually(i.t, i.name+" serves", func() error {
		select {
		case <-i.done:
			i.t.Fatalf("%s ended: %v\n%s", i.name, i.err, i.out)
		default:
		}
		if !contains(i.out.String(), "scafo-caddy: serving") {
			return errors.New("not yet")
		}
		return nil
	})
}

// beginAsWritten starts it with the Caddyfile of docs/how-to/run-the-ingress.md, told
// of this test's addresses and of the authority.
func (i *secureIngress) beginAsWritten() {
	i.t.Helper()
	i.beginWithFile(fmt.Sprintf("\tacme_ca %s\n\tacme_ca_root %s\n", i.a.directory, i.a.rootFile))
}

// beginWithFile starts it with that Caddyfile and these global options more.
func (i *secureIngress) beginWithFile(options string) {
	i.t.Helper()
	dir := i.t.TempDir()
	doc := string(readFile(i.t, filepath.Join(root(i.t), "docs", "how-to", "run-the-ingress.md")))
	_, doc, _ = strings.Cut(doc, "## With a Caddyfile\n\n```\n{\n")
	written, _, found := strings.Cut(doc, "\n```\n")
	const nodes, cache, key = "http://10.0.0.1:7420 http://10.0.0.2:7420", "/var/lib/caddy/scafo-routes.json", "\t\tencryption_key {file./etc/scafo/storage.key}\n"
	for _, part := range []string{nodes, cache, key} {
		if !found || !contains(written, part) {
			i.t.Fatalf("the Caddyfile of the how-to has no %q", part)
		}
	}
	written = strings.NewReplacer(nodes, i.c.machines[0].url, cache, filepath.Join(dir, "routes.json"), key, "").Replace(written)
	mine := fmt.Sprintf("{\n\tadmin off\n\tdefault_bind 127.0.0.1\n\thttp_port %d\n\thttps_port %d\n%s", i.http, i.https, options)
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(mine+written+"\n"), 0o600); err != nil {
		i.t.Fatal(err)
	}
	i.program = start(i.t, []string{"SCAFO_INGRESS_TOKEN=" + clusterIngressToken, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir},
		bin(i.t, "scafo-caddy"), "run", "--config", file)
	eventually(i.t, i.name+" serves", func() error {
		select {
		case <-i.done:
			i.t.Fatalf("%s ended: %v\n%s", i.name, i.err, i.out)
		default:
		}
		if !contains(i.out.String(), "serving initial configuration") {
			return errors.New("not yet")
		}
		return nil
	})
}

// knows waits until plain HTTP answers for the host so: a redirect for a host that the
// ingress knows, and 404 for another one.
func (i *secureIngress) knows(host string, status int) {
	i.t.Helper()
	eventually(i.t, fmt.Sprintf("%s answers %d for %s", i.name, status, host), func() error {
		req, err := http.NewRequestWithContext(i.t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", i.http), nil)
		if err != nil {
			return err
		}
		req.Host = host
		got, _, err := i.c.do(req)
		if err != nil || got != status {
			return fmt.Errorf("%d %w", got, orNil(err))
		}
		return nil
	})
}

// shake is one visitor's handshake. The certificate must be the authority's and the
// host's.
func (i *secureIngress) shake(host string) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	return i.shakeWith(ctx, &tls.Config{ServerName: host, RootCAs: i.a.issued})
}

func (i *secureIngress) shakeWith(ctx context.Context, config *tls.Config) (*x509.Certificate, error) {
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", i.https))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

func (i *secureIngress) served(host string) *x509.Certificate {
	i.t.Helper()
	cert, err := i.shake(host)
	if err != nil {
		i.t.Fatalf("%s, %s: %v", i.name, host, err)
	}
	return cert
}

// refused makes handshakes that the ingress must refuse with an alert; no name at all
// is an empty one.
func (i *secureIngress) refused(hosts ...string) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	var wg sync.WaitGroup
	for _, host := range hosts {
		wg.Go(func() {
			_, err := i.shakeWith(ctx, &tls.Config{ServerName: host, InsecureSkipVerify: true}) //nolint:gosec // any certificate at all is the failure
			if err == nil || !contains(err.Error(), "remote error: tls: ") {
				i.t.Errorf("%s, %.80q: %v, and not an alert", i.name, host, err)
			}
		})
	}
	wg.Wait()
}

// strangers are names that nobody claimed: random ones, deep ones, and some beside and
// below those that were.
func strangers() []string {
	label := strings.Repeat("a", 63)
	names := []string{
		"", "example", "shop.example.com", "www.shop.example", "other.apps.test", "a.b.shop.apps.test",
		"x.wild.example", "random.wild.example", "a.b.wild.example", strings.Repeat("a.", 100) + "wild.example",
		strings.Repeat("b.", 125) + "com", label + "." + label + "." + label + "." + label[:61],
	}
	for range 100 {
		names = append(names, strings.ToLower(rand.Text())+".example", strings.ToLower(rand.Text())+".wild.example")
	}
	return names
}

// Certificates of a real authority, which validates by connecting to one of two
// ingresses: ordered on the first handshake of a host that is served, once for all
// ingresses, and never for another name.
func TestCertificatesOfAnAuthority(t *testing.T) {
	paralleltest.Beside(t)
	c := newCluster(t, 1)
	a := &secureIngress{t: t, c: c, name: "the first ingress", http: freePort(t), https: freePort(t)}
	b := &secureIngress{t: t, c: c, name: "the second ingress", http: freePort(t), https: freePort(t)}
	c.requestClient = &http.Client{Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(c.requestClient.CloseIdleConnections)
	acme := startAuthority(t, a.http, a.https, 90*24*time.Hour)
	a.a, b.a = acme, acme
	a.begin()
	b.begin()
	for _, name := range []string{"shop", "blocked"} {
		c.deploy(worker(t, name, `export default { fetch() { return new Response("`+name+`") } }`))
	}
	claim := func(application string, hosts ...string) {
		t.Helper()
		for _, host := range hosts {
			c.must("domains", "add", application, host)
		}
		for _, host := range hosts {
			a.knows(host, http.StatusPermanentRedirect)
			b.knows(host, http.StatusPermanentRedirect)
		}
	}
	claim("shop", "shop.example", "second.example", "race-1.example", "race-2.example", "gone.example", "late.example")
	claim("blocked", "blocked.example", "blocked-late.example")
	c.must("domains", "add", "shop", "wild.example", "--wildcard")

	began := time.Now()
	first := a.served("shop.example")
	t.Logf("the first handshake took %s", time.Since(began).Round(10*time.Millisecond))
	acme.ordered(t, "a first handshake", 1)
	if !b.served("shop.example").Equal(first) {
		t.Error("the second ingress has another certificate")
	}
	acme.ordered(t, "a handshake with the other ingress", 1)
	// The authority asks the first ingress for what the second one has to show.
	b.served("second.example")
	b.served("blocked.example")
	acme.ordered(t, "handshakes with the second ingress", 3)
	bothAtOnce(t, a, b, "race-1.example", "race-2.example")
	acme.ordered(t, "two names, both ingresses at once", 5)
	a.answersOver(t, "shop.example", "shop")

	a.refused(strangers()...)
	b.refused(strangers()...)
	acme.ordered(t, "names that nobody claimed", 5)

	c.must("domains", "remove", "shop", "gone.example")
	c.must("apps", "block", "blocked")
	for _, host := range []string{"gone.example", "blocked.example", "blocked-late.example"} {
		a.knows(host, http.StatusNotFound)
		b.knows(host, http.StatusNotFound)
	}
	a.refused("gone.example", "blocked-late.example")
	b.refused("gone.example", "blocked-late.example")
	// A new process has only what is in the storage, the blocked application's too.
	b.stop(t)
	b.begin()
	b.refused("gone.example", "blocked.example", "blocked-late.example")
	acme.ordered(t, "released and blocked hosts", 5)

	own := &secureIngress{t: t, c: c, a: acme, name: "the ingress with a Caddyfile", http: freePort(t), https: freePort(t)}
	own.beginAsWritten()
	if !own.served("shop.example").Equal(first) {
		t.Error("the ingress with a Caddyfile has another certificate")
	}
	own.refused("gone.example", "blocked.example", "x.wild.example", "a.b.wild.example", "stranger.example")
	acme.ordered(t, "an ingress with a Caddyfile", 5)
	own.served("wild.example")
	acme.ordered(t, "a handshake with it", 6)
	own.answersOver(t, "wild.example", "shop")

	withoutAuthority(t, a, b, first)
}

// bothAtOnce lets several visitors meet both ingresses at the same moment, with hosts
// that have no certificate yet.
func bothAtOnce(t *testing.T, a, b *secureIngress, hosts ...string) {
	t.Helper()
	const visitors = 3
	for _, host := range hosts {
		var wg sync.WaitGroup
		certs := make([]*x509.Certificate, 2*visitors)
		for n := range certs {
			wg.Go(func() {
				var err error
				if certs[n], err = []*secureIngress{a, b}[n%2].shake(host); err != nil {
					t.Errorf("%s at both: %v", host, err)
				}
			})
		}
		wg.Wait()
		for _, cert := range certs {
			if cert != nil && certs[0] != nil && !cert.Equal(certs[0]) {
				t.Errorf("%s has several certificates", host)
			}
		}
	}
}

// answersOver asks an application over HTTPS.
func (i *secureIngress) answersOver(t *testing.T, host, want string) {
	t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: i.a.issued}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", i.https))
		},
	}}
	defer client.CloseIdleConnections()
	res, err := client.Get("https://" + host + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || string(body) != want || res.ProtoMajor != 2 {
		t.Errorf("https://%s: %d %q %s %v", host, res.StatusCode, body, res.Proto, err)
	}
}

// withoutAuthority proves what goes on when the authority is away, and then the node as
// well.
func withoutAuthority(t *testing.T, a, b *secureIngress, first *x509.Certificate) {
	t.Helper()
	a.a.stop(t)
	b.stop(t)
	b.begin()
	ctx, giveUp := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() {
		_, err := a.shakeWith(ctx, &tls.Config{ServerName: "late.example", RootCAs: a.a.issued})
		waits <- err
	}()
	for _, i := range []*secureIngress{a, b} {
		if !i.served("shop.example").Equal(first) {
			t.Errorf("%s has another certificate", i.name)
		}
		i.served("second.example")
		i.answersOver(t, "shop.example", "shop")
	}
	a.c.machines[0].stop(t)
	for _, i := range []*secureIngress{a, b} {
		if !i.served("shop.example").Equal(first) {
			t.Errorf("%s has another certificate", i.name)
		}
	}
	// Its visitor waits as long as the authority is asked again.
	giveUp()
	if err := <-waits; err == nil {
		t.Error("a certificate without an authority")
	}
}

// What is due is renewed in a handshake; for an application that was blocked or retired,
// and for a released host, nothing is ordered any more.
func TestRenewalsFromAnAuthority(t *testing.T) {
	paralleltest.Beside(t)
	c := newCluster(t, 1)
	c.requestClient = &http.Client{Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(c.requestClient.CloseIdleConnections)
	i := &secureIngress{t: t, c: c, name: "the ingress", http: freePort(t), https: freePort(t)}
	// The authority asks for a renewal at a moment within the certificate's life, and Caddy
	// renews ten minutes before it: at once.
	i.a = startAuthority(t, i.http, i.https, 5*time.Minute)
	i.begin()
	for _, name := range []string{"shop", "blocked", "retired"} {
		c.deploy(worker(t, name, `export default { fetch() { return new Response("`+name+`") } }`))
		c.must("domains", "add", name, name+".example")
	}
	c.must("domains", "add", "shop", "gone.example")
	hosts := []string{"shop.example", "blocked.example", "retired.example", "gone.example"}
	first := map[string]*x509.Certificate{}
	for _, host := range hosts {
		i.knows(host, http.StatusPermanentRedirect)
		first[host] = i.served(host)
	}
	renewed := func(host string, from *x509.Certificate) (to *x509.Certificate) {
		t.Helper()
		eventually(t, host+" has a new certificate", func() error {
			if to = i.served(host); to.Equal(from) {
				return errors.New("it has the old one")
			}
			return nil
		})
		return to
	}
	second := renewed("shop.example", first["shop.example"])
	c.must("apps", "block", "blocked")
	c.must("apps", "retire", "retired")
	c.must("domains", "remove", "shop", "gone.example")
	before := map[string]int{}
	for _, host := range hosts[1:] {
		i.knows(host, http.StatusNotFound)
		eventually(t, host+" is refused", func() error {
			if _, err := i.shake(host); err == nil {
				return errors.New("it has a certificate")
			}
			return nil
		})
		if before[host] = i.a.validations(host); before[host] == 0 {
			t.Errorf("%s was never validated", host)
		}
	}
	i.refused(hosts[1:]...)
	renewed("shop.example", second)
	for _, host := range hosts[1:] {
		if n := i.a.validations(host); n != before[host] {
			t.Errorf("%s: validated %d times after it went", host, n-before[host])
		}
	}
}
