//go:build system

package system

import "strings"

// site is what the cases of assets serve.
var site = map[string]string{
	"p/index.html": "<h1>home</h1>", "p/about.html": "<h1>about</h1>", "p/docs/index.html": "<h1>docs</h1>", "p/404.html": "<h1>not here</h1>",
	"p/docs/404.html": "<h1>not in the docs</h1>", "p/style.css": "body { color: red }", "p/data.json": `{"a": 1}`, "p/a b.txt": "with a space",
	"p/é.txt": "with an accent", "p/noext": "no ending", "p/big.bin": strings.Repeat("0123456789abcdef", 4096), "p/empty.txt": "",
}

// pages are the paths that are asked of a site, with what each answers by default.
func pages(root, about, aboutHTML, docs, docsSlash int) []ask {
	return []ask{
		{path: "/", status: root}, {path: "/about", status: about}, {path: "/about.html", status: aboutHTML}, {path: "/about/", status: 0},
		{path: "/docs", status: docs}, {path: "/docs/", status: docsSlash}, {path: "/docs/index.html", status: 0}, {path: "/index.html", status: 0},
	}
}

// statuses replaces the zeros by what an option makes of them.
func statuses(asks []ask, of ...int) []ask {
	i := 0
	for n := range asks {
		if asks[n].status == 0 {
			asks[n].status = of[i]
			i++
		}
	}
	return asks
}

// whoami answers with what it was asked.
const whoami = `export default { async fetch(req, env) {
  const body = await req.text();
  const h = Object.fromEntries([...req.headers].filter(([k]) => k.startsWith("x-a") || k === "host" || k === "content-type" || k === "cookie"));
  return Response.json({ method: req.method, url: req.url, headers: h, length: body.length, body: body.slice(0, 100) });
} };`

// semantics are the Workers that must answer as they do under a bare workerd. A new
// binding is a new entry.
var semantics = map[string]semanticCase{
	"request": {
		config: `, "main": "a.js"`, files: map[string]string{"a.js": whoami},
		asks: []ask{
			{path: "/", status: 200, part: `"method":"GET"`},
			{path: "/a//b/../c/./d", status: 200, part: "/a/"}, {path: "/a%2Fb%20c%C3%A9?x=%26y&z=a+b", status: 200, part: "a%2Fb%20c%C3%A9?x=%26y&z=a+b"},
			{path: "//double//slash", status: 200, part: "//double//slash"}, {path: "/?", status: 200}, {path: "/??a?b", status: 200, part: "??a?b"},
			{path: "/;a=b@c:d!$&'()*+,=", status: 200},
			{path: "/" + strings.Repeat("long/", 800), status: 200},
			{method: "POST", path: "/", body: "hello", header: map[string]string{"Content-Type": "text/x; charset=utf-8"}, status: 200, part: `"length":5`},
			{method: "POST", path: "/", body: strings.Repeat("x", 8<<20), status: 200, part: `"length":8388608`},
			{method: "PUT", path: "/", body: strings.Repeat("y", 1<<20), chunked: true, status: 200, part: `"length":1048576`},
			{method: "DELETE", path: "/x", status: 200, part: "DELETE"}, {method: "PATCH", path: "/x", body: "p", status: 200, part: "PATCH"},
			{method: "OPTIONS", path: "/x", status: 200, part: "OPTIONS"}, {method: "HEAD", path: "/x", status: 200},
			{path: "/", header: map[string]string{"X-A": strings.Repeat("v", 8000), "X-Ab": "ü", "Cookie": "a=1; b=\"2\""}, status: 200, part: "vvvv"},
		},
	},
	"response": {
		config: `, "main": "a.js"`,
		files: map[string]string{"a.js": `export default { async fetch(req, env, ctx) {
  const url = new URL(req.url);
  switch (url.pathname) {
  case "/status": return new Response(url.searchParams.get("s") === "204" ? null : "body", { status: +url.searchParams.get("s"), statusText: "As I Say" });
  case "/headers": { const h = new Headers({ "X-Case": "a", "content-type": "x/y" }); h.append("Set-Cookie", "a=1"); h.append("Set-Cookie", "b=2; HttpOnly"); h.append("Vary", "a"); h.append("Vary", "b"); return new Response("x", { headers: h }); }
  case "/redirect": return Response.redirect(url.origin + "/to?x=1#y", 307);
  case "/relative": return new Response(null, { status: 302, headers: { Location: "../up" } });
  case "/throw": throw new Error("on purpose");
  case "/reject": return Promise.reject(new TypeError("later"));
  case "/nothing": return undefined;
  case "/length": return new Response("12345", { headers: { "Content-Length": "5" } });
  case "/gzip": return new Response(new Response("packed ".repeat(1000)).body.pipeThrough(new CompressionStream("gzip")), { headers: { "Content-Encoding": "gzip" }, encodeBody: "manual" });
  case "/big": return new Response("0123456789".repeat(1 << 20));
  case "/bytes": return new Response(new Uint8Array([0, 255, 128, 10, 13, 0]));
  case "/stream": { const { readable, writable } = new TransformStream(); const w = writable.getWriter(); const e = new TextEncoder();
    ctx.waitUntil((async () => { for (let i = 0; i < 3; i++) { await w.write(e.encode("part " + i + "\n")); await scheduler.wait(400); } await w.close(); })()); return new Response(readable, { headers: { "Content-Type": "text/event-stream" } }); }
  case "/echo": return new Response(req.body, { headers: { "X-Type": req.headers.get("Content-Type") ?? "none" } });
  case "/json": return Response.json({ a: [1, null, "ü"] }, { status: 201 });
  case "/html": return new HTMLRewriter().on("b", { element(e) { e.setInnerContent("rewritten"); } }).transform(new Response("<p><b>x</b></p>", { headers: { "Content-Type": "text/html" } }));
  case "/globals": return Response.json([typeof crypto.subtle.digest, typeof caches.default, navigator.userAgent, typeof WebSocketPair, typeof process, typeof Buffer, typeof structuredClone]);
  }
  return new Response("no such", { status: 404 });
} };`},
		asks: []ask{
			{path: "/status?s=200", status: 200, part: "body"}, {path: "/status?s=204", status: 204}, {path: "/status?s=418", status: 418, part: "body"},
			{path: "/status?s=404", status: 404, part: "body"}, {path: "/status?s=500", status: 500, part: "body"}, {path: "/status?s=503", status: 503, part: "body"}, {path: "/status?s=599", status: 599, part: "body"},
			{path: "/headers", status: 200}, {path: "/redirect", status: 307}, {path: "/relative", status: 302},
			{path: "/throw", status: 500}, {path: "/reject", status: 500}, {path: "/nothing", status: 500},
			{path: "/length", status: 200, part: "12345"}, {method: "HEAD", path: "/length", status: 200}, {method: "HEAD", path: "/big", status: 200},
			{path: "/gzip", status: 200, header: map[string]string{"Accept-Encoding": "gzip"}}, {path: "/big", status: 200, part: "01234567890"}, {path: "/bytes", status: 200, part: "\x00\xff\x80"},
			{path: "/stream", status: 200, part: "part 0\npart 1\npart 2\n", slow: true},
			{method: "POST", path: "/echo", body: strings.Repeat("z", 3<<20), header: map[string]string{"Content-Type": "a/b"}, status: 200, part: "zzz"},
			{method: "POST", path: "/echo", body: "chunks", chunked: true, status: 200, part: "chunks"},
			{path: "/json", status: 201, part: "ü"}, {path: "/html", status: 200, part: "<b>rewritten</b>"}, {path: "/globals", status: 200, part: "function"},
		},
	},
	"vars": {
		config: `, "main": "a.js", "vars": {"TEXT": "a \"b\"\n", "EMPTY": "", "NUMBER": 1.5, "YES": true, "NONE": null, "LIST": [1, "x"], "DEEP": {"a": {"b": []}}, "LIKE_JSON": "{\"a\":1}"}`,
		files: map[string]string{"a.js": `import { env } from "cloudflare:workers";
export default { fetch(req, e) { return Response.json([Object.keys(e).sort().map(k => [k, typeof e[k], e[k]]), env.TEXT, process.env.TEXT]); } };`},
		asks: []ask{{path: "/", status: 200, part: `["NUMBER","number",1.5]`}},
	},
	"modules": {
		config: `, "main": "src/a.ts"`,
		files: map[string]string{
			"src/a.ts": `import text from "./t.txt"; import html from "../page.html"; import data from "./d.bin"; import wasm from "./add.wasm"; import config from "./c.json"; import { half } from "./lib/half"; import cjs from "./old.cjs";
import { AsyncLocalStorage } from "node:async_hooks"; import path from "node:path"; import { Buffer } from "node:buffer"; import { createHash } from "node:crypto";
const add = new WebAssembly.Instance(wasm).exports.add as (a: number, b: number) => number;
export default { async fetch(req: Request): Promise<Response> {
  const late = await import("./late");
  return Response.json({ text, html, data: [...new Uint8Array(data)], sum: add(40, 2), config, half: half(4), cjs: cjs.name, late: late.default, als: typeof AsyncLocalStorage, path: path.join("a", "..", "b"), b64: Buffer.from("x").toString("base64"), md5: createHash("md5").update("a").digest("hex") });
} };`,
			"src/t.txt": "text\n", "page.html": "<p>ü</p>", "src/d.bin": "\x00\xff\x01", "src/c.json": `{"deep": {"k": [1, 2]}}`, "src/lib/half.ts": "export const half = (n: number): number => n / 2;",
			"src/old.cjs": "exports.name = 'common';", "src/late.ts": "export default 'late';",
			// (module (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add))
			"src/add.wasm": "\x00asm\x01\x00\x00\x00\x01\x07\x01\x60\x02\x7f\x7f\x01\x7f\x03\x02\x01\x00\x07\x07\x01\x03add\x00\x00\x0a\x09\x01\x07\x00\x20\x00\x20\x01\x6a\x0b",
		},
		asks: []ask{{path: "/", status: 200, part: `"sum":42`}},
	},
	"node-before-its-date": {
		config: `, "main": "a.js", "compatibility_date": "2025-01-01", "compatibility_flags": ["nodejs_compat"]`,
		files: map[string]string{"a.js": `import fs from "node:fs"; import os from "os"; import http from "node:http"; import tty from "node:tty"; import { createRequire } from "node:module";
export default { fetch() { return Response.json([typeof fs.readFileSync, typeof os.EOL, typeof http.createServer, typeof tty.isatty, typeof createRequire, process.version.slice(0, 1), typeof process.cwd()]); } };`},
		bare: map[string]string{"a.js": `export default { fetch() { return Response.json(["function", "string", "function", "function", "function", "v", "string"]); } };`},
		asks: []ask{{path: "/", status: 200, part: `"function"`}},
	},
	"rules-and-define": {
		config: `, "main": "a.js", "define": {"WHO": "\"me\"", "N.M": "42"}, "rules": [{"type": "Text", "globs": ["**/*.md"], "fallthrough": true}, {"type": "Data", "globs": ["**/*.dat"]}]`,
		files:  map[string]string{"a.js": "import md from './x.md'; import dat from './y.dat'; import txt from './z.txt'; export default { fetch() { return Response.json([md, new Uint8Array(dat).length, txt, WHO, N.M]); } };", "x.md": "# md", "y.dat": "abc", "z.txt": "still"},
		bare: map[string]string{
			"wrangler.jsonc": `{"name": "rules-and-define", "main": "a.js", "compatibility_date": "2026-11-01"}`,
			"a.js":           "export default { fetch() { return Response.json(['# md', 3, 'still', 'me', 42]); } };",
		},
		asks: []ask{{path: "/", status: 200, part: `["# md",3,"still","me",42]`}},
	},
	"not-bundled": {
		config: `, "main": "a.js", "no_bundle": true`,
		files:  map[string]string{"a.js": "import { b } from './lib/b.js'; export default { fetch() { return new Response(b); } };", "lib/b.js": "export const b = import.meta.url === undefined ? 'b' : 'b';"},
		bare:   map[string]string{"a.js": "export default { fetch() { return new Response('b'); } };"},
		asks:   []ask{{path: "/", status: 200, part: "b"}},
	},
	"caches": {
		config: `, "main": "a.js"`,
		// A bare workerd has no cache; what it would answer is what the standard says.
		bare: map[string]string{"a.js": `export default { fetch() { return new Response(JSON.stringify({"miss":true,"hit":"v1","type":"a/b","status":200,"again":"v2","named":"n","other":true,"https":true,"private":true,"part":"bcd","partial":206,"deleted":true,"gone":true,"twice":false,"missing":404})); } };`},
		files: map[string]string{"a.js": `export default { async fetch() {
  const c = caches.default, key = "http://example.com/a?b=1", keep = { headers: { "Cache-Control": "max-age=60", "Content-Type": "a/b", "X-Y": "z" } };
  const out = { miss: (await c.match(key)) === undefined };
  await c.put(key, new Response("v1", keep));
  const hit = await c.match(key); out.hit = await hit.text(); out.type = hit.headers.get("Content-Type"); out.status = hit.status;
  await c.put(key, new Response(new Response("v2").body, keep)); out.again = await (await c.match(new Request(key))).text();
  const named = await caches.open("a name"); await named.put(key, new Response("n", keep)); out.named = await (await named.match(key)).text();
  out.other = (await named.match(key + "2")) === undefined; out.https = (await c.match(key.replace("http:", "https:"))) === undefined;
  await c.put(key + "3", new Response("x", { headers: { "Cache-Control": "private" } })); out.private = (await c.match(key + "3")) === undefined;
  await c.put(key + "4", new Response("abcdef", keep)); const part = await c.match(new Request(key + "4", { headers: { Range: "bytes=1-3" } })); out.part = await part.text(); out.partial = part.status;
  out.deleted = await c.delete(key); out.gone = (await c.match(key)) === undefined; out.twice = await c.delete(key);
  await c.put(key + "5", new Response("nope", { status: 404, headers: { "Cache-Control": "s-maxage=9, max-age=0" } })); out.missing = (await c.match(key + "5")).status;
  return new Response(JSON.stringify(out)); } };`},
		asks: []ask{{path: "/", status: 200, part: `"hit":"v1"`}},
	},
	"objects": {
		config: `, "main": "a.js", "durable_objects": {"bindings": [{"name": "ROOM", "class_name": "Room"}]}, "migrations": [{"tag": "v1", "new_sqlite_classes": ["Room"]}]`,
		files: map[string]string{"a.js": `import { DurableObject } from "cloudflare:workers";
export class Room extends DurableObject {
  async fetch(req) {
    const url = new URL(req.url);
    if (req.headers.get("Upgrade") === "websocket") {
      const [client, server] = Object.values(new WebSocketPair());
      this.ctx.acceptWebSocket(server, ["tag"]); server.serializeAttachment({ n: 1 }); server.send("welcome");
      return new Response(null, { status: 101, webSocket: client });
    }
    if (url.pathname === "/sql") {
      this.ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS t (a INTEGER, b TEXT)"); this.ctx.storage.sql.exec("INSERT INTO t VALUES (?, ?)", 1, "x");
      return Response.json([...this.ctx.storage.sql.exec("SELECT count(*) AS n, b FROM t")]);
    }
    if (url.pathname === "/throw") throw new Error("in the object");
    if (url.pathname === "/alarm") { if (req.method === "POST") await this.ctx.storage.setAlarm(Date.now() + 50); return new Response("rang " + ((await this.ctx.storage.get("rang")) ?? 0)); }
    const n = ((await this.ctx.storage.get("n")) ?? 0) + 1; await this.ctx.storage.put("n", n); return new Response(req.method + " " + n + " " + await req.text());
  }
  async alarm() { await this.ctx.storage.put("rang", ((await this.ctx.storage.get("rang")) ?? 0) + 1); }
  webSocketMessage(ws, m) { if (m === "bye") ws.close(4001, "as you say"); else ws.send(typeof m === "string" ? "echo " + m + " " + ws.deserializeAttachment().n + " " + this.ctx.getWebSockets("tag").length : m); }
  add(a, b) { return { sum: a + b, id: this.ctx.id.name }; }
  fail() { throw new RangeError("by rpc"); }
}
export default { async fetch(req, env) {
  const url = new URL(req.url); const stub = env.ROOM.getByName("one");
  if (url.pathname === "/rpc") return Response.json(await stub.add(1, 2));
  if (url.pathname === "/caught") { try { await stub.fail(); } catch (e) { return new Response(e.name + ": " + e.message); } }
  if (url.pathname === "/ids") return Response.json([env.ROOM.idFromName("x").equals(env.ROOM.idFromName("x")), env.ROOM.idFromName("x").toString().length]);
  return stub.fetch(req);
} };`},
		asks: []ask{
			{path: "/", status: 200, part: "GET 1 "}, {method: "POST", path: "/", body: "b", status: 200, part: "POST 2 b"}, {path: "/sql", status: 200, part: `"n":1`}, {path: "/sql", status: 200, part: `"n":2`},
			{path: "/rpc", status: 200, part: `{"sum":3,"id":"one"}`}, {path: "/caught", status: 200, part: "RangeError: by rpc"}, {path: "/ids", status: 200, part: "[true,64]"}, {path: "/throw", status: 500},
			{method: "POST", path: "/alarm", status: 200, part: "rang 0"}, {path: "/alarm", status: 200, part: "rang 1", eventually: true},
			{path: "/ws", status: 101, part: "echo a 1 1", socket: []string{"a", "\x00\x01\xff", strings.Repeat("m", 1<<20), "bye"}},
			{path: "/", status: 200, part: "GET 3 "},
		},
	},
	"sockets": {
		config: `, "main": "a.js"`,
		files: map[string]string{"a.js": `export default { fetch(req) {
  if (req.headers.get("Upgrade") !== "websocket") return new Response("upgrade, please", { status: 426 });
  if (new URL(req.url).pathname === "/no") return new Response("not for you", { status: 403 });
  const [client, server] = Object.values(new WebSocketPair()); server.accept({ allowHalfOpen: false });
  server.addEventListener("message", e => { if (e.data === "bye") server.close(1000, "done"); else server.send(e.data); });
  server.send("hello"); return new Response(null, { status: 101, webSocket: client });
} };`},
		asks: []ask{
			{path: "/", status: 426, part: "upgrade"}, {path: "/", status: 101, part: "hello", socket: []string{"one", "\x00two", strings.Repeat("w", 300_000), "", "bye"}},
			{path: "/no", status: 403, socket: []string{}},
		},
	},
	"assets": {
		config: `, "assets": {"directory": "p"}`, files: site,
		asks: append(statuses(pages(200, 200, 307, 307, 200), 307, 307, 307),
			ask{path: "/style.css", status: 200, part: "color"}, ask{path: "/data.json", status: 200}, ask{path: "/a%20b.txt", status: 200, part: "space"}, ask{path: "/%C3%A9.txt", status: 200, part: "accent"},
			ask{path: "/noext", status: 200, part: "no ending"}, ask{path: "/empty.txt", status: 200}, ask{path: "/big.bin", status: 200, part: "abcdef0123"}, ask{method: "HEAD", path: "/big.bin", status: 200},
			ask{path: "/nope", status: 404}, ask{path: "/docs/nope", status: 404}, ask{method: "POST", path: "/", status: 405}, ask{method: "OPTIONS", path: "/style.css", status: 405},
			ask{path: "/about?x=1&y", status: 200}, ask{path: "/about.html?x=1", status: 307}, ask{path: "//style.css", status: 307}, ask{path: "/%2e%2e/wrangler.jsonc", status: 404}, ask{path: "/docs%2Findex.html", status: 307},
			ask{path: "/big.bin", header: map[string]string{"Range": "bytes=0-3"}, status: 200}, ask{path: "/style.css", header: map[string]string{"If-None-Match": `"nope"`}, status: 200},
			ask{path: "/style.css", header: map[string]string{"Accept-Encoding": "gzip, br"}, status: 200, part: "color"},
		),
	},
	"assets-slashes": {
		config: `, "assets": {"directory": "p", "html_handling": "force-trailing-slash", "not_found_handling": "404-page"}`, files: site,
		asks: append(statuses(pages(200, 307, 307, 307, 200), 200, 307, 307), ask{path: "/nope", status: 404, part: "not here"}, ask{path: "/docs/nope/deeper", status: 404, part: "not in the docs"}),
	},
	"assets-no-slashes": {
		config: `, "assets": {"directory": "p", "html_handling": "drop-trailing-slash", "not_found_handling": "single-page-application"}`, files: site,
		asks: append(statuses(pages(200, 200, 307, 200, 307), 307, 307, 307), ask{path: "/nope", status: 200, part: "home"}, ask{path: "/nope.png", status: 200, part: "home"}),
	},
	"assets-as-they-are": {
		config: `, "assets": {"directory": "p", "html_handling": "none"}`, files: site,
		asks: append(statuses(pages(404, 404, 200, 404, 404), 404, 200, 200), ask{path: "/nope", status: 404}),
	},
	"assets-headers": {
		config: `, "assets": {"directory": "p"}`,
		files: with(site, map[string]string{
			"p/_headers":   "/*\n  X-All: yes\n  X-Frame-Options: DENY\n/docs/*\n  X-Docs: :splat\n  ! X-Frame-Options\n/style.css\n  Cache-Control: public, max-age=60\n  X-All: again\n/:name.json\n  X-Name: :name\n",
			"p/_redirects": "/old /about 301\n/here https://example.com/there 302\n/blog/* /docs/:splat\n/user/:id /about?id=:id 308\n/rewrite /data.json 200\n# a comment\n/twice /about 301\n/twice /docs 302\n",
		}),
		asks: []ask{
			{path: "/", status: 200}, {path: "/docs/", status: 200}, {path: "/style.css", status: 200}, {path: "/data.json", status: 200}, {path: "/nope", status: 404},
			{path: "/old", status: 301}, {path: "/old?q=1", status: 301}, {path: "/here", status: 302}, {path: "/blog/a/b?c=d", status: 302}, {path: "/user/7", status: 308}, {path: "/rewrite", status: 200, part: `"a"`}, {path: "/twice", status: 301},
			{path: "/_headers", status: 404}, {path: "/_redirects", status: 404},
		},
	},
	"assets-ignored": {
		config: `, "main": "a.js", "assets": {"directory": "p", "binding": "FILES", "html_handling": "force-trailing-slash", "not_found_handling": "single-page-application", "run_worker_first": ["/api/*"]}`,
		files: with(site, map[string]string{
			"p/.assetsignore": "hidden.txt\n*.map\n", "p/hidden.txt": "hidden", "p/a.map": "{}", "p/_redirects": "/old/* /about/:splat 302\n/gone / 301\n/proxy /style.css 200\n",
			"a.js": `export default { fetch(req, env) { const { pathname } = new URL(req.url); return pathname === "/api/file" ? env.FILES.fetch("http://x/style.css") : new Response("worker " + pathname, { status: 299 }); } };`,
		}),
		asks: []ask{
			{path: "/", status: 200, part: "home"}, {path: "/hidden.txt", header: map[string]string{"Sec-Fetch-Mode": "navigate"}, status: 200, part: "home"}, {path: "/a.map", status: 200}, {path: "/.assetsignore", status: 200}, {path: "/api/x", status: 299, part: "worker /api/x"},
			{path: "/api/file", status: 200, part: "color"}, {path: "/old/x", status: 302}, {path: "/gone", status: 301}, {path: "/proxy", status: 200, part: "color"}, {path: "/about", status: 307}, {path: "/nothing", status: 200},
		},
	},
	"assets-and-worker": {
		config: `, "main": "a.js", "assets": {"directory": "p", "binding": "ASSETS"}`,
		files: with(site, map[string]string{"a.js": `export default { async fetch(req, env) { const url = new URL(req.url);
  if (url.pathname === "/api/asset") { const r = await env.ASSETS.fetch(new URL("/style.css", url)); return new Response("via binding: " + await r.text(), r); }
  if (url.pathname === "/api/missing") return env.ASSETS.fetch(new URL("/nope", url));
  return new Response("worker " + req.method + " " + url.pathname, { status: 299 }); } };`}),
		asks: append(statuses(pages(200, 200, 307, 307, 200), 307, 307, 307), ask{path: "/nope", status: 299, part: "worker GET /nope"}, ask{path: "/api/asset", status: 200, part: "via binding: body"}, ask{path: "/api/missing", status: 404},
			ask{method: "POST", path: "/about", status: 405}, ask{method: "HEAD", path: "/style.css", status: 200}),
	},
	"worker-first": {
		config: `, "main": "a.js", "assets": {"directory": "p", "binding": "ASSETS", "run_worker_first": true}`,
		files:  with(site, map[string]string{"a.js": `export default { async fetch(req, env) { const r = await env.ASSETS.fetch(req); const out = new Response(r.body, r); out.headers.set("X-Worker", "first"); return out; } };`}),
		asks:   append(statuses(pages(200, 200, 307, 307, 200), 307, 307, 307), ask{path: "/nope", status: 404}),
	},
	"worker-first-list": {
		config: `, "main": "a.js", "assets": {"directory": "p", "not_found_handling": "single-page-application", "run_worker_first": ["/api/*", "!/api/static/*", "/about"]}`,
		files:  with(site, map[string]string{"p/api/static/x.txt": "static", "a.js": `export default { fetch(req) { return new Response("worker " + new URL(req.url).pathname); } };`}),
		asks: []ask{
			{path: "/", status: 200, part: "home"}, {path: "/api/x", status: 200, part: "worker /api/x"}, {path: "/api/static/x.txt", status: 200, part: "static"}, {path: "/about", status: 200, part: "worker /about"},
			{path: "/docs/", status: 200, part: "docs"}, {path: "/nope", header: map[string]string{"Sec-Fetch-Mode": "navigate"}, status: 200, part: "home"}, {path: "/nope", status: 200},
		},
	},
}

func with(files ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range files {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}
