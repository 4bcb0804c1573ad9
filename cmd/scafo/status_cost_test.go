package main

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/cost"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// statesOf serves states as nodes do, each at a URL of its own.
func statesOf(t *testing.T, states ...*scafo.DaemonState) (urls []string) {
	t.Helper()
	for _, s := range states {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/state" || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
				http.Error(w, "?", http.StatusNotFound)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(s)
		}))
		t.Cleanup(server.Close)
		urls = append(urls, server.URL)
	}
	return urls
}

func costCommand(t *testing.T, args ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("SCAFO_PROFILE", filepath.Join(dir, "profile.json"))
	k, err := keyfile.New("root")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "root.jwk")
	if err := keyfile.Save(file, k); err != nil {
		t.Fatal(err)
	}
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"status", "--cost", "--key-file", file}, args...))
	err = root.ExecuteContext(t.Context())
	return out.String(), err
}

// Every machine is asked, also those that only another one names; what they counted
// becomes a month's requests and dollars; one that is silent is named.
func TestStatusCost(t *testing.T) {
	uses := func(seconds float64, requests ...scafo.BucketRequests) *scafo.BucketUse {
		return &scafo.BucketUse{Seconds: seconds, Requests: requests}
	}
	a := &scafo.DaemonState{
		Node: &scafo.Node{ID: "a"}, Bucket: uses(3600, scafo.BucketRequests{Op: "replace", Purpose: "lease", Count: 720},
			scafo.BucketRequests{Op: "replace", Purpose: "heartbeat", Count: 80}, scafo.BucketRequests{Op: "get", Purpose: "revision", Count: 360}),
		Processes: []scafo.ProcessStatus{
			{Application: "x", State: scafo.ProcessReady, PID: 7, CelldVersion: "celld 0.6.2"},
			{Application: "y", State: scafo.ProcessBackoff, CelldVersion: "celld 0.6.2"}, // it does not run
		},
	}
	b := &scafo.DaemonState{Node: &scafo.Node{ID: "b"}, Bucket: uses(1800, scafo.BucketRequests{Op: "replace", Purpose: "heartbeat", Count: 40},
		scafo.BucketRequests{Op: "get", Purpose: "revision", Count: 180}, scafo.BucketRequests{Op: "delete", Purpose: "token", Count: 5})}
	b.Bucket.Starting = true
	urls := statesOf(t, a, b)
	gone := "http://127.0.0.1:1"
	a.Bucket.Nodes = []scafo.FleetNode{{Node: "a", Address: urls[0]}, {Node: "b", Address: urls[1]}, {Node: "c", Address: gone}}

	out, err := costCommand(t, "--node", urls[0], "--json")
	if err != nil {
		t.Fatal(err)
	}
	var r costReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Nodes) != 2 || r.Nodes[0].Node != "a" || r.Nodes[1].Node != "b" || r.Nodes[0].Starting || !r.Nodes[1].Starting {
		t.Errorf("nodes %+v", r.Nodes)
	}
	if len(r.Unreached) != 1 || r.Unreached[0].Node != "c" || r.Unreached[0].Error == "" {
		t.Errorf("unreached %+v", r.Unreached)
	}
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > 0.005*max(1, want) {
			t.Errorf("%s is %.4f, want %.4f", what, got, want)
		}
	}
	// A lease renewed each 5 s, two heartbeats each 45 s, two revisions each 10 s.
	near("writes", r.Own.Writes, 720*720+2*80*720)
	near("reads", r.Own.Reads, 2*360*720)
	near("deletes", r.Own.Deletes, 10*720)
	near("S3", r.Own.S3, 2.592+0.576+0.2074)
	near("R2", r.Own.R2, 0.9*(2.592+0.576+0.2074))
	if len(r.Purposes) != 4 || r.Purposes[0].Purpose != "lease" || r.Purposes[1].Purpose != "heartbeat" || r.Purposes[2].Purpose != "revision" {
		t.Errorf("purposes %+v", r.Purposes)
	}
	if r.Processes != 1 {
		t.Errorf("%d processes", r.Processes)
	}
	near("the runtimes", r.Runtimes.S3, 9.49)
	if len(r.Prices) != 2 || r.Prices[0].Source != cost.S3.Source || r.Prices[1].WritesPerMillion != 4.5 {
		t.Errorf("prices %+v", r.Prices)
	}

	if out, err = costCommand(t, "--node", urls[0], "--node", urls[1], "--node", gone); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"the last 1h0m0s on 2 of 3 machines", "not in the sum: c (", "$3.38", "$9.49", "Too early to tell", cost.R2.Source} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}

func TestStatusCostRefusals(t *testing.T) {
	scoped := statesOf(t, &scafo.DaemonState{Node: &scafo.Node{ID: "a"}, Scoped: true})
	if _, err := costCommand(t, "--node", scoped[0]); scafo.CodeOf(err) != scafo.CodeAuthScope {
		t.Errorf("a key that is not told: %v", err)
	}
	older := statesOf(t, &scafo.DaemonState{Node: &scafo.Node{ID: "a"}}, &scafo.DaemonState{Node: &scafo.Node{ID: "b"}, Bucket: &scafo.BucketUse{Seconds: 60}})
	if out, err := costCommand(t, "--node", older[0], "--node", older[1]); err != nil || !strings.Contains(out, "on 1 of 2 machines") || !strings.Contains(out, "not in the sum: a (") {
		t.Errorf("a fleet with an older node: %v\n%s", err, out)
	}
	if _, err := costCommand(t, "--node", older[0]); err == nil || !strings.Contains(err.Error(), "older scafo") {
		t.Errorf("an older node: %v", err)
	}
	if _, err := costCommand(t, "--node", "http://127.0.0.1:1"); err == nil {
		t.Error("nobody answers, and it succeeds")
	}
	if _, err := costCommand(t); err == nil {
		t.Error("no node is known, and it succeeds")
	}
}
