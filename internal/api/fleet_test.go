package api_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/deploy"
	"github.com/scafo/scafo/internal/openapitest"
	"github.com/scafo/scafo/internal/problem"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/token"
	"github.com/scafo/scafo/internal/token/tokentest"
)

const ingressToken = "ingress-secret"

// routingDocument is one of a fleet in which nothing runs.
const routingDocument = `{"v":1,"fleet":"f","generatedAt":"2026-11-01T10:00:00Z","node":"node-a","routes":[],"wildcards":[],"api":[],"unserved":[]}`

// loop is a reconcile loop that says what a test lets it say.
type loop struct {
	state scafo.DaemonState
	err   error

	body  string
	etag  string
	ready bool
	// prefer, from, hint and asked are what the last call was given.
	prefer, from, asked string
	hint                scafo.PeerHint
	hints               int

	changed chan struct{} // nil is never closed
	asking  chan struct{} // gets a token for each who may wait, where it is set
}

func (l *loop) State(context.Context) (scafo.DaemonState, error) { return l.state, l.err }

func (l *loop) RoutingBody(prefer string) ([]byte, string, bool) {
	l.prefer = prefer
	return []byte(l.body), l.etag, l.ready
}

func (l *loop) RoutingChanged() <-chan struct{} {
	if l.asking != nil {
		l.asking <- struct{}{}
	}
	return l.changed
}

func (l *loop) Hint(_ context.Context, from string, h scafo.PeerHint) (scafo.PeerAnswer, error) {
	l.from, l.hint = from, h
	l.hints++
	return scafo.PeerAnswer{Node: "node-a"}, l.err
}

func (l *loop) Asked(from string) { l.asked = from }

// deploys takes deploys in as a test wants it to.
type deploys struct {
	accept func(ctx context.Context, r deploy.Request) (scafo.DeployStatus, error)
	status func(id scafo.DeployID) (scafo.DeployStatus, error)
	// changed is closed by the next change of a deploy; nil: it is another node's.
	changed chan struct{}
	calls   atomic.Int64
}

func (d *deploys) Changed(scafo.DeployID) <-chan struct{} { return d.changed }

func (d *deploys) Accept(ctx context.Context, r deploy.Request) (scafo.DeployStatus, error) {
	d.calls.Add(1)
	return d.accept(ctx, r)
}

func (d *deploys) Status(_ context.Context, id scafo.DeployID) (scafo.DeployStatus, error) {
	d.calls.Add(1)
	return d.status(id)
}

// fleet is a node's API over a real registry and a bucket in memory.
type fleet struct {
	t        *testing.T
	bucket   *fault.Store
	registry *registry.Registry
	loop     *loop
	deploys  *deploys
	deletes  *deletions
	handler  http.Handler
	closing  chan struct{}
	// undocumented is true while answers that others made are passed on: they are not
	// held to the OpenAPI document.
	undocumented bool
	log          bytes.Buffer
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, bucket: fault.New(memory.New()), loop: &loop{body: routingDocument, etag: `"0"`}, closing: make(chan struct{}), deploys: &deploys{
		status: func(scafo.DeployID) (scafo.DeployStatus, error) {
			return scafo.DeployStatus{}, scafo.Errorf(scafo.CodeNotFound, "no such deploy")
		},
	}}
	f.deletes = &deletions{}
	f.registry = registry.New(f.bucket, registry.Options{Node: "node-a"})
	f.must(f.registry.InitFleet(t.Context(), operator("admin", scafo.RoleAdmin, "*")))
	add := func(op scafo.Operator) {
		if _, _, err := f.registry.AddOperator(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	add(operator("tenant", scafo.RoleOperator, "shop", "blog-*"))
	add(operator("narrow-admin", scafo.RoleAdmin, "shop"))
	f.must(f.registry.RegisterNode(t.Context(), scafo.Node{ID: "node-b", PublicKey: jwk("node-b"), Address: "http://127.0.0.1:1", Version: "0.1.0", RegisteredAt: time.Now()}))
	f.handler = f.node()
	return f
}

func (f *fleet) must(_ any, err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// node is another node of the fleet, with caches of its own.
func (f *fleet) node() http.Handler {
	f.t.Helper()
	log := slog.New(slog.NewTextHandler(&f.log, nil))
	h, err := api.New(api.Deps{
		Node: "node-a", Log: log, Closing: f.closing,
		Verifier:     auth.New(f.registry, auth.Options{Log: log, IngressTokens: []string{"first", ingressToken}}),
		Applications: api.Following(f.registry, registry.NewFollower(f.registry)), Deploys: f.deploys, Loop: f.loop, Deletions: f.deletes,
		Setters: f.registry, Freezes: f.registry, Operators: f.registry,
		Domains: f.registry, PlatformDomains: platformDomains,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	documented := openapitest.Handler(f.t, h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.undocumented {
			h.ServeHTTP(w, r)
			return
		}
		documented.ServeHTTP(w, r)
	})
}

func (f *fleet) application(name string, change func(*scafo.Application)) {
	f.t.Helper()
	if _, _, err := f.registry.CreateApplication(f.t.Context(), name, "admin", change); err != nil {
		f.t.Fatal(err)
	}
}

// platformDomains are those of every node here.
var platformDomains = []string{"apps.example.com", "localhost"}

func signer(id string) tokentest.Signer {
	seed := sha256.Sum256([]byte(id))
	return tokentest.Signer{ID: id, Private: ed25519.NewKeyFromSeed(seed[:])}
}

func jwk(id string) scafo.PublicKey {
	k, _ := signer(id).Private.Public().(ed25519.PublicKey)
	return token.PublicJWK(k)
}

func operator(id string, role scafo.Role, scope ...string) scafo.Operator {
	return scafo.Operator{ID: id, PublicKey: jwk(id), Role: role, Applications: scope}
}

var seeds atomic.Int64

func bearer(id string) string {
	return "Bearer " + tokentest.Good(signer(id), time.Now(), fmt.Sprint("test-", seeds.Add(1)))
}

// request makes a request that somebody signed; "ingress" has the ingress token,
// and nobody is "".
func request(method, target, by string, body io.Reader) *http.Request {
	r := httptest.NewRequest(method, target, body)
	switch by {
	case "":
	case "ingress":
		r.Header.Set("Authorization", "Bearer "+ingressToken)
	default:
		r.Header.Set("Authorization", bearer(by))
	}
	return r
}

func (f *fleet) do(r *http.Request) *httptest.ResponseRecorder {
	f.t.Helper()
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	return w
}

func (f *fleet) get(target, by string) *httptest.ResponseRecorder {
	f.t.Helper()
	return f.do(request(http.MethodGet, target, by, nil))
}

// wantProblem checks that an answer is the problem document of a code.
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, code scafo.Code) problem.Document {
	t.Helper()
	var d problem.Document
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil {
		t.Fatalf("no document: %s", w.Body)
	}
	if d.Code != code || w.Code != problem.Status(code) || d.Status != w.Code || w.Header().Get("Content-Type") != problem.ContentType {
		t.Errorf("status %d, document %+v, want %s", w.Code, d, code)
	}
	return d
}

func wantJSON(t *testing.T, w *httptest.ResponseRecorder, want string) {
	t.Helper()
	if got := strings.TrimSpace(w.Body.String()); w.Code != http.StatusOK || got != want {
		t.Errorf("status %d\n got %s\nwant %s", w.Code, got, want)
	}
	if ct := w.Header().Get("Content-Type"); ct != "application/json" {
		t.Errorf("content type %q", ct)
	}
}
