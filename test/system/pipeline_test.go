//go:build system

package system

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/oidc/oidctest"
	"github.com/scafo/scafo/internal/paralleltest"
)

// A job without a key of the fleet deploys: with a token that GitHub's service gives
// it, with one in a file, and not once the policy does not admit it.
func TestAPipelineDeploys(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t, "SCAFO_OIDC_ALLOW_LOOPBACK=true")
	key := oidctest.NewKey(t, "k1", "RS256")
	issuer := oidctest.New(t, false, key)
	const subject = "repo:acme/hello:ref:refs/heads/main"
	asked := make(chan string, 16)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Query().Get("audience")
		if r.Header.Get("Authorization") != "Bearer of-the-job" || r.URL.Query().Get("api-version") != "2" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		oidctest.JSON(w, map[string]any{"count": 1, "value": key.Token(t, issuer.Claims(subject, time.Now()))})
	}))
	t.Cleanup(service.Close)
	job := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		c := exec.CommandContext(ctx, bin(t, "scafo"), append([]string{"deploy", f.example("hello"), "--node", f.url}, args...)...)
		c.Env = append(environment(), "SCAFO_PROFILE="+filepath.Join(t.TempDir(), "none.json"),
			"ACTIONS_ID_TOKEN_REQUEST_URL="+service.URL+"/token?api-version=2", "ACTIONS_ID_TOKEN_REQUEST_TOKEN=of-the-job")
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		err := c.Run()
		return out.String(), err
	}
	// The attacks come first: nothing of the job's issuer is known, and no time is lost.
	target := oidctest.NewTarget(t, "repo:acme/shop:ref:refs/heads/main")
	f.must("trust", "set", "shop", "--issuer", target.Issuer.URL, "--subject", target.Subject, "--node-state", f.state)
	target.AttackNode(t, "http://"+f.api, "shop", "blog")
	if list := f.must("apps", "list", "--json"); !strings.Contains(list, "[]") {
		t.Errorf("an attack made an application: %s", list)
	}
	out, err := job()
	if err == nil || !strings.Contains(out, "auth-invalid") || !strings.Contains(out, "scafo trust show hello") || !strings.Contains(out, issuer.URL) {
		t.Fatalf("before there is a policy: %v\n%s", err, out)
	}
	trust := func(args ...string) string {
		return f.must(append([]string{"trust"}, append(args, "--node-state", f.state)...)...)
	}
	trust("set", "hello", "--issuer", issuer.URL, "--subject", "repo:acme/other:*")
	if out, err = job(); err == nil || !strings.Contains(out, "trust-mismatch") || !strings.Contains(out, "scafo trust set hello") {
		t.Fatalf("with a policy for others: %v\n%s", err, out)
	}
	trust("set", "hello", "--issuer", issuer.URL, "--subject", "repo:acme/hello:ref:refs/heads/*")
	if out, err = job(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if a := <-asked; a != "scafo-node" {
		t.Errorf("the audience that was asked for is %q", a)
	}
	list := f.must("deploys", "list", "hello", "--node-state", f.state, "--json")
	show := f.must("deploys", "show", regexp.MustCompile(`hello\.[0-9a-f]{16}`).FindString(list))
	for _, want := range []string{issuer.URL, subject, "acme/shop", "refs/heads/main", "4711"} { // the latter three are other claims of it
		if !strings.Contains(list, want) || !strings.Contains(show, want) {
			t.Errorf("the deploy's record, or what is shown of it, lacks %q:\n%s\n%s", want, list, show)
		}
	}
	if !regexp.MustCompile(`(?m)^artifact +sha256:[0-9a-f]{64} `).MatchString(show) {
		t.Errorf("the artifact's digest is not shown:\n%s", show)
	}
	action := exec.CommandContext(t.Context(), "bash", filepath.Join(root(t), "actions", "deploy", "deploy.sh"))
	outputs := filepath.Join(t.TempDir(), "outputs")
	action.Env = append(environment(), "SCAFO_PROFILE="+filepath.Join(t.TempDir(), "none.json"), "GITHUB_OUTPUT="+outputs,
		"ACTIONS_ID_TOKEN_REQUEST_URL="+service.URL+"/token?api-version=2", "ACTIONS_ID_TOKEN_REQUEST_TOKEN=of-the-job",
		"NODES="+f.url, "DIRECTORY="+f.example("hello"), "ARGS=--var GREETING=hi", "AUDIENCE=scafo-node", "SCAFO="+bin(t, "scafo"))
	if out, err := action.CombinedOutput(); err != nil {
		t.Errorf("the action: %v\n%s", err, out)
	}
	if b, err := os.ReadFile(outputs); err != nil || !regexp.MustCompile(`(?m)^deployment=\S+$`).Match(b) {
		t.Errorf("the action's outputs: %q %v", b, err)
	}
	trust("remove", "hello", "--all")
	if out, err = job("--oidc"); err == nil || !strings.Contains(out, "auth-invalid") {
		t.Errorf("after the policy went: %v\n%s", err, out)
	}
	if log := f.up.out.String(); strings.Contains(log, "eyJ") {
		t.Error("a token is in the log")
	}
}
