package api_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/costtest"
	"github.com/scafo/scafo/internal/deletion"
	"github.com/scafo/scafo/internal/deploy"
	"github.com/scafo/scafo/internal/oidc"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/storage"
)

// counted is a request whose cost is counted.
type counted struct {
	what, method, path, by, body string
	// row is that of the reference, empty where nothing is counted, and times what its figures depend on.
	row   string
	times costtest.Times
}

// readLease is a lease that is read from the bucket, as a node's is.
type readLease struct {
	leaseOf
	r *registry.Registry
}

func (l readLease) Current(ctx context.Context) (scafo.Lease, bool, error) {
	if _, err := l.r.Bucket().Get(ctx, registry.CoordinatorKey); err != nil {
		return scafo.Lease{}, false, err
	}
	return l.leaseOf.Current(ctx)
}

// neverPublishes is a runtime's deploy command that does not end by itself.
type neverPublishes struct{ publishes }

func (neverPublishes) Publish(ctx context.Context, _ scafo.Application, _, _, _ string) (deploy.Published, error) {
	<-ctx.Done()
	return deploy.Published{}, ctx.Err()
}

// wholeNode is a node of the fleet with all its parts but the loop. It carries one deploy
// out, for ever: what carrying out costs is counted where deploys are tested.
func wholeNode(t *testing.T, f *fleet) http.Handler {
	t.Helper()
	follower, log := registry.NewFollower(f.registry), slog.New(slog.DiscardHandler)
	deploys, err := deploy.New(deploy.Config{
		Node: "node-a", Registry: f.registry, Bucket: f.bucket, Fleet: nobodyServes{}, Staging: t.TempDir(), Publisher: neverPublishes{},
		Limits: deploy.Limits{ArtifactBytes: 1 << 20, ArchiveEntries: 10, Concurrency: 1, Queue: 16, StagedBytes: 4 << 20, Receive: time.Minute, Wait: time.Hour, Task: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	untilTheEnd(t, deploys.Run)
	if _, err := f.bucket.Create(t.Context(), registry.CoordinatorKey, []byte(`{"v":1}`)); err != nil {
		t.Fatal(err)
	}
	deletes, err := deletion.New(deletion.Config{
		Node: "node-a", Registry: f.registry, Lease: readLease{leaseOf{&oneLease{holder: "node-a", fence: 1}, "node-a"}, f.registry},
		Fleet: quietNodes{follower}, Forwarder: wireOf{&wire{}, "node-a"}, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	untilTheEnd(t, deletes.Run)
	f.loop.ready = true
	h, err := api.New(api.Deps{
		Node: "node-a", Log: log, Closing: f.closing, Loop: f.loop,
		Verifier: auth.New(f.registry, auth.Options{Log: log, IngressTokens: []string{ingressToken}, Workloads: &auth.Workloads{
			Trust: f.registry.TrustPolicy, OIDC: oidc.New(oidc.Options{}),
		}}),
		Applications: api.Following(f.registry, follower), Setters: f.registry, Freezes: f.registry, Operators: f.registry,
		Domains: f.registry, PlatformDomains: platformDomains, Storage: storage.New(f.registry, storage.Options{}),
		Deploys: deploys, Deletions: deletes,
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// What each route costs of the bucket is what the reference says: the caller's key is
// cached and the node has announced before. Each call also records its token.
func TestWhatEveryRouteCosts(t *testing.T) { synctest.Test(t, testWhatEveryRouteCosts) }

func testWhatEveryRouteCosts(t *testing.T) {
	f := newFleet(t)
	f.handler = wholeNode(t, f)
	f.application("shop", nil)
	f.application("rival", nil)
	f.application("plain", nil)
	f.must(nil, furnish(f.registry))
	for _, by := range []string{"admin", "tenant", "node-b"} {
		f.get("/v1/state", by)
	}
	if w := f.do(deployOf("busy", "admin", artifact(t))); w.Code != http.StatusAccepted {
		t.Fatal(w.Code, w.Body)
	}
	time.Sleep(2 * time.Second)
	f.get("/v1/applications", "admin") // from here on the node follows
	time.Sleep(2 * time.Second)
	key, _ := json.Marshal(jwk("op-2"))
	fresh := `{"id":"op-2","publicKey":` + string(key) + `,"applications":["shop"]}`
	// Requests take their time, so that which of them run beside which is no accident.
	f.bucket.Inject(fault.Rule{Latency: time.Millisecond})
	var deployed scafo.DeployStatus                                            // the last one
	rows, measured := costtest.Rows(t), map[string]bool{"GET /v1/state": true} // by the loop's own tests
	for _, c := range costsOfRoutes(fresh, artifact(t)) {
		row, ok := rows[c.row]
		if !ok && c.row != "" {
			t.Errorf("%s: the reference has no row %q", c.what, c.row)
		}
		measured[c.row] = true
		f.bucket.Reset()
		r := request(c.method, strings.Replace(c.path, "{id}", deployed.ID, 1), c.by, strings.NewReader(c.body))
		if strings.HasSuffix(c.path, "/deploys") {
			r.Header.Set(scafo.DeployHeader, emptyHeader)
		}
		w := f.do(r)
		if w.Code == http.StatusAccepted {
			_ = json.Unmarshal(w.Body.Bytes(), &deployed)
		}
		time.Sleep(time.Second) // what nobody waits for
		if c.row == "" {
			continue
		}
		if w.Code >= 500 {
			t.Errorf("%s: %d %s", c.what, w.Code, w.Body)
		}
		reads, writes, lists := tally(f.bucket.Calls())
		if c.by != "" && c.by != "ingress" && c.path != "/v1/peer/hints" {
			writes-- // the token
		}
		row.Check(t, c.what, c.times, reads, writes, lists)
	}
	for _, r := range api.Routes(everything(t)) {
		name := r.Method + " " + r.Path
		if _, ok := rows[name]; !ok {
			t.Errorf("docs/reference/api.md does not say what %s costs", name)
		}
		if !measured[name] {
			t.Errorf("nobody counts what %s costs", name)
		}
	}
}

// tally counts requests, less those for deploys that were taken in: they say from time
// to time that they go on, and take the slot of their application as soon as there is a
// record of them.
func tally(calls []fault.Call) (reads, writes, lists int) {
	taken := false
	for _, c := range calls {
		of := strings.HasPrefix(c.Key, registry.DeployPrefix)
		switch {
		case of && c.Op == fault.Replace, taken && c.Op == fault.Replace && strings.HasPrefix(c.Key, registry.ApplicationPrefix):
		case c.Op == fault.Get:
			reads++
		case c.Op == fault.List:
			lists++
		default:
			writes++
			taken = taken || of && c.Op == fault.Create
		}
	}
	return reads, writes, lists
}

// costsOfRoutes are calls in their order: each finds what those before it left.
func costsOfRoutes(fresh, artifact string) []counted {
	const apps, objects = "/v1/applications/shop", "/v1/storage/objects/"
	const more = "of more labels"
	list := []counted{
		{"health", "GET", "/.well-known/scafo/health", "", "", "GET /.well-known/scafo/health", nil},
		{"hint", "POST", "/v1/peer/hints", "node-b", `{"keys":[]}`, "POST /v1/peer/hints", nil},
		{"routes", "GET", "/v1/ingress/routes", "ingress", "", "GET /v1/ingress/routes", nil},
		{"no such format", "GET", "/v1/ingress/routes/x", "ingress", "", "GET /v1/ingress/routes/:format", nil},
		{"list", "GET", "/v1/applications", "admin", "", "GET /v1/applications", costtest.Times{"for each record that changed": 0}},
		{"show", "GET", apps, "admin", "", "GET /v1/applications/:name", nil},
	}
	for _, c := range []struct{ name, by, body, nothing string }{
		{"block", "admin", "", "one of these that finds nothing to change"},
		{"unblock", "admin", "", "one of these that finds nothing to change"},
		{"labels", "admin", `{"labels":{"a":"b"}}`, "one of these that finds nothing to change"},
		// A node's key, and an operator's on these routes, may come from the cache.
		{"retire", "tenant", "", "one of these four that finds nothing to change"},
		{"unretire", "node-b", "", "one of these four that finds nothing to change"},
		{"selector", "tenant", `{"selector":{"a":"b"}}`, "one of these four that finds nothing to change"},
		{"replicas", "tenant", `{"replicas":2}`, "one of these four that finds nothing to change"},
	} {
		list = append(list, counted{c.name, "POST", apps + "/" + c.name, c.by, c.body, "POST /v1/applications/:name/" + c.name, nil})
		list = append(list, counted{c.name + " again", "POST", apps + "/" + c.name, c.by, c.body, c.nothing, nil})
	}
	claim := func(what, host, row string, times costtest.Times) {
		list = append(list, counted{what, "POST", apps + "/domains/" + host, "admin", "", row, times})
	}
	list = append(list, counted{"list after changes", "GET", "/v1/applications", "admin", "", "GET /v1/applications", costtest.Times{"for each record that changed": 1}})
	claim("claim", "shop.example", "POST /v1/applications/:name/domains/:host", nil)
	claim("claim of more labels", "eu.other.example", more, nil)
	claim("wildcard below", "x.shop.example?wildcard=1", more+" with `?wildcard=1`", costtest.Times{"for each claim below": 0, "for each 1,000 of these": 1})
	claim("wildcard", "shop.example?wildcard=1", "of two labels with `?wildcard=1`, where others may have claims one label below", costtest.Times{"for each claim below": 1, "for each 1,000 of these": 1})
	claim("claim again", "shop.example", "a domain that is there", nil)
	list = append(list, counted{"claim of another", "POST", "/v1/applications/rival/domains/shop.example", "admin", "", "a host that another application holds", nil})
	for i, row := range []string{"DELETE /v1/applications/:name/domains/:host", "a domain that is none of the application's"} {
		list = append(list, counted{[]string{"release", "release again"}[i], "DELETE", apps + "/domains/shop.example", "tenant", "", row, nil})
	}
	return append(list, []counted{
		{"freeze", "POST", "/v1/fleet/freeze", "admin", "", "POST /v1/fleet/freeze", nil},
		{"show freeze", "GET", "/v1/fleet/freeze", "tenant", "", "GET /v1/fleet/freeze", nil},
		{"lift", "DELETE", "/v1/fleet/freeze", "admin", "", "DELETE /v1/fleet/freeze", nil},
		{"operators", "GET", "/v1/operators", "admin", "", "GET /v1/operators", costtest.Times{"for each key": 3}},
		{"register", "POST", "/v1/operators", "admin", fresh, "POST /v1/operators", nil},
		{"register again", "POST", "/v1/operators", "admin", fresh, "a registration that is there", nil},
		{"revoke", "DELETE", "/v1/operators/op-2", "admin", "", "DELETE /v1/operators/:id", nil},
		{"revoke again", "DELETE", "/v1/operators/op-2", "admin", "", "a key that is none", nil},
		{"revoke another", "DELETE", "/v1/operators/admin", "tenant", "", "on an operators' route, what the caller's scope or tier refuses", nil},
		{"block as a tenant", "POST", apps + "/block", "tenant", "", "on an operators' route, what the caller's scope or tier refuses", nil},
		{"put", "PUT", objects + "a/b", "ingress", "x", "PUT /v1/storage/objects/**", nil},
		{"put again", "PUT", objects + "a/b", "ingress", "y", "PUT /v1/storage/objects/**", nil},
		{"get", "GET", objects + "a/b", "ingress", "", "GET /v1/storage/objects/**", nil},
		{"get nothing", "GET", objects + "c", "ingress", "", "GET /v1/storage/objects/**", nil},
		{"names", "GET", "/v1/storage/list?prefix=a", "ingress", "", "GET /v1/storage/list", costtest.Times{"for each 1,000 keys beneath": 1}},
		{"stat", "GET", "/v1/storage/stat?key=a/b", "ingress", "", "GET /v1/storage/stat", costtest.Times{"for a key without a value": 0}},
		{"stat of a prefix", "GET", "/v1/storage/stat?key=a", "ingress", "", "GET /v1/storage/stat", costtest.Times{"for a key without a value": 1}},
		{"delete of a prefix", "DELETE", objects + "a", "ingress", "", "DELETE /v1/storage/objects/**", costtest.Times{"for each key beneath": 1, "for each value": 1, "for each 1,000 keys beneath": 1}},
		{"lock", "POST", "/v1/storage/locks/l", "ingress", "", "POST /v1/storage/locks/**", nil},
		{"unlock", "DELETE", "/v1/storage/locks/l", "ingress", "", "DELETE /v1/storage/locks/**", costtest.Times{"for a lock that is freed": 1}},
		{"unlock again", "DELETE", "/v1/storage/locks/l", "ingress", "", "DELETE /v1/storage/locks/**", costtest.Times{"for a lock that is freed": 0}},
		{"deploy", "POST", "/v1/applications/rival/deploys", "admin", artifact, "POST /v1/applications/:name/deploys", costtest.Times{"for a new application": 0}},
		{"first deploy", "POST", "/v1/applications/blog-new/deploys", "tenant", artifact, "POST /v1/applications/:name/deploys", costtest.Times{"for a new application": 1}},
		{"poll", "GET", "/v1/deploys/{id}", "tenant", "", "GET /v1/deploys/:id", nil},
		{"what the node has to follow", "GET", "/v1/applications", "admin", "", "", nil},
		{"delete what has nothing", "DELETE", "/v1/applications/plain?force=1", "admin", "", "DELETE /v1/applications/:name", costtest.Times{
			"for an operator who is no admin": 0, "for each claim": 0, "for announcing claims": 0, "for a trust policy": 0, "for each key": 0, "for looking again where there were keys": 0,
			"for each 1,000 keys of a kind": 0, "for each 1,000 keys of a kind beyond the first": 0,
		}},
		{"what changed", "GET", "/v1/applications", "admin", "", "", nil},
		{"delete", "DELETE", apps + "?force=1", "tenant", "", "DELETE /v1/applications/:name", costtest.Times{
			"for an operator who is no admin": 1, "for each claim": 2, "for announcing claims": 1, "for a trust policy": 1, "for each key": 4, "for looking again where there were keys": 1,
			"for each 1,000 keys of a kind": 3, "for each 1,000 keys of a kind beyond the first": 0,
		}},
	}...)
}
