package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/artifact"
	"github.com/scafo/scafo/internal/pack"
	"github.com/scafo/scafo/internal/problem"
	"github.com/scafo/scafo/internal/profile"
	"github.com/scafo/scafo/internal/token"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// fakeNode answers deploys as a node does: with what it was told to answer, one
// after the other, the last for ever.
type fakeNode struct {
	*httptest.Server
	t       *testing.T
	intake  []error              // nil accepts
	polls   []any                // a scafo.DeployStatus or an error
	domains []scafo.Domain       // of the application
	retired *scafo.Stamp         // the application is
	mu      sync.Mutex           // guards all below
	tokens  map[string]bool      // their ids
	names   []string             // of the applications, in the order of their deploys
	meta    scafo.DeployMetadata // the last one's
	files   map[string]string    // the last one's
	asked   int
	// received is how many bytes the last artifact had.
	received int64
}

const fakeID = "0123456789abcdef"

func newFakeNode(t *testing.T) *fakeNode {
	t.Helper()
	n := &fakeNode{t: t, tokens: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/applications/{name}/deploys", n.deploy)
	mux.HandleFunc("GET /v1/deploys/{id}", n.poll)
	mux.HandleFunc("GET /v1/applications/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, 200, map[string]any{"application": scafo.Application{Name: r.PathValue("name"), Replicas: scafo.Replicas{Count: 1}, Domains: n.domains, Retired: n.retired}})
	})
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		defer n.mu.Unlock()
		c, err := token.Parse(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		if err != nil || n.tokens[c.ID] {
			refuse(w, r, scafo.Errorf(scafo.CodeAuthInvalid, "a used token, or none"))
			return
		}
		n.tokens[c.ID] = true
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(n.Close)
	return n
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, r *http.Request, err error) {
	problem.Write(w, r, slog.New(slog.DiscardHandler), err)
}

// take is the next of a list, or its last.
func take[T any](list *[]T) (next T) {
	if len(*list) == 0 {
		return next
	}
	next = (*list)[0]
	if len(*list) > 1 {
		*list = (*list)[1:]
	}
	return next
}

func (n *fakeNode) deploy(w http.ResponseWriter, r *http.Request) {
	n.names = append(n.names, r.PathValue("name"))
	if err := take(&n.intake); err != nil {
		refuse(w, r, err)
		return
	}
	var err error
	if n.meta, err = scafo.ParseDeployHeader(r.Header.Get(scafo.DeployHeader)); err != nil {
		refuse(w, r, err)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		n.t.Error(err)
	}
	n.received = int64(len(body))
	dir := n.t.TempDir()
	if _, err := artifact.Unpack(r.Context(), bytes.NewReader(body), dir, artifact.Limits{Bytes: 1 << 20, Entries: 100}); err != nil {
		n.t.Error(err)
	}
	n.files = map[string]string{}
	_ = filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			b, _ := os.ReadFile(name)
			rel, _ := filepath.Rel(dir, name)
			n.files[rel] = string(b)
		}
		return err
	})
	answer(w, 202, scafo.DeployStatus{ID: r.PathValue("name") + "." + fakeID, Application: r.PathValue("name"), State: scafo.DeployAccepted})
}

func (n *fakeNode) poll(w http.ResponseWriter, r *http.Request) {
	n.asked++
	switch x := take(&n.polls).(type) {
	case error:
		refuse(w, r, x)
	case scafo.DeployStatus:
		x.ID = r.PathValue("id")
		x.Application, _, _ = strings.Cut(x.ID, ".")
		answer(w, 200, x)
	default:
		n.t.Errorf("poll %v", x)
	}
}

var (
	uploading = scafo.DeployStatus{State: scafo.DeployUploading, Step: "publishing"}
	published = scafo.DeployStatus{State: scafo.DeployUploading, Deployment: "3f9c0123456789ab"}
	deployed  = scafo.DeployStatus{State: scafo.DeployDeployed, Deployment: "3f9c0123456789ab", Nodes: []scafo.DeployNode{{Node: "laptop", Version: "3f9c0123456789ab"}}}
)

// scafoFor runs a command with a profile that knows one fleet.
func scafoFor(t *testing.T, f profile.Fleet, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	k, err := keyfile.New("op-1")
	if err != nil {
		t.Fatal(err)
	}
	f.Key = filepath.Join(t.TempDir(), "key.jwk")
	if err := keyfile.Save(f.Key, k); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCAFO_PROFILE", filepath.Join(t.TempDir(), "profile.json"))
	p, err := profile.Load()
	if err != nil {
		t.Fatal(err)
	}
	p.Set("local", f)
	if err := p.Save(); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// folder writes a project.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range files {
		at := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func helloFolder(t *testing.T) string {
	return folder(t, map[string]string{
		"wrangler.jsonc": `{"name": "hello", "main": "a.js", "compatibility_date": "2026-11-01", "observability": {"enabled": true}}`,
		"a.js":           "export default { fetch() { return new Response('hi') } }",
	})
}

// ingress is what stands before the applications: it knows a host from the
// refusals-th look on.
func ingress(t *testing.T, refusals ...int) (workers string, looks func() int) {
	t.Helper()
	var mu sync.Mutex
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path != "/.well-known/celld/health" || !strings.HasPrefix(r.Host, "hello.localhost:") {
			t.Errorf("%s %s%s", r.Method, r.Host, r.URL.Path)
		}
		n++
		if n <= len(refusals) {
			w.WriteHeader(refusals[n-1])
		}
	}))
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return "http://<name>.localhost:" + port, func() int { mu.Lock(); defer mu.Unlock(); return n }
}

func TestDeployToTheAddress(t *testing.T) {
	n := newFakeNode(t)
	n.polls = []any{uploading, scafo.Errorf(scafo.CodeDraining, "restarting"), published, deployed}
	workers, looks := ingress(t, 404, 503)
	at := strings.ReplaceAll(workers, "<name>", "hello")
	out, errs, err := scafoFor(t, profile.Fleet{Nodes: []string{n.URL}, Workers: workers}, "deploy", helloFolder(t), "--replicas", "2", "--selector", "region=eu", "--var", "A=b=c")
	if err != nil {
		t.Fatal(err, errs)
	}
	if out != at+"\n" {
		t.Errorf("standard output is %q", out)
	}
	lines := strings.Split(strings.TrimSpace(errs), "\n")
	var unpacked int64
	for _, body := range n.files {
		unpacked += int64(len(body))
	}
	if want := []string{
		"left out, since it only means something at Cloudflare: observability", "packed 2 files (" + pack.Size(unpacked) + ")",
		"uploaded " + pack.Size(n.received), "published 3f9c…", "ready on laptop",
	}; !reflect.DeepEqual(lines, want) {
		t.Errorf("standard error is %q", lines)
	}
	if looks() != 3 {
		t.Errorf("%d looks at the ingress", looks())
	}
	if !reflect.DeepEqual(n.names, []string{"hello"}) || n.meta.Replicas.Count != 2 || n.meta.NodeSelector["region"] != "eu" || n.meta.Source != nil {
		t.Errorf("deployed %v, %+v", n.names, n.meta)
	}
	var config struct{ Vars map[string]string }
	if err := json.Unmarshal([]byte(n.files["wrangler.jsonc"]), &config); err != nil || config.Vars["A"] != "b=c" || len(n.files) != 2 {
		t.Errorf("files %v", n.files)
	}
}

func TestDeployPrintsOneObject(t *testing.T) {
	n := newFakeNode(t)
	n.polls = []any{deployed}
	workers, _ := ingress(t)
	out, _, err := scafoFor(t, profile.Fleet{Nodes: []string{n.URL}, Workers: workers}, "deploy", "--json", helloFolder(t))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err, out)
	}
	if a, ok := got["artifact"].(map[string]any); !ok || a["files"] != 2.0 || a["sent"].(float64) < 100 {
		t.Errorf("artifact %v", got["artifact"])
	}
	delete(got, "artifact")
	want := map[string]any{
		"id": "hello." + fakeID, "application": "hello", "state": "deployed", "deployment": "3f9c0123456789ab",
		"url":   strings.ReplaceAll(workers, "<name>", "hello"),
		"nodes": []any{map[string]any{"node": "laptop", "version": "3f9c0123456789ab"}},
		"notes": []any{"left out, since it only means something at Cloudflare: observability"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestDeployFails(t *testing.T) {
	n := newFakeNode(t)
	n.polls = []any{published, scafo.DeployStatus{State: scafo.DeployFailed, Code: scafo.CodePublishFailed, Detail: "the Worker does not start: wrangler.jsonc:2:3: no"}}
	fleet := profile.Fleet{Nodes: []string{n.URL}, Workers: "http://<name>.localhost:1"}
	out, errs, err := scafoFor(t, fleet, "deploy", helloFolder(t))
	if err == nil || explain(err) != "the Worker does not start: wrangler.jsonc:1:2: no (publish-failed)" || out != "" {
		t.Errorf("got %v, output %q %q", err, out, errs)
	}
	out, _, err = scafoFor(t, fleet, "deploy", helloFolder(t), "--json")
	var got scafo.DeployStatus
	if jerr := json.Unmarshal([]byte(out), &got); jerr != nil || err == nil || got.State != scafo.DeployFailed || got.Code != scafo.CodePublishFailed || got.Detail != "the Worker does not start: wrangler.jsonc:1:2: no" {
		t.Errorf("got %v, output %s", err, out)
	}
}

func TestDeployIsRefused(t *testing.T) {
	for _, code := range []scafo.Code{scafo.CodeDeploysFrozen, scafo.CodeApplicationBlocked, scafo.CodeVersionSkew, scafo.CodeResourceLimit, scafo.CodeAuthScope} {
		n := newFakeNode(t)
		n.intake = []error{scafo.Errorf(code, "because")}
		out, _, err := scafoFor(t, profile.Fleet{Nodes: []string{n.URL}}, "deploy", helloFolder(t))
		if scafo.CodeOf(err) != code || explain(err) != "because ("+string(code)+")" || out != "" || len(n.names) != 1 {
			t.Errorf("%s: got %v, output %q, %d calls", code, err, out, len(n.names))
		}
	}
}

// What is wrong with a project is said before any node is asked anything.
func TestNothingIsSentOfABrokenProject(t *testing.T) {
	const good = "export default { fetch() { return new Response('hi') } }"
	for name, c := range map[string]struct{ config, source, want string }{
		"a syntax error": {``, "export default {\n  fetch() { return new Response('x' }\n}", "a.js:2:37: Expected \")\" but found \"}\""},
		"a service":      {`, "ai": {"binding": "AI"}`, good, `wrangler.jsonc:1:71: unsupported key "ai"`},
		"a typing error": {`, "var": {}, "vars": {}`, good, `wrangler.jsonc:1:71: unknown key "var": did you mean "vars"?`},
		"a secret":       {``, "import e from './.env.json';\nconsole.log(e);\n" + good, "a.js:1:15: .env.json holds secrets and is not sent"},
		"a build":        {`, "build": {"command": "echo to the terminal; exit 4"}`, good, `the build "echo to the terminal; exit 4" ended with exit status 4`},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFakeNode(t)
			dir := folder(t, map[string]string{
				"wrangler.jsonc": `{"name": "hello", "main": "a.js", "compatibility_date": "2026-11-01"` + c.config + `}`, "a.js": c.source, ".env.json": `{"KEY": "s3cret"}`,
			})
			out, errs, err := scafoFor(t, profile.Fleet{Nodes: []string{n.URL}}, "deploy", dir)
			if err == nil || !strings.Contains(err.Error(), c.want) || out != "" || strings.Contains(errs+err.Error(), "s3cret") {
				t.Errorf("got %v, output %q %q", err, out, errs)
			}
			if len(n.tokens) > 0 {
				t.Errorf("the node was asked %d times", len(n.tokens))
			}
			if name == "a build" && errs != "to the terminal\n" {
				t.Errorf("standard error is %q", errs)
			}
		})
	}
}

// A full queue is waited for, as long as the node says, unless told otherwise.
func TestDeployWaitsForAPlace(t *testing.T) {
	n := newFakeNode(t)
	full := scafo.Errorf(scafo.CodeDeployOverloaded, "the queue is full")
	n.intake, n.polls = []error{full, nil}, []any{deployed}
	fleet := profile.Fleet{Nodes: []string{n.URL}}
	start := time.Now()
	if _, errs, err := scafoFor(t, fleet, "deploy", helloFolder(t)); err != nil {
		t.Fatal(err, errs)
	}
	if took := time.Since(start); len(n.names) != 2 || took < time.Second { // retry-after is 1
		t.Errorf("%d calls in %s", len(n.names), took)
	}
	n.intake, n.names = []error{full}, nil
	if _, _, err := scafoFor(t, fleet, "deploy", helloFolder(t), "--no-wait"); scafo.CodeOf(err) != scafo.CodeDeployOverloaded || len(n.names) != 1 {
		t.Errorf("--no-wait: %v, %d calls", err, len(n.names))
	}
	n.intake, n.asked = nil, 0
	out, _, err := scafoFor(t, fleet, "deploy", helloFolder(t), "--no-wait")
	if err != nil || out != "hello."+fakeID+"\n" || n.asked != 0 {
		t.Errorf("--no-wait: %v, output %q, %d polls", err, out, n.asked)
	}
}

func TestDeployWithoutAnAddress(t *testing.T) {
	n := newFakeNode(t)
	n.polls = []any{deployed}
	fleet := profile.Fleet{Nodes: []string{n.URL}}
	if out, _, err := scafoFor(t, fleet, "deploy", helloFolder(t)); err != nil || out != "3f9c0123456789ab\n" {
		t.Errorf("no ingress is known: %v, output %q", err, out)
	}
	nobody := deployed
	nobody.Nodes = nil
	n.polls, n.domains = []any{nobody}, []scafo.Domain{{Host: "shop.example.com"}}
	out, errs, err := scafoFor(t, fleet, "deploy", helloFolder(t))
	if err != nil || out != "3f9c0123456789ab\n" || !strings.Contains(errs, "no node runs it at the moment") {
		t.Errorf("nobody runs it: %v, output %q %q", err, out, errs)
	}
	n.retired = &scafo.Stamp{}
	if out, errs, err = scafoFor(t, fleet, "deploy", helloFolder(t)); err != nil || out != "3f9c0123456789ab\n" || !strings.Contains(errs, "hello is retired") || !strings.Contains(errs, "scafo apps unretire hello") {
		t.Errorf("it is retired: %v, output %q %q", err, out, errs)
	}
}

func TestDeployDryRun(t *testing.T) {
	// No fleet is needed for it.
	out, errs, err := scafoFor(t, profile.Fleet{Nodes: []string{"http://127.0.0.1:1"}}, "deploy", helloFolder(t), "--dry-run", "--name", "other")
	if err != nil || !strings.Contains(out, "a.js ") || !strings.HasSuffix(out, " for other; nothing was sent\n") || !strings.Contains(errs, "observability") {
		t.Errorf("%v, output %q %q", err, out, errs)
	}
	out, _, err = scafoFor(t, profile.Fleet{}, "deploy", helloFolder(t), "--dry-run", "--json")
	var got struct {
		Application string
		DryRun      bool
		Files       []struct {
			Path  string
			Bytes int64
		}
	}
	if jerr := json.Unmarshal([]byte(out), &got); jerr != nil || err != nil || got.Application != "hello" || !got.DryRun || len(got.Files) != 2 || got.Files[0].Path != "a.js" || got.Files[0].Bytes != 56 {
		t.Errorf("%v, output %s", err, out)
	}
}

func TestDeployMistakes(t *testing.T) {
	dir := helloFolder(t)
	for _, args := range [][]string{
		{dir, dir}, {dir, "--var", "A"}, {dir, "--var", "=b"}, {dir, "--var", "A=1", "--var", "A=2"}, {dir, "--selector", "eu"}, {dir, "--replicas", "0"},
		{dir, "--replicas", "many"}, {dir, "--name", "Not A Name"}, {dir, "--nope"},
	} {
		_, _, err := scafoFor(t, profile.Fleet{Nodes: []string{"http://127.0.0.1:1"}}, append([]string{"deploy", "--dry-run"}, args...)...)
		var u usageError
		if !errors.As(err, &u) {
			t.Errorf("%v: %v is no usage error", args, err)
		}
	}
	withEnvironments := folder(t, map[string]string{"wrangler.json": `{"name": "a", "main": "a.js", "compatibility_date": "2026-11-01", "env": {"dev": {}}}`})
	var u usageError
	if _, _, err := scafoFor(t, profile.Fleet{}, "deploy", withEnvironments, "--env", "prod"); !errors.As(err, &u) {
		t.Errorf("an environment that is not there: %v", err)
	}
	for what, dir := range map[string]string{"no configuration": t.TempDir(), "no folder": filepath.Join(t.TempDir(), "nope"), "only toml": folder(t, map[string]string{"wrangler.toml": ""})} {
		if _, _, err := scafoFor(t, profile.Fleet{}, "deploy", dir); err == nil || errors.As(err, &u) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestDeployIsInterrupted(t *testing.T) {
	n := newFakeNode(t)
	n.polls = []any{uploading}
	var d deployRun
	d.progress = newProgress(io.Discard)
	cl, _, err := (&globals{nodes: []string{n.URL}, keyFile: newKeyFile(t)}).client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	d.client = cl
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, context.Canceled)
	defer cancel()
	_, err = d.follow(ctx, scafo.DeployStatus{ID: "hello." + fakeID})
	if err == nil || err.Error() != "interrupted; the deploy goes on: scafo deploys show hello."+fakeID {
		t.Errorf("got %v", err)
	}
}

func newKeyFile(t *testing.T) string {
	t.Helper()
	k, err := keyfile.New("op-1")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.jwk")
	if err := keyfile.Save(path, k); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestProgressOnATerminal(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: &b, live: true}
	p.step("packing")
	p.note("left out\nmore")
	p.done("packed 2 files")
	p.step("uploading")
	p.upload(10, 20)
	p.done("uploaded")
	p.end()
	p.end()
	want := "  packing …" + "\r\x1b[K" + "  left out\n  more\n" + "  packing …" + "\r\x1b[K" + "  packed 2 files" + "\r\x1b[K" +
		"  packed 2 files · uploading …" + "\r\x1b[K" + "  packed 2 files · uploaded" + "\r\x1b[K" + "  packed 2 files · uploaded\n"
	if b.String() != want {
		t.Errorf("got %q\nwant %q", b.String(), want)
	}
}

func TestSourceOfARemote(t *testing.T) {
	for remote, want := range map[string][2]string{
		"https://github.com/acme/shop.git":                         {"github", "acme/shop"},
		"https://user:ghp_secret@github.com/acme/shop":             {"github", "acme/shop"},
		"https://x-access-token:secret@gitlab.com/a/b/shop.git/":   {"gitlab", "a/b/shop"},
		"git@github.com:acme/shop.git":                             {"github", "acme/shop"},
		"ssh://git@git.example.com:2222/acme/shop.git?token=abc#x": {"git", "git.example.com/acme/shop"},
		"https://git.example.com/acme/shop?private_token=secret":   {"git", "git.example.com/acme/shop"},
		"host:repo":                {"git", "host/repo"},
		"/srv/git/shop.git":        {"", ""},
		"../shop":                  {"", ""},
		"file:///srv/git/shop.git": {"", ""},
		"":                         {"", ""},
		"https://github.com/":      {"", ""},
	} {
		if provider, repo := splitRemote(remote); provider != want[0] || repo != want[1] {
			t.Errorf("%s: %s %s", remote, provider, repo)
		}
	}
}

func TestSourceFromGit(t *testing.T) {
	dir := folder(t, map[string]string{"app/a.js": "1", "other": "1"})
	git := func(args ...string) {
		t.Helper()
		runGit(t, dir, args...)
	}
	app := filepath.Join(dir, "app")
	if s := <-findSource(t.Context(), app); s != nil {
		t.Errorf("no repository: %+v", s)
	}
	t.Setenv("GIT_DIR", t.TempDir()) // as in a hook
	git("init", "-q", "-b", "trunk")
	if s := <-findSource(t.Context(), app); s != nil {
		t.Errorf("no commit: %+v", s)
	}
	git("add", ".")
	git("commit", "-q", "-m", "x")
	s := <-findSource(t.Context(), app)
	if s == nil || s.Provider != "git" || s.Repo != filepath.Base(dir) || s.Ref != "refs/heads/trunk" || len(s.Commit) != 40 {
		t.Fatalf("got %+v", s)
	}
	clean := s.Commit
	git("remote", "add", "origin", "https://me:secret@github.com/acme/shop.git")
	if err := os.WriteFile(filepath.Join(dir, "other"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if s = <-findSource(t.Context(), app); s.Provider != "github" || s.Repo != "acme/shop" || s.Commit != clean {
		t.Errorf("got %+v", s)
	}
	if err := os.WriteFile(filepath.Join(app, "a.js"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if s = <-findSource(t.Context(), app); s.Commit != clean+"-dirty" {
		t.Errorf("got %+v", s)
	}
	git("checkout", "-q", "--detach")
	for name, want := range map[string]string{"": "HEAD", "GITHUB": "refs/pull/1/merge"} {
		t.Setenv("GITHUB_SHA", "")
		if name != "" {
			t.Setenv("GITHUB_SHA", clean)
			t.Setenv("GITHUB_REF", want)
		}
		if s = <-findSource(t.Context(), app); s.Ref != want {
			t.Errorf("%s: %+v", name, s)
		}
	}
	t.Setenv("PATH", "")
	if s := <-findSource(t.Context(), app); s != nil {
		t.Errorf("without git: %+v", s)
	}
}

func runGit(t *testing.T, dir string, args ...string) {
	t.Helper()
	c := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"}, args...)...)
	c.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "GIT_") })
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
}
