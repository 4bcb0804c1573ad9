package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// nodes runs a command below `scafo nodes` over the fleet's bucket.
func (f *testFleet) nodes(args ...string) (string, error) {
	f.t.Helper()
	g := &globals{}
	root := &cobra.Command{Use: "scafo", SilenceUsage: true, SilenceErrors: true}
	root.PersistentFlags().BoolVar(&g.json, "json", false, "")
	root.AddCommand(newNodes(g, func(c *cobra.Command) (*registry.Registry, *config.Loaded, func(), error) {
		l, err := loadConfig(c, nil)
		return f.registry, l, func() {}, err
	}))
	wrapArgs(root)
	var out bytes.Buffer
	root.SetOut(&out)
	var errs bytes.Buffer
	root.SetErr(&errs)
	defer func() { f.said = errs.String() }()
	root.SetArgs(append([]string{"nodes"}, args...))
	err := root.ExecuteContext(f.t.Context())
	return out.String(), err
}

func (f *testFleet) mustNodes(args ...string) string {
	f.t.Helper()
	out, err := f.nodes(args...)
	if err != nil {
		f.t.Fatalf("scafo nodes %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// join registers a node, with a heartbeat of that age that names those applications.
func (f *testFleet) join(id string, age time.Duration, labels map[string]string, applications ...string) {
	f.t.Helper()
	k, err := keyfile.New(id)
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.registry.RegisterNode(f.t.Context(), scafo.Node{ID: id, PublicKey: k.Public(), Address: "http://" + id + ".internal:7420", Version: "0.1.0", Labels: labels}); err != nil {
		f.t.Fatal(err)
	}
	if age < 0 {
		return // it never ran
	}
	h := scafo.Heartbeat{Node: id, At: time.Now().Add(-age), CelldVersion: "1.2.3"}
	for _, a := range applications {
		h.Processes = append(h.Processes, scafo.ProcessStatus{Application: a, UID: "0123456789abcdef", State: scafo.ProcessReady, Deployment: "v1"})
	}
	if err := f.registry.WriteHeartbeat(f.t.Context(), h, true); err != nil {
		f.t.Fatal(err)
	}
}

func TestNodesListAndShow(t *testing.T) {
	f := newTestFleet(t)
	f.join("n1", time.Second, map[string]string{"region": "eu", "disk": "ssd"}, "shop", "blog")
	f.join("n2", 24*time.Hour, nil, "shop")
	f.join("n3", -1, nil)
	lines := strings.Split(strings.TrimSpace(f.mustNodes("list")), "\n")
	want := [][]string{
		{"ID", "STATE", "ADDRESS", "VERSION", "LABELS", "HEARTBEAT", "APPLICATIONS"},
		{"n1", "live", "http://n1.internal:7420", "0.1.0", "disk=ssd,region=eu", "blog, shop"},
		{"n2", "silent", "24h ago", "shop"},
		{"n3", "new"},
	}
	if len(lines) != len(want) {
		t.Fatalf("%q", lines)
	}
	for i, parts := range want {
		for _, part := range parts {
			if !strings.Contains(lines[i], part) {
				t.Errorf("%q does not say %s", lines[i], part)
			}
		}
	}
	out := object(t, f.mustNodes("show", "n1", "--json"))
	n, _ := out["node"].(map[string]any)
	apps, _ := n["applications"].([]any)
	if n["id"] != "n1" || n["state"] != "live" || len(apps) != 2 || n["labels"].(map[string]any)["region"] != "eu" {
		t.Errorf("%v", out)
	}
	if list, _ := object(t, f.mustNodes("list", "--json"))["nodes"].([]any); len(list) != 3 {
		t.Errorf("%v", list)
	}
	if out := f.mustNodes("show", "n1"); !strings.Contains(out, "state       live\n") || !strings.Contains(out, "1.2.3") || !strings.Contains(out, "blog") {
		t.Error(out)
	}
	// What a silent node counts as is the fleet's configuration.
	if out := f.mustNodes("show", "n2", "--heartbeat-stale-seconds", "100000"); !strings.Contains(out, "state       live\n") {
		t.Error(out)
	}
}

func TestNodesDrainAndUndrain(t *testing.T) {
	f := newTestFleet(t)
	f.join("n1", time.Second, nil, "shop")
	if out := f.mustNodes("drain", "n1"); out != "node n1 drains\n" {
		t.Error(out)
	}
	if n, err := f.registry.Node(t.Context(), "n1"); err != nil || n.Drain == nil {
		t.Errorf("%+v %v", n, err)
	}
	out := object(t, f.mustNodes("drain", "n1", "--json"))
	if n, _ := out["node"].(map[string]any); out["changed"] != false || n["state"] != "draining" {
		t.Errorf("%v", out)
	}
	out = object(t, f.mustNodes("undrain", "n1", "--json"))
	if n, _ := out["node"].(map[string]any); out["changed"] != true || n["state"] != "live" {
		t.Errorf("%v", out)
	}
	if out := f.mustNodes("undrain", "n1"); out != "node n1 was not told to drain\n" {
		t.Error(out)
	}
}

func TestNodesRemoveAndAdmit(t *testing.T) {
	f := newTestFleet(t)
	f.join("n1", time.Second, nil, "shop")
	_, err := f.nodes("remove", "n1")
	if scafo.CodeOf(err) != scafo.CodeReferenceHeld || !strings.Contains(err.Error(), "shop") {
		t.Errorf("a node that serves is removed: %v", err)
	}
	if n, err := f.registry.Node(t.Context(), "n1"); err != nil || n.Removed != nil {
		t.Errorf("%+v %v", n, err)
	}
	if out := f.mustNodes("remove", "n1", "--force"); out != "node n1 is removed from the fleet\n" {
		t.Error(out)
	}
	if out := f.mustNodes("remove", "n1"); out != "node n1 was removed already\n" {
		t.Error(out)
	}
	if out := f.mustNodes("list"); !strings.Contains(out, "removed") {
		t.Error(out)
	}
	for _, sub := range []string{"drain", "undrain"} {
		if _, err := f.nodes(sub, "n1"); scafo.CodeOf(err) != scafo.CodeReferenceHeld {
			t.Errorf("%s of a removed node: %v", sub, err)
		}
	}
	out := object(t, f.mustNodes("admit", "n1", "--json"))
	if n, _ := out["node"].(map[string]any); out["changed"] != true || n["state"] != "live" || n["removed"] != nil {
		t.Errorf("%v", out)
	}
	// One that is lost needs no force.
	f.join("n2", 24*time.Hour, nil, "shop")
	f.mustNodes("remove", "n2")
	if n, err := f.registry.Node(t.Context(), "n2"); err != nil || n.Removed == nil {
		t.Errorf("%+v %v", n, err)
	}
}

func TestNodesRefuse(t *testing.T) {
	f := newTestFleet(t)
	f.join("n1", time.Second, nil)
	for _, sub := range []string{"show", "drain", "undrain", "remove", "admit"} {
		if _, err := f.nodes(sub, "n9"); scafo.CodeOf(err) != scafo.CodeNotFound {
			t.Errorf("%s of an unknown node: %v", sub, err)
		}
		for _, args := range [][]string{{sub}, {sub, "No_Id"}, {sub, "n1", "n2"}} {
			if _, err := f.nodes(args...); !isUsage(err) {
				t.Errorf("%v: %v, want a mistake of usage", args, err)
			}
		}
	}
	if _, err := f.nodes("list", "n1"); !isUsage(err) {
		t.Error("list takes no argument")
	}
}

// With --wait a drain ends when the machine runs nothing any more, tells what it waits
// for, and fails when that cannot be.
func TestNodesDrainWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t)
		f.join("n1", 0, nil, "shop", "blog")
		f.join("n2", 0, nil, "shop")
		beat := func(id string, apps ...string) {
			h := scafo.Heartbeat{Node: id, At: time.Now(), Draining: true}
			for _, a := range apps {
				h.Processes = append(h.Processes, scafo.ProcessStatus{Application: a, UID: "0123456789abcdef", State: scafo.ProcessReady})
			}
			if err := f.registry.WriteHeartbeat(t.Context(), h, false); err != nil {
				t.Error(err)
			}
		}
		after := func(d time.Duration, do func()) { time.AfterFunc(d, do) }
		after(10*time.Second, func() { beat("n1", "blog") })
		after(30*time.Second, func() { beat("n1") })
		began := time.Now()
		out := f.mustNodes("drain", "n1", "--wait")
		if took := time.Since(began); took < 30*time.Second || took > 32*time.Second {
			t.Errorf("it waited %s", took)
		}
		if out != "node n1 is drained\n" || f.said != "scafo: node n1 still runs blog, shop\nscafo: node n1 still runs blog\n" {
			t.Errorf("it says %q, and meanwhile %q", out, f.said)
		}
		n, _ := object(t, f.mustNodes("drain", "n1", "--wait", "--json"))["node"].(map[string]any)
		if n["state"] != "drained" {
			t.Errorf("%v", n)
		}

		beat("n2", "shop")
		if _, err := f.nodes("drain", "n2", "--wait", "--timeout", "20s"); scafo.CodeOf(err) != scafo.CodeDraining || !strings.Contains(err.Error(), "shop") {
			t.Errorf("in time it was not drained: %v", err)
		}
		after(5*time.Second, func() { _, _, _ = f.registry.UndrainNode(t.Context(), "n2") })
		if _, err := f.nodes("drain", "n2", "--wait"); err == nil || !strings.Contains(err.Error(), "taken back") {
			t.Errorf("a drain that was taken back: %v", err)
		}
		began = time.Now() // its last heartbeat is half a minute old
		if _, err := f.nodes("drain", "n2", "--wait"); err == nil || !strings.Contains(err.Error(), "silent") {
			t.Errorf("a machine that died: %v", err)
		}
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("it was given up after %s", took)
		}
		if _, err := f.nodes("drain", "n2", "--wait", "--timeout", "0s"); !isUsage(err) {
			t.Errorf("no time at all: %v", err)
		}
	})
}
