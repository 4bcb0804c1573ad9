package metrics

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/reconcile"
	"github.com/scafo/scafo/internal/supervise"
)

// busy is a node on which everything happened, with so many applications.
func busy(apps int, perApplication bool) *Metrics {
	m := New()
	m.Pass(reconcile.Pass{Took: 30 * time.Millisecond, Placed: 3})
	m.Pass(reconcile.Pass{Took: time.Second, Failed: true})
	m.Process(supervise.Started)
	m.Process(supervise.Started)
	m.Deploy(scafo.DeployStatus{State: scafo.DeployDeployed}, 3*time.Second)
	m.Deploy(scafo.DeployStatus{State: scafo.DeployFailed, Code: scafo.CodePublishFailed}, time.Second)
	m.DeployRefused(scafo.CodeDeploysFrozen)
	m.Token("accepted")
	m.Token("expired")
	m.Bucket(meter.Get, meter.OutcomeNotModified, 4*time.Millisecond)
	g := reconcile.Gauges{
		Applications: map[string]int{"deployed": apps}, Nodes: map[string]int{"live": 2, "gone": 1},
		Placed: apps, Coordinate: true, Unplaced: 1, Unreadable: 4,
	}
	for i := range apps {
		g.Processes = append(g.Processes, scafo.ProcessStatus{Application: fmt.Sprintf("app-%d", i), State: scafo.ProcessReady, Restarts: 2})
	}
	m.Watch(Sources{
		Version: "1.2.3", Runtime: "celld 0.6.2", Applications: perApplication,
		Requests: func() meter.Counts {
			return meter.Counts{{Purpose: "heartbeat", Op: meter.Replace}: 7, {Purpose: "revision", Op: meter.Get}: 60}
		},
		Fleet: func() (reconcile.Gauges, bool) { return g, true },
		Held:  func() (int64, bool) { return 5, true }, Last: func() (scafo.Lease, bool) { return scafo.Lease{Fence: 5}, true },
		Deploys: func() int { return 1 },
	})
	return m
}

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// What is served is what the definitions, and so the reference, say: every name with
// its type and its labels, and no other.
func TestServedIsWhatIsDefined(t *testing.T) {
	families, err := busy(2, true).registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "scafo_") {
			continue // Go's and the process's own
		}
		served[f.GetName()] = true
		i := slices.IndexFunc(Definitions(), func(d Definition) bool { return d.Name == f.GetName() })
		if i < 0 {
			t.Errorf("%s is served and not defined", f.GetName())
			continue
		}
		d := Definitions()[i]
		if got := strings.ToLower(f.GetType().String()); got != string(d.Type) {
			t.Errorf("%s is a %s, and defined as a %s", d.Name, got, d.Type)
		}
		if f.GetHelp() != d.Help {
			t.Errorf("%s helps with %q", d.Name, f.GetHelp())
		}
		want := slices.Sorted(slices.Values(d.Labels))
		for _, metric := range f.GetMetric() {
			var got []string
			for _, l := range metric.GetLabel() {
				got = append(got, l.GetName())
			}
			if !slices.Equal(slices.Sorted(slices.Values(got)), want) {
				t.Errorf("%s has the labels %v, and is defined with %v", d.Name, got, want)
			}
		}
	}
	for _, d := range Definitions() {
		if !served[d.Name] {
			t.Errorf("%s is defined and not served", d.Name)
		}
	}
}

// The names keep to Prometheus's conventions.
func TestNames(t *testing.T) {
	name, label := regexp.MustCompile(`^scafo_[a-z]+(_[a-z]+)*$`), regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	for _, d := range Definitions() {
		if !name.MatchString(d.Name) {
			t.Errorf("%s is no name", d.Name)
		}
		if total := strings.HasSuffix(d.Name, "_total"); total != (d.Type == Counter) {
			t.Errorf("%s is a %s", d.Name, d.Type)
		}
		if d.Type == Histogram && !strings.HasSuffix(d.Name, "_seconds") {
			t.Errorf("%s does not say its unit", d.Name)
		}
		for _, l := range d.Labels {
			if !label.MatchString(l) {
				t.Errorf("%s: label %q", d.Name, l)
			}
			if l == "application" && !d.Applications {
				t.Errorf("%s has a series for each application without a switch", d.Name)
			}
		}
		if d.Help == "" || !strings.HasSuffix(d.Help, ".") {
			t.Errorf("%s: help %q", d.Name, d.Help)
		}
	}
}

func TestValues(t *testing.T) {
	page := scrape(t, busy(2, true))
	for _, line := range []string{
		`scafo_build_info{runtime="celld 0.6.2",version="1.2.3"} 1`,
		`scafo_reconcile_passes_total{result="ok"} 1`,
		`scafo_reconcile_passes_total{result="failed"} 1`,
		`scafo_reconcile_pass_duration_seconds_sum 1.03`,
		`scafo_placements_written_total 3`,
		`scafo_lease_held 1`, `scafo_lease_holder_known 1`, `scafo_lease_fence 5`,
		`scafo_nodes{state="live"} 2`, `scafo_nodes{state="gone"} 1`, `scafo_nodes{state="removed"} 0`,
		`scafo_applications{state="deployed"} 2`, `scafo_applications{state="blocked"} 0`,
		`scafo_placements 2`, `scafo_applications_unplaced 1`, `scafo_documents_unreadable 4`,
		`scafo_processes{state="ready"} 2`, `scafo_processes{state="backoff"} 0`,
		`scafo_process_events_total{event="started"} 2`, `scafo_process_events_total{event="fenced"} 0`,
		`scafo_deploys_total{code="",state="deployed"} 1`, `scafo_deploys_total{code="publish-failed",state="failed"} 1`,
		`scafo_deploy_duration_seconds_count{state="deployed"} 1`, `scafo_deploy_duration_seconds_bucket{state="deployed",le="2"} 0`,
		`scafo_deploy_duration_seconds_bucket{state="deployed",le="4"} 1`,
		`scafo_deploys_refused_total{code="deploys-frozen"} 1`, `scafo_deploys_active 1`,
		`scafo_tokens_total{verdict="accepted"} 1`, `scafo_tokens_total{verdict="expired"} 1`,
		`scafo_bucket_requests_total{op="replace",purpose="heartbeat"} 7`, `scafo_bucket_requests_total{op="get",purpose="revision"} 60`,
		`scafo_bucket_outcomes_total{op="get",outcome="not_modified"} 1`, `scafo_bucket_request_duration_seconds_count{op="get"} 1`,
		`scafo_application_processes{application="app-1",state="ready"} 1`, `scafo_application_restarts_total{application="app-1"} 2`,
	} {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
}

// A fleet of thousands has as many series as a fleet of one, and names no application.
func TestNoSeriesForEachApplication(t *testing.T) {
	lines := func(apps int) int {
		page := scrape(t, busy(apps, false))
		if strings.Contains(page, "app-0") {
			t.Error("an application is named without the switch")
		}
		n := 0
		for _, l := range strings.Split(page, "\n") {
			if strings.HasPrefix(l, "scafo_") {
				n++
			}
		}
		return n
	}
	if one, many := lines(1), lines(3000); one != many || one == 0 {
		t.Errorf("one application has %d lines, 3,000 have %d", one, many)
	}
}

// Before the bucket was read, nothing is claimed of the fleet, and who does not
// coordinate does not say what is unplaced.
func TestWhatIsNotKnownIsNotSaid(t *testing.T) {
	m, known, g := New(), false, reconcile.Gauges{}
	m.Watch(Sources{
		Requests: func() meter.Counts { return nil }, Fleet: func() (reconcile.Gauges, bool) { return g, known },
		Held: func() (int64, bool) { return 0, false }, Last: func() (scafo.Lease, bool) { return scafo.Lease{Node: "b", Fence: 9}, true },
		Deploys: func() int { return 0 }, Runtime: "no \xff UTF-8",
	})
	page := scrape(t, m)
	for _, never := range []string{"scafo_applications", "scafo_nodes", "scafo_placements ", "scafo_build_info{"} {
		if strings.Contains(page, "\n"+never) {
			t.Errorf("%s is said", never)
		}
	}
	for _, line := range []string{"scafo_lease_held 0", "scafo_lease_holder_known 1", "scafo_lease_fence 9", `scafo_processes{state="ready"} 0`} {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	known = true
	if page = scrape(t, m); !strings.Contains(page, "\nscafo_placements 0\n") || strings.Contains(page, "\nscafo_applications_unplaced") {
		t.Error("a node that does not coordinate:\n" + page)
	}
}

// A node without metrics.listen counts nothing, and calls the same methods.
func TestNil(*testing.T) {
	var m *Metrics
	m.Pass(reconcile.Pass{})
	m.Process(supervise.Crashed)
	m.Deploy(scafo.DeployStatus{}, 0)
	m.DeployRefused(scafo.CodeInternal)
	m.Token("x")
	m.Bucket(meter.Get, meter.OutcomeOK, 0)
	m.Watch(Sources{})
}

func TestServe(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(l.Addr().String()); err == nil || !strings.Contains(err.Error(), "metrics.listen") {
		t.Errorf("a port that is taken: %v", err)
	}
	s := busy(1, false).Serve(l, slog.New(slog.DiscardHandler))
	for path, want := range map[string]int{"/metrics": 200, "/": 404, "/v1/state": 404, "/.well-known/scafo/health": 404} {
		r, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%s answers %d, want %d", path, r.StatusCode, want)
		}
	}
	r, err := http.Post("http://"+l.Addr().String()+"/metrics", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST answers %d", r.StatusCode)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s.Close(ctx)
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("it listens after Close")
	}
}
