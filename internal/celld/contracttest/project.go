package contracttest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/scafo/scafo/internal/celld"
)

// scriptName is the name of every Worker here.
const scriptName = "subject"

// worker is a Worker with one Durable Object, whose code says which release it is.
const worker = `
import { DurableObject } from "cloudflare:workers";
import { release } from "./release.js";

export class Counter extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS hits (id INTEGER PRIMARY KEY AUTOINCREMENT)");
  }
  async fetch() {
    this.ctx.storage.sql.exec("INSERT INTO hits DEFAULT VALUES");
    return new Response(String(await this.count()));
  }
  async count() {
    return this.ctx.storage.sql.exec("SELECT count(*) AS n FROM hits").one().n;
  }
}

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    const counter = () => env.COUNTER.get(env.COUNTER.idFromName("only"));
    switch (url.pathname) {
      case "/release": return new Response(release);
      case "/greeting": return new Response(String(env.GREETING));
      case "/url": return new Response(request.url);
      case "/next": return counter().fetch(request);
      case "/count": return new Response(String(await counter().count()));
      case "/slow":
        await new Promise((done) => setTimeout(done, Number(url.searchParams.get("ms"))));
        return new Response("slow " + release);
      case "/echo": {
        const [client, server] = Object.values(new WebSocketPair());
        server.accept();
        server.addEventListener("message", (e) => server.send(release + ":" + e.data));
        server.addEventListener("close", (e) => server.close(e.code, "bye"));
        return new Response(null, { status: 101, webSocket: client });
      }
    }
    return new Response("worker has no " + url.pathname, { status: 404 });
  },
};
`

// files is a project, by path.
type files map[string]string

// subject is the project of that release.
func subject(release string) files {
	return files{
		"src/index.js":   worker,
		"src/release.js": fmt.Sprintf("export const release = %q;\n", release),
		"wrangler.jsonc": `{
  // comments and trailing commas are fine
  "name": "` + scriptName + `",
  "main": "src/index.js",
  "compatibility_date": "2026-01-01",
  "vars": { "GREETING": "hello from ` + release + `" },
  "durable_objects": { "bindings": [{ "name": "COUNTER", "class_name": "Counter" }] },
  "migrations": [{ "tag": "v1", "new_sqlite_classes": ["Counter"] }],
}
`,
	}
}

// plain is a Worker without bindings.
func plain(code string) files {
	return files{
		"index.js":       code,
		"wrangler.jsonc": config(map[string]any{}),
	}
}

// config is a configuration with what every one needs, changed by more; nil
// leaves a key out.
func config(more map[string]any) string {
	c := map[string]any{"name": scriptName, "main": "index.js", "compatibility_date": "2026-01-01"}
	for k, v := range more {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		panic(err)
	}
	return string(b)
}

// with is the project with other files too; an empty one is left out.
func (f files) with(more files) files {
	all := files{}
	for _, m := range []files{f, more} {
		for name, text := range m {
			if all[name] = text; text == "" {
				delete(all, name)
			}
		}
	}
	return all
}

// project writes a project and returns its directory.
func (b *bench) project(f files) string {
	b.Helper()
	dir, err := os.MkdirTemp(b.dir, "project-")
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range f {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

// deployArgs is the command line that publishes that project.
func (b *bench) deployArgs(project string, dryRun bool) []string {
	return celld.Deploy{Project: project, Target: b.target(), DryRun: dryRun}.Args()
}

// deployEnv is what a deploy gets: no node's names.
func (b *bench) deployEnv() []string { return b.env("") }

// tryDeploy publishes a project and returns what came of it.
func (b *bench) tryDeploy(f files) finished {
	b.Helper()
	return b.command(b.deployEnv(), b.deployArgs(b.project(f), false)...)
}

// deploy publishes a project, which must succeed.
func (b *bench) deploy(f files) celld.DeployResult {
	b.Helper()
	return b.published(b.tryDeploy(f))
}

// published reads the answer of a deploy that succeeded.
func (b *bench) published(f finished) celld.DeployResult {
	b.Helper()
	if f.code != 0 {
		b.Fatalf("deploy: exit code %d\n%s", f.code, f.said())
	}
	var r celld.DeployResult
	if err := json.Unmarshal([]byte(f.stdout), &r); err != nil {
		b.Fatalf("standard output is not one JSON object: %v\n%q", err, f.stdout)
	}
	if !celld.ValidVersion(r.Version) {
		b.Fatalf("version %q is not 16 hex digits", r.Version)
	}
	return r
}

// pointerKey is the key of the pointer, which one compare-and-swap moves last.
const pointerKey = "deploy/current.json"

// pointer is the document under pointerKey.
type pointer struct {
	Script  string `json:"script_name"`
	Version string `json:"version"`
	Prefix  string `json:"prefix"`
	Rollout struct {
		Percent *float64 `json:"percent"`
	} `json:"rollout"`
}

// pointer reads the pointer; ok is false when there is none.
func (b *bench) pointer() (p pointer, ok bool) {
	b.Helper()
	body, ok := b.object(pointerKey)
	if !ok {
		return p, false
	}
	if err := json.Unmarshal(body, &p); err != nil {
		b.Fatalf("the pointer: %v\n%s", err, body)
	}
	return p, true
}

// names holds the pointer to a version.
func (b *bench) names(version string) {
	b.Helper()
	if p, ok := b.pointer(); !ok || p.Version != version {
		b.Errorf("the pointer names %q, want %q", p.Version, version)
	}
}

// moduleKey is the key of one module of the version, for tests that spoil it.
func (b *bench) moduleKey(version string) string {
	b.Helper()
	for _, key := range b.keys(versionPrefix(version)) {
		name := strings.TrimPrefix(key, versionPrefix(version))
		if name != "manifest.json" && name != "assets.json" && !strings.HasSuffix(name, ".map") {
			return key
		}
	}
	b.Fatalf("no module lies under %s", versionPrefix(version))
	return ""
}

func versionPrefix(version string) string { return "deploy/" + scriptName + "/" + version + "/" }
