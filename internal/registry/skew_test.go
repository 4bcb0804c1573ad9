package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
)

var update = flag.Bool("update", false, "write this release's documents below testdata/documents anew")

// documents is where the documents of each release are kept, for good. Those of a
// release that is out are never written again: what it left in a bucket is what it
// left.
const documents = "testdata/documents"

var at = time.Date(2026, 12, 2, 10, 20, 30, 400_000_000, time.UTC)

func stamp(by string) *scafo.Stamp { return &scafo.Stamp{At: at, By: by} }

// kind is one kind of document: an example of this release with every field set, and
// what the tests do with any document of that kind.
type kind struct {
	key     string
	typ     reflect.Type
	example func(t *testing.T) []byte
	rewrite func(ctx context.Context, r *registry.Registry, key string) error
}

func of[T any, P registry.Record[T]](key string, value T) kind {
	P(&value).GetHeader().V = scafo.FormatVersion
	P(&value).GetHeader().Write = "00112233445566778899aabbccddeeff"
	return kind{
		key: key, typ: reflect.TypeFor[T](),
		example: func(t *testing.T) []byte {
			b, err := json.MarshalIndent(value, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			return append(b, '\n')
		},
		rewrite: func(ctx context.Context, r *registry.Registry, key string) error {
			_, err := registry.Update[T, P](ctx, r, key, func(d *registry.Doc[T]) error {
				if !d.Exists {
					return errors.New("it reads as absent")
				}
				return nil
			})
			return err
		},
	}
}

const (
	theUID    = "0f1e2d3c4b5a6978"
	theDeploy = "shop.0123456789abcdef"
)

// kinds are all documents of this release, by a name for their file.
func kinds() map[string]kind {
	founder := admin("root")
	founder.V, founder.Write, founder.CreatedAt = scafo.FormatVersion, "8899aabbccddeeff0011223344556677", at
	founder.Supersedes, founder.CreatedBy = "none", "none" // they never stand there, and may
	grant := tenant("ci")
	grant.Supersedes, grant.CreatedAt, grant.CreatedBy = "ci-old", at, "root"
	machine := node("n1")
	machine.RegisteredAt, machine.Drain, machine.Removed = at, stamp("cli"), stamp("cli")
	source := &scafo.Source{Provider: "github", Repo: "acme/shop", Ref: "refs/heads/main", Commit: "c0ffee"}
	said := &scafo.Provenance{Issuer: scafo.GitHubIssuer, Subject: "repo:acme/shop:ref:refs/heads/main", Repository: "acme/shop", Ref: "refs/heads/main", Commit: "c0ffee", Run: "42"}
	id, _ := scafo.ParseDeployID(theDeploy)
	return map[string]kind{
		"fleet":    of(registry.FleetKey, scafo.Fleet{ID: theUID, CreatedAt: at, Founder: founder}),
		"id":       of(registry.IDKey("n1"), scafo.IDClaim{ID: "n1", Kind: "node", PublicKey: key("n1")}),
		"operator": of(registry.OperatorKey("ci"), grant),
		"operators": of(registry.OperatorIndexKey, scafo.OperatorIndex{
			Operators: map[string]scafo.Role{"root": scafo.RoleAdmin, "ci": scafo.RoleOperator}, Removing: map[string]string{"old": "ffeeddccbbaa99887766554433221100"},
		}),
		"node": of(registry.NodeKey("n1"), machine),
		"heartbeat": of(registry.HeartbeatKey("n1"), scafo.Heartbeat{
			Node: "n1", At: at, BootID: "5d3c1f6e-0000-4000-8000-000000000001", CelldVersion: "celld 0.6.2", Draining: true, NoRunner: true,
			Processes: []scafo.ProcessStatus{{
				Application: "shop", UID: theUID, State: scafo.ProcessBackoff, PID: 4711, URL: "http://10.0.0.1:20000", Internal: "http://10.0.0.1:20001",
				Deployment: "aaaabbbbccccdddd", Wanted: "1111222233334444", CelldVersion: "celld 0.6.2", StartedAt: &at, Restarts: 3,
				LastExit: &scafo.Exit{Code: 1, Signal: "killed", At: at, Version: "1111222233334444"}, LastLines: []string{"Error: nope"}, Refused: &scafo.Refusal{Version: "1111222233334444", Detail: "nope"},
			}},
		}),
		"application": of(registry.ApplicationKey("shop"), scafo.Application{
			Name: "shop", UID: theUID, CreatedAt: at, CreatedBy: "root", Replicas: scafo.Replicas{Count: 2}, Selector: map[string]string{"region": "eu"},
			Labels: map[string]string{"plan": "pro"}, Blocked: stamp("root"), Retired: stamp("root"), Deleting: &scafo.Deleting{Fence: 7, At: at, By: "root"},
			DeploySeq: 4, Publishing: &scafo.Publishing{Deploy: theDeploy, Seq: 4}, Deployment: "aaaabbbbccccdddd", DeploymentSeq: 3,
			Domains: []scafo.Domain{{Host: "shop.example", Wildcard: true}},
		}),
		"trust": of(registry.TrustKey("shop"), scafo.TrustPolicy{Application: "shop", Rules: []scafo.TrustRule{
			{Issuer: scafo.GitHubIssuer, Subjects: []string{"repo:acme/shop:*"}, Audience: "scafo-node"},
		}}),
		"deployment": of(registry.DeploymentKey("shop", theUID, "aaaabbbbccccdddd"), scafo.Deployment{
			Application: "shop", UID: theUID, Version: "aaaabbbbccccdddd", Deploy: theDeploy, Source: source, OIDC: said,
			ArtifactHash: strings.Repeat("ab", 32), ArtifactSize: 12345, CelldVersion: "celld 0.6.2", At: at, By: "ci",
		}),
		"deploy": of(registry.DeployKey(id), scafo.Deploy{
			DeployStatus: scafo.DeployStatus{
				ID: theDeploy, Application: "shop", State: scafo.DeployUploading, Deployment: "aaaabbbbccccdddd", Code: scafo.CodePublishFailed, Detail: "why",
				Step: "waiting for n1", Nodes: []scafo.DeployNode{{Node: "n1", Version: "aaaabbbbccccdddd", Detail: "starting"}},
				OIDC: said, ArtifactHash: strings.Repeat("ab", 32), ArtifactSize: 12345,
			},
			UID: theUID, Seq: 4, Node: "n1", Caller: "ci", AcceptedAt: at, MovedAt: at, FinishedAt: &at, Source: source, Previous: json.RawMessage(`"{\"version\":\"1111222233334444\"}"`),
			PreviousDeployment: "1111222233334444", PreviousSeq: 3,
		}),
		"placement": of(registry.PlacementKey("shop", theUID), scafo.Placement{
			Application: "shop", UID: theUID, Nodes: []string{"n1"}, Fence: 7, DeploySeq: 4, DecidedAt: at, Reason: "one of two",
		}),
		"claim": of(registry.ClaimKey("shop.example"), scafo.Claim{
			Host: "shop.example", Application: "shop", UID: theUID, Wildcard: true, PendingWildcard: true, State: scafo.ClaimHeld, Doubted: true, At: at,
		}),
		"coordinator": of(registry.CoordinatorKey, scafo.Lease{
			Node: "n1", Process: "0123456789abcdef", Fence: 7, Seq: 99, AcquiredAt: at, RenewedAt: at, ExpiresAt: at.Add(15 * time.Second),
		}),
		"revision": of(registry.RevisionKey, scafo.Revision{Counter: 12, Since: 10, Changed: []scafo.Change{
			{Counter: 11, Key: registry.ApplicationKey("shop")}, {Counter: 12, Key: registry.NodeKey("n1")},
		}}),
		"freeze": of(registry.FreezeKey, scafo.Freeze{FrozenAt: at, By: "root", Reason: "moving to a new runtime"}),
	}
}

// kept is a document of testdata.
type kept struct {
	release, name string
	kind
	body []byte
}

// keptDocuments are the documents of every release.
func keptDocuments(t *testing.T) []kept {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(documents, "*", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	all := kinds()
	var out []kept
	for _, f := range files {
		body, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		k, ok := all[name]
		if !ok {
			t.Fatalf("%s: no kind of document has that name any more", f)
		}
		out = append(out, kept{release: filepath.Base(filepath.Dir(f)), name: name, kind: k, body: body})
	}
	if len(out) < len(all) {
		t.Fatalf("%d documents are kept of %d kinds", len(out), len(all))
	}
	return out
}

// fieldsOf are the names of a type's fields, all the way down, as paths.
func fieldsOf(typ reflect.Type, at string, into map[string]bool) {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice:
		if typ != reflect.TypeFor[json.RawMessage]() {
			fieldsOf(typ.Elem(), at, into)
		}
	case reflect.Struct:
		if _, own := reflect.New(typ).Interface().(json.Unmarshaler); own {
			return
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.Anonymous {
				fieldsOf(f.Type, at, into)
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			into[at+"."+name] = true
			fieldsOf(f.Type, at+"."+name, into)
		}
	}
}

func namesIn(v any, at string, into map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, m := range v {
			into[at+"."+name] = true
			namesIn(m, at+"."+name, into)
		}
	case []any:
		for _, e := range v {
			namesIn(e, at, into)
		}
	}
}

func object(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// This release's documents are among those that are kept, with every field that it
// knows; a change of their form is seen here, and a release that is out stays as it is.
func TestThisReleasesDocumentsAreKept(t *testing.T) {
	dir := filepath.Join(documents, scafo.Version)
	for name, k := range kinds() {
		file, want := filepath.Join(dir, name+".json"), k.example(t)
		if *update {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s is not what this release writes (%v): go test ./internal/registry -run Kept -update, while the release is not out", file, err)
		}
		fields, have := map[string]bool{}, map[string]bool{}
		fieldsOf(k.typ, name, fields)
		namesIn(object(t, want), name, have)
		for f := range fields {
			if !have[f] {
				t.Errorf("the example has no %s", f)
			}
		}
	}
}

// withStrangers gives every object that the type knows a member that it does not, of
// a later release.
func withStrangers(v any, typ reflect.Type) any {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch {
	case typ.Kind() == reflect.Slice:
		if list, ok := v.([]any); ok {
			for i := range list {
				list[i] = withStrangers(list[i], typ.Elem())
			}
		}
	case typ.Kind() == reflect.Struct:
		m, ok := v.(map[string]any)
		if !ok {
			return v
		}
		members(m, typ)
		m["fromLater"] = map[string]any{"deep": []any{1.5, "x", nil}, "name": "not a host"}
		m["Name"] = "another name, told apart by case"
	}
	return v
}

func members(m map[string]any, typ reflect.Type) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Anonymous {
			members(m, f.Type)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if inner, ok := m[name]; ok {
			m[name] = withStrangers(inner, f.Type)
		}
	}
}

func putObject(t *testing.T, b bucket.Bucket, key string, v any) {
	t.Helper()
	body, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(t.Context(), key, body); err != nil {
		t.Fatal(err)
	}
}

func getObject(t *testing.T, b bucket.Bucket, key string) map[string]any {
	t.Helper()
	o, err := b.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return object(t, o.Body)
}

// Every document of every release survives being read, changed and written by this
// one, with all that it has, known or not, at every depth.
func TestEveryDocumentSurvivesARewrite(t *testing.T) {
	for _, k := range keptDocuments(t) {
		for what, v := range map[string]any{"as it was": object(t, k.body), "with fields of a later release": withStrangers(object(t, k.body), k.typ)} {
			b := memory.New()
			putObject(t, b, k.key, v)
			want := getObject(t, b, k.key)
			if err := k.rewrite(t.Context(), open(b), k.key); err != nil {
				t.Errorf("%s of %s %s: %v", k.name, k.release, what, err)
				continue
			}
			got := getObject(t, b, k.key)
			if got["write"] == want["write"] {
				t.Errorf("%s of %s %s was not written", k.name, k.release, what)
			}
			delete(got, "write")
			delete(want, "write")
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s of %s %s:\ngot  %v\nwant %v", k.name, k.release, what, got, want)
			}
		}
	}
}

// A document of a newer format is refused by its name, and not touched.
func TestEveryNewerDocumentIsLeftAlone(t *testing.T) {
	for _, k := range keptDocuments(t) {
		b := memory.New()
		v := object(t, k.body)
		v["v"] = scafo.FormatVersion + 1
		putObject(t, b, k.key, v)
		before, err := b.Get(t.Context(), k.key)
		if err != nil {
			t.Fatal(err)
		}
		var newer *registry.NewerError
		if err := k.rewrite(t.Context(), open(b), k.key); !errors.As(err, &newer) || newer.Key != k.key || newer.V != scafo.FormatVersion+1 || scafo.CodeOf(err) != scafo.CodeInternal {
			t.Errorf("%s of %s: %v", k.name, k.release, err)
		}
		if after, err := b.Get(t.Context(), k.key); err != nil || after.ETag != before.ETag {
			t.Errorf("%s of %s was written: %v", k.name, k.release, err)
		}
	}
}
