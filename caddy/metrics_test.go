package caddy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/scafo/scafo"
)

// uncounted are counters that nobody reads.
func uncounted(t *testing.T) *counters {
	t.Helper()
	c, err := newCounters(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// scrape is the metrics of scafo, by name and labels.
func scrape(t *testing.T, address string) map[string]string {
	t.Helper()
	res, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%d %v", res.StatusCode, err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(line, "scafo_") {
			out[name] = value
		}
	}
	return out
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// What the modules count is in Caddy's own metrics, also where the configuration is
// loaded again.
func TestMetrics(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "up") })
	dead := "http://" + freeAddress(t)
	n := newNode(t, scafo.FleetRouting{
		Routes: []scafo.Route{
			{Host: "x.example", Upstreams: []scafo.Upstream{{URL: dead}, {URL: up}}},
			{Host: "y.example", Upstreams: []scafo.Upstream{{URL: up}, {URL: "no URL"}}},
		},
		Wildcards: []scafo.WildcardRoute{{Base: "y.example", Upstreams: []scafo.Upstream{{URL: up}}}},
		API:       []scafo.APIHost{{Host: "apps.example", Upstreams: []scafo.Upstream{{URL: up}}}},
		Unserved:  []scafo.UnservedHost{{Host: "down.example", Reason: "crash-looping"}},
	})
	o := Options{Fleet: Fleet{Name: "main", Nodes: []string{n.URL}, Token: token, Prefer: "self"}, MetricsListen: freeAddress(t)}
	ask := ingress(t, o)
	eventually(t, "a document", func() bool { return ask("x.example", "/").StatusCode == http.StatusOK })
	ask("nobody.example", "/")
	ask("nobody.example", "/")
	ask("down.example", "/")
	check := func(got map[string]string, want map[string]string) {
		t.Helper()
		for name, value := range want {
			if got[name] != value {
				t.Errorf("%s is %q, want %s", name, got[name], value)
			}
		}
	}
	got := scrape(t, o.MetricsListen)
	check(got, map[string]string{
		`scafo_ingress_hosts{fleet="main",kind="route"}`: "2", `scafo_ingress_hosts{fleet="main",kind="wildcard"}`: "1",
		`scafo_ingress_hosts{fleet="main",kind="api"}`: "1", `scafo_ingress_hosts{fleet="main",kind="unserved"}`: "1",
		`scafo_ingress_left_out{fleet="main"}`: "1", `scafo_ingress_polls_total{fleet="main",result="changed"}`: "1",
		`scafo_ingress_refused_total{reason="unknown"}`: "2", `scafo_ingress_refused_total{reason="unserved"}`: "1",
		`scafo_ingress_retries_total{reason="failed"}`: "1", `scafo_ingress_retries_total{reason="refused"}`: "0",
	})
	if at := got[`scafo_ingress_document_confirmed_timestamp_seconds{fleet="main"}`]; !strings.HasPrefix(at, "1.") {
		t.Errorf("a node confirmed the document at %q", at)
	}
	n.answer(http.StatusServiceUnavailable)
	eventually(t, "a failed poll", func() bool {
		return scrape(t, o.MetricsListen)[`scafo_ingress_polls_total{fleet="main",result="failed"}`] > "0"
	})

	// The same configuration again, as a reload has it: the documents stay.
	ask = ingress(t, o)
	ask("nobody.example", "/")
	check(scrape(t, o.MetricsListen), map[string]string{
		`scafo_ingress_hosts{fleet="main",kind="route"}`: "2", `scafo_ingress_refused_total{reason="unknown"}`: "1",
	})
}

func TestMetricsOfThePermission(t *testing.T) {
	registry := prometheus.NewRegistry()
	c, err := newCounters(registry)
	if err != nil {
		t.Fatal(err)
	}
	p := &poller{}
	tab, _, err := parseDocument([]byte(`{"v":1,"routes":[{"host":"a.example","upstreams":[{"url":"http://127.0.0.1:1"}]}],"unserved":[{"host":"down.example"},{"host":"new.example"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	p.table.Store(tab)
	perm := &Permission{app: &App{pollers: []*poller{p}, renewals: newRenewals(nil, nil), counted: c}}
	perm.app.renewals.have["down.example"] = true
	for _, name := range []string{"a.example", "a.example", "down.example", "new.example", "b.example", "x.a.example"} {
		_ = perm.CertificateAllowed(t.Context(), name) // another test has the answers
	}
	want := map[string]float64{"allowed": 2, "renewal": 1, "denied": 3}
	if got := values(t, registry, "scafo_tls_permissions_total"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// values are the counters of a name, or the counts of its histograms, by their labels.
func values(t *testing.T, registry prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if h := m.GetHistogram(); h != nil {
				value = float64(h.GetSampleCount())
			}
			out[strings.Join(labels, " ")] = value
		}
	}
	return out
}

// Two storages of one configuration count together.
func TestMetricsOfTheStorage(t *testing.T) {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
	defer cancel()
	node := httptest.NewServer(newFleetStore().handler(t))
	t.Cleanup(node.Close)
	var storages []*sharedStorage
	for range 2 {
		s := &Storage{Nodes: []string{node.URL}, Token: token}
		if err := s.Provision(ctx); err != nil {
			t.Fatal(err)
		}
		storages = append(storages, s.shared)
	}
	one, two := storages[0], storages[1]
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(one.Store(t.Context(), "a/b", []byte("value")))
	_, err := two.Load(t.Context(), "a/b")
	must(err)
	if _, err := one.Load(t.Context(), "a/none"); err == nil {
		t.Error("a key that nobody stored")
	}
	must(one.Lock(t.Context(), "l"))
	if ok, err := two.TryLock(t.Context(), "l"); ok || err != nil {
		t.Errorf("a lock that another has: %v %v", ok, err)
	}
	registry := ctx.GetMetricsRegistry()
	if got := values(t, registry, "scafo_storage_locks_held"); got[""] != 1 {
		t.Errorf("held: %v", got)
	}
	must(one.Unlock(t.Context(), "l"))
	if got := values(t, registry, "scafo_storage_locks_held"); got[""] != 0 {
		t.Errorf("held afterwards: %v", got)
	}
	want := map[string]float64{"store ok": 1, "load ok": 1, "load missing": 1, "lock ok": 1, "lock held": 1, "unlock ok": 1}
	if got := values(t, registry, "scafo_storage_duration_seconds"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The reference names each metric, and no other.
func TestMetricsAreInTheReference(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/ingress-metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	names := func(pattern string, text []byte) map[string]bool {
		out := map[string]bool{}
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			out[string(m[1])] = true
		}
		return out
	}
	have, said := names(`"(scafo_\w+)"`, code), names("(?m)^\\| `(scafo_\\w+)`", page)
	if len(have) < 8 || fmt.Sprint(have) != fmt.Sprint(said) {
		t.Errorf("the code has %v\nthe reference %v", have, said)
	}
}
