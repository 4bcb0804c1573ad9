//go:build system

package server_test

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/paralleltest"
)

// deployProject publishes a project with a configuration of its own; public are files
// for its directory of that name.
func (b *bench) deployProject(config map[string]any, source string, public ...string) {
	b.Helper()
	dir := b.TempDir()
	all := map[string]any{"name": "subject", "main": "main.js", "compatibility_date": "2026-01-01"}
	for k, v := range config {
		all[k] = v
	}
	j, err := json.Marshal(all)
	if err != nil {
		b.Fatal(err)
	}
	for name, body := range map[string]string{"wrangler.json": string(j), "main.js": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	for _, p := range public {
		body, err := os.ReadFile(p)
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, "public"), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "public", filepath.Base(p)), body, 0o644)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	cmd := exec.Command(b.program, append([]string{"deploy", dir}, b.target()...)...)
	cmd.Env = b.env("deployer")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("deploy: %v\n%s", err, out)
	}
}

type object = map[string]any

// storesWorker keeps rows in D1 and values in KV.
const storesWorker = `
export default { async fetch(request, env) {
  const { pathname, searchParams } = new URL(request.url);
  const k = searchParams.get("k"), v = searchParams.get("v");
  switch (pathname) {
    case "/kv/put": await env.KV.put(k, v); return new Response("ok");
    case "/kv/get": return new Response(await env.KV.get(k));
    case "/kv/meta": await env.KV.put(k, v, { metadata: { m: v } }); return Response.json((await env.KV.getWithMetadata(k)).metadata);
    case "/kv/large": await env.KV.put(k, "x".repeat(3e6) + v); return new Response("ok");
    case "/kv/tail": { const s = await env.KV.get(k, { cacheTtl: 30 }); return new Response(s.length + s.slice(3e6)); }
    case "/kv/list": return Response.json((await env.KV.list({ prefix: k })).keys.map((x) => x.name));
    case "/kv/delete": await env.KV.delete(k); return new Response("ok");
    case "/kv/other": return new Response(String(await env.OTHER.get(k)));
    case "/d1/make": await env.DB.exec("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, v TEXT UNIQUE)"); return new Response("ok");
    case "/d1/add": return Response.json((await env.DB.prepare("INSERT INTO rows (v) VALUES (?) RETURNING id").bind(v).first()).id);
    case "/d1/all": return Response.json((await env.DB.prepare("SELECT v FROM rows ORDER BY id").all()).results.map((r) => r.v));
    case "/d1/batch":
      try {
        await env.DB.batch([env.DB.prepare("INSERT INTO rows (v) VALUES ('lost')"), env.DB.prepare("INSERT INTO nowhere VALUES (1)")]);
        return new Response("no error");
      } catch (e) { return new Response("rolled back: " + /no such table/.test(e.message)); }
  }
  return new Response("RELEASE");
} };
`

var storesConfig = object{
	"kv_namespaces": []object{{"binding": "KV", "id": "main"}, {"binding": "OTHER", "id": "other"}},
	"d1_databases":  []object{{"binding": "DB", "database_name": "rows", "database_id": "1"}},
}

// What was acknowledged outlives the runtime, the whole program, a redeploy, and
// the machine.
func TestStoresSurvive(t *testing.T) {
	paralleltest.Beside(t)
	b := newBench(t)
	b.deployProject(storesConfig, storesWorker)
	s := b.serve("n1")
	s.want("/d1/make", "ok")
	s.want("/kv/put?k=a&v=1", "ok")
	s.want("/kv/large?k=big&v=tail", "ok")
	s.want("/kv/meta?k=m&v=x", `{"m":"x"}`)
	s.want("/d1/add?v=first", "1")
	s.want("/d1/batch", "rolled back: true")
	check := func(s *serving, what, rows string) {
		t.Helper()
		got, took := s.settled("/d1/all")
		if got != rows || took > quickly {
			t.Errorf("%s: rows %s after %s, want %s", what, got, took, rows)
		}
		s.want("/kv/get?k=a", "1")
		s.want("/kv/tail?k=big", "3000004tail")
		s.want("/kv/list?k=", `["a","big","m"]`)
		s.want("/kv/other?k=a", "null")
	}
	check(s, "at first", `["first"]`)

	kill(t, s)
	check(s, "runtime killed", `["first"]`)
	s.want("/d1/add?v=second", "2")

	b.deployProject(storesConfig, strings.ReplaceAll(storesWorker, "RELEASE", "next"))
	if o := s.reload(); o != "adopted" {
		t.Fatalf("reload: %s", o)
	}
	s.want("/", "next")
	check(s, "redeployed", `["first","second"]`)

	b.recorded("n1")
	_ = s.cmd.Process.Kill()
	<-s.done
	s = b.serve("n1")
	check(s, "program killed", `["first","second"]`)
	s.want("/d1/add?v=third", "3")

	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-s.done
	if err := os.RemoveAll(filepath.Join(b.dir, "n1")); err != nil {
		t.Fatal(err)
	}
	two := b.serve("n2")
	check(two, "on another machine", `["first","second","third"]`)
	two.want("/kv/delete?k=a", "ok")
	two.want("/kv/list?k=", `["big","m"]`)
}

// The migrations of a database are applied once, before the version that brings them
// serves; one that fails keeps the old version, and changes nothing.
func TestMigrations(t *testing.T) {
	paralleltest.Beside(t)
	b := newBench(t)
	dir := t.TempDir()
	var files []string
	deploy := func(release, name, sql string) {
		t.Helper()
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, []byte(sql), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, at)
		config := object{"d1_databases": []object{{"binding": "DB", "database_id": "1", "migrations_dir": "public"}}, "vars": object{"RELEASE": release}}
		b.deployProject(config, `export default { async fetch(request, env) {
			if (request.url.endsWith("/add")) await env.DB.prepare("INSERT INTO rows (v) VALUES ('x')").run();
			return Response.json([env.RELEASE, (await env.DB.prepare("SELECT * FROM rows").raw()).length, (await env.DB.prepare("SELECT name FROM d1_migrations ORDER BY id").raw()).flat()]);
		} };`, files...)
	}
	deploy("one", "1_first.sql", "-- a comment; with one\nCREATE TABLE rows (v TEXT DEFAULT 'a;b');\nCREATE TRIGGER twice AFTER INSERT ON rows WHEN new.v = 'x' BEGIN INSERT INTO rows (v) VALUES ('y'); END;\n")
	s := b.serve("n1")
	s.want("/add", `["one",2,["1_first.sql"]]`)
	deploy("two", "2_second.sql", "ALTER TABLE rows ADD COLUMN w INTEGER NOT NULL DEFAULT 0")
	if o := s.reload(); o != "adopted" {
		t.Fatalf("reload: %s", o)
	}
	// A write that is under way when the database moves may fail.
	b.until("the workerd before has left", 20*time.Second, func() bool { return len(s.state().Processes) == 1 })
	s.want("/add", `["two",4,["1_first.sql","2_second.sql"]]`)

	deploy("three", "3_third.sql", "INSERT INTO rows (v) VALUES ('lost'); CREATE TABEL more (x)")
	if o := s.reload(); o != "failed" {
		t.Fatalf("reload: %s", o)
	}
	b.until("the log says why", quickly, func() bool { // a pipe brings it, beside the answer
		return strings.Contains(s.log.String(), `the migration 3_third.sql of the D1 database \"1\": near \"TABEL\": syntax error`)
	})
	got, took := s.settled("/")
	if got != `["two",4,["1_first.sql","2_second.sql"]]` || took > quickly {
		t.Errorf("%s after %s", got, took)
	}

	// Two machines at once, and a file that was put right.
	files = files[:2]
	deploy("four", "3_third.sql", "INSERT INTO rows (v) VALUES ('kept'); CREATE TABLE more (x)")
	two := b.serve("n2")
	if o := s.reload(); o != "adopted" {
		t.Fatalf("reload: %s", o)
	}
	const all = `["four",5,["1_first.sql","2_second.sql","3_third.sql"]]`
	for _, x := range []*serving{s, two} {
		if got, _ := x.settled("/"); got != all {
			t.Errorf("%s, want %s", got, all)
		}
	}
}

// recorded waits until the node knows which member its workerd is.
func (b *bench) recorded(node string) {
	b.Helper()
	b.until("the member is known", 5*time.Second, func() bool {
		text, err := os.ReadFile(filepath.Join(b.dir, node, "state.json"))
		return err == nil && strings.Count(string(text), `"record"`) == 1
	})
}

const entriesWorker = `
import { WorkerEntrypoint } from "cloudflare:workers";
export class Greeter extends WorkerEntrypoint {
  greet(who) { return this.ctx.props.word + " " + who; }
  fetch(request) { return new Response("greeter at " + new URL(request.url).pathname); }
}
export default class extends WorkerEntrypoint {
  double(n) { return 2 * n; }
  async fetch(request) {
    switch (new URL(request.url).pathname) {
      case "/rpc": return new Response(await this.env.GREETER.greet("you"));
      case "/fetch": return this.env.GREETER.fetch("http://x/there");
      case "/self": return new Response(String(await this.env.SELF.double(21)));
      case "/back": return this.env.SELF.fetch("http://x/");
    }
    return new Response("main");
  }
}
`

// Entry points of the same Worker, without any state and so without a cluster.
func TestServiceBindings(t *testing.T) {
	paralleltest.Beside(t)
	b := newBench(t)
	var joined atomic.Bool
	b.gate.hold(func(r *http.Request) *held {
		if strings.Contains(r.URL.Path, "/cluster/state") {
			joined.Store(true)
		}
		return nil
	})
	config := object{"services": []object{
		{"binding": "GREETER", "service": "subject", "entrypoint": "Greeter", "props": object{"word": "hello"}},
		{"binding": "SELF", "service": "subject"},
	}}
	b.deployProject(config, entriesWorker)
	s := b.serve("n1")
	check := func(front string) {
		t.Helper()
		s.want("/rpc", "hello you")
		s.want("/fetch", "greeter at /there")
		s.want("/self", "42")
		s.want("/back", front)
	}
	check("main")
	// With assets, what the Worker asks of itself is answered as from outside.
	public := t.TempDir()
	if err := os.WriteFile(filepath.Join(public, "index.html"), []byte("front"), 0o644); err != nil {
		t.Fatal(err)
	}
	config["assets"] = object{"directory": "public"}
	b.deployProject(config, entriesWorker, filepath.Join(public, "index.html"))
	if o := s.reload(); o != "adopted" {
		t.Fatalf("reload: %s", o)
	}
	check("front")
	if joined.Load() {
		t.Error("it joined a cluster")
	}
}

// queueWorker notes in D1 what is delivered to it, and fails as the message asks.
const queueWorker = `
const note = (env, kind, m) => env.DB.prepare("INSERT INTO seen VALUES (?, ?, ?)").bind(kind, String(m.body.name ?? m.body), m.attempts).run();
export default {
  async fetch(request, env) {
    const { pathname, searchParams } = new URL(request.url);
    const name = searchParams.get("name");
    switch (pathname) {
      case "/make": await env.DB.exec("CREATE TABLE IF NOT EXISTS seen (kind TEXT, name TEXT, attempts INTEGER)"); return new Response("ok");
      case "/send": await env.Q.send({ name }, { delaySeconds: Number(searchParams.get("delay") ?? 0) }); return new Response("ok");
      case "/later": await env.LATE.send({ name }); return new Response("ok");
      case "/batch": await env.Q.sendBatch([1, 2, 3].map((n) => ({ body: name + n, contentType: "text" }))); return new Response("ok");
      case "/seen": return new Response((await env.DB.prepare("SELECT kind, attempts FROM seen WHERE name = ? ORDER BY kind, attempts").bind(name).all()).results.map((r) => r.kind + r.attempts).join(" "));
    }
    return new Response("RELEASE");
  },
  async queue(batch, env) {
    if (batch.queue === "dead") { for (const m of batch.messages) await note(env, "dead", m); return; }
    for (const m of batch.messages) {
      await note(env, "RELEASE", m);
      if (String(m.body.name).startsWith("bad")) m.retry({ delaySeconds: 1 }); else m.ack();
    }
  },
};
`

var queueConfig = object{
	"d1_databases": []object{{"binding": "DB", "database_id": "1"}},
	"queues": object{
		"producers": []object{{"binding": "Q", "queue": "jobs"}, {"binding": "LATE", "queue": "jobs", "delivery_delay": 3}},
		"consumers": []object{
			{"queue": "jobs", "max_batch_timeout": 0, "max_retries": 2, "dead_letter_queue": "dead"},
			{"queue": "dead", "max_batch_timeout": 0},
		},
	},
}

func (s *serving) eventually(path, want string, within time.Duration) time.Duration {
	s.b.Helper()
	begun := time.Now()
	var got string
	for deadline := begun.Add(within); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if _, got, _ = s.try(path); got == want {
			return time.Since(begun)
		}
	}
	s.b.Errorf("%s: %q after %s, want %q", path, got, within, want)
	return within
}

func TestQueues(t *testing.T) {
	paralleltest.Early(t)
	b := newBench(t)
	release := func(name string) string { return strings.ReplaceAll(queueWorker, "RELEASE", name) }
	b.deployProject(queueConfig, release("r1_"))
	s := b.serve("n1")
	s.want("/make", "ok")
	s.want("/send?name=good", "ok")
	s.want("/batch?name=b", "ok")
	s.eventually("/seen?name=good", "r1_1", 10*time.Second)
	s.eventually("/seen?name=b3", "r1_1", 10*time.Second)
	// Three tries, then the queue of dead letters, where attempts begin anew.
	s.want("/send?name=bad", "ok")
	s.eventually("/seen?name=bad", "dead1 r1_1 r1_2 r1_3", 15*time.Second)
	// Messages wait, whoever holds them: first the binding's delay, then one of
	// their own across the end of the runtime and a redeploy.
	s.want("/later?name=late", "ok")
	if took := s.eventually("/seen?name=late", "r1_1", 10*time.Second); took < 2*time.Second {
		t.Errorf("a message with a delay of 3 s came after %s", took)
	}
	s.want("/send?name=kept&delay=6", "ok")
	kill(t, s)
	s.settled("/")
	b.deployProject(queueConfig, release("r2_"))
	if o := s.reload(); o != "adopted" {
		t.Fatalf("reload: %s", o)
	}
	s.eventually("/seen?name=kept", "r2_1", 25*time.Second)
}

const workflowWorker = `
import { WorkflowEntrypoint } from "cloudflare:workers";
export class Order extends WorkflowEntrypoint {
  async run(event, step) {
    const a = await step.do("first", async () => event.payload.n + 1);
    let tries = 0;
    const b = await step.do("flaky", { retries: { limit: 9, delay: 100, backoff: "constant" } }, async () => { if (++tries < 2) throw new Error("again"); return a * 10; });
    await step.sleep("pause", event.payload.pause + " seconds");
    const e = event.payload.wait ? await step.waitForEvent("approval", { type: "approved", timeout: "5 minutes" }) : { payload: "nobody" };
    return { b, by: e.payload, release: "RELEASE" };
  }
}
export default { async fetch(request, env) {
  const { pathname, searchParams } = new URL(request.url);
  const id = searchParams.get("id");
  switch (pathname) {
    case "/start": return new Response((await env.ORDERS.create({ id, params: { n: 1, pause: Number(searchParams.get("pause") ?? 1), wait: searchParams.has("wait") } })).id);
    case "/status": { const s = await (await env.ORDERS.get(id)).status(); return new Response(s.status + " " + JSON.stringify(s.output ?? null)); }
    case "/approve": await (await env.ORDERS.get(id)).sendEvent({ type: "approved", payload: "boss" }); return new Response("ok");
  }
  return new Response("RELEASE");
} };
`

// asleep waits until these workflows wait: for the next try of a step, or already for
// what comes after it. A try that a runtime's end cuts off counts, so there are many.
func (s *serving) asleep(ids ...string) {
	s.b.Helper()
	for _, id := range ids {
		s.b.until(id+" waits", 20*time.Second, func() bool {
			_, got, _ := s.try("/status?id=" + id)
			return strings.HasPrefix(got, "waiting")
		})
	}
}

func TestWorkflows(t *testing.T) {
	paralleltest.Beside(t)
	b := newBench(t)
	config := object{"workflows": []object{{"binding": "ORDERS", "name": "orders", "class_name": "Order"}}}
	release := func(name string) string { return strings.ReplaceAll(workflowWorker, "RELEASE", name) }
	b.deployProject(config, release("r1"))
	s := b.serve("n1")
	s.want("/start?id=quick", "quick")
	s.eventually("/status?id=quick", `complete {"b":20,"by":"nobody","release":"r1"}`, 15*time.Second)
	// One sleeps, one waits, while the runtime is killed and replaced.
	s.want("/start?id=sleeps&pause=8", "sleeps")
	s.want("/start?id=waits&wait", "waits")
	s.asleep("sleeps", "waits")
	kill(t, s)
	s.settled("/")
	b.deployProject(config, release("r2"))
	if o := s.reload(); o != "adopted" {
		t.Fatalf("reload: %s", o)
	}
	s.want("/approve?id=waits", "ok")
	s.eventually("/status?id=waits", `complete {"b":20,"by":"boss","release":"r2"}`, 20*time.Second)
	s.eventually("/status?id=sleeps", `complete {"b":20,"by":"nobody","release":"r2"}`, 20*time.Second)
}

const cronWorker = `
export default {
  async fetch(request, env) {
    if (new URL(request.url).pathname === "/make") { await env.DB.exec("CREATE TABLE IF NOT EXISTS fired (at INTEGER, cron TEXT, late INTEGER)"); return new Response("ok"); }
    return Response.json((await env.DB.prepare("SELECT cron, at / 60000 AS minute, late FROM fired ORDER BY at, cron").all()).results);
  },
  async scheduled(c, env) {
    const late = Math.round((Date.now() - c.scheduledTime) / 1000);
    await env.DB.prepare("INSERT INTO fired VALUES (?, ?, ?)").bind(c.scheduledTime, c.cron, late).run();
  },
};
`

type fired struct {
	Cron         string
	Minute, Late int
}

func (s *serving) fired() []fired {
	s.b.Helper()
	body, _ := s.settled("/")
	var out []fired
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		s.b.Fatalf("%s: %v", body, err)
	}
	return out
}

// A schedule fires once for all processes of an application; what was missed while
// none ran fires once, late. It takes two ends of a minute.
func TestCrons(t *testing.T) {
	paralleltest.Waits(t)
	b := newBench(t)
	config := object{
		"d1_databases": []object{{"binding": "DB", "database_id": "1"}},
		"triggers":     object{"crons": []string{"* * * * *", "0-59/1 * * * *", "0 0 1 1 *"}},
	}
	b.deployProject(config, cronWorker)
	s1, s2 := b.serve("n1"), b.serve("n2")
	s1.want("/make", "ok")
	b.until("a minute's end", 75*time.Second, func() bool { return len(s1.fired()) >= 2 })
	time.Sleep(2 * time.Second) // a second process would have fired by now
	first := s2.fired()
	if len(first) != 2 || first[0].Cron != "* * * * *" || first[1].Cron != "0-59/1 * * * *" || first[0].Minute != first[1].Minute || first[0].Late > 3 {
		t.Fatalf("fired %+v", first)
	}
	var ends sync.WaitGroup
	for _, s := range []*serving{s1, s2} {
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		ends.Go(func() { <-s.done })
	}
	ends.Wait()
	// Meanwhile the one is taken out of the configuration.
	b.deployProject(object{"d1_databases": config["d1_databases"], "triggers": object{"crons": []string{"* * * * *"}}}, cronWorker)
	missed := first[0].Minute + 1
	time.Sleep(time.Until(time.Unix(int64(missed)*60+2, 0)))
	s := b.serve("n1")
	b.until("the missed one", 20*time.Second, func() bool { return len(s.fired()) >= 3 })
	got := s.fired()
	if len(got) != 3 || got[2].Cron != "* * * * *" || got[2].Minute != missed || got[2].Late < 2 {
		t.Errorf("fired %+v, missed minute %d", got, missed)
	}
}
