//go:build system

package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/paralleltest"
)

// The way of a newcomer: up, deploy, curl, stop, up again.
func TestANewcomersWay(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	greeting := f.up.out.String()
	for _, want := range []string{"scafo " + scafo.Version, "bucket embedded", "workerd 1.2", "API      " + f.url, "Workers  http://<name>.localhost:" + strconv.Itoa(f.http)} {
		if !strings.Contains(greeting, want) {
			t.Errorf("the greeting lacks %q:\n%s", want, greeting)
		}
	}
	url := f.deploy(f.example("counter"))
	if want := "http://counter.localhost:" + strconv.Itoa(f.http); url != want {
		t.Fatalf("address %q, want %q", url, want)
	}
	for want := 1; want <= 3; want++ {
		if got := number(t, f.body(url)); got != want {
			t.Fatalf("count %d, want %d", got, want)
		}
	}
	f.up.stop(t)
	if f.up.err != nil {
		t.Errorf("up ended with %v", f.up.err)
	}
	f.noProcessIsLeft()

	f.start()
	eventually(t, "the counter answers again", func() error {
		status, body, err := f.get(url)
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("%d %s %v", status, body, err)
		}
		if got := number(t, body); got != 4 {
			t.Fatalf("after a restart the count is %d, want 4", got)
		}
		return nil
	})
}

func TestEveryExampleAnswers(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	t.Run("hello", func(t *testing.T) {
		url := f.deploy(f.example("hello"))
		if body := f.body(url); !strings.Contains(strings.ToLower(body), "hello") {
			t.Errorf("%q", body)
		}
	})
	t.Run("site", func(t *testing.T) {
		url := f.deploy(f.example("site"))
		if body := f.body(url + "/"); !strings.Contains(body, "<html") {
			t.Errorf("%q", body)
		}
		if status, _, err := f.get(url + "/no-such-page"); err != nil || status != http.StatusNotFound {
			t.Errorf("%d %v", status, err)
		}
	})
	t.Run("chat", func(t *testing.T) { chat(t, f, f.deploy(f.example("chat"))) })
	t.Run("reminders", func(t *testing.T) {
		url := f.deploy(f.example("reminders"))
		if status, body, err := f.get(url + "/"); err != nil || status >= 500 {
			t.Errorf("%d %q %v", status, body, err)
		}
	})
	t.Run("unknown host", func(t *testing.T) {
		status, body, err := f.get("http://nobody.localhost:" + strconv.Itoa(f.http) + "/")
		if err != nil || status != http.StatusNotFound {
			t.Errorf("%d %q %v", status, body, err)
		}
	})
}

// chat sends a message from one socket to another.
func chat(t *testing.T, f *fleet, url string) {
	t.Helper()
	if body := f.body(url + "/"); !strings.Contains(body, "<html") {
		t.Errorf("no page: %q", body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dial := func() *websocket.Conn {
		c, _, err := websocket.Dial(ctx, strings.Replace(url, "http://", "ws://", 1)+"/ws/lobby?name=someone", &websocket.DialOptions{HTTPClient: f.requestClient})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.CloseNow() })
		return c
	}
	a, b := dial(), dial()
	if err := a.Write(ctx, websocket.MessageText, []byte("hello from a")); err != nil {
		t.Fatal(err)
	}
	for {
		_, msg, err := b.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(msg, []byte("hello from a")) {
			return
		}
	}
}

// A redeploy under load loses no request, and the state stays.
func TestARedeployLosesNothing(t *testing.T) {
	f := newFleet(t)
	source := func(version string) string {
		return `import { DurableObject } from "cloudflare:workers";
export class Counter extends DurableObject {
  async fetch() { const n = ((await this.ctx.storage.get("n")) ?? 0) + 1; await this.ctx.storage.put("n", n); return new Response(n); }
}
export default { async fetch(req, env) {
  const res = await env.COUNTER.get(env.COUNTER.idFromName("x")).fetch("http://counter/");
  return new Response("` + version + ` " + await res.text(), { status: res.status });
} };`
	}
	config := `{"name":"load","main":"index.js","compatibility_date":"2026-11-01",
"durable_objects":{"bindings":[{"name":"COUNTER","class_name":"Counter"}]},
"migrations":[{"tag":"v1","new_sqlite_classes":["Counter"]}]}`
	dir := project(t, map[string]string{"wrangler.jsonc": config, "index.js": source("v1")})
	url := f.deploy(dir)

	ctx, cancel := context.WithCancel(t.Context())
	var asked, failed atomic.Int64
	var firstFailure atomic.Value
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for ctx.Err() == nil {
				asked.Add(1)
				status, body, err := f.get(url)
				if err != nil || status != http.StatusOK {
					failed.Add(1)
					firstFailure.CompareAndSwap(nil, fmt.Sprintf("%d %q %v", status, body, err))
				}
			}
		}()
	}
	for _, version := range []string{"v2", "v3", "v4"} {
		if err := os.WriteFile(dir+"/index.js", []byte(source(version)), 0o644); err != nil {
			t.Fatal(err)
		}
		f.deploy(dir)
		if body := f.body(url); !strings.HasPrefix(body, version+" ") {
			t.Errorf("after the deploy of %s: %q", version, body)
		}
	}
	cancel()
	wg.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed, the first with %v", failed.Load(), asked.Load(), firstFailure.Load())
	}
	// The load's requests and the three checks counted, and nothing was forgotten.
	if got, want := number(t, strings.TrimPrefix(f.body(url), "v4")), int(asked.Load())+3+1; got != want {
		t.Errorf("the count is %d, want %d", got, want)
	}
	t.Logf("%d requests over three redeploys", asked.Load())
}

// Acknowledged writes outlive the runtime and the node.
func TestKillNine(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	url := f.deploy(f.example("counter"))
	for range 25 {
		f.body(url)
	}
	count := func(want int) {
		t.Helper()
		eventually(t, "the counter answers", func() error {
			status, body, err := f.get(url)
			if err != nil || status != http.StatusOK {
				return fmt.Errorf("%d %s %v", status, body, err)
			}
			if got := number(t, body); got != want {
				t.Fatalf("the count is %d, want %d", got, want)
			}
			return nil
		})
	}
	p, err := f.process("counter")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	count(26)
	q, err := f.process("counter")
	if err != nil {
		t.Fatal(err)
	}
	if q.PID == p.PID || q.LastExit == nil {
		t.Errorf("the process was not replaced: %+v", q)
	}

	// The node alone: the runtime goes on, and is found again.
	f.up.kill(t)
	eventually(t, "the ingress ends with `up`", func() error {
		for pid, cmd := range f.belongs() {
			if strings.Contains(cmd, "scafo-caddy") {
				return fmt.Errorf("it is process %d", pid)
			}
		}
		return nil
	})
	if err := syscall.Kill(q.PID, 0); err != nil {
		t.Fatalf("the runtime ended with the node: %v", err)
	}
	f.start()
	count(27)
	r, err := f.process("counter")
	if err != nil {
		t.Fatal(err)
	}
	if r.PID != q.PID {
		t.Errorf("the runtime was restarted: process %d, then %d", q.PID, r.PID)
	}
}

// What a developer breaks fails with the runtime's own words, and the old version
// goes on.
func TestBrokenDeploysAreRefused(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	good := worker(t, "app", `export default { fetch() { return new Response("good") } }`)
	url := f.deploy(good)
	for name, c := range map[string]struct {
		dir  string
		want []string
	}{
		"syntax error": {worker(t, "app", "export default {\n  fetch() { return new Response(\"x\" }\n}"), []string{"index.js", "2"}},
		"throws at import": {worker(t, "app", "\n\nthrow new Error(\"boom at import\");\nexport default { fetch() {} }"),
			[]string{"boom at import"}},
		"missing main": {project(t, map[string]string{"wrangler.jsonc": `{"name":"app","main":"nope.js","compatibility_date":"2026-11-01"}`}), []string{"nope.js"}},
		"bad json":     {project(t, map[string]string{"wrangler.jsonc": "{\n \"name\": \"app\",\n oops\n}"}), []string{"wrangler.jsonc", "3"}},
		"toml only":    {project(t, map[string]string{"wrangler.toml": `name = "app"`}), []string{"wrangler.jsonc"}},
		"no config":    {project(t, map[string]string{"index.js": ""}), []string{"wrangler.jsonc", "wrangler.json"}},
		"no class": {project(t, map[string]string{"wrangler.jsonc": `{"name":"app","main":"index.js","compatibility_date":"2026-11-01","durable_objects":{"bindings":[{"name":"A","class_name":"Nope"}]},"migrations":[{"tag":"v1","new_sqlite_classes":["Nope"]}]}`,
			"index.js": "export default { fetch() {} }"}), []string{"Nope"}},
		"unsupported": {project(t, map[string]string{"wrangler.jsonc": `{"name":"app","main":"index.js","compatibility_date":"2026-11-01","vectorize":[{"binding":"V","index_name":"i"}]}`,
			"index.js": "export default { fetch() {} }"}), []string{"vectorize"}},
		"future date": {project(t, map[string]string{"wrangler.jsonc": `{"name":"app","main":"index.js","compatibility_date":"2199-01-01"}`,
			"index.js": "export default { fetch() {} }"}), []string{"2199-01-01"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, err := f.scafo("deploy", c.dir)
			if err == nil {
				t.Fatalf("taken: %s", out)
			}
			for _, w := range c.want {
				if !strings.Contains(errs+out, w) {
					t.Errorf("the refusal does not say %q:\n%s%s", w, out, errs)
				}
			}
			if body := f.body(url); body != "good" {
				t.Errorf("the old version is gone: %q", body)
			}
		})
	}
}

func TestMistakesAtTheStart(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	scafoUp := func(args ...string) string {
		t.Helper()
		p := start(t, f.env(), bin(t, "scafo"), append([]string{"up"}, args...)...)
		select {
		case <-p.done:
		case <-time.After(patience):
			t.Fatal("a second up does not end")
		}
		if p.err == nil {
			t.Fatalf("up %v succeeded", args)
		}
		return p.out.String()
	}
	other := "127.0.0.1:" + strconv.Itoa(freePort(t))
	port := strconv.Itoa(freePort(t))
	if said := scafoUp("--state", t.TempDir(), "--listen", f.api, "--http-port", port); !strings.Contains(said, f.api) {
		t.Errorf("a taken API port: %s", said)
	}
	if said := scafoUp("--state", t.TempDir(), "--listen", other, "--http-port", strconv.Itoa(f.http)); !strings.Contains(said, strconv.Itoa(f.http)) {
		t.Errorf("a taken HTTP port: %s", said)
	}
	if said := scafoUp("--state", f.state, "--listen", other, "--http-port", port); !strings.Contains(said, "another node") {
		t.Errorf("a state directory in use: %s", said)
	}
}

// A plain request with one token, as the README shows it.
func TestTokenForCurl(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	token := strings.TrimSpace(f.must("token"))
	ask := func() int {
		req, err := http.NewRequest(http.MethodGet, "http://"+f.api+"/v1/state", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		c := &http.Client{Timeout: patience}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var s scafo.DaemonState
		if res.StatusCode == http.StatusOK {
			if err := json.NewDecoder(res.Body).Decode(&s); err != nil || s.Coordinator == nil || !s.Coordinator.Self {
				t.Errorf("%+v %v", s, err)
			}
		}
		return res.StatusCode
	}
	eventually(t, "the node coordinates", func() error {
		if s := f.status(); s.Coordinator == nil {
			return errors.New("nobody does")
		}
		return nil
	})
	if got := ask(); got != http.StatusOK {
		t.Errorf("first use: %d", got)
	}
	if got := ask(); got != http.StatusUnauthorized {
		t.Errorf("second use: %d", got)
	}
	if _, err := net.DialTimeout("tcp", f.api, time.Second); err != nil {
		t.Error(err)
	}
}
