package caddy

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/scafo/scafo"
)

// freePort is a port that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// secure runs an ingress with certificates of Caddy's own authority, and returns a
// handshake with it.
func secure(t *testing.T, o Options) (shake func(host string) (*x509.Certificate, error), stop func()) {
	t.Helper()
	return secureFor(t, o, 0)
}

// secureFor is secure with certificates of this lifetime.
func secureFor(t *testing.T, o Options, lifetime time.Duration) (shake func(host string) (*x509.Certificate, error), stop func()) {
	t.Helper()
	o.HTTPPort, o.HTTPSPort, o.Listen, o.LogLevel = freePort(t), freePort(t), "127.0.0.1", "ERROR"
	c := o.Config()
	app := o.tls()
	app.Automation.Policies[0].IssuersRaw = []json.RawMessage{json.RawMessage(fmt.Sprintf(`{"module":"internal","lifetime":%d}`, lifetime))}
	c.AppsRaw["tls"] = caddyconfig.JSON(app, nil)
	c.AppsRaw["pki"] = json.RawMessage(`{"certificate_authorities":{"local":{"install_trust":false}}}`)
	if err := caddy.Run(c); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	}
	return func(host string) (*x509.Certificate, error) {
		conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", o.HTTPSPort), &tls.Config{ServerName: host, InsecureSkipVerify: true}) //nolint:gosec // the authority is the test's
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0], nil
	}, stop
}

// whole is a node that has routes and storage.
func whole(t *testing.T, routes *node, f *fleetStore) *httptest.Server {
	api := f.handler(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/storage/") {
			api.ServeHTTP(w, r)
			return
		}
		routes.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// Two ingresses after each other, with nothing on disk in common, serve one and the
// same certificate; a name that the document does not have gets none.
func TestCertificatesAreInTheFleetsStorage(t *testing.T) {
	f := newFleetStore()
	doc := scafo.FleetRouting{Routes: []scafo.Route{{Host: "shop.example", Upstreams: []scafo.Upstream{{URL: upstream(t, echo)}}}}}
	node := whole(t, newNode(t, doc), f)
	dead := "http://127.0.0.1:" + fmt.Sprint(freePort(t))
	options := func() Options {
		return Options{Fleet: Fleet{Name: "main", Nodes: []string{dead, node.URL}, Token: token}, State: t.TempDir(), EncryptionKeys: []string{"a secret of the test's"}}
	}
	shake, stop := secure(t, options())
	first, err := shake("shop.example")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shake("other.example"); err == nil {
		t.Error("a name that nobody serves has a certificate")
	}
	stop()
	shake, stop = secure(t, options())
	defer stop()
	second, err := shake("shop.example")
	if err != nil {
		t.Fatal(err)
	}
	if !first.Equal(second) {
		t.Error("the second ingress has a certificate of its own")
	}
}

// An ingress on other ports meets the authority's questions there: on 80 and 443 it may
// have no right to listen.
func TestChallengesArriveAtTheIngressPorts(t *testing.T) {
	t.Parallel()
	var app struct {
		Automation struct {
			Policies []struct {
				Issuers []struct{ Challenges map[string]any } `json:"issuers"`
			} `json:"policies"`
		} `json:"automation"`
	}
	o := Options{Listen: "127.0.0.1", HTTPPort: 8080, HTTPSPort: 8443}
	if err := json.Unmarshal(o.Config().AppsRaw["tls"], &app); err != nil {
		t.Fatal(err)
	}
	got := app.Automation.Policies[0].Issuers[0].Challenges
	want := map[string]any{
		"http":      map[string]any{"alternate_port": 8080.},
		"tls-alpn":  map[string]any{"alternate_port": 8443.},
		"bind_host": "127.0.0.1",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
}

// A certificate is renewed while all nodes but one are away. While the bucket is away one
// that is due is served as long as it is good, and no visitor waits for its renewal.
func TestARenewalWithOneNodeLeft(t *testing.T) {
	// A name of its own: certmagic knows by name, for the whole process, what is being
	// renewed, and what this test leaves unfinished would hold up another one.
	host := strings.ToLower(rand.Text()) + ".example"
	const lifetime = 10 * time.Second // due from the beginning: so soon before its end it counts as urgent
	f := newFleetStore()
	routes := newNode(t, scafo.FleetRouting{Routes: []scafo.Route{{Host: host, Upstreams: []scafo.Upstream{{URL: upstream(t, echo)}}}}})
	var nodes []*httptest.Server
	var urls []string
	for range 3 {
		nodes = append(nodes, whole(t, routes, f))
		urls = append(urls, nodes[len(nodes)-1].URL)
	}
	shake, stop := secureFor(t, Options{Fleet: Fleet{Name: "main", Nodes: urls, Token: token}, State: t.TempDir()}, lifetime)
	defer stop()
	first, err := shake(host)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes[:2] {
		n.CloseClientConnections()
		n.Close()
	}
	var second *x509.Certificate
	eventually(t, "another certificate", func() bool {
		if second, err = shake(host); err != nil {
			t.Fatalf("%s before its certificate ends: %v", time.Until(first.NotAfter), err)
		}
		return !second.Equal(first)
	})
	if left := time.Until(first.NotAfter); left < 0 {
		t.Errorf("it came %s after the first one had ended", -left)
	}
	f.store.SetDown(true)
	for range 20 {
		began := time.Now()
		if _, err := shake(host); err != nil {
			t.Fatalf("while the bucket is away: %v", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("while the bucket is away a handshake takes %s", took)
		}
		time.Sleep(50 * time.Millisecond)
	}
	f.store.SetDown(false)
	eventually(t, "a certificate after the bucket has come back", func() bool {
		cert, err := shake(host)
		return err == nil && cert.NotAfter.After(second.NotAfter)
	})
}
