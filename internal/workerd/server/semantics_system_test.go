//go:build system

package server_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/paralleltest"
)

// ask is one request of a case: METHOD PATH, headers as `Name: value` and a body.
// until, where it is set, is what the answer's body comes to by itself.
type ask struct {
	line    string
	headers []string
	body    string
	until   string
}

// semantics are Workers, one for each kind of binding, and what they are asked: the
// answers of the deployed application are those of `workerd serve` with the very
// same project. To extend it, add a request.
var semantics = map[string]struct {
	config object
	files  map[string]string
	asks   []ask
}{
	"request and response": {
		files: map[string]string{"main.js": `export default { async fetch(r) {
  const u = new URL(r.url);
  if (u.pathname === "/echo") return new Response(await r.text(), { status: 201, headers: [["X-A", "1"], ["X-Method", r.method], ["Set-Cookie", "a=1"], ["Set-Cookie", "b=2"]] });
  if (u.pathname === "/headers") return Response.json([...r.headers].filter(([k]) => k.startsWith("x-own")));
  if (u.pathname === "/url") return new Response(u.pathname + u.search + " " + u.protocol);
  if (u.pathname === "/none") return new Response(null, { status: 204 });
  if (u.pathname === "/throw") throw new Error("thrown");
  if (u.pathname === "/stream") { const { readable, writable } = new TransformStream(); const w = writable.getWriter(); (async () => { for (const s of ["a", "b", "c"]) await w.write(new TextEncoder().encode(s)); await w.close(); })(); return new Response(readable); }
  if (u.pathname === "/redirect") return Response.redirect("http://example.com/there", 302);
  if (u.pathname === "/gzip") return new Response("x".repeat(1000), { headers: { "Content-Encoding": "gzip", "Content-Type": "text/plain" } });
  if (u.pathname === "/teapot") return new Response("short", { status: 418, statusText: "teapot", headers: { "Cache-Control": "no-store", ETag: '"1"' } });
  return new Response("?", { status: 404 });
} };`},
		asks: []ask{
			{line: "GET /echo"}, {line: "POST /echo", body: strings.Repeat("body ", 5000)}, {line: "PUT /echo", body: "\x00\xff"}, {line: "DELETE /echo"}, {line: "PATCH /echo", body: "p"},
			{line: "OPTIONS /echo"}, {line: "HEAD /echo"}, {line: "GET /headers", headers: []string{"X-Own-A: 1", "x-own-b: two, three", "X-Own-A: 4"}},
			{line: "GET /url?a=%20b&c=%2F&d"}, {line: "GET /a%2Fb/../url?x"}, {line: "GET //url"}, {line: "GET /none"}, {line: "GET /stream"}, {line: "GET /redirect"},
			{line: "GET /teapot"}, {line: "GET /throw"}, {line: "GET /gzip", headers: []string{"Accept-Encoding: gzip"}}, {line: "GET /%E2%82%AC"},
		},
	},
	"assets": {
		config: object{"assets": object{"directory": "public", "binding": "FILES", "html_handling": "force-trailing-slash", "not_found_handling": "single-page-application", "run_worker_first": []string{"/api/*"}}},
		files: map[string]string{
			"main.js":           `export default { fetch(r, env) { return new URL(r.url).pathname === "/api/file" ? env.FILES.fetch("http://x/a.css") : new Response("worker " + new URL(r.url).pathname); } };`,
			"public/index.html": "<p>front", "public/about.html": "<p>about", "public/dir/index.html": "<p>dir", "public/a.css": "a{}", "public/a b.txt": "space", "public/x.json": "{}",
			"public/_headers": "/*\n  X-All: yes\n/a.css\n  ! X-All\n  X-Own: css\n", "public/_redirects": "/old/* /about/:splat 302\n/gone / 301\n/proxy /a.css 200\n",
			"public/.assetsignore": "hidden.txt\n", "public/hidden.txt": "hidden",
		},
		asks: []ask{
			{line: "GET /"}, {line: "GET /about"}, {line: "GET /about/"}, {line: "GET /about.html"}, {line: "GET /dir"}, {line: "GET /dir/"}, {line: "GET /dir/index.html"},
			{line: "GET /a.css"}, {line: "HEAD /a.css"}, {line: "POST /a.css"}, {line: "GET /a%20b.txt"}, {line: "GET /x.json"}, {line: "GET /old/x"}, {line: "GET /gone"}, {line: "GET /proxy"},
			{line: "GET /hidden.txt"}, {line: "GET /_headers"}, {line: "GET /api/x"}, {line: "GET /api/file"}, {line: "GET /nothing", headers: []string{"Sec-Fetch-Mode: navigate"}}, {line: "GET /nothing"},
			{line: "GET /a.css", headers: []string{`If-None-Match: "x"`}},
		},
	},
	"objects": {
		config: object{"durable_objects": object{"bindings": []object{{"name": "O", "class_name": "O"}}}, "migrations": []object{{"tag": "v1", "new_sqlite_classes": []string{"O"}}}},
		files: map[string]string{"main.js": `import { DurableObject } from "cloudflare:workers";
export class O extends DurableObject {
  add(n) { const v = (this.ctx.storage.kv.get("n") ?? 0) + n; this.ctx.storage.kv.put("n", v); return v; }
  sql() { this.ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS t (a, b)"); this.ctx.storage.sql.exec("INSERT INTO t VALUES (?, ?)", 1.5, null); return this.ctx.storage.sql.exec("SELECT a, b, count(*) AS n FROM t").one(); }
  fail() { throw new TypeError("of its own"); }
  async fetch(r) { return new Response("object " + r.method + " " + await r.text(), { status: 203 }); }
}
export default { async fetch(r, env) {
  const o = env.O.getByName("x");
  switch (new URL(r.url).pathname) {
    case "/add": return Response.json(await o.add(2));
    case "/sql": return Response.json(await o.sql());
    case "/fail": try { await o.fail(); } catch (e) { return new Response(e.name + ": " + e.message); }
  }
  return o.fetch(r);
} };`},
		asks: []ask{{line: "GET /add"}, {line: "GET /add"}, {line: "GET /sql"}, {line: "GET /sql"}, {line: "GET /fail"}, {line: "POST /", body: "hello"}},
	},
	"kv": {
		config: object{"kv_namespaces": []object{{"binding": "KV", "id": "k"}}},
		files: map[string]string{"main.js": `export default { async fetch(r, env) {
  const op = new URL(r.url).pathname.slice(1);
  const run = {
    put: () => env.KV.put("a", "text", { metadata: { m: [1] } }), get: () => env.KV.get("a"), json: async () => { await env.KV.put("j", '{"a":1}'); return env.KV.get("j", "json"); },
    bytes: async () => { await env.KV.put("b", new Uint8Array([0, 255])); return [...new Uint8Array(await env.KV.get("b", "arrayBuffer"))]; },
    meta: async () => { const x = await env.KV.getWithMetadata("a"); return [x.value, x.metadata]; }, missing: () => env.KV.get("nothing"), many: async () => [...(await env.KV.get(["a", "j", "no"]))],
    list: async () => { const l = await env.KV.list({ limit: 2 }); return [l.keys, l.list_complete]; }, next: async () => { const l = await env.KV.list({ limit: 2 }); return (await env.KV.list({ cursor: l.cursor })).keys; },
    remove: async () => { await env.KV.delete("a"); return env.KV.get("a"); }, long: () => env.KV.put("x".repeat(513), "v"), empty: () => env.KV.put("", "v"), brief: () => env.KV.put("t", "v", { expirationTtl: 5 }),
    unicode: async () => { await env.KV.put("ключ/☃ %", "значение"); return env.KV.get("ключ/☃ %"); },
  }[op];
  try { return Response.json((await run()) ?? null); } catch (e) { return new Response(e.message, { status: 500 }); }
} };`},
		asks: []ask{
			{line: "GET /put"}, {line: "GET /get"}, {line: "GET /json"}, {line: "GET /bytes"}, {line: "GET /meta"}, {line: "GET /missing"}, {line: "GET /many"}, {line: "GET /list"}, {line: "GET /next"},
			{line: "GET /remove"}, {line: "GET /long"}, {line: "GET /empty"}, {line: "GET /brief"}, {line: "GET /unicode"},
		},
	},
	"d1": {
		config: object{"d1_databases": []object{{"binding": "DB", "database_name": "d", "database_id": "1"}}},
		files: map[string]string{"main.js": `export default { async fetch(r, env) {
  const op = new URL(r.url).pathname.slice(1), db = env.DB;
  const run = {
    make: async () => (await db.exec("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b REAL, c BLOB)")).count, add: async () => { const x = await db.prepare("INSERT INTO t (a, b, c) VALUES (?, ?2, ?3)").bind("x", 1.5, new Uint8Array([1, 2])).run(); return [x.success, x.meta.changes, x.meta.last_row_id]; },
    all: async () => (await db.prepare("SELECT * FROM t").all()).results, first: () => db.prepare("SELECT a, b FROM t").first(), column: () => db.prepare("SELECT b FROM t").first("b"), none: () => db.prepare("SELECT * FROM t WHERE id = 99").first(),
    raw: () => db.prepare("SELECT id, a FROM t").raw({ columnNames: true }), batch: async () => (await db.batch([db.prepare("INSERT INTO t (a) VALUES ('y')"), db.prepare("SELECT count(*) AS n FROM t")]))[1].results,
    undone: async () => { try { await db.batch([db.prepare("INSERT INTO t (a) VALUES ('z')"), db.prepare("bad")]); } catch (e) { return [e.message, await db.prepare("SELECT count(*) AS n FROM t").first("n")]; } },
    wrong: () => db.prepare("SELECT * FROM nowhere").all(), begin: () => db.exec("BEGIN"), unbound: () => db.prepare("SELECT ?").bind(undefined).all(), session: async () => (await db.withSession("first-primary").prepare("SELECT a FROM t").first()),
  }[op];
  try { return Response.json((await run()) ?? null); } catch (e) { return new Response(e.message, { status: 500 }); }
} };`},
		asks: []ask{
			{line: "GET /make"}, {line: "GET /add"}, {line: "GET /all"}, {line: "GET /first"}, {line: "GET /column"}, {line: "GET /none"}, {line: "GET /raw"}, {line: "GET /batch"}, {line: "GET /undone"},
			{line: "GET /wrong"}, {line: "GET /begin"}, {line: "GET /unbound"}, {line: "GET /session"},
		},
	},
	"queues": {
		config: object{
			"queues": object{"producers": []object{{"binding": "Q", "queue": "q"}}, "consumers": []object{
				{"queue": "q", "max_batch_size": 3, "max_batch_timeout": 1, "max_retries": 1, "dead_letter_queue": "dead"}, {"queue": "dead", "max_batch_timeout": 1}}},
			"kv_namespaces": []object{{"binding": "KV", "id": "k"}},
		},
		files: map[string]string{"main.js": `export default {
  async fetch(r, env) {
    const op = new URL(r.url).pathname.slice(1);
    const run = {
      send: () => env.Q.send({ a: [1] }), text: () => env.Q.send("text", { contentType: "text" }), bytes: () => env.Q.send(new Uint8Array([7]), { contentType: "bytes" }), date: () => env.Q.send(new Date(0), { contentType: "v8" }),
      big: () => env.Q.send("x".repeat(200_000), { contentType: "text" }), many: () => env.Q.sendBatch(Array(101).fill({ body: 1 })), bad: () => env.Q.send("bad"),
    }[op];
    if (!op) return new Response("up");
    if (!run) return new Response(await env.KV.get(op, { cacheTtl: 30 }));
    try { await run(); return new Response("sent"); } catch (e) { return new Response(e.message, { status: 500 }); }
  },
  async queue(batch, env) {
    for (const m of batch.messages) {
      const b = m.body, kind = b === "bad" ? batch.queue + "-bad-" + m.attempts : b instanceof Date ? "is-date" : b instanceof ArrayBuffer || ArrayBuffer.isView(b) ? "is-bytes" : typeof b === "string" ? "is-text" : "is-json";
      await env.KV.put(kind, batch.queue + " " + m.attempts + " " + (b.byteLength ?? JSON.stringify(b)));
      if (b === "bad" && batch.queue === "q") m.retry();
    }
  },
};`},
		asks: []ask{
			{line: "GET /send", until: "sent"}, {line: "GET /text", until: "sent"}, {line: "GET /bytes", until: "sent"}, {line: "GET /date", until: "sent"}, {line: "GET /bad", until: "sent"}, {line: "GET /big"}, {line: "GET /many"},
			{line: "GET /is-json", until: `q 1 {"a":[1]}`}, {line: "GET /is-text", until: `q 1 "text"`}, {line: "GET /is-bytes", until: "q 1 1"}, {line: "GET /is-date", until: `q 1 "1970-01-01T00:00:00.000Z"`},
			{line: "GET /dead-bad-1", until: `dead 1 "bad"`}, {line: "GET /q-bad-2", until: `q 2 "bad"`},
		},
	},
	"workflows": {
		config: object{"workflows": []object{{"binding": "W", "name": "w", "class_name": "Flow", "limits": object{"steps": 3}}}},
		files: map[string]string{"main.js": `import { WorkflowEntrypoint } from "cloudflare:workers";
import { NonRetryableError } from "cloudflare:workflows";
export class Flow extends WorkflowEntrypoint { async run(event, step) {
  const p = event.payload, once = { retries: { limit: 1, delay: 10 } };
  if (p === "fail") return step.do("x", once, () => { throw new Error("always"); });
  if (p === "never") return step.do("x", () => { throw new NonRetryableError("no use"); });
  if (p === "steps") { for (let i = 0; i < 5; i++) await step.do("s" + i, async () => i); return "too many"; }
  if (p === "event") return (await step.waitForEvent("e", { type: "go", timeout: "1 minute" })).payload;
  if (p === "late") { try { return await step.waitForEvent("e", { type: "go", timeout: "1 second" }); } catch (e) { return e.message; } }
  return { got: p, sum: await step.do("sum", async () => 3) };
} }
export default { async fetch(r, env) {
  const [, op, id] = new URL(r.url).pathname.split("/");
  const run = { start: async () => (await env.W.create({ id, params: id })).id, go: async () => (await env.W.get(id)).sendEvent({ type: "go", payload: { by: "me" } }), status: async () => { const s = await (await env.W.get(id)).status(); return [s.status, s.output ?? s.error ?? null]; },
    stop: async () => (await env.W.get(id)).terminate() }[op];
  try { return Response.json((await run()) ?? null); } catch (e) { return new Response(e.message, { status: 500 }); }
} };`},
		asks: []ask{
			{line: "GET /start/plain"}, {line: "GET /start/plain"}, {line: "GET /status/none"}, {line: "GET /start/-bad"}, {line: "GET /start/fail"}, {line: "GET /start/never"}, {line: "GET /start/steps"}, {line: "GET /start/event"}, {line: "GET /start/late"},
			{line: "GET /status/plain", until: `["complete",{"got":"plain","sum":3}]`}, {line: "GET /status/event", until: `["waiting",null]`}, {line: "GET /go/event"}, {line: "GET /status/event", until: `["complete",{"by":"me"}]`},
			{line: "GET /status/fail", until: `["errored",{"name":"Error","message":"always"}]`}, {line: "GET /status/late", until: `["complete","*`}, {line: "GET /status/never", until: `["errored",*`}, {line: "GET /status/steps", until: `["errored",*`},
		},
	},
}

// plainWorkerd serves a project with workerd alone and returns its address.
func (b *bench) plainWorkerd(t *testing.T, dir string) string {
	t.Helper()
	addr := freePort(t)
	out := &lockedBuffer{}
	cmd := exec.Command(b.workerd, "serve", "--experimental", "wrangler.json", "-s", "http="+addr)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, out, out, time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("workerd said:\n%s", out)
		}
	})
	b.until("workerd alone", 20*time.Second, func() bool {
		resp, err := client.Get("http://" + addr + "/")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil
	})
	return "http://" + addr
}

// notCompared are headers that belong to a hop and not to the answer.
var notCompared = []string{"Date", "Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Server"}

// answer is what is compared of an answer.
type answer struct {
	Status int
	Header http.Header
	Body   string
}

var bare = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func (a ask) send(t *testing.T, base string) answer {
	t.Helper()
	method, path, _ := strings.Cut(a.line, " ")
	req, err := http.NewRequest(method, base+path, strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "app.example"
	for _, h := range a.headers {
		k, v, _ := strings.Cut(h, ": ")
		req.Header.Add(k, v)
	}
	resp, err := bare.Do(req)
	if err != nil {
		t.Fatalf("%s: %v", a.line, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s: %v", a.line, err)
	}
	for _, h := range notCompared {
		resp.Header.Del(h)
	}
	// The end of an asset's ETag is its file's time, which a deploy sets by the content.
	if tag := resp.Header.Get("Etag"); strings.Count(tag, "-") == 2 {
		resp.Header.Set("Etag", tag[:strings.LastIndexByte(tag, '-')])
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// settle sends it until the body has come to what it comes to.
func (a ask) settle(t *testing.T, base string) answer {
	t.Helper()
	var got answer
	for deadline := time.Now().Add(25 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		got = a.send(t, base)
		prefix, open := strings.CutSuffix(a.until, "*")
		if a.until == "" || got.Body == a.until || open && strings.HasPrefix(got.Body, prefix) {
			return got
		}
	}
	t.Errorf("%s of %s: %+v, want %s", a.line, base, got, a.until)
	return got
}

func TestAnswersAreThoseOfWorkerd(t *testing.T) {
	paralleltest.Waits(t)
	for _, name := range slices.Sorted(maps.Keys(semantics)) {
		c := semantics[name]
		t.Run(name, func(t *testing.T) {
			paralleltest.Beside(t)
			b := newBench(t)
			dir := t.TempDir()
			config := object{"name": "subject", "main": "main.js", "compatibility_date": "2026-01-01", "no_bundle": true}
			maps.Copy(config, c.config)
			j, err := json.Marshal(config)
			if err != nil {
				t.Fatal(err)
			}
			for file, body := range map[string]string{"wrangler.json": string(j)} {
				c.files[file] = body
			}
			for file, body := range c.files {
				p := filepath.Join(dir, file)
				if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(p, []byte(body), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command(b.program, append([]string{"deploy", dir}, b.target()...)...)
			cmd.Env = b.env("deployer")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("deploy: %v\n%s", err, out)
			}
			alone, deployed := b.plainWorkerd(t, dir), b.serve("n1").url
			for _, a := range c.asks {
				want, got := a.settle(t, alone), a.settle(t, deployed)
				if w, g := encoded(t, want), encoded(t, got); w != g {
					t.Errorf("%s\n\tworkerd  %s\n\tdeployed %s", a.line, w, g)
				}
			}
		})
	}
}

func encoded(t *testing.T, a answer) string {
	t.Helper()
	j, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return string(j)
}
