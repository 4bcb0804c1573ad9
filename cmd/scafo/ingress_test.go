package main

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/node"
	"github.com/scafo/scafo/internal/openapitest"
	"github.com/scafo/scafo/internal/profile"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/storage"
)

const testRouting = `{"v":1,"fleet":"f","generatedAt":"2026-11-01T10:00:00Z","node":"node-a",` +
	`"routes":[{"host":"shop.apps.test","application":"shop","upstreams":[{"node":"node-a","url":"http://127.0.0.1:20000"}]}],` +
	`"wildcards":[{"base":"shop.example","application":"shop","upstreams":[]}],"api":[],` +
	`"unserved":[{"host":"blog.apps.test","application":"blog","reason":"crash-looping"}]}`

type routingLoop struct {
	api.Loop
	ready bool
}

func (l routingLoop) Asked(string) {}

func (l routingLoop) RoutingChanged() <-chan struct{} { return nil }

func (l routingLoop) RoutingBody(string) ([]byte, string, bool) {
	return []byte(testRouting), `"1"`, l.ready
}

type traefikOnly struct{}

func (traefikOnly) Formats() []string { return []string{"traefik"} }

func (traefikOnly) Render(string, string) ([]byte, string, bool, error) {
	return []byte("{}"), `"1"`, true, nil
}

// ingressNode is a node that an ingress may ask, with the token "secret".
func ingressNode(t *testing.T, ready bool) (url string) {
	t.Helper()
	r := registry.New(memory.New(), registry.Options{})
	h, err := api.New(api.Deps{
		Node: "node-a", Verifier: auth.New(r, auth.Options{IngressTokens: []string{"secret"}}),
		Storage: storage.New(r, storage.Options{}), Loop: routingLoop{ready: ready}, Renderings: traefikOnly{},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(openapitest.Handler(t, h))
	t.Cleanup(s.Close)
	return s.URL
}

func run(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	root := newRoot()
	var out bytes.Buffer
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// Where this user ran the node, its token is at hand; it goes to that node alone.
func TestTheIngressTokenOfThisMachine(t *testing.T) {
	t.Setenv("SCAFO_INGRESS_TOKEN", "")
	url, state := ingressNode(t, true), t.TempDir()
	fleet := profile.Fleet{Nodes: []string{url}, State: state}
	var u usageError
	if _, _, err := scafoFor(t, fleet, "routes"); !errors.As(err, &u) {
		t.Errorf("there is no token: %v", err)
	}
	if err := os.WriteFile(node.IngressTokenFile(state), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, err := scafoFor(t, fleet, "routes"); err != nil || !strings.Contains(out, "shop.apps.test") {
		t.Errorf("%v %q", err, out)
	}
	if _, _, err := scafoFor(t, fleet, "routes", "--node", url); !errors.As(err, &u) {
		t.Errorf("it was sent elsewhere: %v", err)
	}
	t.Setenv("SCAFO_INGRESS_TOKEN", "wrong")
	if _, _, err := scafoFor(t, fleet, "routes"); scafo.CodeOf(err) != scafo.CodeAuthInvalid {
		t.Errorf("the environment's does not come first: %v", err)
	}
}

func TestStorageCommands(t *testing.T) {
	node := ingressNode(t, true)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCAFO_INGRESS_TOKEN", "")
	must := func(stdin string, args ...string) string {
		t.Helper()
		out, err := run(t, stdin, append(args, "--node", node, "--ingress-token-file", file)...)
		if err != nil {
			t.Fatalf("scafo %v: %v", args, err)
		}
		return out
	}
	fails := func(code scafo.Code, args ...string) {
		t.Helper()
		if _, err := run(t, "", append(args, "--node", node, "--ingress-token-file", file)...); scafo.CodeOf(err) != code {
			t.Errorf("scafo %v: %v, want %s", args, err, code)
		}
	}
	value := "-----BEGIN\r\n\x00\xff"
	must(value, "storage", "put", "certs/a b", "-")
	if got := must("", "storage", "get", "certs/a b"); got != value {
		t.Errorf("%q", got)
	}
	from := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(from, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	must("", "storage", "put", "certs/deep/two", from)
	if got := must("", "storage", "list"); got != "certs\n" {
		t.Errorf("%q", got)
	}
	if got := must("", "storage", "list", "certs", "-r"); got != "certs/a b\ncerts/deep/two\n" {
		t.Errorf("%q", got)
	}
	if got := object(t, must("", "storage", "stat", "certs/deep/two", "--json")); got["size"] != 3.0 || got["isTerminal"] != true {
		t.Errorf("%v", got)
	}
	must("", "storage", "remove", "certs")
	fails(scafo.CodeNotFound, "storage", "get", "certs/a b")
	fails(scafo.CodeNotFound, "storage", "list")
	fails(scafo.CodeInvalidInput, "storage", "get", "a/../b")

	holder := strings.TrimSpace(must("", "storage", "lock", "issue"))
	fails(scafo.CodeCASConflict, "storage", "lock", "issue")
	if got := object(t, must("", "storage", "lock", "issue", "--holder", holder, "--lease", "1500ms", "--json")); got["seconds"] != 2.0 {
		t.Errorf("%v", got)
	}
	must("", "storage", "unlock", "issue") // not of anybody without a name
	fails(scafo.CodeCASConflict, "storage", "lock", "issue")
	must("", "storage", "unlock", "issue", "--holder", holder)
	must("", "storage", "lock", "issue")

	if _, err := run(t, "", "storage", "list", "--node", node); !isUsage(err) {
		t.Errorf("without a token: %v", err)
	}
	t.Setenv("SCAFO_INGRESS_TOKEN", "wrong")
	if _, err := run(t, "", "storage", "list", "--node", node); scafo.CodeOf(err) != scafo.CodeAuthInvalid {
		t.Errorf("with a wrong token: %v", err)
	}
	if _, err := run(t, strings.Repeat("x", scafo.MaxStorageObject+1), "storage", "put", "a", "-", "--node", node); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("a value that is too large: %v", err)
	}
}

func TestRoutesAndHealth(t *testing.T) {
	node := ingressNode(t, true)
	t.Setenv("SCAFO_INGRESS_TOKEN", "secret,older")
	out, err := run(t, "", "routes", "--node", node)
	for _, want := range []string{"shop.apps.test", "http://127.0.0.1:20000 (node-a)", "*.shop.example", "unserved: crash-looping"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("no %q (%v):\n%s", want, err, out)
		}
	}
	if out, err := run(t, "", "routes", "--format", "traefik", "--node", node); err != nil || out != "{}\n" {
		t.Errorf("%q %v", out, err)
	}
	if _, err := run(t, "", "routes", "--format", "nginx", "--node", node); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Error(err)
	}
	if _, err := run(t, "", "routes", "--node", ingressNode(t, false)); scafo.CodeOf(err) != scafo.CodeDraining {
		t.Error(err)
	}

	if out, err := run(t, "", "health", "--node", node); err != nil || !strings.Contains(out, "node-a") {
		t.Errorf("%q %v", out, err)
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	out, err = run(t, "", "health", "--node", node, "--node", gone.URL, "--json")
	if err == nil || errors.As(err, new(usageError)) {
		t.Errorf("a node does not answer: %v", err)
	}
	nodes, _ := object(t, out)["nodes"].([]any)
	if len(nodes) != 2 || !strings.Contains(out, `"ok": true`) || !strings.Contains(out, `"error"`) {
		t.Errorf("%s", out)
	}
}

// Each operation has a command, but what nodes say to each other.
func TestEveryOperationHasACommand(t *testing.T) {
	d, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range d.Operations {
		if o.ID == "hint" {
			continue
		}
		name := o.Method + " " + o.Path
		pending := false
		for _, p := range openapitest.Pending {
			pending = pending || p == name
		}
		words := strings.Fields(o.Command)
		c, _, err := newRoot().Find(words)
		if len(words) == 0 || err != nil || c.CommandPath() != "scafo "+o.Command || !c.Runnable() {
			if !pending {
				t.Errorf("%s: there is no command `scafo %s`", name, o.Command)
			}
		}
	}
}

func TestOpenAPICommand(t *testing.T) {
	out, err := run(t, "", "openapi")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openapitest.Parse([]byte(out)); err != nil {
		t.Error(err)
	}
	if out, err = run(t, "", "openapi", "--json"); err != nil {
		t.Fatal(err)
	}
	if doc := object(t, out); doc["openapi"] != "3.1.1" {
		t.Errorf("%v", doc["openapi"])
	}
	if _, err := openapitest.Parse([]byte(out)); err != nil {
		t.Error(err)
	}
}
