package project

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/wrangler"
)

func build(t *testing.T, files map[string]string) (*Built, error) {
	t.Helper()
	p, err := Open(tree(t, files))
	if err != nil {
		t.Fatal(err)
	}
	return p.Build(t.Context())
}

func mustBuild(t *testing.T, files map[string]string) *Built {
	t.Helper()
	b, err := build(t, files)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func with(rest string, files map[string]string) map[string]string {
	out := map[string]string{"wrangler.jsonc": base(rest)}
	for k, v := range files {
		out[k] = v
	}
	return out
}

// modules lists the modules of a build as name:type.
func modules(b *Built) []string {
	var out []string
	for _, m := range b.Bundle.Manifest.Modules {
		out = append(out, m.Name+":"+string(m.Type))
	}
	return out
}

const handler = "export default { fetch() { return new Response(String(x)) } }\n"

func TestBundles(t *testing.T) {
	b := mustBuild(t, with(`"define": {"WHO": "\"me\""}`, map[string]string{
		"a.js":                          "import x from './lib/b';\nimport pkg from 'pkg';\nimport data from './d.json';\nconsole.log(WHO, process.env.NODE_ENV, pkg, data);\n" + handler,
		"lib/b.ts":                      "const n: number = 41 + 1; export default n;",
		"d.json":                        `{"k": "json-value"}`,
		"node_modules/pkg/package.json": `{"name": "pkg", "exports": {"workerd": "./w.js", "default": "./other.js"}}`,
		"node_modules/pkg/w.js":         "export default 'for workerd'",
		"node_modules/pkg/other.js":     "export default 'for others'",
	}))
	if got := modules(b); !reflect.DeepEqual(got, []string{"index.js:esm"}) || b.Bundle.Manifest.Main != "index.js" {
		t.Errorf("modules %v, main %q", got, b.Bundle.Manifest.Main)
	}
	code := string(b.Bundle.Contents["index.js"])
	for _, want := range []string{`"me", "production"`, "41 + 1", "for workerd", "json-value"} {
		if !strings.Contains(code, want) {
			t.Errorf("the bundle has no %q:\n%s", want, code)
		}
	}
	if strings.Contains(code, ": number") || strings.Contains(code, "for others") || strings.Contains(code, "sourceMappingURL") {
		t.Errorf("the bundle is\n%s", code)
	}
}

func TestImportedFilesBecomeModules(t *testing.T) {
	b := mustBuild(t, with(`"rules": [{"type": "Text", "globs": ["**/*.md"], "fallthrough": true}]`, map[string]string{
		"a.js": "import a from './x.md';\nimport b from './y/t.txt';\nimport c from './y/z.bin';\nimport d from './w.wasm?module';\nimport e from './w.wasm';\nconst x = [a, b, c, d, e];\n" + handler,
		"x.md": "# md", "y/t.txt": "text", "y/z.bin": "\x00\x01", "w.wasm": "\x00asm",
	}))
	name := func(body, file string) string { return layout.Digest([]byte(body))[:16] + "-" + file }
	want := map[string]string{
		"index.js:esm": "", name("# md", "x.md") + ":text": "# md", name("text", "t.txt") + ":text": "text",
		name("\x00\x01", "z.bin") + ":data": "\x00\x01", name("\x00asm", "w.wasm") + ":wasm": "\x00asm",
	}
	got := modules(b)
	if len(got) != len(want) || got[0] != "index.js:esm" {
		t.Fatalf("modules %v", got)
	}
	for _, m := range got {
		body, ok := want[m]
		n, _, _ := strings.Cut(m, ":")
		if !ok || body != "" && string(b.Bundle.Contents[n]) != body {
			t.Errorf("module %s has %q", m, b.Bundle.Contents[n])
		}
		if n != "index.js" && !strings.Contains(string(b.Bundle.Contents["index.js"]), `"./`+n+`"`) {
			t.Errorf("%s is not imported:\n%s", n, b.Bundle.Contents["index.js"])
		}
	}
}

func TestFilesThatAPackageTurnsOff(t *testing.T) {
	b := mustBuild(t, with("", map[string]string{
		"a.js":                        "import x from 'p';\n" + handler,
		"node_modules/p/package.json": `{"main": "m.js", "browser": {"./gone.js": false, "./there.js": false, "fs": false, "./n.js": "./b.js"}}`,
		"node_modules/p/m.js":         "module.exports = [require('./gone'), require('./there'), require('fs'), require('./n')];",
		"node_modules/p/there.js":     "module.exports = 'not in a browser'",
		"node_modules/p/b.js":         "module.exports = 'for browsers'",
	}))
	if code := string(b.Bundle.Contents["index.js"]); strings.Contains(code, "not in a browser") || !strings.Contains(code, "for browsers") {
		t.Errorf("the bundle is\n%s", code)
	}
}

func TestNodeModulesAreLeftToTheRuntime(t *testing.T) {
	files := map[string]string{
		"a.js":                                "import x from 'node:path';\nimport { Buffer } from 'buffer';\nimport y from './c.cjs';\nconsole.log(Buffer, y);\n" + handler,
		"c.cjs":                               "module.exports = require('util').inspect;",
		"node_modules/buffer/package.json":    `{"name": "buffer", "main": "b.js"}`,
		"node_modules/buffer/b.js":            "export const Buffer = 'polyfill';",
		"node_modules/unrelated/package.json": `{}`,
	}
	code := string(mustBuild(t, with(`"compatibility_flags": ["no_nodejs_compat"]`, files)).Bundle.Contents["index.js"])
	if !strings.Contains(code, `from "node:path"`) || !strings.Contains(code, `from "node:util"`) || !strings.Contains(code, "polyfill") {
		t.Errorf("without nodejs_compat:\n%s", code)
	}
	for _, flags := range []string{`"compatibility_flags": ["nodejs_compat"]`, ``} { // the date brings it
		code = string(mustBuild(t, with(flags, files)).Bundle.Contents["index.js"])
		if !strings.Contains(code, `from "node:buffer"`) || strings.Contains(code, "polyfill") {
			t.Errorf("with nodejs_compat:\n%s", code)
		}
	}
}

// A Worker whose date is older than a module of Node's gets it by a flag.
func TestFlagsForNodeModules(t *testing.T) {
	const config = `{"name": "app", "main": "a.js", "compatibility_date": "2025-05-01", "compatibility_flags": ["nodejs_compat", "other"], "no_bundle": `
	for _, noBundle := range []string{"true", "false"} {
		b := mustBuild(t, map[string]string{"wrangler.jsonc": config + noBundle + "}", "a.js": "import 'node:fs/promises'; import 'os'; import 'node:path';\nconsole.log(process.version);\n" + handler})
		if got, want := b.Bundle.Manifest.CompatibilityFlags, []string{"nodejs_compat", "other", "enable_nodejs_fs_module", "enable_nodejs_os_module", "enable_nodejs_process_v2"}; !reflect.DeepEqual(got, want) {
			t.Errorf("no_bundle %s: %v, want %v", noBundle, got, want)
		}
	}
	if b := mustBuild(t, with("", map[string]string{"a.js": "import 'node:fs';\n" + handler})); len(b.Bundle.Manifest.CompatibilityFlags) != 0 {
		t.Errorf("a new date: %v", b.Bundle.Manifest.CompatibilityFlags)
	}
}

func TestUnbundled(t *testing.T) {
	b := mustBuild(t, map[string]string{
		"wrangler.jsonc": `{"name": "app", "main": "src/m.js", "compatibility_date": "2026-11-01", "no_bundle": true,
			"rules": [{"type": "ESModule", "globs": ["late/*.mjs"]}], "assets": {"directory": "src/public"}}`,
		"src/m.js":               "import x from './lib/b.js'; import j from './j.json'; import 'npm-package';\nconsole.log(j);\n" + handler,
		"src/lib/b.js":           "import t from '../t.txt'; export default t;",
		"src/j.json":             "{}",
		"src/t.txt":              "text",
		"src/late/l.mjs":         "export default 1",
		"src/unused.js":          "export default 2",
		"src/public/page.html":   "an asset",
		"src/.hidden/a.txt":      "hidden",
		"src/node_modules/q.txt": "a package's",
		"outside.txt":            "above main",
	})
	want := []string{"j.json:json", "late/l.mjs:esm", "lib/b.js:esm", "m.js:esm", "t.txt:text"}
	if got := modules(b); !reflect.DeepEqual(got, want) || b.Bundle.Manifest.Main != "m.js" {
		t.Errorf("modules %v, main %q, want %v", got, b.Bundle.Manifest.Main, want)
	}
	if got := string(b.Bundle.Contents["m.js"]); !strings.HasPrefix(got, "import x from './lib/b.js'; import j") {
		t.Errorf("main was changed: %s", got)
	}
}

func TestBuildErrorsSayWhere(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"syntax":      {map[string]string{"a.js": "\nexport default {"}, "a.js:2:17: Expected"},
		"unresolved":  {map[string]string{"a.js": "import './nope';\n" + handler}, `a.js:1:8: Could not resolve "./nope"`},
		"package":     {map[string]string{"a.js": "import 'left-pad';\n" + handler}, `is the package "left-pad" installed?`},
		"no main":     {nil, `wrangler.jsonc:2:24: main "a.js": no such file or directory`},
		"no exports":  {map[string]string{"a.js": "addEventListener('fetch', () => {})"}, "exports nothing: want a module Worker"},
		"directory":   {map[string]string{"a.js/x": ""}, `main "a.js" is no file`},
		"loader":      {map[string]string{"a.js": "import './p.png';\n" + handler, "p.png": ""}, `No loader is configured for ".png"`},
		"broken json": {map[string]string{"a.js": "import './p.json';\n" + handler, "p.json": "{\n"}, "p.json:"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(t, with("", c.files))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestNothingOutsideIsRead tries every way in which a project could name a file
// of the machine.
func TestNothingOutsideIsRead(t *testing.T) {
	outside := tree(t, map[string]string{"key.json": `{"k": "SECRET"}`, "key.txt": "SECRET", "key.js": "export default 'SECRET'", "dir/index.html": "SECRET"})
	for name, files := range map[string]map[string]string{
		"absolute json":       {"a.js": "import x from '%s/key.json';\n" + handler},
		"absolute js":         {"a.js": "import x from '%s/key.js';\n" + handler},
		"absolute text":       {"a.js": "import x from '%s/key.txt';\n" + handler},
		"require":             {"a.js": "const x = require('%s/key.json');\n" + handler},
		"dynamic import":      {"a.js": "const x = await import('%s/key.json');\n" + handler},
		"re-export":           {"a.js": "export { default } from '%s/key.js';\n"},
		"from a package":      {"a.js": "import x from 'p';\n" + handler, "node_modules/p/package.json": `{"main": "i.js"}`, "node_modules/p/i.js": "export { default } from '%s/key.js'"},
		"tsconfig paths":      {"a.js": "import x from 'secret';\n" + handler, "tsconfig.json": `{"compilerOptions": {"paths": {"secret": ["%s/key.json"]}}}`},
		"tsconfig extends":    {"a.js": "const x = 1;\n" + handler, "tsconfig.json": `{"extends": "%s/key.txt"}`},
		"package imports":     {"a.js": "import x from '#secret';\n" + handler, "package.json": `{"imports": {"#secret": "%s/key.json"}}`},
		"as json":             {"a.js": "import x from '%s/key.txt' with { type: 'json' };\n" + handler},
		"as text":             {"a.js": "import x from '%s/key.json' with { type: 'text' };\n" + handler},
		"as bytes":            {"a.js": "import x from '%s/key.txt' with { type: 'bytes' };\n" + handler},
		"by a rule":           {"a.js": "import x from '%s/key.txt';\n" + handler, "wrangler.jsonc": base(`"rules": [{"type": "Data", "globs": ["**/*"], "fallthrough": true}]`)},
		"roundabout":          {"a.js": "import x from '../../../../../../../../../..%s/key.json';\n" + handler},
		"package main":        {"a.js": "import x from 'p';\n" + handler, "node_modules/p/package.json": `{"main": "../../../../../../../../..%s/key.js"}`},
		"linked tsconfig":     {"a.ts": "const x: number = 1;\nexport default { x };", "wrangler.jsonc": `{"name": "a", "main": "a.ts", "compatibility_date": "2026-11-01"}`, "tsconfig.json": "-> %s/key.txt"},
		"linked package.json": {"a.js": "import x from 'p';\n" + handler, "node_modules/p/package.json": "-> %s/key.txt"},
		"file URL":            {"a.js": "import x from 'file://%s/key.json';\n" + handler},
		"main":                {"wrangler.jsonc": `{"name": "a", "main": "%s/key.js", "compatibility_date": "2026-11-01"}`},
		"main above":          {"wrangler.jsonc": `{"name": "a", "main": "../../../../../..%s/key.js", "compatibility_date": "2026-11-01"}`},
		"linked main":         {"a.js": "-> %s/key.js"},
		"linked json":         {"a.js": "import x from './l.json';\n" + handler, "l.json": "-> %s/key.json"},
		"linked text":         {"a.js": "import x from './l.txt';\n" + handler, "l.txt": "-> %s/key.txt"},
		"linked directory":    {"a.js": "import x from './d/key.json';\n" + handler, "d": "-> %s"},
		"linked package":      {"a.js": "import x from 'p/key.json';\n" + handler, "node_modules/p": "-> %s"},
		"assets":              {"wrangler.jsonc": `{"name": "a", "assets": {"directory": "../../../../../..%s"}, "compatibility_date": "2026-11-01"}`},
		"linked assets":       {"wrangler.jsonc": `{"name": "a", "assets": {"directory": "d"}, "compatibility_date": "2026-11-01"}`, "d": "-> %s/dir"},
		"a linked asset":      {"wrangler.jsonc": `{"name": "a", "assets": {"directory": "d"}, "compatibility_date": "2026-11-01"}`, "d/x.txt": "-> %s/key.txt"},
		"linked _headers":     {"wrangler.jsonc": `{"name": "a", "assets": {"directory": "d"}, "compatibility_date": "2026-11-01"}`, "d/_headers": "-> %s/key.txt"},
		"unbundled":           {"wrangler.jsonc": base(`"no_bundle": true`), "a.js": "import x from './l.txt';\n" + handler, "l.txt": "-> %s/key.txt"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if _, ok := files["wrangler.jsonc"]; !ok {
				files["wrangler.jsonc"] = base("")
			}
			for file, body := range files {
				body = strings.ReplaceAll(body, "%s", outside)
				p := filepath.Join(dir, file)
				if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
					t.Fatal(err)
				}
				var err error
				if target, ok := strings.CutPrefix(body, "-> "); ok {
					err = os.Symlink(target, p)
				} else {
					err = os.WriteFile(p, []byte(body), 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			p, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			built, err := p.Build(t.Context())
			if err == nil {
				var assets *CollectedAssets
				if assets, err = p.CollectAssets(t.Context()); err == nil {
					err = built.Seal(assets)
				}
			}
			if err == nil {
				t.Fatalf("built: %q", built.Bundle.Contents)
			}
			if strings.Contains(err.Error(), "SECRET") {
				t.Errorf("the refusal shows the file: %v", err)
			}
		})
	}
}

func TestTheSameTreeIsTheSameVersion(t *testing.T) {
	files := with(`"vars": {"B": 1, "A": "x"}, "assets": {"directory": "public"}`, map[string]string{
		"a.js": "import t from './t.txt'; import x from './lib.js';\nconsole.log(t);\n" + handler, "lib.js": "export default 1", "t.txt": "t",
		"public/index.html": "<p>", "public/b.css": "b{}",
	})
	version := func(files map[string]string) string {
		t.Helper()
		p, err := Open(tree(t, files))
		if err != nil {
			t.Fatal(err)
		}
		built, err := p.Build(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		assets, err := p.CollectAssets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := built.Seal(assets); err != nil {
			t.Fatal(err)
		}
		return built.Bundle.Manifest.Version
	}
	first := version(files)
	if len(first) != 16 || version(files) != first {
		t.Errorf("versions %q and %q", first, version(files))
	}
	for name, change := range map[string][2]string{
		"code": {"lib.js", "export default 2"}, "text": {"t.txt", "u"}, "asset": {"public/b.css", "b{ }"}, "headers": {"public/_headers", "/*\n  A: b\n"},
		"vars": {"wrangler.jsonc", strings.Replace(files["wrangler.jsonc"], `"x"`, `"y"`, 1)}, "new asset": {"public/n.txt", ""},
	} {
		changed := map[string]string{}
		for k, v := range files {
			changed[k] = v
		}
		changed[change[0]] = change[1]
		if got := version(changed); got == first {
			t.Errorf("another %s is the same version %s", name, got)
		}
	}
}

func TestAssetsThatAreServed(t *testing.T) {
	dir := tree(t, map[string]string{
		"wrangler.jsonc":    `{"name": "a", "assets": {"directory": "./public"}, "compatibility_date": "2026-11-01"}`,
		"public/index.html": "index", "public/sub/b.js": "b", "public/.well-known/x": "x", "public/skip.map": "m", "public/tmp/y": "y",
		"public/_headers": "\xef\xbb\xbf/*\n  A: b\n", "public/_redirects": "/a /b\n", "public/.assetsignore": "*.map\ntmp/\n_worker.js\n",
		"public/_worker.js": "export default {}", "public/sub/_headers": "served",
	})
	if err := os.Symlink("index.html", filepath.Join(dir, "public/link.html")); err != nil {
		t.Fatal(err)
	}
	p, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	a, err := p.CollectAssets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, f := range a.files {
		paths = append(paths, f.Path)
	}
	if want := []string{".well-known/x", "index.html", "link.html", "sub/_headers", "sub/b.js"}; !reflect.DeepEqual(paths, want) {
		t.Errorf("served are %v, want %v", paths, want)
	}
	if a.assets.Headers != "/*\n  A: b\n" || a.assets.Redirects != "/a /b\n" {
		t.Errorf("headers %q, redirects %q", a.assets.Headers, a.assets.Redirects)
	}
	if a.files[1].SHA256 != layout.Digest([]byte("index")) || a.files[2].SHA256 != a.files[1].SHA256 {
		t.Errorf("digests %+v", a.files[1:3])
	}
}

func TestAssetLimits(t *testing.T) {
	open := func(t *testing.T, prepare func(dir string)) error {
		t.Helper()
		dir := tree(t, map[string]string{"wrangler.jsonc": `{"name": "a", "assets": {"directory": "p"}, "compatibility_date": "2026-11-01"}`, "p/a.txt": ""})
		prepare(filepath.Join(dir, "p"))
		p, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.listAssets(filepath.Join(p.Dir, "p"), nil)
		if err == nil {
			_, err = p.readSmall(filepath.Join(p.Dir, "p", wrangler.HeadersFile), layout.MaxRules)
		}
		return err
	}
	// Sparse files: they take no room.
	sparse := func(t *testing.T, name string, size int64) {
		t.Helper()
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	const whole = layout.MaxAssetTotal / layout.MaxAssetBytes
	fill := func(t *testing.T, dir string, rest int64) {
		for i := range whole {
			sparse(t, filepath.Join(dir, fmt.Sprint(i)), layout.MaxAssetBytes)
		}
		sparse(t, filepath.Join(dir, "rest"), rest)
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir string)
		want    string
	}{
		"25 MiB":            {func(t *testing.T, dir string) { sparse(t, dir+"/b", layout.MaxAssetBytes) }, ""},
		"25 MiB and one":    {func(t *testing.T, dir string) { sparse(t, dir+"/b", layout.MaxAssetBytes+1) }, "p/b has 26214401 bytes; an asset has at most 25 MiB"},
		"1 GiB":             {func(t *testing.T, dir string) { fill(t, dir, layout.MaxAssetTotal-whole*layout.MaxAssetBytes) }, ""},
		"1 GiB and one":     {func(t *testing.T, dir string) { fill(t, dir, layout.MaxAssetTotal-whole*layout.MaxAssetBytes+1) }, "have more than 1024 MiB"},
		"headers 100 KiB":   {func(t *testing.T, dir string) { sparse(t, dir+"/_headers", layout.MaxRules) }, ""},
		"headers and one":   {func(t *testing.T, dir string) { sparse(t, dir+"/_headers", layout.MaxRules+1) }, "p/_headers is no file of at most 100 KiB"},
		"a Worker among it": {func(t *testing.T, dir string) { sparse(t, dir+"/_worker.js", 1) }, "code must not be served as an asset"},
		"a linked directory": {func(t *testing.T, dir string) {
			if err := os.Symlink(".", dir+"/loop"); err != nil {
				t.Fatal(err)
			}
		}, "p/loop is no regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			err := open(t, func(dir string) { c.prepare(t, dir) })
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestNumberOfAssets(t *testing.T) {
	dir := tree(t, map[string]string{"wrangler.jsonc": `{"name": "a", "assets": {"directory": "p"}, "compatibility_date": "2026-11-01"}`, "p/0": ""})
	p, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	// Links to one file are made faster than files.
	for i := 1; i < layout.MaxAssets; i++ {
		if err := os.Link(dir+"/p/0", fmt.Sprintf("%s/p/%d", dir, i)); err != nil {
			t.Fatal(err)
		}
	}
	files, err := p.listAssets(filepath.Join(p.Dir, "p"), nil)
	if err != nil || len(files) != layout.MaxAssets {
		t.Errorf("%d files: %v", len(files), err)
	}
	if err := os.Link(dir+"/p/0", dir+"/p/more"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.listAssets(filepath.Join(p.Dir, "p"), nil); err == nil || err.Error() != "p has more than 20000 files" {
		t.Errorf("got %v", err)
	}
}

func TestSourceMapLeadsBack(t *testing.T) {
	b := mustBuild(t, with("", map[string]string{
		"a.js":     "import { boom } from './src/b.ts';\nexport default { fetch() { boom(); } };\n",
		"src/b.ts": "interface Unused { a: string }\n\nexport function boom(): never {\n\tthrow new Error('x');\n}\n",
	}))
	lines := strings.Split(string(b.Bundle.Contents["index.js"]), "\n")
	for i, l := range lines {
		if c := strings.Index(l, "throw new"); c >= 0 {
			got := b.Map.Rewrite(fmt.Sprintf("Uncaught Error: x\n  at index.js:%d:%d in boom\n  at other.js:1:1 and index.js:9999:1", i+1, c+7))
			if want := "Uncaught Error: x\n  at src/b.ts:4:8 in boom\n  at other.js:1:1 and index.js:9999:1"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			return
		}
	}
	t.Fatalf("no throw in %q", lines)
}
