package api_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/deploy"
	"github.com/scafo/scafo/internal/oidc"
	"github.com/scafo/scafo/internal/oidc/oidctest"
	"github.com/scafo/scafo/internal/registry"
)

const jobSubject = "repo:acme/shop:ref:refs/heads/main"

// pipeline is a fleet that a pipeline deploys to.
type pipeline struct {
	*fleet
	issuer *oidctest.Issuer
	key    oidctest.Key
	got    deploy.Request
}

func newPipeline(t *testing.T) *pipeline {
	t.Helper()
	p := &pipeline{fleet: newFleet(t), key: oidctest.NewKey(t, "k1", "ES256")}
	p.issuer = oidctest.New(t, false, p.key)
	log := slog.New(slog.NewTextHandler(&p.log, nil))
	h, err := api.New(api.Deps{
		Node: "node-a", Log: log,
		Verifier: auth.New(p.registry, auth.Options{Log: log, IngressTokens: []string{ingressToken}, Workloads: &auth.Workloads{
			Trust: p.registry.TrustPolicy, OIDC: oidc.New(oidc.Options{AllowLoopback: true}),
		}}),
		Applications: api.Following(p.registry, registry.NewFollower(p.registry)), Deploys: p.fleet.deploys, Loop: p.loop,
		Setters: p.registry, Freezes: p.registry, Operators: p.registry, Domains: p.registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	p.handler = h
	p.fleet.deploys.accept = func(_ context.Context, r deploy.Request) (scafo.DeployStatus, error) {
		p.got = r
		return scafo.DeployStatus{ID: "shop.0123456789abcdef", Application: "shop", State: scafo.DeployAccepted}, nil
	}
	p.fleet.deploys.status = func(id scafo.DeployID) (scafo.DeployStatus, error) {
		return scafo.DeployStatus{ID: id.String(), Application: id.Application, State: scafo.DeployDeployed}, nil
	}
	return p
}

func (p *pipeline) trust(application, issuer string, subjects ...string) {
	p.t.Helper()
	if _, _, err := p.registry.Trust(p.t.Context(), application, scafo.TrustRule{Issuer: issuer, Subjects: subjects}, true); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pipeline) token() string { return p.key.Token(p.t, p.issuer.Claims(jobSubject, time.Now())) }

func (p *pipeline) as(method, target, bearer string) *httptest.ResponseRecorder {
	p.t.Helper()
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader("{}")
	}
	r := httptest.NewRequest(method, target, body)
	r.Header.Set("Authorization", "Bearer "+bearer)
	r.Header.Set(scafo.DeployHeader, "e30")
	return p.do(r)
}

func TestAWorkloadDeploysItsApplication(t *testing.T) {
	p := newPipeline(t)
	p.trust("shop", p.issuer.URL, jobSubject) // before there is such an application
	tok := p.token()
	if w := p.as("POST", "/v1/applications/shop/deploys", tok); w.Code != 202 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	want := scafo.Provenance{Issuer: p.issuer.URL, Subject: jobSubject, Repository: "acme/shop", Ref: "refs/heads/main", Commit: "0123456789abcdef", Run: "4711"}
	if p.got.Caller != jobSubject || p.got.OIDC == nil || *p.got.OIDC != want {
		t.Errorf("caller %q, provenance %+v", p.got.Caller, p.got.OIDC)
	}
	// It is not single use: the job follows its deploy with it, and no more.
	for range 3 {
		if w := p.as("GET", "/v1/deploys/shop.0123456789abcdef", tok); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	p.trust("blog", p.issuer.URL, "repo:acme/blog:*")
	wantProblem(t, p.as("GET", "/v1/deploys/blog.0123456789abcdef", tok), scafo.CodeTrustMismatch)
	wantProblem(t, p.as("POST", "/v1/applications/blog/deploys", tok), scafo.CodeTrustMismatch)
	// What has no policy, or one that does not name the issuer, is as if the token did
	// not hold up.
	p.trust("other", "https://issuer.example", "*")
	for _, target := range []string{"/v1/applications/none/deploys", "/v1/applications/other/deploys", "/v1/applications/Not-A-Name/deploys"} {
		wantProblem(t, p.as("POST", target, tok), scafo.CodeAuthInvalid)
	}
	wantProblem(t, p.as("GET", "/v1/deploys/not-an-id", tok), scafo.CodeAuthInvalid)
}

// Every attack is answered over HTTP as by the verifier alone.
func TestAttacksOverHTTP(t *testing.T) {
	p := newPipeline(t)
	target := oidctest.NewTarget(t, jobSubject)
	p.trust("shop", target.Issuer.URL, jobSubject)
	p.fleet.deploys.accept = func(context.Context, deploy.Request) (scafo.DeployStatus, error) {
		t.Error("an attacker's deploy is taken in")
		return scafo.DeployStatus{}, scafo.Errorf(scafo.CodeInternal, "nobody deploys here")
	}
	p.fleet.deploys.status = func(scafo.DeployID) (scafo.DeployStatus, error) {
		return scafo.DeployStatus{}, scafo.Errorf(scafo.CodeNotFound, "no such deploy")
	}
	s := httptest.NewServer(p.handler)
	t.Cleanup(s.Close)
	target.AttackNode(t, s.URL, "shop", "blog")
}

// On all other routes a workload token is like that of nobody: the very same document.
func TestAWorkloadDoesNothingElse(t *testing.T) {
	p := newPipeline(t)
	p.application("shop", nil)
	p.trust("shop", p.issuer.URL, "*")
	tok := p.token()
	same := p.as("GET", "/v1/state", "x").Body.String()
	for _, route := range []string{
		"GET /v1/state", "GET /v1/applications", "GET /v1/applications/shop", "POST /v1/applications/shop/block", "POST /v1/applications/shop/unblock",
		"POST /v1/applications/shop/labels", "POST /v1/applications/shop/retire", "POST /v1/applications/shop/selector", "POST /v1/applications/shop/replicas",
		"GET /v1/fleet/freeze", "POST /v1/fleet/freeze", "DELETE /v1/fleet/freeze", "GET /v1/operators", "POST /v1/operators", "DELETE /v1/operators/tenant",
		"GET /v1/ingress/routes", "POST /v1/peer/hints",
	} {
		method, target, _ := strings.Cut(route, " ")
		w := p.as(method, target, tok)
		wantProblem(t, w, scafo.CodeAuthInvalid)
		if got := w.Body.String(); got != same {
			t.Errorf("%s: %s\nanother document than for any bad token: %s", route, got, same)
		}
	}
	if all, _ := p.issuer.Asked(); all != 0 {
		t.Errorf("%d requests to the issuer for routes that take no workload token", all)
	}
}

// A pipeline publishes an application; it does not decide what the fleet answers on.
func TestAWorkloadClaimsNoDomain(t *testing.T) {
	p := newPipeline(t)
	p.application("shop", nil)
	p.trust("shop", p.issuer.URL, jobSubject)
	p.trust("blog", p.issuer.URL, "repo:acme/blog:*")
	tok := p.token()
	for _, method := range []string{"POST", "DELETE"} {
		wantProblem(t, p.as(method, "/v1/applications/shop/domains/shop.example", tok), scafo.CodeAuthScope)
		wantProblem(t, p.as(method, "/v1/applications/blog/domains/shop.example", tok), scafo.CodeTrustMismatch)
		wantProblem(t, p.as(method, "/v1/applications/none/domains/shop.example", tok), scafo.CodeAuthInvalid)
		wantProblem(t, p.as(method, "/v1/applications/shop/domains/shop.example", tok+"x"), scafo.CodeAuthInvalid)
	}
}

// The policy is read on every call: what is taken away counts at once.
func TestTrustIsReadOnEveryCall(t *testing.T) {
	p := newPipeline(t)
	p.trust("shop", p.issuer.URL, jobSubject, "x")
	tok := p.token()
	const target = "/v1/deploys/shop.0123456789abcdef"
	if w := p.as("GET", target, tok); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if _, removed, err := p.registry.Distrust(t.Context(), "shop", p.issuer.URL, jobSubject); err != nil || !removed {
		t.Fatal(removed, err)
	}
	wantProblem(t, p.as("GET", target, tok), scafo.CodeTrustMismatch)
	if _, removed, err := p.registry.Distrust(t.Context(), "shop", "", ""); err != nil || !removed {
		t.Fatal(removed, err)
	}
	wantProblem(t, p.as("GET", target, tok), scafo.CodeAuthInvalid)
	p.bucket.SetDown(true)
	wantProblem(t, p.as("GET", target, tok), scafo.CodeStoreUnavailable)
}

// The detail of a mismatch says whose token it was and nothing of the policy.
func TestAMismatchDisclosesNothing(t *testing.T) {
	p := newPipeline(t)
	p.trust("shop", p.issuer.URL, "repo:secret/other:*")
	d := wantProblem(t, p.as("POST", "/v1/applications/shop/deploys", p.token()), scafo.CodeTrustMismatch)
	if strings.Contains(d.Detail, "secret") || !strings.Contains(d.Detail, jobSubject) {
		t.Errorf("detail %q", d.Detail)
	}
	b, _ := json.Marshal(d)
	if strings.Contains(string(b), p.token()[:40]) || strings.Contains(p.log.String(), strings.Split(p.token(), ".")[0]) {
		t.Error("the token is in the answer or in the log")
	}
}
