package api_test

import (
	"bytes"
	"context"
	"io"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/deploy"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// The public client against two nodes of one fleet.
func TestClient(t *testing.T) {
	f := newFleet(t)
	f.application("shop", func(a *scafo.Application) { a.Labels = map[string]string{"plan": "pro"} })
	f.loop.ready, f.loop.body, f.loop.etag = true, routingDocument, `"e"`
	a, b := httptest.NewServer(f.handler), httptest.NewServer(f.node())
	defer a.Close()
	defer b.Close()
	as := func(id string) *client.Client {
		k := keyfile.Key{ID: id, Private: signer(id).Private}
		c, err := client.New(client.Config{
			URLs:       []string{a.URL, b.URL},
			Credential: client.CredentialFunc(func(context.Context) (string, error) { return k.Token(time.Now()) }),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	ctx := t.Context()
	if h, err := as("admin").Health(ctx); err != nil || !h.OK || h.Node != "node-a" || h.Version != scafo.Version {
		t.Error(h, err)
	}
	if l, err := as("tenant").Applications(ctx); err != nil || !l.Scoped || len(l.Applications) != 1 || l.Applications[0].Labels != nil {
		t.Error(l, err)
	}
	if app, err := as("admin").Application(ctx, "shop"); err != nil || app.UID == "" || app.Labels["plan"] != "pro" {
		t.Error(app, err)
	}
	if s, err := as("tenant").State(ctx); err != nil || !s.Scoped {
		t.Error(s, err)
	}
	if said, err := as("node-b").Hint(ctx, scafo.PeerHint{Keys: []string{"k"}}); err != nil || said.Node != "node-a" {
		t.Error(said, err)
	}
	for id, code := range map[string]scafo.Code{"tenant": scafo.CodeAuthScope, "stranger": scafo.CodeAuthInvalid} {
		if _, err := as(id).Application(ctx, "other"); scafo.CodeOf(err) != code {
			t.Errorf("%s: %v", id, err)
		}
	}
	ingress, err := client.New(client.Config{URLs: []string{a.URL}, Credential: client.Static(ingressToken)})
	if err != nil {
		t.Fatal(err)
	}
	defer ingress.Close()
	doc, etag, changed, err := ingress.Routes(ctx, "", "")
	if err != nil || !changed || doc.Fleet != "f" || etag != `"e"` {
		t.Error(doc, etag, changed, err)
	}
	if _, _, changed, err := ingress.Routes(ctx, "", etag); err != nil || changed {
		t.Error(changed, err)
	}

	artifact := bytes.Repeat([]byte("artifact"), 100_000)
	f.deploys.accept = func(_ context.Context, r deploy.Request) (scafo.DeployStatus, error) {
		got, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Equal(got, artifact) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		return scafo.DeployStatus{ID: r.Application + ".0123456789abcdef", Application: r.Application, State: scafo.DeployAccepted}, nil
	}
	f.deploys.status = func(id scafo.DeployID) (scafo.DeployStatus, error) {
		return scafo.DeployStatus{ID: id.String(), Application: id.Application, State: scafo.DeployDeployed, Deployment: "v1"}, nil
	}
	tenant := as("tenant")
	s, err := tenant.Deploy(ctx, "shop", scafo.DeployMetadata{}, client.Upload{Body: bytes.NewReader(artifact), Size: int64(len(artifact))})
	if err != nil || s.State != scafo.DeployAccepted {
		t.Fatal(s, err)
	}
	if s, err = tenant.DeployStatus(ctx, s.ID); err != nil || s.State != scafo.DeployDeployed || s.Deployment != "v1" {
		t.Error(s, err)
	}
	// One node goes: the other one answers, under a token of its own.
	a.Close()
	if _, err := tenant.State(ctx); err != nil {
		t.Error(err)
	}
}

// Every call of the client that changes something, against a node.
func TestClientChanges(t *testing.T) {
	f := newFleet(t)
	f.application("shop", nil)
	server := httptest.NewServer(f.handler)
	defer server.Close()
	k := keyfile.Key{ID: "admin", Private: signer("admin").Private}
	c, err := client.New(client.Config{
		URLs:       []string{server.URL},
		Credential: client.CredentialFunc(func(context.Context) (string, error) { return k.Token(time.Now()) }),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := t.Context()
	set := func(a scafo.Application, err error) scafo.Application {
		t.Helper()
		if err != nil || a.Name != "shop" {
			t.Fatal(a, err)
		}
		return a
	}
	if a := set(c.Block(ctx, "shop")); a.Blocked == nil {
		t.Error(a)
	}
	if a := set(c.Unblock(ctx, "shop")); a.Blocked != nil {
		t.Error(a)
	}
	if a := set(c.Retire(ctx, "shop")); a.Retired == nil {
		t.Error(a)
	}
	if a := set(c.Unretire(ctx, "shop")); a.Retired != nil {
		t.Error(a)
	}
	if a := set(c.SetLabels(ctx, "shop", map[string]string{"a": "b"})); a.Labels["a"] != "b" {
		t.Error(a)
	}
	if a := set(c.SetLabels(ctx, "shop", nil)); a.Labels != nil {
		t.Error(a)
	}
	if a := set(c.SetSelector(ctx, "shop", map[string]string{"a": "b"})); a.Selector["a"] != "b" {
		t.Error(a)
	}
	if a := set(c.SetSelector(ctx, "shop", nil)); a.Selector != nil {
		t.Error(a)
	}
	if a := set(c.SetReplicas(ctx, "shop", scafo.Replicas{All: true})); !a.Replicas.All {
		t.Error(a)
	}
	if a, err := c.ClaimDomain(ctx, "shop", "Shop.Example", true); err != nil || a.Host != "shop.example" || !a.Application.Domains[0].Wildcard || a.PlatformHosts[0] != "shop.apps.example.com" {
		t.Error(a, err)
	}
	if _, err := c.ClaimDomain(ctx, "shop", "https://x/y?z#", false); scafo.CodeOf(err) != scafo.CodeInvalidInput {
		t.Error(err)
	}
	if a, err := c.ReleaseDomain(ctx, "shop", "shop.example"); err != nil || len(a.Application.Domains) > 0 {
		t.Error(a, err)
	}
	if _, err := c.ReleaseDomain(ctx, "shop", "shop.example"); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Error(err)
	}
	if _, err := c.Block(ctx, "nothing"); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Error(err)
	}
	if _, err := c.Freeze(ctx); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Error(err)
	}
	if a, err := c.FreezeDeploys(ctx, "why"); err != nil || !a.Created || a.Freeze.Reason != "why" {
		t.Error(a, err)
	}
	if a, err := c.FreezeDeploys(ctx, ""); err != nil || a.Created || a.Freeze.Reason != "why" {
		t.Error(a, err)
	}
	if fr, err := c.Freeze(ctx); err != nil || fr.By != "admin" {
		t.Error(fr, err)
	}
	if lifted, err := c.LiftFreeze(ctx); err != nil || !lifted {
		t.Error(lifted, err)
	}
	g := client.Grant{ID: "op-2", PublicKey: jwk("op-2"), Applications: scafo.Scope{"shop"}}
	if op, err := c.AddOperator(ctx, g); err != nil || op.ID != "op-2" || op.Role != scafo.RoleOperator {
		t.Error(op, err)
	}
	if l, err := c.Operators(ctx); err != nil || l.Scoped || len(l.Operators) != 4 {
		t.Error(l, err)
	}
	if err := c.RemoveOperator(ctx, "op-2"); err != nil {
		t.Error(err)
	}
	if err := c.RemoveOperator(ctx, "op-2"); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Error(err)
	}
}
