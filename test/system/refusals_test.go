//go:build system

package system

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/paralleltest"
)

var update = flag.Bool("update", false, "write testdata/refusals.txt anew")

const refusalsFile = "testdata/refusals.txt"

// refusals are projects that only the runtime can refuse, by what is wrong with them.
// What the command line refuses by itself is in internal/pack.
var refusals = map[string]map[string]string{
	"throws at import":       {"index.ts": "const a: number = 1;\n\nthrow new Error(`boom ${a}`);\n" + okWorker},
	"rejects at import":      {"index.ts": "const late = async () => { throw new TypeError('later'); };\nawait late();\n" + okWorker},
	"throws in a dependency": {"index.ts": "import './lib/deep';\n" + okWorker, "lib/deep.ts": "export interface A { a: string }\n\nconst x = undefined as any;\nexport const y = x.z;\nconsole.log(y);\n"},
	"a date beyond":          {"wrangler.jsonc": `{"name": "app", "main": "index.ts", "compatibility_date": "2199-01-01"}`, "index.ts": okWorker},
	"an unknown flag":        {"wrangler.jsonc": config(`"compatibility_flags": ["no_such_flag"]`), "index.ts": okWorker},
	"a class that is not exported": {"wrangler.jsonc": config(`"durable_objects": {"bindings": [{"name": "A", "class_name": "Nope"}]}, "migrations": [{"tag": "v1", "new_sqlite_classes": ["Nope"]}]`),
		"index.ts": okWorker},
	"a class without a migration": {"wrangler.jsonc": config(`"durable_objects": {"bindings": [{"name": "A", "class_name": "A"}]}`),
		"index.ts": "export class A {}\n" + okWorker},
	"a module of Node's that is none":        {"index.ts": "import x from 'node:nope';\nconsole.log(x);\n" + okWorker},
	"Node's modules with the flag against":   {"wrangler.jsonc": config(`"compatibility_flags": ["no_nodejs_compat"]`), "index.ts": "import fs from 'node:fs';\nconsole.log(fs);\n" + okWorker},
	"a module of Cloudflare's that is none":  {"index.ts": "import x from 'cloudflare:nope';\nconsole.log(x);\n" + okWorker},
	"an export that a module does not have":  {"index.ts": "import { nope } from 'node:path';\nconsole.log(nope);\n" + okWorker},
	"a syntax error that nobody bundles":     {"wrangler.jsonc": config(`"no_bundle": true, "main": "index.js"`), "index.js": "export default {\n  fetch() { return new Response('x' }\n}\n"},
	"an import that nobody bundles":          {"wrangler.jsonc": config(`"no_bundle": true, "main": "index.js"`), "index.js": "import 'some-package';\n" + okWorker},
	"WebAssembly that is none":               {"index.ts": "import w from './w.wasm';\nconsole.log(new WebAssembly.Instance(w));\n" + okWorker, "w.wasm": "not wasm"},
	"input and output at import":             {"index.ts": "const r = await fetch('http://example.com/');\nconsole.log(r);\n" + okWorker},
	"randomness at import":                   {"index.ts": "export const id = crypto.randomUUID();\n" + okWorker},
	"a global that is not there":             {"index.ts": "\nconsole.log(window.location);\n" + okWorker},
	"an object as the Worker that is none":   {"index.ts": "export default 42;\n"},
	"a script that registers its handlers":   {"index.ts": "addEventListener('fetch', (e: any) => e.respondWith(new Response('x')));\nexport const x = 1;\n"},
	"a Worker that takes all memory at once": {"index.ts": "export const x = new ArrayBuffer(2 ** 53);\n" + okWorker},
}

const okWorker = "export default { fetch() { return new Response('ok'); } };\n"

// config is a configuration with these further members, which come first so that they
// win.
func config(more string) string {
	main := `, "main": "index.ts"`
	if strings.Contains(more, `"main"`) {
		main = ""
	}
	return "{\n  \"name\": \"app\"" + main + ", \"compatibility_date\": \"2026-11-01\",\n  " + more + "\n}\n"
}

// What a user sees of a project that the runtime refuses, word by word, and that the
// old version goes on.
func TestSentencesOfTheRuntime(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	url := f.deploy(project(t, map[string]string{"wrangler.jsonc": config(`"vars": {}`), "index.ts": okWorker}))
	var b strings.Builder
	for _, name := range sortedKeys(refusals) {
		files := with(map[string]string{"wrangler.jsonc": config(`"vars": {}`)}, refusals[name])
		out, errs, err := f.scafo("deploy", project(t, files))
		if err == nil || out != "" {
			t.Errorf("%s: it is taken: %s", name, out)
			continue
		}
		_, said, ok := strings.Cut(errs, "scafo: ")
		if !ok {
			t.Errorf("%s: it says %s", name, errs)
		}
		said = strings.ReplaceAll(said, time.Now().UTC().Format(time.DateOnly), "TODAY")
		fmt.Fprintf(&b, "# %s\n%s\n", name, said)
		if body := f.body(url); body != "ok" {
			t.Errorf("%s: the old version answers %q", name, body)
		}
	}
	if *update {
		if err := os.WriteFile(refusalsFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(refusalsFile)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("%s is not what is said (-update writes it anew):\n%s", refusalsFile, b.String())
	}
}
