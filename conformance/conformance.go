// Package conformance measures an implementation of the node API by its
// specification, over HTTP alone: it knows the addresses of nodes, the key of an
// admin and an ingress token, and nothing of what is behind them.
//
//	go test ./conformance -node URL -key FILE -ingress-token-file FILE
//
// It may run against a fleet that works: what it makes has names of its own, and it
// takes away what it made. While it looks at freezes, for a second or two, deploys of
// the fleet are frozen; -without freeze leaves that out. Each answer is also held to
// the OpenAPI document, docs/reference/openapi.yaml.
package conformance

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/openapitest"
	"github.com/scafo/scafo/internal/token/tokentest"
)

// Target is what is measured.
type Target struct {
	// Nodes are base URLs. Each request goes to one of them, by chance.
	Nodes []string
	// KeyID and Key are an admin's whose scope is everything.
	KeyID string
	Key   ed25519.PrivateKey
	// IngressToken opens storage and routing.
	IngressToken string
	// Without are the names of sections that are not to run.
	Without []string
	// JSONBytes is the node's api.jsonBytes; 0 is its default.
	JSONBytes int
	// Transport carries the requests; nil takes one of the suite's own.
	Transport http.RoundTripper
}

// section is one part of the specification.
type section struct {
	name string
	run  func(s *suite, t *testing.T)
	// beside is true for what may run beside the sections that change applications:
	// an acknowledged change takes up to a second.
	beside bool
	// needs are operations, as openapitest.Pending names them. While they are pending
	// the section does not run.
	needs []string
}

var sections = []section{
	{name: "problems", run: (*suite).problems, beside: true},
	{name: "authentication", run: (*suite).authentication, beside: true},
	{name: "operators", run: (*suite).operators, beside: true},
	{name: "storage", run: (*suite).storage, beside: true},
	{name: "deploys", run: (*suite).deploys},
	{name: "applications", run: (*suite).applications},
	{name: "freeze", run: (*suite).freeze},
	{name: "state", run: (*suite).state},
	{name: "routing", run: (*suite).routing},
	{name: "domains", run: (*suite).domains, needs: []string{"POST /v1/applications/{name}/domains/{host}", "DELETE /v1/applications/{name}/domains/{host}"}},
	{name: "deletion", run: (*suite).deletion, needs: []string{"DELETE /v1/applications/{name}"}},
}

// Sections are the names of the sections.
func Sections() []string {
	var names []string
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

// patience bounds every wait: what has not come about by then does not.
const patience = 90 * time.Second

// suite is one run.
type suite struct {
	target Target
	doc    *openapitest.Document
	http   *http.Client

	prefix string // of every name of this run
	admin  tokentest.Signer
	// tenant is an operator that reaches the applications whose names begin with
	// tenantPrefix, and stranger has a key that nobody trusts.
	tenant, stranger tokentest.Signer
	tenantPrefix     string
	shop             string // an application that the tenant reaches, deployed
	vault            string // one that it does not
	padded           string // one that only large bodies are sent to

	mu   sync.Mutex
	seen map[string]bool // guarded by mu; operations that succeeded
}

// Run measures the target.
func Run(t *testing.T, target Target) {
	for _, name := range target.Without {
		if !slices.Contains(Sections(), name) {
			t.Fatalf("there is no section %q; there are %v", name, Sections())
		}
	}
	s := newSuite(t, target)
	s.setUp(t)
	t.Run("sections", func(t *testing.T) {
		for lane, beside := range map[string]bool{"callers": true, "fleet": false} {
			t.Run(lane, func(t *testing.T) {
				t.Parallel()
				s.lane(t, beside)
			})
		}
	})
	if len(target.Without) == 0 && !t.Failed() && !filtered() {
		s.everyOperationSucceeded(t)
	}
}

// lane runs sections one after the other.
func (s *suite) lane(t *testing.T, beside bool) {
	for _, sec := range sections {
		switch {
		case sec.beside != beside:
		case slices.Contains(s.target.Without, sec.name):
			t.Logf("NOT MEASURED: %s, as was asked for", sec.name)
		case pending(sec.needs):
			t.Logf("NOT MEASURED: %s, which this release does not serve", sec.name)
		default:
			t.Run(sec.name, func(t *testing.T) { sec.run(s, t) })
		}
	}
}

func pending(needs []string) bool {
	return slices.ContainsFunc(needs, func(o string) bool { return slices.Contains(openapitest.Pending, o) })
}

func newSuite(t *testing.T, target Target) *suite {
	t.Helper()
	if len(target.Nodes) == 0 || target.KeyID == "" || target.Key == nil || target.IngressToken == "" {
		t.Fatal("nodes, an admin's key and an ingress token are needed")
	}
	if target.JSONBytes == 0 {
		target.JSONBytes = 65_536
	}
	doc, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{
		target: target, doc: doc, prefix: "cf" + random(4), seen: map[string]bool{},
		admin: tokentest.Signer{ID: target.KeyID, Private: target.Key},
	}
	s.tenantPrefix = s.prefix + "-shop"
	s.shop, s.vault, s.padded = s.tenantPrefix, s.prefix+"-vault", s.prefix+"-padded"
	s.tenant, s.stranger = s.signer(t, "tenant"), s.signer(t, "stranger")
	transport := target.Transport
	if transport == nil {
		own := &http.Transport{ExpectContinueTimeout: patience, DisableCompression: true}
		t.Cleanup(own.CloseIdleConnections)
		transport = own
	}
	s.http = &http.Client{
		Transport: transport, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s
}

// setUp makes what several sections look at. The applications are made by their
// first deploys; the sections on deploys and routing wait for the tenant's.
func (s *suite) setUp(t *testing.T) {
	t.Helper()
	s.trust(t, s.tenant, "operator", s.tenantPrefix, s.tenantPrefix+"-*")
	t.Cleanup(func() { s.cleanUp(t) })
	s.deploy(t, s.shop, s.tenant, "{}", worker(s.shop, "hello")).want(t, 202)
	for _, name := range []string{s.vault, s.padded} {
		s.deploy(t, name, s.admin, "{}", archive(map[string]string{"README": "nothing that could run"})).want(t, 202)
	}
}

// everyOperationSucceeded makes sure that no operation was left out.
func (s *suite) everyOperationSucceeded(t *testing.T) {
	t.Helper()
	for _, o := range s.doc.Operations {
		name := o.Method + " " + o.Path
		// What nodes say to each other takes a node's key.
		if !s.seen[name] && o.ID != "hint" && !pending([]string{name}) {
			t.Errorf("%s was never answered with success", name)
		}
	}
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails since Go 1.24
	return hex.EncodeToString(b)
}
