package instance_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/workerd/workerdtest"
)

const patience = 20 * time.Second

func deployment(t *testing.T, m layout.Manifest, contents map[string]string, assets map[string]string) *layout.Deployment {
	t.Helper()
	m.V, m.Product, m.ScriptName = 1, "celld-workerd", "app"
	if m.CompatibilityDate == "" {
		m.CompatibilityDate = "2026-11-01"
	}
	b := &layout.Bundle{Manifest: &m, Contents: map[string][]byte{}}
	for name, body := range contents {
		kind := layout.ESModule
		if strings.HasSuffix(name, ".txt") {
			kind = layout.Text
		}
		m.Modules = append(m.Modules, layout.Module{Name: name, Type: kind})
		b.Contents[name] = []byte(body)
	}
	if err := b.Seal(); err != nil {
		t.Fatal(err)
	}
	d, err := b.Unpack(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range assets {
		p := filepath.Join(d.Dir, layout.AssetsDir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

type logged struct {
	mu    sync.Mutex
	lines []instance.Line
}

func (l *logged) add(line instance.Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *logged) has(level, text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if line.Level == level && line.Text == text {
			return true
		}
	}
	return false
}

func launch(t *testing.T, s instance.Spec) (*instance.Instance, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	s.Workerd = workerdtest.Path(t)
	if s.Run == "" {
		s.Run = filepath.Join(t.TempDir(), "run")
	}
	i, err := instance.Start(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Kill(); err != nil {
			t.Error(err)
		}
		<-i.Done()
	})
	return i, ctx
}

func get(t *testing.T, url string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestServesAndDrains(t *testing.T) {
	d := deployment(t, layout.Manifest{
		Main: "index.js",
		Vars: map[string]json.RawMessage{"TEXT": json.RawMessage(`"q\"é\u0000\u0001\n\u007f\\\u2028"`), "N": json.RawMessage(`7`), "NONE": json.RawMessage(`null`)},
	}, map[string]string{
		"index.js": `import t from "dir/t.txt";
console.log("at import", {a: 1});
export default { async fetch(req, env) {
	console.warn("two\nlines");
	return Response.json([new URL(req.url).protocol, t, env.TEXT, env.N, env.NONE, globalThis.process?.env?.LANG]);
} }`,
		"dir/t.txt": "text module \"ü\"",
	}, nil)
	var log logged
	run := filepath.Join(t.TempDir(), "run")
	i, ctx := launch(t, instance.Spec{Deployment: d, Run: run, ForwardedProto: true, Log: log.add})
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	status, body := get(t, "http://"+i.Addr()+"/x", "X-Forwarded-Proto", "https")
	var answer []any
	want := []any{"https:", "text module \"ü\"", "q\"é\x00\x01\n\x7f\\\u2028", 7.0, nil, nil}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != 200 || !reflect.DeepEqual(answer, want) {
		t.Errorf("answered %d %q, want %q", status, answer, want)
	}
	if i.ClusterAddr() != "" {
		t.Errorf("a cluster address outside a cluster: %q", i.ClusterAddr())
	}
	if err := i.Healthy(ctx); err != nil {
		t.Error(err)
	}
	for _, name := range []string{run, filepath.Join(run, "workerd.capnp")} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	if err := i.Drain(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-i.Done():
	case <-ctx.Done():
		t.Fatal("did not drain")
	}
	if e := i.Exit(); e.Code != 0 || e.Signal != "" {
		t.Errorf("ended with %v", e)
	}
	if !log.has("log", "at import { a: 1 }") || !log.has("warn", "two\nlines") {
		t.Errorf("logged %+v", log.lines)
	}
	if _, err := os.Stat(run); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run directory stayed: %v", err)
	}
	if err := i.Kill(); err != nil {
		t.Errorf("a kill after the end: %v", err)
	}
}

func TestStartErrorsAreTheRuntimesWords(t *testing.T) {
	for name, c := range map[string]struct {
		m    layout.Manifest
		js   string
		want string
	}{
		"throw":  {js: "const a = 1;\nthrow new TypeError('no luck');", want: "Uncaught TypeError: no luck\n  at index.js:2:7"},
		"syntax": {js: "export default {", want: "Uncaught SyntaxError: Unexpected end of input\n  at index.js:1:16"},
		"flag":   {js: "export default {}", m: layout.Manifest{CompatibilityFlags: []string{"bogus"}}, want: "No such compatibility flag: bogus"},
	} {
		t.Run(name, func(t *testing.T) {
			c.m.Main = "index.js"
			i, ctx := launch(t, instance.Spec{Deployment: deployment(t, c.m, map[string]string{"index.js": c.js}, nil), Trial: true})
			err := i.Ready(ctx)
			var start *instance.StartError
			if !errors.As(err, &start) {
				t.Fatalf("got %v", err)
			}
			if start.Sentence != c.want || start.Exit.Code != 1 {
				t.Errorf("got %q with %v, want %q", start.Sentence, start.Exit, c.want)
			}
		})
	}
}

func TestEndlessImportIsKilled(t *testing.T) {
	d := deployment(t, layout.Manifest{Main: "index.js"}, map[string]string{"index.js": "while (true);"}, nil)
	i, _ := launch(t, instance.Spec{Deployment: d, Trial: true})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := i.Ready(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := i.Kill(); err != nil {
		t.Fatal(err)
	}
	<-i.Done()
	if e := i.Exit(); e.Code != -1 || e.Signal != syscall.SIGKILL.String() {
		t.Errorf("ended with %+v", e)
	}
}

func TestTrialHasADiskOfItsOwnAndNoNetwork(t *testing.T) {
	d := deployment(t, layout.Manifest{
		Main:           "index.js",
		DurableObjects: []layout.DurableObject{{Binding: "C", Class: "C"}, {Binding: "MISSING", Class: "Missing"}},
		Classes:        []layout.Class{{Name: "C", Key: "app-C", SQL: true}, {Name: "Missing", Key: "app-Missing", SQL: true}},
	}, map[string]string{"index.js": `import { DurableObject } from "cloudflare:workers";
export class C extends DurableObject { fetch() {
	this.ctx.storage.sql.exec("create table if not exists t (n)");
	this.ctx.storage.sql.exec("insert into t values (1)");
	return new Response(this.ctx.storage.sql.exec("select count(*) as n from t").one().n);
} }
export default { async fetch(req, env) {
	let net = "reached";
	try { await fetch("http://127.0.0.1:1/"); } catch (e) { net = "refused"; }
	return new Response(net + " " + await (await env.C.getByName("a").fetch(req)).text());
} }`}, nil)
	i, ctx := launch(t, instance.Spec{Deployment: d, Trial: true})
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if status, body := get(t, "http://"+i.Addr()+"/"); status != 200 || body != "refused 1" {
		t.Errorf("answered %d %q", status, body)
	}
	if w := i.Warnings(); len(w) != 1 || !strings.Contains(w[0], `"Missing"`) {
		t.Errorf("warned %q", w)
	}
}

func TestAssets(t *testing.T) {
	d := deployment(t, layout.Manifest{Assets: &layout.Assets{
		NotFoundHandling: "404-page", Headers: "/*\n  X-Test: yes\n", Redirects: "/old /new 301\n",
	}}, nil, map[string]string{"index.html": "<h1>home</h1>", "about.html": "about", "404.html": "lost", "css/a b.css": "a{}"})
	i, ctx := launch(t, instance.Spec{Deployment: d})
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]struct {
		status int
		body   string
	}{"/": {200, "<h1>home</h1>"}, "/about": {200, "about"}, "/nowhere": {404, "lost"}, "/css/a%20b.css": {200, "a{}"}} {
		if status, body := get(t, "http://"+i.Addr()+path); status != want.status || body != want.body {
			t.Errorf("%s answered %d %q", path, status, body)
		}
	}
}

func TestRefusesWhatCannotRun(t *testing.T) {
	durable := deployment(t, layout.Manifest{Main: "index.js", Classes: []layout.Class{{Name: "C", Key: "k"}}}, map[string]string{"index.js": ""}, nil)
	for name, s := range map[string]instance.Spec{
		"no deployment":         {Run: "x"},
		"no run directory":      {Deployment: durable},
		"state without cluster": {Deployment: durable, Run: "x"},
		"short key":             {Deployment: durable, Run: "x", Disk: "d", Cluster: &instance.Cluster{Bucket: "s3://b", Listen: "127.0.0.1:0", Key: strings.Repeat("k", instance.MinKey-1)}},
	} {
		if _, err := instance.Start(t.Context(), s); err == nil {
			t.Errorf("%s: started", name)
		}
	}
}

// TestOutlivesTheThreadThatAskedForIt: a parent-death signal follows the thread
// that forked, not the process.
func TestOutlivesTheThreadThatAskedForIt(t *testing.T) {
	d := deployment(t, layout.Manifest{Main: "index.js"}, map[string]string{"index.js": "export default { fetch() { return new Response('ok') } }"}, nil)
	started := make(chan *instance.Instance)
	tid, ended := make(chan int), make(chan struct{})
	defer close(ended)
	var run func()
	run = func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if syscall.Gettid() == syscall.Getpid() {
			go run() // the main thread does not end: take another one, while this is held
			<-ended
			return
		}
		i, _ := launch(t, instance.Spec{Deployment: d})
		started <- i
		tid <- syscall.Gettid()
	}
	go run()
	i := <-started
	thread := <-tid
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, err := os.Stat("/proc/self/task/" + strconv.Itoa(thread))
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the thread did not end")
		}
		runtime.Gosched()
	}
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if status, body := get(t, "http://"+i.Addr()+"/"); status != 200 || body != "ok" {
		t.Errorf("answered %d %q", status, body)
	}
}
