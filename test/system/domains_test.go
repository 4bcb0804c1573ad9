//go:build system

package system

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/paralleltest"
)

// answers waits until the ingress answers for a host as it should; an empty body is
// not looked at.
func (f *fleet) answers(host string, status int, body string) time.Duration {
	f.t.Helper()
	began := time.Now()
	eventually(f.t, fmt.Sprintf("%s answers %d %s", host, status, body), func() error {
		req, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(f.http)+"/", nil)
		if err != nil {
			return err
		}
		req.Host = host
		got, said, err := f.do(req)
		if err != nil || got != status || body != "" && said != body {
			return fmt.Errorf("%d %q %w", got, tail(said, 200), orNil(err))
		}
		return nil
	})
	return time.Since(began)
}

// Domains of one's own, through the ingress: a claimed host answers, its subdomains
// where they were asked for, and a released one does not.
func TestDomains(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	for _, name := range []string{"shop", "shop-staging", "other"} {
		f.deploy(worker(t, name, `export default { fetch() { return new Response("`+name+`") } }`))
	}
	f.answers("shop.example", http.StatusNotFound, "")
	if out := f.must("domains", "add", "shop", "Shop.Example"); !strings.HasPrefix(out, "shop answers on shop.example\n") {
		t.Errorf("%q", out)
	}
	took := f.answers("shop.example", http.StatusOK, "shop")
	t.Logf("a claimed host answers after %s", took.Round(10*time.Millisecond))
	f.answers("x.shop.example", http.StatusNotFound, "")
	f.must("domains", "add", "shop", "shop.example", "--wildcard")
	f.answers("x.shop.example", http.StatusOK, "shop")
	f.answers("staging.shop.example", http.StatusOK, "shop-staging")
	f.answers("two.labels.shop.example", http.StatusNotFound, "")
	if _, errs, err := f.scafo("domains", "add", "other", "x.shop.example"); err == nil || !contains(errs, "shop.example is held with its subdomains by the application shop (reference-held)") {
		t.Errorf("%v %s", err, errs)
	}
	if _, errs, err := f.scafo("domains", "add", "other", "other.localhost"); err == nil || !contains(errs, "invalid-input") {
		t.Errorf("a host under a platform domain: %v %s", err, errs)
	}
	f.must("apps", "block", "shop")
	f.answers("shop.example", http.StatusNotFound, "")
	if out := f.must("domains", "list"); !contains(out, "shop.example") || !contains(out, "blocked") {
		t.Errorf("a blocked application keeps its domains:\n%s", out)
	}
	f.must("apps", "unblock", "shop")
	f.answers("shop.example", http.StatusOK, "shop")
	f.must("domains", "remove", "shop", "shop.example")
	took = f.answers("shop.example", http.StatusNotFound, "")
	t.Logf("a released host is gone after %s", took.Round(10*time.Millisecond))
	f.answers("staging.shop.example", http.StatusNotFound, "")
	f.must("domains", "add", "other", "x.shop.example")
	f.answers("x.shop.example", http.StatusOK, "other")
	// The longest hosts, of long labels and of many: a real store has them as paths.
	label := strings.Repeat("a", 63)
	for _, long := range []string{label + "." + label + "." + label + "." + label[:61], strings.Repeat("b.", 125) + "com"} {
		if len(long) != 253 {
			t.Fatal(len(long))
		}
		f.must("domains", "add", "other", long, "--wildcard")
		f.answers(long, http.StatusOK, "other")
		f.must("domains", "remove", "other", long)
		f.answers(long, http.StatusNotFound, "")
	}
	f.answers("shop.localhost:"+strconv.Itoa(f.http), http.StatusOK, "shop")
}
