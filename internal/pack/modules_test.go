package pack

import (
	"archive/zip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Modules that no import names go along where the project says so, under the names
// that Wrangler gives them: relative to main's directory, or to base_dir.
func TestAdditionalModules(t *testing.T) {
	tree := project{
		"src/index.ts": "import t from './note.txt'; import { s } from './static.mjs'; import { deep } from './deep/d';\n" +
			"export default { async fetch(r: Request) { const m = await import('./lang/' + r.url + '.mjs' + ''); return new Response(t + s + deep + m.default) } }\n",
		"src/deep/d.ts": "import { s } from '../static.mjs'; export const deep = s;", "src/static.mjs": "export const s = 'static'",
		"src/lang/de.mjs": "export default 'hallo'", "src/lang/en.mjs": "export default 'hello'", "src/note.txt": "note",
		"src/other.js": "no rule names it", "src/node_modules/p/x.mjs": "", "src/.hidden.mjs": "", "top.mjs": "export {}", "public/served.mjs": "",
	}
	for name, c := range map[string]struct {
		more string
		want []string
	}{
		"beside main": {``, []string{"index.js", "lang/de.mjs", "lang/en.mjs", "note.txt", "static.mjs"}},
		"base_dir":    {`, "base_dir": "."`, []string{"index.js", "src/lang/de.mjs", "src/lang/en.mjs", "src/note.txt", "src/static.mjs", "top.mjs"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := run(t, tree.with(project{"wrangler.jsonc": `{"name": "app", "main": "src/index.ts", "compatibility_date": "2026-11-01",
				"assets": {"directory": "public"}, "find_additional_modules": true, "rules": [{"type": "ESModule", "globs": ["**/*.mjs"]}]` + c.more + `}`}), Options{})
			all := contents(t, p)
			var got []string
			for path := range all {
				if in, ok := strings.CutPrefix(path, "scafo-worker/"); ok {
					got = append(got, in)
				}
			}
			if slices.Sort(got); !reflect.DeepEqual(got, c.want) {
				t.Errorf("modules %v, want %v", got, c.want)
			}
			if !slices.Contains(p.Notes, "bundled here, since it sets find_additional_modules") {
				t.Errorf("notes %q", p.Notes)
			}
			main, prefix := all["scafo-worker/index.js"], strings.TrimSuffix(c.want[len(c.want)-1], "static.mjs")
			if prefix == "top.mjs" {
				prefix = "src/"
			}
			for _, want := range []string{`from "./` + prefix + `static.mjs"`, `from "./` + prefix + `note.txt"`} {
				if !strings.Contains(main, want) {
					t.Errorf("the main module has no %s:\n%s", want, main)
				}
			}
			if strings.Contains(main, `from "../`) || strings.Contains(main, "'static'") {
				t.Errorf("the main module is\n%s", main)
			}
			// What was packed is built to the same modules by who takes no such key.
			again := built(t, Options{Path: project(all).write(t)})
			for _, m := range c.want {
				kind := "ESModule "
				if strings.HasSuffix(m, ".txt") {
					kind = "Text "
				}
				if again[kind+m] != all["scafo-worker/"+m] {
					t.Errorf("%s is built to %q of %v", m, again[kind+m], reflect.ValueOf(again).MapKeys())
				}
			}
		})
	}
}

// A module that is called like the main one gets its name; a secret among the
// additional ones ends it all.
func TestNamesOfAdditionalModules(t *testing.T) {
	const config = `{"name": "app", "main": "src/w.js", "compatibility_date": "2026-11-01", "find_additional_modules": true, "rules": [{"type": "ESModule", "globs": ["**/*.js"]}]}`
	p := run(t, project{"wrangler.jsonc": config, "src/w.js": worker, "src/index.js": "export const other = 1"}, Options{})
	all := contents(t, p)
	if all["scafo-worker/index.js"] != "export const other = 1" || sent(t, p)["main"] != "scafo-worker/main-index.js" || all["scafo-worker/main-index.js"] == "" {
		t.Errorf("files %v", paths(p))
	}
	_, err := Run(t.Context(), Options{Path: project{
		"wrangler.jsonc": strings.ReplaceAll(config, "**/*.js", "**/*.pem"), "src/w.js": worker, "src/k.pem": "-----BEGIN PRIVATE KEY-----",
	}.write(t)})
	if err == nil || !strings.HasPrefix(err.Error(), "src/k.pem is a private key and is not sent") {
		t.Errorf("got %v", err)
	}
}

// archive writes a zip file as Yarn has them in its cache.
func archive(t *testing.T, at string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(at)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := zip.NewWriter(f)
	for name, body := range files {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
}

// A project under Yarn's Plug'n'Play has no node_modules: packages lie in archives,
// one that has peers under a virtual path.
func TestPlugAndPlay(t *testing.T) {
	const data = `{"__info": [], "dependencyTreeRoots": [{"name": "app", "reference": "workspace:."}], "enableTopLevelFallback": true,
		"fallbackExclusionList": [], "fallbackPool": [], "ignorePatternData": null, "packageRegistryData": [
		[null, [[null, {"packageLocation": "./", "packageDependencies": [["p", "npm:1"], ["q", "virtual:1"]], "linkType": "SOFT"}]]],
		["app", [["workspace:.", {"packageLocation": "./", "packageDependencies": [["p", "npm:1"], ["q", "virtual:1"]], "linkType": "SOFT"}]]],
		["p", [["npm:1", {"packageLocation": "./.yarn/cache/p-npm-1.zip/node_modules/p/", "packageDependencies": [["p", "npm:1"]], "linkType": "HARD"}]]],
		["q", [["virtual:1", {"packageLocation": "./.yarn/__virtual__/q-virtual-1/0/cache/q-npm-1.zip/node_modules/q/", "packageDependencies": [["q", "virtual:1"], ["p", "npm:1"]], "linkType": "HARD"}]]]]}`
	tree := plain.with(project{
		"src/a.js":     "import p from 'p'; import q from 'q/sub'; import t from 'q/t.txt'; console.log(p, q, t);\n" + worker,
		"package.json": `{"name": "app"}`, ".pnp.cjs": "", ".pnp.data.json": data,
	})
	dir := tree.write(t)
	archive(t, filepath.Join(dir, ".yarn/cache/p-npm-1.zip"), map[string]string{"node_modules/p/package.json": `{"name": "p", "main": "m.js"}`, "node_modules/p/m.js": "export default 'from p'"})
	archive(t, filepath.Join(dir, ".yarn/cache/q-npm-1.zip"), map[string]string{
		"node_modules/q/package.json": `{"name": "q"}`, "node_modules/q/sub.js": "import p from 'p'; export default p + ' and q'", "node_modules/q/t.txt": "text of q",
	})
	p := run(t, nil, Options{Path: dir})
	all := contents(t, p)
	main := all["scafo-worker/index.js"]
	if strings.Count(main, "from p") != 1 || !strings.Contains(main, " and q") {
		t.Errorf("the bundle is\n%s", main)
	}
	if !slices.ContainsFunc(p.Files, func(f File) bool { return string(f.body) == "text of q" && strings.HasSuffix(f.Path, "-t.txt") }) || len(all) != 3 {
		t.Errorf("files %v", paths(p))
	}
	if want := []string{"bundled here, since it imports out of p-npm-1.zip, an archive of Yarn's"}; !reflect.DeepEqual(p.Notes, want) {
		t.Errorf("notes %q", p.Notes)
	}
}
