package deploy

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
)

// project is an artifact whose version will be the content of its configuration.
func project(t testing.TB, version string) []byte {
	t.Helper()
	return archiveOf(t, map[string]string{"wrangler.jsonc": version, "src/index.ts": "export default {}"})
}

func archiveOf(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// runtime publishes as a real one does: it moves the pointer by compare-and-swap.
type runtime struct {
	b       bucket.Bucket
	version string
	before  func(ctx context.Context, version string) error // before the pointer moves
	after   func(ctx context.Context, version string) error // after it did

	mu  sync.Mutex
	ran []string // versions; guarded by mu
}

func pointerOf(version string) []byte {
	// White space and order of a runtime's own, which must survive.
	return fmt.Appendf(nil, "{\"version\": %q,\n  \"script_name\":\"s\"}", version)
}

func (r *runtime) Version(context.Context) (string, error) { return r.version, nil }

func (r *runtime) Publish(ctx context.Context, app scafo.Application, project, config, scratch string) (Published, error) {
	b, err := os.ReadFile(config)
	if err != nil {
		return Published{}, err
	}
	if filepath.Dir(config) != project {
		return Published{}, errors.New("the configuration is not in the project")
	}
	if err := os.WriteFile(filepath.Join(scratch, "bundle.js"), b, 0o600); err != nil {
		return Published{}, err
	}
	version := string(b)
	r.mu.Lock()
	r.ran = append(r.ran, version)
	r.mu.Unlock()
	if r.before != nil {
		if err := r.before(ctx, version); err != nil {
			return Published{}, err
		}
	}
	key := pointerKey(app.Name, app.UID)
	for {
		o, err := r.b.Get(ctx, key)
		if errors.Is(err, bucket.ErrNotFound) {
			_, err = r.b.Create(ctx, key, pointerOf(version))
		} else if err == nil {
			_, err = r.b.Replace(ctx, key, o.ETag, pointerOf(version))
		}
		if err == nil {
			break
		}
		if !errors.Is(err, bucket.ErrRefused) {
			return Published{}, scafo.Wrap(err, scafo.CodePublishFailed, "Error: the bucket failed")
		}
	}
	if r.after != nil {
		if err := r.after(ctx, version); err != nil {
			return Published{}, err
		}
	}
	return Published{Version: version}, nil
}

// fleet is what the nodes are to a test.
type fleet struct {
	settle   func(ctx context.Context, app scafo.Application, seq int64, version string, report func(step string, nodes []scafo.DeployNode)) error
	versions map[string]string
	answers  func(node string) bool
	asked    int
}

func (f *fleet) Settle(ctx context.Context, app scafo.Application, seq int64, version string, report func(step string, nodes []scafo.DeployNode)) error {
	if f.settle != nil {
		return f.settle(ctx, app, seq, version, report)
	}
	report("", []scafo.DeployNode{{Node: "a", Version: version}})
	return nil
}

func (f *fleet) CelldVersions(context.Context, string) map[string]string { return f.versions }

func (f *fleet) NodeAnswers(_ context.Context, node string) bool {
	f.asked++
	return f.answers == nil || f.answers(node)
}

// world is a fleet's bucket and what runs over it.
type world struct {
	t     testing.TB
	store *memory.Store
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return &world{t: t, store: memory.New()}
}

// node is one machine's deploys.
type node struct {
	*Service
	w       *world
	id      string
	b       bucket.Bucket
	reg     *registry.Registry
	runtime *runtime
	fleet   *fleet
	staging string
	cancel  context.CancelFunc
	done    chan error
}

var testLimits = Limits{
	ArtifactBytes: 1 << 20, ArchiveEntries: 100, Concurrency: 2, Queue: 16, StagedBytes: 8 << 20,
	Receive: 300 * time.Second, Wait: 120 * time.Second, Task: 300 * time.Second,
}

type option func(*Config)

func limited(change func(*Limits)) option { return func(c *Config) { change(&c.Limits) } }

func through(b bucket.Bucket) option { return func(c *Config) { c.Bucket = b } }

func stagedIn(dir string) option { return func(c *Config) { c.Staging = dir } }

// start starts a node; stop ends it as if it were executed anew later.
func (w *world) start(id string, opts ...option) *node {
	w.t.Helper()
	n := &node{w: w, id: id, fleet: &fleet{}}
	c := Config{
		Node: id, Bucket: w.store, Fleet: n.fleet, Limits: testLimits, Staging: filepath.Join(w.t.TempDir(), "staging"),
		MayServeTogether: func(a, b string) bool { return a == "celld 0.6.1" && b == "celld 0.6.2" },
		RollingPairs:     func(string) []string { return []string{"0.6.1"} },
		Log:              slog.New(slog.NewTextHandler(testWriter{w.t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, o := range opts {
		o(&c)
	}
	c.Registry = registry.New(c.Bucket, registry.Options{Node: id})
	n.runtime = &runtime{b: c.Bucket, version: "celld 0.6.2"}
	c.Publisher = n.runtime
	n.b, n.reg, n.staging = c.Bucket, c.Registry, c.Staging
	s, err := New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	n.Service = s
	return n
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

func (n *node) run() *node {
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.done = cancel, make(chan error, 1)
	go func() { n.done <- n.Run(ctx) }()
	return n
}

// holdPublishing has every deploy wait before its pointer moves, until they are let.
func (n *node) holdPublishing() (letThem func()) {
	hold := make(chan struct{})
	n.runtime.before = func(ctx context.Context, _ string) error {
		select {
		case <-hold:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return func() { close(hold) }
}

// stop ends the node's process; what it was doing stays undone.
func (n *node) stop() {
	n.w.t.Helper()
	n.cancel()
	if err := <-n.done; !errors.Is(err, context.Canceled) {
		n.w.t.Errorf("node %s ended with %v", n.id, err)
	}
}

func (n *node) accept(app string, body []byte, change ...func(*Request)) (scafo.DeployStatus, error) {
	r := Request{Application: app, Caller: "op-a", Body: bytes.NewReader(body)}
	for _, c := range change {
		c(&r)
	}
	return n.Accept(context.Background(), r)
}

func (n *node) mustAccept(app string, body []byte) scafo.DeployID {
	n.w.t.Helper()
	st, err := n.accept(app, body)
	if err != nil {
		n.w.t.Fatal(err)
	}
	if st.State != scafo.DeployAccepted || st.Application != app {
		n.w.t.Fatalf("accepted as %+v", st)
	}
	id, ok := scafo.ParseDeployID(st.ID)
	if !ok {
		n.w.t.Fatalf("%q is no deploy id", st.ID)
	}
	return id
}

// await polls until the deploy has ended.
func (n *node) await(id scafo.DeployID) scafo.DeployStatus {
	n.w.t.Helper()
	for range 100_000 {
		st, err := n.Status(context.Background(), id)
		if err != nil && scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
			n.w.t.Fatal(err)
		}
		if err == nil && st.State.Terminal() {
			return st
		}
		time.Sleep(20 * time.Millisecond)
	}
	n.w.t.Fatalf("deploy %s does not end", id)
	return scafo.DeployStatus{}
}

func (n *node) deploy(app, version string) scafo.DeployStatus {
	n.w.t.Helper()
	st := n.await(n.mustAccept(app, project(n.w.t, version)))
	n.idle()
	return st
}

// idle waits until the node carries nothing out.
func (n *node) idle() {
	n.w.t.Helper()
	for range 100_000 {
		n.mu.Lock()
		active := len(n.active)
		n.mu.Unlock()
		if active == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	n.w.t.Fatal("the node does not come to rest")
}

func (w *world) app(name string) scafo.Application {
	w.t.Helper()
	r := registry.New(w.store, registry.Options{})
	a, err := r.Application(context.Background(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func (w *world) pointer(name string) string {
	w.t.Helper()
	o, err := w.store.Get(context.Background(), pointerKey(name, w.app(name).UID))
	if errors.Is(err, bucket.ErrNotFound) {
		return ""
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return string(o.Body)
}

func (w *world) record(id scafo.DeployID) scafo.Deploy {
	w.t.Helper()
	r := registry.New(w.store, registry.Options{})
	d, err := r.Deploy(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return d.Value
}

// check looks at everything in the bucket once nothing is going on any more: each
// application is what its record says, where that names a version, and nobody holds
// it, each deploy has ended and says why, and each deployed version has its record.
func (w *world) check(nodes ...*node) {
	w.t.Helper()
	for key, body := range w.store.Dump() {
		switch {
		case strings.HasPrefix(key, registry.ApplicationPrefix):
			var a scafo.Application
			if err := json.Unmarshal(body, &a); err != nil {
				w.t.Errorf("%s: %v", key, err)
			}
			if a.Publishing != nil {
				w.t.Errorf("%s is still held by %+v", a.Name, *a.Publishing)
			}
			if named := pointerVersion([]byte(w.pointer(a.Name))); a.Deployment != "" && named != a.Deployment {
				w.t.Errorf("the record of %s says %q, its pointer %q", a.Name, a.Deployment, named)
			}
			if _, ok := w.store.Dump()[registry.DeploymentKey(a.Name, a.UID, a.Deployment)]; a.Deployment != "" && !ok {
				w.t.Errorf("%s of %s has no record", a.Deployment, a.Name)
			}
		case strings.HasPrefix(key, registry.DeployPrefix):
			var d scafo.Deploy
			if err := json.Unmarshal(body, &d); err != nil {
				w.t.Errorf("%s: %v", key, err)
			}
			if !d.State.Terminal() || d.FinishedAt == nil || d.Step != "" {
				w.t.Errorf("%s has not ended: %+v", key, d.DeployStatus)
			}
			if (d.State == scafo.DeployFailed) != (d.Code != "" && d.Detail != "") {
				w.t.Errorf("%s: %+v", key, d.DeployStatus)
			}
		}
	}
	for _, n := range nodes {
		entries, err := os.ReadDir(n.staging)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			w.t.Error(err)
		}
		for _, e := range entries {
			if e.Name() != markFile {
				w.t.Errorf("node %s still has %s staged", n.id, e.Name())
			}
		}
		if len(n.fair.held) != 0 {
			w.t.Errorf("node %s still counts %v", n.id, n.fair.held)
		}
		if n.stages.quota.used != 0 || len(n.admitted) != 0 || len(n.workers) != 0 {
			w.t.Errorf("node %s still counts %d bytes, %d deploys, %d runners", n.id, n.stages.quota.used, len(n.admitted), len(n.workers))
		}
	}
}

func bodyOf(b []byte) io.Reader { return bytes.NewReader(b) }

// deploys are the ids of all records.
func (w *world) deploys() []scafo.DeployID {
	var out []scafo.DeployID
	for key := range w.store.Dump() {
		if id, ok := deployOf(key); ok {
			out = append(out, id)
		}
	}
	return out
}
