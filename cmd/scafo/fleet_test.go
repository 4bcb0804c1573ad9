package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// testFleet is a node's API over a bucket in memory, and the key file of its admin.
type testFleet struct {
	t        *testing.T
	registry *registry.Registry
	handler  http.Handler
	url      string // of its server, once a command was run
	dir      string
	key      string // the admin's key file
	said     string // what the last command of nodes said beside its answer
}

func newTestFleet(t *testing.T) *testFleet {
	t.Helper()
	b := memory.New()
	f := &testFleet{t: t, registry: registry.New(b, registry.Options{}), dir: t.TempDir()}
	t.Setenv("SCAFO_PROFILE", filepath.Join(f.dir, "profile.json"))
	t.Cleanup(func() { check.Bucket(t, b) })
	k, err := keyfile.New("root")
	if err != nil {
		t.Fatal(err)
	}
	f.key = filepath.Join(f.dir, "root.jwk")
	if err := keyfile.Save(f.key, k); err != nil {
		t.Fatal(err)
	}
	if _, err := f.registry.InitFleet(t.Context(), scafo.Operator{ID: "root", PublicKey: k.Public(), Role: scafo.RoleAdmin, Applications: scafo.Scope{"*"}}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	f.handler, err = api.New(api.Deps{
		Node: "n1", Log: log, Verifier: auth.New(f.registry, auth.Options{Log: log}),
		Applications: api.Following(f.registry, registry.NewFollower(f.registry)),
		Setters:      f.registry, Freezes: f.registry, Operators: f.registry,
		Domains: f.registry, PlatformDomains: []string{"apps.example"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// RoundTrip carries a call without a network, so that time may be virtual.
func (f *testFleet) RoundTrip(r *http.Request) (*http.Response, error) {
	in := r.Clone(r.Context())
	if in.Body == nil {
		in.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, in)
	res := w.Result()
	res.Request = r
	return res, nil
}

// scafo runs a command in this process, as the operator of a key file.
func (f *testFleet) scafo(key string, args ...string) (stdout string, err error) {
	f.t.Helper()
	if f.url == "" {
		s := httptest.NewServer(f.handler)
		f.t.Cleanup(s.Close)
		f.url = s.URL
	}
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(append(args, "--node", f.url, "--key-file", key))
	err = root.ExecuteContext(f.t.Context())
	return out.String(), err
}

func (f *testFleet) must(args ...string) string {
	f.t.Helper()
	out, err := f.scafo(f.key, args...)
	if err != nil {
		f.t.Fatalf("scafo %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// wantUsage expects a mistake on the command line.
func (f *testFleet) wantUsage(args ...string) {
	f.t.Helper()
	_, err := f.scafo(f.key, args...)
	if !isUsage(err) {
		f.t.Errorf("scafo %s: %v, want a mistake of usage", strings.Join(args, " "), err)
	}
}

func (f *testFleet) application(name string) scafo.Application {
	f.t.Helper()
	a, err := f.registry.Application(f.t.Context(), name)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

func object(t *testing.T, s string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return v
}

func TestAppsCommands(t *testing.T) {
	f := newTestFleet(t)
	if _, _, err := f.registry.CreateApplication(t.Context(), "shop", "root", nil); err != nil {
		t.Fatal(err)
	}
	f.must("apps", "block", "shop")
	if a := f.application("shop"); a.Blocked == nil || a.Blocked.By != "root" {
		t.Errorf("%+v", a)
	}
	if out := f.must("apps", "list"); !strings.Contains(out, "blocked") {
		t.Error(out)
	}
	f.must("apps", "unblock", "shop")
	f.must("apps", "retire", "shop")
	if a := f.application("shop"); a.Blocked != nil || a.Retired == nil {
		t.Errorf("%+v", a)
	}
	f.must("apps", "unretire", "shop")
	f.must("apps", "label", "shop", "account=acme", "plan=pro=x", "empty=")
	if a := f.application("shop"); a.Retired != nil || len(a.Labels) != 3 || a.Labels["plan"] != "pro=x" || a.Labels["empty"] != "" {
		t.Errorf("%+v", a)
	}
	f.must("apps", "label", "shop", "plan=free")
	if a := f.application("shop"); len(a.Labels) != 1 {
		t.Errorf("labels are replaced, not merged: %+v", a)
	}
	f.must("apps", "label", "shop", "--clear")
	f.must("apps", "select", "shop", "region=eu")
	if a := f.application("shop"); len(a.Labels) != 0 || a.Selector["region"] != "eu" {
		t.Errorf("%+v", a)
	}
	f.must("apps", "select", "shop", "--clear")
	f.must("apps", "scale", "shop", "3")
	if a := f.application("shop"); len(a.Selector) != 0 || a.Replicas.Count != 3 {
		t.Errorf("%+v", a)
	}
	out := object(t, f.must("apps", "scale", "shop", "all", "--json"))
	if app, _ := out["application"].(map[string]any); app["replicas"] != "all" || app["name"] != "shop" {
		t.Errorf("%v", out)
	}
	for _, args := range [][]string{
		{"apps", "block"}, {"apps", "block", "No_Name"}, {"apps", "block", "a", "b"}, {"apps", "label", "shop"}, {"apps", "label", "shop", "x"},
		{"apps", "label", "shop", "=x"}, {"apps", "label", "shop", "a=1", "a=2"}, {"apps", "label", "shop", "a=1", "--clear"}, {"apps", "select", "shop"},
		{"apps", "scale", "shop"}, {"apps", "scale", "shop", "0"}, {"apps", "scale", "shop", "-1"}, {"apps", "scale", "shop", "1.5"}, {"apps", "scale", "shop", "ALL"},
	} {
		f.wantUsage(args...)
	}
	if _, err := f.scafo(f.key, "apps", "retire", "nothing"); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Error(err)
	}
}

func TestFreezeCommands(t *testing.T) {
	f := newTestFleet(t)
	if out := f.must("freeze", "show"); !strings.Contains(out, "not frozen") {
		t.Error(out)
	}
	if out := object(t, f.must("freeze", "show", "--json")); out["freeze"] != nil {
		t.Error(out)
	}
	if out := f.must("freeze", "on", "--reason", "  a new release "); !strings.Contains(out, "by root") || !strings.Contains(out, "reason  a new release\n") {
		t.Error(out)
	}
	if out := object(t, f.must("freeze", "on", "--reason", "another", "--json")); out["created"] != false {
		t.Error(out)
	}
	if out := f.must("freeze", "show"); !strings.Contains(out, "a new release") {
		t.Error(out)
	}
	if out := object(t, f.must("freeze", "off", "--json")); out["lifted"] != true {
		t.Error(out)
	}
	if out := f.must("freeze", "off"); !strings.Contains(out, "were not frozen") {
		t.Error(out)
	}
	f.wantUsage("freeze", "on", "--reason", "two\nlines")
	f.wantUsage("freeze", "on", "--reason", strings.Repeat("x", scafo.MaxFreezeReason+1))
}

var _ http.RoundTripper = (*flaky)(nil)

// flaky loses one call on its way to the node, or its answer on the way back.
type flaky struct {
	next  http.RoundTripper
	at    int // which call; 0 loses none
	after bool
	calls int
}

var errLost = errors.New("the network went away")

func (f *flaky) RoundTrip(r *http.Request) (*http.Response, error) {
	f.calls++
	if f.calls != f.at {
		return f.next.RoundTrip(r)
	}
	if f.after {
		res, err := f.next.RoundTrip(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}
	return nil, errLost
}
