package caddy

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddytls"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/scafo/scafo"
)

// An application that is away while its certificate becomes due keeps its TLS: the
// certificate is renewed, and another ingress finds it. Who was never served has none,
// and a host that is known no more loses the one that it has.
func TestAHostThatNobodyServesKeepsItsCertificate(t *testing.T) {
	const lifetime = 6 * time.Second // due for renewal in its last third
	f := newFleetStore()
	up := []scafo.Upstream{{URL: upstream(t, echo)}}
	routes := newNode(t, scafo.FleetRouting{
		Routes: []scafo.Route{{Host: "shop.example", Upstreams: up}, {Host: "gone.example", Upstreams: up}},
	})
	node := whole(t, routes, f)
	options := func() Options {
		return Options{Fleet: Fleet{Name: "main", Nodes: []string{node.URL}, Token: token}, State: t.TempDir()}
	}
	shake, stop := secureFor(t, options(), lifetime)
	first, err := shake("shop.example")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shake("gone.example"); err != nil {
		t.Fatal(err)
	}
	routes.set(t, scafo.FleetRouting{Unserved: []scafo.UnservedHost{{Host: "shop.example"}, {Host: "never.example"}}})
	eventually(t, "the ingress has the other document", func() bool { _, full := routes.counts(); return full >= 2 })
	for end := first.NotAfter.Add(time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		cert, err := shake("shop.example")
		if err != nil {
			t.Fatalf("%s before its certificate ends: %v", time.Until(first.NotAfter), err)
		}
		if time.Now().After(first.NotAfter) && cert.Equal(first) {
			t.Fatal("an expired certificate")
		}
	}
	refused := func(host string) {
		t.Helper()
		if _, err := shake(host); err == nil {
			t.Errorf("%s has a certificate", host)
		}
	}
	refused("never.example")
	refused("gone.example")
	stop()
	shake, stop = secureFor(t, options(), lifetime)
	defer stop()
	var second *x509.Certificate
	if second, err = shake("shop.example"); err != nil {
		t.Errorf("another ingress: %v", err)
	} else if second.NotAfter.Before(first.NotAfter) {
		t.Error("another ingress has an older certificate")
	}
	refused("never.example")
	refused("gone.example")
	routes.set(t, scafo.FleetRouting{}) // released, blocked or retired
	eventually(t, "its certificate is dropped when it is due", func() bool { _, err := shake("shop.example"); return err != nil })
	refused("shop.example")
}

// failing is a storage that is away.
type failing struct{ certmagic.Storage }

func (failing) List(context.Context, string, bool) ([]string, error) { return nil, errors.New("away") }

func TestWhatIsKnownOfCertificates(t *testing.T) {
	storage := &certmagic.FileStorage{Path: t.TempDir()}
	stored := func(issuer, host string) {
		if err := storage.Store(t.Context(), certmagic.StorageKeys.SiteCert(issuer, host), []byte("a certificate")); err != nil {
			t.Fatal(err)
		}
	}
	p := &poller{}
	app := &App{pollers: []*poller{p, {}}, renewals: newRenewals(storage, zap.NewNop()), counted: uncounted(t)}
	perm := &Permission{app: app}
	document := func(served, unserved []string) {
		t.Helper()
		tab := &table{exact: map[string]*entry{}}
		for _, h := range served {
			tab.exact[h] = &entry{dials: []string{"127.0.0.1:1"}}
		}
		for _, h := range unserved {
			tab.exact[h] = &entry{unserved: "starting"}
		}
		p.table.Store(tab)
	}
	look := func() {
		t.Helper()
		if err := app.lookForCertificates(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	may := func(host string, want bool) {
		t.Helper()
		err := perm.CertificateAllowed(t.Context(), host)
		if (err == nil) != want {
			t.Errorf("%s: %v", host, err)
		}
		if err != nil && !errors.Is(err, caddytls.ErrPermissionDenied) {
			t.Errorf("%s: %v is no denial", host, err)
		}
	}
	away := []string{"a.example", "b.example"}
	document(nil, away)
	look() // a storage that has nothing at all
	may("a.example", false)

	// A look that fails changes nothing, and the next one sees.
	stored("one", "c.example")
	document(nil, append(away, "c.example"))
	app.renewals.storage = failing{}
	if err := app.lookForCertificates(t.Context()); err == nil {
		t.Error("a look at a storage that is away succeeded")
	}
	may("c.example", false)
	app.renewals.storage = storage
	look()
	may("c.example", true)
	may("a.example", false)

	// Allowed while it was served: renewable at once, until it turns out that no
	// certificate came of it.
	document([]string{"a.example", "b.example"}, []string{"c.example"})
	look()
	may("a.example", true)
	may("b.example", true)
	stored("two", "b.example")
	document(nil, append(away, "c.example"))
	may("a.example", true)
	look()
	may("a.example", false)
	may("b.example", true)
	may("c.example", true)

	// Released, and claimed anew before it was ever served.
	document(nil, away)
	look()
	may("c.example", false)

	// Many of them are listed.
	many := []string{"b.example", "c.example"}
	for i := range lookOneByOne + 1 {
		many = append(many, fmt.Sprintf("host-%d.example", i))
	}
	document(nil, many)
	stored("two", "host-7.example")
	look()
	for _, host := range many {
		may(host, slices.Contains([]string{"b.example", "c.example", "host-7.example"}, host))
	}
}
