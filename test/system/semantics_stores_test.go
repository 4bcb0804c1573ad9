//go:build system

package system

import (
	"fmt"
	"strings"
)

// The Workers that keep something, or that something else calls. They are part of the
// one table: see [semantics].
func init() {
	for _, more := range []map[string]semanticCase{stores, calls} {
		for name, c := range more {
			if _, twice := semantics[name]; twice {
				panic("two cases are named " + name)
			}
			semantics[name] = c
		}
	}
}

// operations is a Worker whose path names what it does with its bindings: members of
// run. What they throw is a 500 with its message.
func operations(run string) map[string]string {
	return map[string]string{"a.js": fmt.Sprintf(`export default { async fetch(req, env) {
  const op = new URL(req.url).pathname.slice(1), db = env.DB;
  const run = { %s }[op];
  try { return Response.json((await run()) ?? null); } catch (e) { return new Response(e.message, { status: 500 }); }
} };`, run)}
}

// gets are plain requests of one status.
func gets(status int, paths string) []ask {
	var out []ask
	for p := range strings.FieldsSeq(paths) {
		out = append(out, ask{path: "/" + p, status: status})
	}
	return out
}

func asks(groups ...[]ask) []ask {
	var out []ask
	for _, g := range groups {
		out = append(out, g...)
	}
	return out
}

// stores are the Workers with KV and D1.
var stores = map[string]semanticCase{
	"kv": {
		config: `, "main": "a.js", "kv_namespaces": [{"binding": "KV", "id": "k"}]`,
		files: operations(`
    put: () => env.KV.put("a", "text", { metadata: { m: [1] } }), get: () => env.KV.get("a"), json: async () => { await env.KV.put("j", '{"a":1}'); return env.KV.get("j", "json"); },
    bytes: async () => { await env.KV.put("b", new Uint8Array([0, 255])); return [...new Uint8Array(await env.KV.get("b", "arrayBuffer"))]; },
    stream: async () => { await env.KV.put("s", new Response("streamed").body); return new Response(await env.KV.get("s", "stream")).text(); },
    meta: async () => { const x = await env.KV.getWithMetadata("a"); return [x.value, x.metadata]; }, missing: () => env.KV.get("nothing"), many: async () => [...(await env.KV.get(["a", "j", "no"]))],
    list: async () => { const l = await env.KV.list({ limit: 2 }); return [l.keys, l.list_complete]; }, next: async () => { const l = await env.KV.list({ limit: 2 }); return (await env.KV.list({ cursor: l.cursor })).keys; },
    prefix: async () => { const l = await env.KV.list({ prefix: "j" }); return [l.keys, l.list_complete]; },
    remove: async () => { await env.KV.delete("a"); return env.KV.get("a"); }, long: () => env.KV.put("x".repeat(513), "v"), empty: () => env.KV.put("", "v"), brief: () => env.KV.put("t", "v", { expirationTtl: 5 }),
    past: () => env.KV.put("t", "v", { expiration: 1 }), dot: () => env.KV.get("."), metadata: () => env.KV.put("m", "v", { metadata: "x".repeat(1100) }), notjson: () => env.KV.get("a", "json"),
    expires: async () => { await env.KV.put("e", "v", { expiration: 2000000000 }); return (await env.KV.list({ prefix: "e" })).keys; },
    unicode: async () => { await env.KV.put("ключ/☃ %", "значение"); return env.KV.get("ключ/☃ %"); },
    large: async () => { await env.KV.put("large", "x".repeat(200_000)); return (await env.KV.get("large")).length; },`),
		asks: asks(
			[]ask{{path: "/put", status: 200, part: "null"}, {path: "/get", status: 200, part: `"text"`}, {path: "/json", status: 200, part: `{"a":1}`}, {path: "/bytes", status: 200, part: "[0,255]"}, {path: "/stream", status: 200, part: `"streamed"`}},
			[]ask{{path: "/meta", status: 200, part: `["text",{"m":[1]}]`}, {path: "/missing", status: 200, part: "null"}, {path: "/many", status: 200, part: `["a","text"]`}, {path: "/list", status: 200, part: `"a"`}, {path: "/next", status: 200, part: `"j"`}, {path: "/prefix", status: 200, part: "true"}},
			gets(500, "notjson long empty brief past dot metadata"),
			[]ask{{path: "/remove", status: 200, part: "null"}, {path: "/expires", status: 200, part: "2000000000"}, {path: "/unicode", status: 200, part: "значение"}, {path: "/large", status: 200, part: "200000"}},
		),
	},
	"d1": {
		config: `, "main": "a.js", "d1_databases": [{"binding": "DB", "database_name": "d", "database_id": "1"}]`,
		files: operations(`
    make: async () => (await db.exec("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b REAL, c BLOB)")).count, add: async () => { const x = await db.prepare("INSERT INTO t (a, b, c) VALUES (?, ?2, ?3)").bind("x", 1.5, new Uint8Array([1, 2])).run(); return [x.success, x.meta.changes, x.meta.last_row_id]; },
    all: async () => (await db.prepare("SELECT * FROM t").all()).results, first: () => db.prepare("SELECT a, b FROM t").first(), column: () => db.prepare("SELECT b FROM t").first("b"), none: () => db.prepare("SELECT * FROM t WHERE id = 99").first(),
    raw: () => db.prepare("SELECT id, a FROM t").raw({ columnNames: true }), batch: async () => (await db.batch([db.prepare("INSERT INTO t (a) VALUES ('y')"), db.prepare("SELECT count(*) AS n FROM t")]))[1].results,
    undone: async () => { try { await db.batch([db.prepare("INSERT INTO t (a) VALUES ('z')"), db.prepare("bad")]); } catch (e) { return [e.message, await db.prepare("SELECT count(*) AS n FROM t").first("n")]; } },
    wrong: () => db.prepare("SELECT * FROM nowhere").all(), begin: () => db.exec("BEGIN"), unbound: () => db.prepare("SELECT ?").bind(undefined).all(), session: async () => (await db.withSession("first-primary").prepare("SELECT a FROM t").first()),
    nocolumn: () => db.prepare("SELECT a FROM t").first("zzz"), returning: () => db.prepare("INSERT INTO t (a) VALUES ('r') RETURNING id, a").first(), unique: () => db.prepare("INSERT INTO t (id) VALUES (1)").run(), changes: async () => (await db.prepare("UPDATE t SET b = 2").run()).meta.changes,
    types: () => db.prepare("SELECT ?1 AS i, ?2 AS f, ?3 AS s, ?4 AS n, ?5 AS yes").bind(9007199254740991, 0.1, "ü", null, true).first(), functions: () => db.prepare("SELECT json_extract('{\"a\":[1,2]}', '$.a[1]') AS j, upper('a') AS u, strftime('%Y', 0, 'unixepoch') AS y").first(),
    search: async () => { await db.exec("CREATE VIRTUAL TABLE s USING fts5(x)"); await db.prepare("INSERT INTO s VALUES ('the quick fox')").run(); return db.prepare("SELECT count(*) AS n FROM s WHERE s MATCH 'quick'").first("n"); },
    keys: async () => { await db.exec("CREATE TABLE p (id INTEGER PRIMARY KEY)"); await db.exec("CREATE TABLE c (p INTEGER REFERENCES p(id))"); return db.prepare("INSERT INTO c VALUES (7)").run(); }, pragma: async () => (await db.prepare("PRAGMA table_list").all()).results.length > 0,
    two: () => db.prepare("SELECT 1; SELECT 2").all(), attach: () => db.prepare("ATTACH 'x' AS y").run(), settings: () => db.prepare("PRAGMA journal_mode = DELETE").run(), drop: async () => (await db.exec("DROP TABLE t\nDROP TABLE s")).count,`),
		asks: asks(
			[]ask{{path: "/make", status: 200, part: "1"}, {path: "/add", status: 200, part: "[true,1,1]"}, {path: "/all", status: 200, part: `"a":"x","b":1.5,"c":[1,2]`}, {path: "/first", status: 200, part: `{"a":"x","b":1.5}`}, {path: "/column", status: 200, part: "1.5"}, {path: "/none", status: 200, part: "null"}},
			[]ask{{path: "/raw", status: 200, part: `[["id","a"],[1,"x"]]`}, {path: "/batch", status: 200, part: `{"n":2}`}, {path: "/undone", status: 200, part: ",2]"}, {path: "/session", status: 200, part: "x"}, {path: "/returning", status: 200, part: `{"id":3,"a":"r"}`}, {path: "/changes", status: 200, part: "3"}},
			gets(500, "wrong begin unbound nocolumn unique keys attach settings"),
			[]ask{{path: "/types", status: 200, part: `"s":"ü","n":null`}, {path: "/functions", status: 200, part: `{"j":2,"u":"A","y":"1970"}`}, {path: "/search", status: 200, part: "1"}, {path: "/pragma", status: 200, part: "true"}, {path: "/two", status: 200, part: `[{"2":2}]`}, {path: "/drop", status: 200, part: "2"}},
		),
	},
}

// calls are the Workers that are called otherwise than by a request.
var calls = map[string]semanticCase{
	"queues": {
		config: `, "main": "a.js", "kv_namespaces": [{"binding": "KV", "id": "k"}],
  "queues": {"producers": [{"binding": "Q", "queue": "q"}], "consumers": [{"queue": "q", "max_batch_size": 3, "max_batch_timeout": 1, "max_retries": 1, "dead_letter_queue": "dead"}, {"queue": "dead", "max_batch_timeout": 1}]}`,
		files: map[string]string{"a.js": `export default {
  async fetch(req, env) {
    const op = new URL(req.url).pathname.slice(1);
    const run = {
      send: () => env.Q.send({ a: [1] }), text: () => env.Q.send("text", { contentType: "text" }), bytes: () => env.Q.send(new Uint8Array([7]), { contentType: "bytes" }), date: () => env.Q.send(new Date(0), { contentType: "v8" }),
      big: () => env.Q.send("x".repeat(200_000), { contentType: "text" }), many: () => env.Q.sendBatch(Array(101).fill({ body: 1 })), bad: () => env.Q.send("bad"), type: () => env.Q.send("x", { contentType: "none" }),
    }[op];
    if (!run) return new Response(await env.KV.get(op, { cacheTtl: 30 }));
    try { await run(); return new Response("sent"); } catch (e) { return new Response(e.message, { status: 500 }); }
  },
  async queue(batch, env) {
    for (const m of batch.messages) {
      const b = m.body, kind = b === "bad" ? batch.queue + "-bad-" + m.attempts : b instanceof Date ? "is-date" : b instanceof ArrayBuffer || ArrayBuffer.isView(b) ? "is-bytes" : typeof b === "string" ? "is-text" : "is-json";
      await env.KV.put(kind, [batch.queue, m.attempts, typeof m.id, m.timestamp instanceof Date, b.byteLength ?? JSON.stringify(b)].join(" "));
      if (b === "bad" && batch.queue === "q") m.retry();
    }
  },
};`},
		asks: asks(
			[]ask{{path: "/send", part: "sent", status: 200, eventually: true}},
			gets(200, "text bytes date bad"), gets(500, "big many type"),
			[]ask{
				{path: "/is-json", part: `q 1 string true {"a":[1]}`, status: 200, eventually: true}, {path: "/is-text", part: `q 1 string true "text"`, status: 200, eventually: true}, {path: "/is-bytes", part: "q 1 string true 1", status: 200, eventually: true},
				{path: "/is-date", part: `q 1 string true "1970-01-01T00:00:00.000Z"`, status: 200, eventually: true}, {path: "/dead-bad-1", part: `dead 1 string true "bad"`, status: 200, eventually: true}, {path: "/q-bad-2", part: `q 2 string true "bad"`, status: 200, eventually: true},
			},
		),
	},
	"workflows": {
		config: `, "main": "a.js", "workflows": [{"binding": "W", "name": "w", "class_name": "Flow", "limits": {"steps": 3}}]`,
		files: map[string]string{"a.js": `import { WorkflowEntrypoint } from "cloudflare:workers";
import { NonRetryableError } from "cloudflare:workflows";
export class Flow extends WorkflowEntrypoint { async run(event, step) {
  const p = event.payload, once = { retries: { limit: 1, delay: 10 } };
  if (p === "fail") return step.do("x", once, () => { throw new Error("always"); });
  if (p === "never") return step.do("x", () => { throw new NonRetryableError("no use"); });
  if (p === "steps") { for (let i = 0; i < 5; i++) await step.do("s" + i, async () => i); return "too many"; }
  if (p === "event") return (await step.waitForEvent("e", { type: "go", timeout: "1 minute" })).payload;
  if (p === "late") { try { return await step.waitForEvent("e", { type: "go", timeout: "1 second" }); } catch (e) { return e.message; } }
  if (p === "slept") { const t = Date.now(); await step.sleep("a while", "1 second"); return Date.now() - t >= 900; }
  return { got: p, sum: await step.do("sum", async () => 3), at: event.timestamp instanceof Date, id: event.instanceId };
} }
export default { async fetch(req, env) {
  const [, op, id] = new URL(req.url).pathname.split("/");
  const run = { start: async () => (await env.W.create({ id, params: id })).id, go: async () => (await env.W.get(id)).sendEvent({ type: "go", payload: { by: "me" } }), status: async () => { const s = await (await env.W.get(id)).status(); return [s.status, s.output ?? s.error ?? null]; },
    stop: async () => (await env.W.get(id)).terminate(), batch: async () => (await env.W.createBatch([{ id: "b1", params: 1 }, { id: "b2", params: 2 }])).map(i => i.id) }[op];
  try { return Response.json((await run()) ?? null); } catch (e) { return new Response(e.message, { status: 500 }); }
} };`},
		asks: asks(
			[]ask{{path: "/start/plain", status: 200, part: "plain"}, {path: "/start/plain", status: 500}, {path: "/status/none", status: 500}, {path: "/start/-bad", status: 500}, {path: "/batch", status: 200, part: `["b1","b2"]`}},
			gets(200, "start/fail start/never start/steps start/event start/late start/slept start/stopped"),
			[]ask{
				{path: "/status/plain", part: `["complete",{"got":"plain","sum":3,"at":true,"id":"plain"}]`, status: 200, eventually: true}, {path: "/status/event", part: `["waiting",null]`, status: 200, eventually: true}, {path: "/go/event", status: 200},
				{path: "/status/event", part: `["complete",{"by":"me"}]`, status: 200, eventually: true}, {path: "/status/fail", part: `["errored",{"name":"Error","message":"always"}]`, status: 200, eventually: true},
				{path: "/status/late", part: `["complete","`, status: 200, eventually: true}, {path: "/status/never", part: `["errored",`, status: 200, eventually: true}, {path: "/status/steps", part: `["errored",`, status: 200, eventually: true},
				{path: "/status/slept", part: `["complete",true]`, status: 200, eventually: true}, {path: "/status/b2", part: `["complete",`, status: 200, eventually: true},
			},
		),
	},
	"services": {
		config: `, "main": "a.js", "services": [{"binding": "GREETER", "service": "services", "entrypoint": "Greeter", "props": {"word": "hello"}}, {"binding": "PLAIN", "service": "services", "entrypoint": "plain"}, {"binding": "SELF", "service": "services"}]`,
		files: map[string]string{"a.js": `import { WorkerEntrypoint, RpcTarget } from "cloudflare:workers";
class Count extends RpcTarget { #n = 0; add(k) { return this.#n += k; } get now() { return this.#n; } }
export class Greeter extends WorkerEntrypoint {
  greet(who) { return this.ctx.props.word + " " + who; }
  count() { return new Count(); }
  async twice(fn) { return [await fn(1), await fn(2)]; }
  values(v) { return [v.when.toISOString(), v.map.get("k"), v.bytes.length, v.big.toString(), v.error.message]; }
  stream() { return new Response("in parts").body; }
  response() { return new Response("made there", { status: 202, headers: { "X-There": "yes" } }); }
  fail() { throw new RangeError("by rpc"); }
  #hidden() {} async private() { return "not private"; }
  fetch(req) { return new Response("greeter at " + new URL(req.url).pathname + " by " + req.method, { status: 201 }); }
}
export const plain = { async fetch(req) { return new Response("plain got " + await req.text() + " " + req.headers.get("X-A")); } };
export default class extends WorkerEntrypoint {
  double(n) { return 2 * n; }
  async fetch(req) {
    const { GREETER: g, PLAIN, SELF } = this.env, url = new URL(req.url);
    try { switch (url.pathname) {
      case "/rpc": return new Response(await g.greet("you"));
      case "/target": { using c = await g.count(); await c.add(2); return Response.json([await c.add(3), await c.now]); }
      case "/callback": return Response.json(await g.twice(n => n * 10));
      case "/values": return Response.json(await g.values({ when: new Date(0), map: new Map([["k", "v"]]), bytes: new Uint8Array(3), big: 12345678901234567890n, error: new Error("e") }));
      case "/stream": return new Response(await g.stream());
      case "/response": return await g.response();
      case "/fail": try { await g.fail(); } catch (e) { return new Response(e.name + ": " + e.message); }
      case "/none": try { await g.nothing(); } catch (e) { return new Response(e.name + ": " + e.message, { status: 299 }); }
      case "/fetch": return g.fetch("http://x/there", { method: "DELETE" });
      case "/plain": return PLAIN.fetch("http://x/", { method: "POST", body: "a body", headers: { "X-A": "1" } });
      case "/self": return new Response(String(await SELF.double(21)));
      case "/back": return SELF.fetch("http://y/end?q=1");
    } } catch (e) { return new Response(e.stack, { status: 555 }); }
    return new Response("main " + url.host + url.pathname + url.search);
  }
}`},
		// The bare workerd's own reading of a project has no services.
		bare: map[string]string{"config.capnp": `using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [(name = "services", worker = (
    modules = [(name = "a.js", esModule = embed "a.js")], compatibilityDate = "2026-11-01",
    bindings = [
      (name = "GREETER", service = (name = "services", entrypoint = "Greeter", props = (json = "{\"word\":\"hello\"}"))),
      (name = "PLAIN", service = (name = "services", entrypoint = "plain")), (name = "SELF", service = "services")]))],
  sockets = [(name = "http", address = "127.0.0.1:0", service = "services")]);`},
		asks: []ask{
			{path: "/rpc", status: 200, part: "hello you"}, {path: "/target", status: 200, part: "[5,5]"}, {path: "/callback", status: 200, part: "[10,20]"}, {path: "/values", status: 200, part: `["1970-01-01T00:00:00.000Z","v",3,"12345678901234567890","e"]`},
			{path: "/stream", status: 200, part: "in parts"}, {path: "/response", status: 202, part: "made there"}, {path: "/fail", status: 200, part: "RangeError: by rpc"}, {path: "/none", status: 299, part: "TypeError: "}, {path: "/fetch", status: 201, part: "greeter at /there by DELETE"},
			{path: "/plain", status: 200, part: "plain got a body 1"}, {path: "/self", status: 200, part: "42"}, {path: "/back", status: 200, part: "main y/end?q=1"}, {path: "/", status: 200, part: "main "},
		},
	},
	// Both fire at the end of the same minute. The first try throws, the second is two
	// seconds later.
	"crons": {
		config: `, "main": "a.js", "triggers": {"crons": ["* * * * *", "0 0 1 1 *"]}, "kv_namespaces": [{"binding": "KV", "id": "k"}]`,
		files: map[string]string{"a.js": `let tries = 0;
export default {
  async fetch(req, env) { return new Response(await env.KV.get("fired", { cacheTtl: 30 })); },
  async scheduled(c, env, ctx) {
    if (++tries === 1) throw new Error("at first");
    ctx.waitUntil(env.KV.put("fired", JSON.stringify([tries, c.cron, c.scheduledTime % 60_000, typeof c.noRetry, c.type ?? "none", Object.keys(env)])));
  },
};`},
		asks: []ask{{path: "/", part: `[2,"* * * * *",0,"function",`, status: 200, eventually: true}},
	},
}
