package contracttest

import (
	"strings"
	"syscall"

	"github.com/scafo/scafo/internal/celld"
)

// What the contract's keys ask for beside classes and assets. Each kind is written
// to before the process is killed and a new version adopted, and read after both.

// object is a JSON object of a configuration.
type object = map[string]any

// outlives publishes a Worker with those keys, lets write use it, kills its process,
// publishes another release, and lets read look: the code has RELEASE where its
// release is named.
func (b *bench) outlives(keys object, code string, write, read func(r *running)) {
	b.Helper()
	release := func(name string) files {
		return files{"index.js": strings.ReplaceAll(code, "RELEASE", name), "wrangler.jsonc": config(keys)}
	}
	b.deploy(release("one"))
	r := b.serve("n1", b.program.ShortLease)
	write(r)
	r.signal(syscall.SIGKILL)
	r.exit(soon)
	r = b.serve("n1", b.program.ShortLease)
	two := b.deploy(release("two")).Version
	if got := r.reload(); got.Outcome != celld.ReloadAdopted || got.Version != two {
		b.Fatalf("%+v", got)
	}
	if got := r.settled("/release"); got != "two" {
		b.Errorf("release %q", got)
	}
	read(r)
}

// says holds an answer to a text.
func (r *running) says(path, want string) {
	r.b.Helper()
	if got := r.settled(path); got != want {
		r.b.Errorf("%s: %q, want %q", path, got, want)
	}
}

// comes waits until something that runs by itself has come to that answer.
func (r *running) comes(path, want string) {
	r.b.Helper()
	r.b.until(path+" to answer "+want, patience, func() bool {
		a, err := r.ask(path)
		return err == nil && a.body == want
	})
}

// routes is a Worker that answers each path by the code of its case.
func routes(rest string, cases ...string) string {
	return rest + `
const url = (request) => new URL(request.url);
export default {
  async fetch(request, env) {
    const arg = url(request).searchParams.get("a");
    switch (url(request).pathname) {
      case "/release": return new Response("RELEASE");
      ` + strings.Join(cases, "\n      ") + `
    }
    return new Response("nothing here", { status: 404 });
  },
  HANDLERS
};
`
}

func testKV(b *bench) {
	code := strings.ReplaceAll(routes("",
		`case "/put": await env.KV.put(arg, "value of " + arg, { metadata: { m: arg } }); return new Response("ok");`,
		`case "/large": await env.KV.put(arg, "x".repeat(2e6)); return new Response("ok");`,
		`case "/get": return new Response(await env.KV.get(arg));`,
		`case "/length": return new Response(String((await env.KV.get(arg)).length));`,
		`case "/meta": return Response.json((await env.KV.getWithMetadata(arg)).metadata);`,
		`case "/list": return Response.json((await env.KV.list({ prefix: arg })).keys.map((k) => k.name));`,
		`case "/delete": await env.KV.delete(arg); return new Response("ok");`,
	), "HANDLERS", "")
	b.outlives(object{"kv_namespaces": []object{{"binding": "KV", "id": "main"}}}, code, func(r *running) {
		for _, k := range []string{"a1", "a2", "b"} {
			r.says("/put?a="+k, "ok")
		}
		r.says("/large?a=large", "ok")
		r.says("/delete?a=a1", "ok")
	}, func(r *running) {
		r.says("/get?a=a2", "value of a2")
		r.says("/meta?a=b", `{"m":"b"}`)
		r.says("/list?a=a", `["a2"]`)
		r.says("/length?a=large", "2000000")
	})
}

func testD1(b *bench) {
	code := strings.ReplaceAll(routes("",
		`case "/make": await env.DB.exec("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)"); return new Response("ok");`,
		`case "/add": return Response.json((await env.DB.prepare("INSERT INTO t (v) VALUES (?) RETURNING id").bind(arg).first()).id);`,
		`case "/all": return Response.json((await env.DB.prepare("SELECT v FROM t ORDER BY id").all()).results.map((r) => r.v));`,
		`case "/fail": try { await env.DB.batch([env.DB.prepare("INSERT INTO t (v) VALUES ('no')"), env.DB.prepare("SELECT * FROM nowhere")]); } catch { return new Response("failed"); }`,
	), "HANDLERS", "")
	b.outlives(object{"d1_databases": []object{{"binding": "DB", "database_name": "d", "database_id": "1"}}}, code, func(r *running) {
		r.says("/make", "ok")
		r.says("/add?a=x", "1")
		r.says("/fail", "failed") // and nothing of it has happened
		r.says("/add?a=y", "2")
	}, func(r *running) { r.says("/all", `["x","y"]`) })
}

func testQueues(b *bench) {
	code := strings.ReplaceAll(routes(`import { DurableObject } from "cloudflare:workers";
export class Seen extends DurableObject {
  async add(what) { await this.ctx.storage.put(what, true); }
  async all() { return [...(await this.ctx.storage.list()).keys()].join(" "); }
}`,
		`case "/send": await env.Q.send({ name: arg }, { delaySeconds: arg === "late" ? 5 : 0 }); return new Response("ok");`,
		`case "/seen": return new Response(await env.SEEN.getByName("x").all());`,
	), "HANDLERS", `
  async queue(batch, env) {
    for (const m of batch.messages) {
      const dead = batch.queue === "dead";
      await env.SEEN.getByName("x").add(m.body.name + (dead ? " dead" : " try " + m.attempts));
      if (m.body.name === "bad" && !dead) m.retry(); else m.ack();
    }
  },`)
	b.outlives(object{
		"durable_objects": object{"bindings": []object{{"name": "SEEN", "class_name": "Seen"}}},
		"migrations":      []object{{"tag": "v1", "new_sqlite_classes": []string{"Seen"}}},
		"queues": object{
			"producers": []object{{"binding": "Q", "queue": "q"}},
			"consumers": []object{
				{"queue": "q", "max_batch_timeout": 1, "max_retries": 1, "retry_delay": 1, "dead_letter_queue": "dead"},
				{"queue": "dead", "max_batch_timeout": 1},
			},
		},
	}, code, func(r *running) {
		r.says("/send?a=good", "ok")
		r.says("/send?a=bad", "ok")
		r.comes("/seen", "bad dead bad try 1 bad try 2 good try 1")
		r.says("/send?a=late", "ok")
	}, func(r *running) { r.comes("/seen", "bad dead bad try 1 bad try 2 good try 1 late try 1") })
}

func testWorkflows(b *bench) {
	code := strings.ReplaceAll(routes(`import { WorkflowEntrypoint } from "cloudflare:workers";
export class Flow extends WorkflowEntrypoint {
  async run(event, step) {
    const first = await step.do("first", async () => "RELEASE");
    await step.waitForEvent("signal", { type: "go", timeout: "5 minutes" });
    await step.sleep("a while", "1 second");
    return first + " " + await step.do("second", async () => "RELEASE");
  }
}`,
		`case "/start": return new Response((await env.FLOW.create({ id: arg })).id);`,
		`case "/go": await (await env.FLOW.get(arg)).sendEvent({ type: "go", payload: {} }); return new Response("ok");`,
		`case "/status": { const s = await (await env.FLOW.get(arg)).status(); return new Response(s.status + " " + (s.output ?? s.error?.message ?? "")); }`,
	), "HANDLERS", "")
	b.outlives(object{"workflows": []object{{"binding": "FLOW", "name": "flow", "class_name": "Flow"}}}, code, func(r *running) {
		r.says("/start?a=f", "f")
		r.comes("/status?a=f", "waiting ")
	}, func(r *running) {
		r.says("/go?a=f", "ok")
		r.comes("/status?a=f", "complete one two") // the step that was done is not done again
	})
}

// A Worker's own entry points, and the kinds of modules.
func testEntryPointsAndModules(b *bench) {
	b.deploy(files{
		"wrangler.jsonc": config(object{
			"compatibility_flags": []string{"nodejs_compat"},
			"services":            []object{{"binding": "SUMS", "service": scriptName, "entrypoint": "Sums"}},
			"define":              object{"DEFINED": `"defined"`},
			"rules":               []object{{"type": "Text", "globs": []string{"**/*.md"}, "fallthrough": true}, {"type": "Data", "globs": []string{"**/*.raw"}}},
		}),
		"index.js": `import { WorkerEntrypoint } from "cloudflare:workers";
import { createHash } from "node:crypto";
import json from "./a.json"; import md from "./a.md"; import txt from "./a.txt"; import raw from "./a.raw"; import wasm from "./a.wasm"; import cjs from "./a.cjs";
export class Sums extends WorkerEntrypoint { add(a, b) { return a + b; } fetch() { return new Response("sums"); } }
export default { async fetch(request, env) {
  switch (new URL(request.url).pathname) {
    case "/rpc": return new Response(String(await env.SUMS.add(20, 22)));
    case "/fetch": return env.SUMS.fetch(request);
    case "/node": return new Response(createHash("sha256").update("x").digest("hex").slice(0, 8));
  }
  const { answer } = (await WebAssembly.instantiate(wasm)).exports;
  return Response.json([DEFINED, json.a, md, txt, raw.byteLength, cjs, answer()]);
} };`,
		"a.json": `{"a": "json"}`, "a.md": "md", "a.txt": "txt", "a.raw": "\x00\xff", "a.cjs": `module.exports = "cjs";`,
		// A function "answer" that returns 42.
		"a.wasm": "\x00asm\x01\x00\x00\x00\x01\x05\x01\x60\x00\x01\x7f\x03\x02\x01\x00\x07\x0a\x01\x06answer\x00\x00\x0a\x06\x01\x04\x00\x41\x2a\x0b",
	})
	r := b.serve("n1")
	r.says("/rpc", "42")
	r.says("/fetch", "sums")
	r.says("/node", "2d711642")
	r.says("/", `["defined","json","md","txt",2,"cjs",42]`)
	// As it is, without a bundler: the files are the modules.
	b.deploy(files{
		"wrangler.jsonc": config(object{"no_bundle": true, "rules": []object{{"type": "ESModule", "globs": []string{"**/*.js"}}}}),
		"index.js":       `import { x } from "./lib/x.js"; export default { fetch() { return new Response(x); } };`, "lib/x.js": `export const x = "as it is";`,
	})
	if got := r.reload(); got.Outcome != celld.ReloadAdopted {
		b.Fatalf("%+v", got)
	}
	r.says("/", "as it is")
}

// The options of assets.
func testAssetOptions(b *bench) {
	b.deploy(files{
		"wrangler.jsonc": config(object{"assets": object{
			"directory": "./public", "binding": "FILES", "html_handling": "drop-trailing-slash",
			"not_found_handling": "404-page", "run_worker_first": []string{"/api/*", "!/api/docs"},
		}}),
		"index.js":          `export default { async fetch(request, env) { const r = await env.FILES.fetch("http://x/style.css"); return new Response("worker saw " + await r.text()); } };`,
		"public/index.html": "front", "public/about.html": "about", "public/404.html": "not here", "public/style.css": "css", "public/api/docs": "docs",
		"public/_headers":   "/style.css\n  X-Own: yes\n",
		"public/_redirects": "/old /about 301\n",
		"public/secret.txt": "secret", "public/.assetsignore": "secret.txt\n",
	})
	r := b.serve("n1")
	for _, c := range []struct {
		path          string
		status        int
		body          string
		header, value string
	}{
		{"/", 200, "front", "", ""},
		{"/about", 200, "about", "", ""},
		{"/about/", 307, "", "Location", "/about"},
		{"/old", 301, "", "Location", "/about"},
		{"/style.css", 200, "css", "X-Own", "yes"},
		{"/api/x", 200, "worker saw css", "", ""},
		{"/api/docs", 200, "docs", "", ""},
	} {
		a, err := r.ask(c.path)
		if err != nil || a.status != c.status || c.body != "" && a.body != c.body || c.header != "" && a.header.Get(c.header) != c.value {
			b.Errorf("%s: %+v, %v; want %+v", c.path, a, err, c)
		}
	}
	// With a Worker, what is no file is the Worker's.
	for _, path := range []string{"/secret.txt", "/_headers", "/.assetsignore", "/nothing"} {
		if a, err := r.ask(path); err != nil || a.body != "worker saw css" && a.body != "not here" {
			b.Errorf("%s: %+v, %v", path, a, err)
		}
	}
}
