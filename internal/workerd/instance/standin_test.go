package instance_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
)

// statefulWorker has a path for each kind of state that it may ask.
const statefulWorker = `import { DurableObject, WorkflowEntrypoint } from "cloudflare:workers";
export class Keeper extends DurableObject {
  constructor(ctx, env) { super(ctx, env); console.log("the Worker's own object was made"); }
  fetch() { return new Response("object"); }
  call() { return "called"; }
}
export class Flow extends WorkflowEntrypoint { async run() {} }
const asks = {
  "/object": (env) => env.KEEPER.get(env.KEEPER.idFromName("a")).fetch("http://a/"),
  "/method": (env) => env.KEEPER.get(env.KEEPER.idFromName("a")).call(),
  "/kv": (env) => env.KV.get("a"),
  "/kv-put": (env) => env.KV.put("a", "1"),
  "/d1": (env) => env.DB.prepare("SELECT 1").all(),
  "/queue": (env) => env.Q.send("a"),
  "/late": (env) => env.LATE.send("a"),
  "/workflow": (env) => env.W.create(),
};
export default {
  async fetch(request, env) {
    const { pathname, search } = new URL(request.url);
    if (pathname === "/plain") return new Response("plain " + env.WHO);
    if (pathname === "/id") return new Response(String(env.KEEPER.idFromName("a")));
    if (pathname === "/self") return env.SELF.fetch("http://a/plain");
    if (search !== "?caught") return new Response("answered: " + JSON.stringify(await asks[pathname](env)));
    try { await asks[pathname](env); return new Response("answered"); } catch (e) { return new Response(String(e)); }
  },
  scheduled() { console.log("came due"); },
  queue() { console.log("came due"); },
};`

// A stand-in answers what needs no state, and fails what does, without bucket and disk.
func TestStandIn(t *testing.T) {
	t.Parallel()
	d := deployment(t, layout.Manifest{
		Main: "index.js", Vars: map[string]json.RawMessage{"WHO": json.RawMessage(`"me"`)},
		DurableObjects: []layout.DurableObject{{Binding: "KEEPER", Class: "Keeper"}},
		Classes:        []layout.Class{{Name: "Keeper", Key: "do-Keeper", SQL: true}},
		Services: layout.Services{
			Crons: []string{"* * * * *"},
			KV:    []layout.Store{{Binding: "KV", ID: "k"}}, D1: []layout.Store{{Binding: "DB", ID: "d"}},
			Producers: []layout.Producer{{Binding: "Q", Queue: "q"}, {Binding: "LATE", Queue: "q", Delay: 5}},
			Consumers: []layout.Consumer{{Queue: "q"}},
			Workflows: []layout.Workflow{{Binding: "W", Name: "w", Class: "Flow"}},
			Bindings:  []layout.Entry{{Binding: "SELF"}},
		},
	}, map[string]string{"index.js": statefulWorker}, nil)
	var log logged
	started := func(s instance.Spec) (url string) {
		s.Deployment, s.Run = d, filepath.Join(t.TempDir(), "run")
		p, ctx := launch(t, s)
		if err := p.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		if p.ClusterAddr() != "" {
			t.Error("it is a member of a cluster")
		}
		return "http://" + p.Addr()
	}
	i := started(instance.Spec{StandIn: true, Log: log.add})
	for path, want := range map[string]string{"/plain": "plain me", "/self": "plain me"} {
		if status, body := get(t, i+path); status != 200 || body != want {
			t.Errorf("%s: %d %q", path, status, body)
		}
	}
	// The id is the one that the object has in the cluster.
	trial := started(instance.Spec{Trial: true})
	_, want := get(t, trial+"/id")
	if _, got := get(t, i+"/id"); got != want || len(got) != 64 {
		t.Errorf("the id is %q, otherwise %q", got, want)
	}
	for _, path := range []string{"/object", "/method", "/kv", "/kv-put", "/d1", "/queue", "/late", "/workflow"} {
		if status, body := get(t, i+path); status != 500 || body != "Internal Server Error" {
			t.Errorf("%s: %d %q", path, status, body)
		}
		status, body := get(t, i+path+"?caught")
		if status != 200 || !strings.Contains(body, "rror") {
			t.Errorf("%s, caught: %d %q", path, status, body)
		}
		if path == "/object" && !strings.Contains(body, "The bucket is away") {
			t.Errorf("%s says %q", path, body)
		}
	}
	for _, never := range []string{"the Worker's own object was made", "came due"} {
		if log.has("log", never) {
			t.Errorf("%q was said", never)
		}
	}
}
