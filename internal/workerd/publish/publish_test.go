package publish_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/workerd/publish"
	"github.com/scafo/scafo/internal/workerd/workerdtest"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range files {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// deploy deploys a directory to b and returns what was said.
func deploy(t *testing.T, dir string, b bucket.Bucket) (publish.Result, string, error) {
	t.Helper()
	var said bytes.Buffer
	r, err := publish.Deploy(t.Context(), publish.Options{
		Project: dir, Workerd: func() (string, error) { return workerdtest.Path(t), nil }, Where: "s3://bucket/prefix",
		Bucket: func(context.Context) (bucket.Bucket, error) { return b, nil }, DryRun: b == nil,
		Say: func(format string, args ...any) { said.WriteString(strings.TrimSpace(format) + "\n") },
	})
	return r, said.String(), err
}

const config = `{"name": "app", "main": "src/a.ts", "compatibility_date": "2026-11-01"`

func TestDeploysTheExamples(t *testing.T) {
	for _, name := range []string{"hello", "counter", "chat", "site", "reminders", "notes", "jobs", "digest"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memory.New(memory.Files())
			r, _, err := deploy(t, filepath.Join("../../../examples", name), store)
			if err != nil {
				t.Fatal(err)
			}
			if want := "s3://bucket/prefix/deploy/" + name + "/" + r.Version + "/"; r.Worker != name || r.Location != want || r.DryRun {
				t.Errorf("got %+v", r)
			}
			p, _, err := layout.Load(t.Context(), store)
			if err != nil || p.Version != r.Version {
				t.Fatalf("the pointer is %+v, %v", p, err)
			}
			if _, err := layout.Fetch(t.Context(), store, p, layout.FetchOptions{Root: t.TempDir()}); err != nil {
				t.Error(err)
			}
			again, _, err := deploy(t, filepath.Join("../../../examples", name), store)
			if err != nil || again != r {
				t.Errorf("again: %+v, %v", again, err)
			}
			dry, _, err := deploy(t, filepath.Join("../../../examples", name), nil)
			if want := r; err != nil || dry.Version != want.Version || !dry.DryRun {
				t.Errorf("dry: %+v, %v", dry, err)
			}
		})
	}
}

// TestWhatDoesNotStartIsNotPublished: the runtime's sentence, with the project's
// own files and lines, and not one write.
func TestWhatDoesNotStartIsNotPublished(t *testing.T) {
	const ok = "export default { fetch() { return new Response() } };\n"
	durable := config + `, "durable_objects": {"bindings": [{"name": "C", "class_name": "C"}]}, "migrations": [{"tag": "v1", "new_sqlite_classes": ["C"]}]}`
	for name, c := range map[string]struct{ config, code, want string }{
		"throw":         {config + "}", "interface A {}\n\nfunction f() {\n\tthrow new TypeError('no luck');\n}\nf();\n" + ok, "the Worker does not start: Uncaught TypeError: no luck\n  at src/a.ts:4:8 in f\n  at src/a.ts:6:1"},
		"network":       {config + "}", "await fetch('http://127.0.0.1:1/');\n" + ok, "Disallowed operation called within global scope"},
		"flag":          {config + `, "compatibility_flags": ["bogus"]}`, ok, "the Worker does not start: No such compatibility flag: bogus"},
		"date":          {strings.Replace(config, "2026", "2999", 1) + "}", ok, "the newest date supported by this server binary is"},
		"class":         {durable, ok, `referenced the class "C", but no such Durable Object class is exported`},
		"node's module": {strings.Replace(config, "2026", "2023", 1) + "}", "import 'node:fs';\n" + ok, `add "nodejs_compat" to compatibility_flags`},
		"syntax":        {config + "}", "export default {", "build: src/a.ts:1:17: "},
		"key":           {config + `, "routes": []}`, ok, `read the configuration: wrangler.json:1:73: unsupported key "routes"`},
		"no assets":     {config + `, "assets": {"directory": "nowhere"}}`, ok, `read the assets: wrangler.json:1:83: assets.directory "nowhere": no such file or directory`},
		"handler type":  {config + "}", "export default 7;", "the Worker does not start: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fault.New(memory.New())
			_, _, err := deploy(t, tree(t, map[string]string{"wrangler.json": c.config, "src/a.ts": c.code}), f)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant %q", err, c.want)
			}
			for _, call := range f.Calls() {
				if call.Op != fault.Get || call.Key != layout.PointerKey { // read meanwhile
					t.Errorf("the bucket was asked: %v", call)
				}
			}
		})
	}
}

func TestTrialGivesWhatTheCodeExpects(t *testing.T) {
	dir := tree(t, map[string]string{
		"wrangler.json": config + `, "vars": {"A": "x"}, "assets": {"directory": "p", "binding": "FILES"},
			"durable_objects": {"bindings": [{"name": "C", "class_name": "C"}]}, "migrations": [{"tag": "v1", "new_sqlite_classes": ["C"]}]}`,
		"src/a.ts": `import { DurableObject, env } from "cloudflare:workers";
			if (env.A !== "x" || !env.FILES.fetch || !env.C.idFromName) throw new Error("no bindings");
			export class C extends DurableObject {}
			export default {};`,
		"p/x.txt": "x",
	})
	if _, _, err := deploy(t, dir, memory.New()); err != nil {
		t.Error(err)
	}
}

func TestStoreFailuresFailTheDeploy(t *testing.T) {
	dir := tree(t, map[string]string{"wrangler.json": config + "}", "src/a.ts": "export default {}"})
	f := fault.New(memory.New())
	f.SetDown(true)
	_, _, err := deploy(t, dir, f)
	if !errors.Is(err, bucket.ErrUnavailable) || !strings.HasPrefix(err.Error(), "publish app version ") {
		t.Errorf("got %v", err)
	}
	r, err := publish.Deploy(t.Context(), publish.Options{
		Project: dir, Workerd: func() (string, error) { return workerdtest.Path(t), nil }, Say: t.Logf,
		Bucket: func(context.Context) (bucket.Bucket, error) { return nil, errors.New("no credentials") },
	})
	if err == nil || err.Error() != "open the bucket: no credentials" {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestMain_arguments(t *testing.T) {
	dir := tree(t, map[string]string{"wrangler.json": config + "}", "src/a.ts": "export default {}"})
	env := []string{"CELLD_WORKERD_BIN=" + workerdtest.Path(t)}
	run := func(env []string, args ...string) (int, string, string) {
		var stdout, stderr bytes.Buffer
		code := publish.Main(t.Context(), args, env, &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
	code, out, said := run(env, dir, "--bucket", "s3://b/fleets/app/", "--dry-run", "--json")
	if code != 0 {
		t.Fatalf("%d %s", code, said)
	}
	version := out[strings.Index(out, `"version":"`)+11:][:16]
	if want := `{"worker":"app","version":"` + version + `","location":"s3://b/fleets/app/deploy/app/` + version + `/","dry_run":true}` + "\n"; out != want {
		t.Errorf("printed %s, want %s", out, want)
	}
	if code, out, said := run(env, dir, "--bucket", "b", "--dry-run"); code != 0 || out != "" || said == "" {
		t.Errorf("without --json: %d, out %q, said %q", code, out, said)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no bucket":         {[]string{dir}, "--bucket is missing"},
		"no value":          {[]string{"--bucket"}, "--bucket needs a value"},
		"a flag as a value": {[]string{"--bucket", "--json"}, "--bucket needs a value"},
		"twice":             {[]string{"--bucket", "b", "--bucket", "c"}, "--bucket is given twice"},
		"equals sign":       {[]string{"--bucket=b"}, `unexpected argument "--bucket=b"`},
		"unknown":           {[]string{"--bucket", "b", "--force"}, `unexpected argument "--force"`},
		"two projects":      {[]string{"--bucket", "b", "x", "y"}, `unexpected argument "y": one project at a time`},
		"another scheme":    {[]string{"--bucket", "gs://b"}, "--bucket: "},
		"no project":        {[]string{"--bucket", "b", "--dry-run", filepath.Join(dir, "nowhere")}, "read the configuration: project: stat"},
	} {
		code, out, said := run(env, c.args...)
		if code != 1 || out != "" || !strings.HasPrefix(said, "Error: ") || !strings.Contains(said, c.want) {
			t.Errorf("%s: %d, out %q, said %q, want %q", name, code, out, said, c.want)
		}
	}
	if code, _, said := run([]string{"CELLD_WORKERD_BIN=/nowhere"}, dir, "--bucket", "b", "--dry-run"); code != 1 || !strings.Contains(said, "CELLD_WORKERD_BIN names /nowhere") {
		t.Errorf("no workerd: %d %s", code, said)
	}
	if code, _, said := run(append(env, "CELLD_VAR_X=1"), dir, "--bucket", "b", "--dry-run"); code != 1 || !strings.Contains(said, "CELLD_VAR_X") {
		t.Errorf("a removed variable: %d %s", code, said)
	}
}

// TestUnbundledModulesRun: what unbundled modules import of each other resolves
// in the runtime as it did on the disk.
func TestUnbundledModulesRun(t *testing.T) {
	store := memory.New(memory.Files())
	r, _, err := deploy(t, tree(t, map[string]string{
		"wrangler.json": `{"name": "app", "main": "src/m.js", "compatibility_date": "2026-11-01", "no_bundle": true}`,
		"src/m.js":      `import t from "./sub/b.mjs"; if (t !== "text 7") throw new Error(t); export default {}`,
		"src/sub/b.mjs": `import t from "../t.txt"; import j from "./j.json"; export default t + " " + j.n`,
		"src/t.txt":     "text", "src/sub/j.json": `{"n": 7}`,
	}), store)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for key := range maps.Keys(store.Dump()) {
		if name, ok := strings.CutPrefix(key, "deploy/app/"+r.Version+"/modules/"); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if want := []string{"m.js", "sub/b.mjs", "sub/j.json", "t.txt"}; !slices.Equal(names, want) {
		t.Errorf("modules %v, want %v", names, want)
	}
}

// TestBundledModulesRun: the same for modules of other types beside a bundle.
func TestBundledModulesRun(t *testing.T) {
	_, _, err := deploy(t, tree(t, map[string]string{
		"wrangler.json": config + `, "compatibility_flags": ["nodejs_compat"]}`,
		"src/a.ts": `import t from "../t.txt"; import d from "./d.bin"; import w from "../w.wasm?module"; import p from "node:path"; import c from "./c.cjs";
			if (t !== "text" || new Uint8Array(d)[0] !== 255 || !(w instanceof WebAssembly.Module) || p.join("a", "b") !== "a/b" || c !== "c/d")
				throw new Error([t, d, w, c].join());
			export default {}`,
		"src/c.cjs": `module.exports = require("path").join("c", "d")`,
		"t.txt":     "text", "src/d.bin": "\xff", "w.wasm": "\x00asm\x01\x00\x00\x00",
	}), memory.New())
	if err != nil {
		t.Error(err)
	}
}
