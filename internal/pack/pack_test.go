package pack

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/scafo/scafo/internal/wrangler/bundle"
)

// project is a folder to deploy: contents by path. "-> x" is a link to x.
type project map[string]string

func (p project) write(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "project")
	for name, body := range p {
		at := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(at, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var err error
		if to, ok := strings.CutPrefix(body, "-> "); ok {
			err = os.Symlink(to, at)
		} else {
			err = os.WriteFile(at, []byte(body), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// settings is a whole configuration with these further members.
func settings(more string) string {
	return "{\n\"name\": \"app\", \"main\": \"src/a.js\", \"compatibility_date\": \"2026-11-01\",\n" + more + "\n}"
}

const worker = "export default { fetch() { return new Response('ok') } }\n"

func (p project) with(more project) project {
	out := project{}
	for k, v := range p {
		out[k] = v
	}
	for k, v := range more {
		out[k] = v
	}
	return out
}

var plain = project{"wrangler.jsonc": settings(""), "src/a.js": worker}

func run(t *testing.T, p project, o Options) *Package {
	t.Helper()
	if o.Path == "" {
		o.Path = p.write(t)
	}
	out, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func paths(p *Package) []string {
	out := []string{}
	for _, f := range p.Files {
		out = append(out, f.Path)
	}
	return out
}

// contents are the artifact's files, unpacked.
func contents(t *testing.T, p *Package) map[string]string {
	t.Helper()
	var b bytes.Buffer
	if n, err := p.WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Fatalf("%d of %d bytes: %v", n, b.Len(), err)
	}
	z, err := zstd.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	out := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeDir {
			out[h.Name] = ""
			continue
		}
		if h.Typeflag != tar.TypeReg || h.Mode != 0o644 || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.ModTime.Unix() != 0 {
			t.Errorf("header %+v", h)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(body)
	}
}

// sent is the configuration of an artifact.
func sent(t *testing.T, p *Package) map[string]any {
	t.Helper()
	all := contents(t, p)
	for _, name := range configNames {
		if text, ok := all[name]; ok {
			var out map[string]any
			if err := json.Unmarshal([]byte(text), &out); err != nil {
				t.Fatal(err)
			}
			return out
		}
	}
	t.Fatal("no configuration")
	return nil
}

func parsed(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWhatIsPacked(t *testing.T) {
	for name, c := range map[string]struct {
		project project
		options Options
		want    []string
	}{
		"a file": {plain, Options{}, []string{"src/a.js", "wrangler.jsonc"}},
		"what main reaches, and nothing beside it": {plain.with(project{
			"src/a.js": "import './b'; import t from './t.txt'; import j from '../j.json'; import('./late.mjs'); require('./c.cjs'); console.log(t, j);\n" + worker,
			"src/b.ts": "import './deep/c';", "src/deep/c/index.tsx": "export {}", "src/t.txt": "text", "j.json": "{}", "src/late.mjs": "export {}", "src/c.cjs": "",
			"src/unused.ts": "", "README.md": "", "test/a.test.js": "", "src/b.js": "not chosen",
		}), Options{}, []string{"j.json", "src/a.js", "src/b.ts", "src/c.cjs", "src/deep/c/index.tsx", "src/late.mjs", "src/t.txt", "wrangler.jsonc"}},
		"dependencies": {plain.with(project{
			"src/a.js":     "import 'p'; import '@s/q/sub'; import 'dir/old';\n" + worker,
			"package.json": "{}", "node_modules/p/package.json": `{"exports": {"workerd": "./w.js", "default": "./d.js"}}`,
			"node_modules/p/w.js": "", "node_modules/p/d.js": "", "node_modules/p/README.md": "",
			"node_modules/@s/q/package.json": `{"name": "@s/q"}`, "node_modules/@s/q/sub.js": "import 'nested'",
			"node_modules/@s/q/node_modules/nested/package.json": `{"main": "n.js"}`, "node_modules/@s/q/node_modules/nested/n.js": "",
			"node_modules/nested/index.js": "not this one",
			// The directory of this package.json holds no source.
			"node_modules/dir/old/package.json": `{"main": "../lib/old.js"}`, "node_modules/dir/lib/old.js": "",
			"node_modules/wrangler/index.js": "large",
		}), Options{}, []string{
			"node_modules/@s/q/node_modules/nested/n.js", "node_modules/@s/q/node_modules/nested/package.json", "node_modules/@s/q/package.json",
			"node_modules/@s/q/sub.js", "node_modules/dir/lib/old.js", "node_modules/dir/old/package.json",
			"node_modules/p/package.json", "node_modules/p/w.js", "package.json", "src/a.js", "wrangler.jsonc",
		}},
		"a package's other files": {plain.with(project{
			"src/a.js":                     "import 'p';\n" + worker,
			"node_modules/p/package.json":  `{"main": "lib/m", "browser": {"./lib/node/n.js": "./lib/web/n.js", "./lib/off/x.js": false, "./lib/there.js": false, "fs": false, "q": "./lib/q.js"}}`,
			"node_modules/p/lib/m.js":      "require('./node/n'); require('./off/x'); require('./there'); require('fs'); require('q')",
			"node_modules/p/lib/node/n.js": "for Node", "node_modules/p/lib/web/n.js": "", "node_modules/p/lib/off/y.js": "", "node_modules/p/lib/there.js": "", "node_modules/p/lib/q.js": "",
		}), Options{}, []string{"node_modules/p/lib/m.js", "node_modules/p/lib/q.js", "node_modules/p/lib/web/n.js", "node_modules/p/package.json", "src/a.js", "wrangler.jsonc"}},
		"what the compiler reads": {plain.with(project{
			"src/a.js": "import './b'; import x from '@lib/x';\n" + worker, "src/b.ts": "export {}", "lib/x.ts": "export default 1",
			"tsconfig.json":                            `{ /* c */ "extends": ["./base", "@t/conf/strict.json"], "compilerOptions": {"paths": {"@lib/*": ["./lib/*"]}}, }`,
			"base.json":                                `{"extends": "./more.json"}`,
			"more.json":                                `{}`,
			"node_modules/@t/conf/package.json":        `{}`,
			"node_modules/@t/conf/strict.json":         `{}`,
			"node_modules/@t/conf/tsconfig.json":       `{}`,
			"src/tsconfig.json":                        `{"extends": "../tsconfig.json"}`,
			"test/tsconfig.json":                       `{}`,
			"node_modules/unused/tsconfig.json":        `{}`,
			"tsconfig.build.json":                      `{}`,
			"jsconfig.json":                            `{}`,
			"node_modules/@t/conf/unused/strict2.json": `{}`,
		}), Options{}, []string{
			"base.json", "lib/x.ts", "more.json", "node_modules/@t/conf/package.json", "node_modules/@t/conf/strict.json",
			"src/a.js", "src/b.ts", "src/tsconfig.json", "tsconfig.json", "wrangler.jsonc",
		}},
		"rules": {plain.with(project{
			"wrangler.jsonc": settings(`"rules": [{"type": "Text", "globs": ["**/*.md"], "fallthrough": true}]`),
			"src/a.js":       "import './x.md'; import './y.sql'; import './z.wasm?module';\n" + worker,
			"src/x.md":       "", "src/y.sql": "", "src/z.wasm": "\x00asm", "src/other.md": "",
		}), Options{}, []string{"src/a.js", "src/x.md", "src/y.sql", "src/z.wasm", "wrangler.jsonc"}},
		"nothing bundled": {plain.with(project{
			"wrangler.jsonc": settings(`"rules": [{"type": "ESModule", "globs": ["late/*.mjs"]}], "assets": {"directory": "src/public"}`),
			"src/a.js":       "import './b.js'; import 'some-package';\n" + worker, "src/b.js": "", "src/late/l.mjs": "", "src/unused.js": "",
			"src/public/late/a.mjs": "served", "outside.txt": "",
		}), Options{NoBundle: true}, []string{"src/a.js", "src/b.js", "src/late/l.mjs", "src/public/late/a.mjs", "wrangler.jsonc"}},
		"assets": {project{
			"wrangler.json":     `{"name": "app", "compatibility_date": "2026-11-01", "assets": {"directory": "./public"}}`,
			"public/index.html": "", "public/a/b.css": "", "public/_headers": "", "public/_redirects": "", "public/a/_headers": "",
			"public/skip.map": "", "public/tmp/x": "", "public/.well-known/x": "", "public/.assetsignore": "*.map\ntmp/\n/_headers\n",
			".gitignore": "public", "other/x": "",
		}, Options{}, []string{"public/.well-known/x", "public/_headers", "public/_redirects", "public/a/_headers", "public/a/b.css", "public/index.html", "wrangler.json"}},
		"assets in the project's root": {plain.with(project{
			"wrangler.jsonc": settings(`"assets": {"directory": "."}`),
			".assetsignore":  "*\n!index.html\n", "index.html": "", "package.json": "{}",
		}), Options{}, []string{"package.json", "scafo-assets/index.html", "src/a.js", "wrangler.jsonc"}},
		"a Worker among the assets": {project{
			"wrangler.jsonc":  `{"name": "app", "main": "dist/_worker.js", "compatibility_date": "2026-11-01", "assets": {"directory": "dist"}}`,
			"dist/_worker.js": worker, "dist/index.html": "", "dist/.assetsignore": "_worker.js",
		}, Options{}, []string{"dist/_worker.js", "scafo-assets/index.html", "wrangler.jsonc"}},
		"main without its ending": {project{
			"wrangler.jsonc": `{"name": "app", "main": "src/a", "compatibility_date": "2026-11-01"}`, "src/a.tsx": worker,
		}, Options{}, []string{"src/a.tsx", "wrangler.jsonc"}},
		"a linked main": {plain.with(project{"src/a.js": "-> ../lib/m.js", "lib/m.js": "import './n.js';\n" + worker, "lib/n.js": ""}),
			Options{}, []string{"lib/m.js", "lib/n.js", "wrangler.jsonc"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := run(t, c.project, c.options)
			if got := paths(p); !reflect.DeepEqual(got, c.want) {
				t.Errorf("packed\n\t%v\nwant\n\t%v\nnotes %q", got, c.want, p.Notes)
			}
			all := contents(t, p)
			c.options.Path = c.project.write(t)
			if got, want := built(t, Options{Path: project(all).write(t)}), built(t, c.options); !reflect.DeepEqual(got, want) {
				t.Errorf("what was packed is built to\n%v\nand the folder to\n%v", got, want)
			}
		})
	}
}

// built are the modules that a build makes of a folder.
func built(t *testing.T, o Options) map[string]string {
	t.Helper()
	p, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	at := p.config.doc.Field("main")
	if at == nil {
		return nil
	}
	entry, err := p.config.entry(at)
	if err != nil {
		t.Fatal(err)
	}
	how, err := p.config.bundling(entry, newCollector(p.config.root))
	if err != nil {
		t.Fatal(err)
	}
	r, err := bundle.Run(t.Context(), how)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range r.Modules {
		out[string(m.Type)+" "+m.Name] = string(m.Body)
	}
	return out
}

// Whatever leaves the folder is bundled here, and only the result is sent.
func TestBundledHere(t *testing.T) {
	for name, c := range map[string]struct {
		project project
		why     string
	}{
		"a file above":      {plain.with(project{"src/a.js": "import x from '../../shared.js'; console.log(x);\n" + worker, "../shared.js": "export default 'there'"}), "it imports ../shared.js, which lies outside the folder"},
		"a linked package":  {plain.with(project{"src/a.js": "import x from 'p'; console.log(x);\n" + worker, "node_modules/p": "-> .store/p@1/p", "node_modules/.store/p@1/p/index.js": "export default 'there'"}), "it imports through node_modules/p, which is a link"},
		"a workspace":       {plain.with(project{"src/a.js": "import x from '@w/p'; console.log(x);\n" + worker, "node_modules/@w/p": "-> ../../../lib", "../lib/index.js": "export default 'there'"}), "it imports ../lib/index.js, which lies outside the folder"},
		"hoisted above":     {plain.with(project{"src/a.js": "import x from 'p'; console.log(x);\n" + worker, "../node_modules/p/index.js": "export default 'there'"}), "it imports ../node_modules/p/index.js, which lies outside the folder"},
		"a linked file":     {plain.with(project{"src/a.js": "import x from './l'; console.log(x);\n" + worker, "src/l.ts": "-> ../lib/l.ts", "lib/l.ts": "export default 'there'"}), "it imports through src/l.ts, which is a link"},
		"a linked folder":   {plain.with(project{"src/a.js": "import x from './d/l.js'; console.log(x);\n" + worker, "src/d": "-> ../lib", "lib/l.js": "export default 'there'"}), "it imports through src/d, which is a link"},
		"main above":        {project{"wrangler.jsonc": `{"name": "app", "main": "../m.js", "compatibility_date": "2026-11-01"}`, "../m.js": "console.log('there');\n" + worker}, "it imports ../m.js, which lies outside the folder"},
		"the compiler":      {plain.with(project{"src/a.js": "console.log('there');\n" + worker, "tsconfig.json": `{"extends": "../base.json"}`, "../base.json": "{}"}), "a tsconfig.json extends ../base.json, which lies outside the folder or behind a link"},
		"its configuration": {plain.with(project{"wrangler.jsonc": settings(""), "wrangler.json": settings(`"vars": {"A": "there"}`), "src/a.js": "import c from '../wrangler.json'; console.log(c.vars);\n" + worker}), "it imports its own configuration, which is sent in another form"},
		"an alias":          {plain.with(project{"wrangler.jsonc": settings(`"alias": {"x": "./src/y.js"}`), "src/a.js": "import x from 'x'; console.log(x);\n" + worker, "src/y.js": "export default 'there'"}), "it sets alias"},
		"options of JSX":    {plain.with(project{"wrangler.jsonc": settings(`"jsx_factory": "h", "jsx_fragment": "F"`), "src/a.js": "const h = () => 'there', F = 1; console.log(<></>);\n" + worker}), "it sets jsx_factory, jsx_fragment"},
		"another tsconfig":  {plain.with(project{"wrangler.jsonc": settings(`"tsconfig": "./other.json"`), "other.json": `{"compilerOptions": {"paths": {"x": ["./src/y.js"]}}}`, "src/a.js": "import x from 'x'; console.log(x);\n" + worker, "src/y.js": "export default 'there'"}), "it sets tsconfig"},
		"the usual options": {plain.with(project{"wrangler.jsonc": settings(`"jsx_factory": "React.createElement", "jsx_fragment": "React.Fragment", "find_additional_modules": false`), "src/a.js": "console.log('there');\n" + worker}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := run(t, c.project, Options{})
			all := contents(t, p)
			if c.why == "" {
				if len(p.Notes) > 0 || all["src/a.js"] == "" {
					t.Errorf("notes %q, files %v", p.Notes, paths(p))
				}
				return
			}
			if want := "bundled here, since " + c.why; !slices.Contains(p.Notes, want) {
				t.Errorf("notes %q, want %q", p.Notes, want)
			}
			if got := paths(p); !reflect.DeepEqual(got, []string{"scafo-worker/index.js", "wrangler.jsonc"}) {
				t.Errorf("packed %v", got)
			}
			if !strings.Contains(all["scafo-worker/index.js"], "there") {
				t.Errorf("the bundle is %s", all["scafo-worker/index.js"])
			}
			if got := sent(t, p); got["main"] != "scafo-worker/index.js" || got["no_bundle"] != true {
				t.Errorf("configuration %v", got)
			}
		})
	}
}

func TestFilesOfABundleMadeHere(t *testing.T) {
	p := run(t, plain.with(project{
		"wrangler.jsonc": settings(`"rules": [{"type": "Text", "globs": ["src/*.md"]}], "define": {"X": "\"defined\""}`),
		"src/a.js":       "import '../../b.js'; import t from './t.md'; import d from './d.bin'; console.log(t, d, X);\n" + worker,
		"../b.js":        "", "src/t.md": "text", "src/d.bin": "data", "scafo-worker/in-the-way": "",
	}), Options{})
	all := contents(t, p)
	got := sent(t, p)
	rules, _ := json.Marshal(got["rules"])
	if got["main"] != "scafo-worker-/index.js" || got["define"] != nil || !strings.Contains(all["scafo-worker-/index.js"], `"defined"`) {
		t.Errorf("configuration %v", got)
	}
	for body, kind := range map[string]string{"text": "Text", "data": "Data"} {
		i := slices.IndexFunc(p.Files, func(f File) bool { return string(f.body) == body })
		if i < 0 {
			t.Fatalf("no %s in %v", body, paths(p))
		}
		name := filepath.Base(p.Files[i].Path)
		if !strings.Contains(string(rules), fmt.Sprintf(`{"fallthrough":true,"globs":["**/%s"],"type":"%s"}`, name, kind)) {
			t.Errorf("%s is not in the rules %s", name, rules)
		}
	}
}

func TestSecretsStay(t *testing.T) {
	const (
		pem    = "-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----\n"
		public = "-----BEGIN PUBLIC KEY-----\nMC4C\n-----END PUBLIC KEY-----\n"
	)
	files := project{
		".dev.vars": "S=1", ".dev.vars.staging": "S=1", ".env": "S=1", ".env.local": "S=1", ".envrc": "S=1", ".npmrc": "token", ".git/config": "x", ".git/objects/a": "x",
		"sub/.env": "S=1", "admin.jwk": `{"kty": "OKP", "crv": "Ed25519", "x": "a", "d": "b"}`, "set.json": `{"keys": [{"kty": "oct", "k": "a"}]}`,
		"tls.pem": pem, "server.key": pem, "store.p12": "x", "id_ed25519": "x", ".wrangler/state/x": "x", ".ssh/known": "x",
	}
	served := project{
		"public.pem": public, "jwks.json": `{"keys": [{"kty": "OKP", "x": "a"}]}`, "env.js": "", "index.html": pem, "some.json": `{"d": "x"}`, "key.txt": "k", ".well-known/x": "",
	}
	dir := project{"wrangler.jsonc": `{"name": "app", "compatibility_date": "2026-11-01", "assets": {"directory": "p"}}`}
	var want []string
	for name, body := range served {
		dir["p/"+name] = body
		want = append(want, "p/"+name)
	}
	for name, body := range files {
		dir["p/"+name] = body
		dir[name] = body
	}
	p := run(t, dir, Options{})
	want = append(want, "wrangler.jsonc")
	slices.Sort(want)
	if got := paths(p); !reflect.DeepEqual(got, want) {
		t.Errorf("packed %v, want %v", got, want)
	}
	if got := p.Notes[len(p.Notes)-1]; got != "left out, since secrets are not served: p/.dev.vars, p/.dev.vars.staging, p/.env, p/.env.local, p/.envrc and 11 more" {
		t.Errorf("note %q", got)
	}
	// A Worker that imports one is not sent at all.
	for name := range files {
		_, err := Run(t.Context(), Options{Path: plain.with(files).with(project{
			"wrangler.jsonc": settings(`"rules": [{"type": "Text", "globs": ["**/*"]}]`),
			"src/a.js":       "import x from '../" + name + "'; console.log(x);\n" + worker,
		}).write(t)})
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "is not sent") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A folder may be somebody else's work: its links do not take files along.
func TestLinksOfAssets(t *testing.T) {
	assets := project{"wrangler.jsonc": `{"name": "app", "compatibility_date": "2026-11-01", "assets": {"directory": "p"}}`, "p/a.txt": "a", "../out.txt": "SECRET"}
	for name, c := range map[string]struct{ link, want string }{
		"out":       {"-> ../../out.txt", "p/l.txt is a link that leads out of the project"},
		"absolute":  {"-> /etc/hostname", "p/l.txt is a link that leads out of the project"},
		"broken":    {"-> nowhere", "p/l.txt is a link to nothing"},
		"directory": {"-> .", "p/l.txt is no regular file"},
	} {
		if _, err := Run(t.Context(), Options{Path: assets.with(project{"p/l.txt": c.link}).write(t)}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	p := run(t, assets.with(project{"p/l.txt": "-> ../other.txt", "other.txt": "inside"}), Options{})
	if got := contents(t, p)["p/l.txt"]; got != "inside" {
		t.Errorf("the link is %q", got)
	}
	// The directory itself is where the user said.
	p = run(t, project{"wrangler.jsonc": `{"name": "app", "compatibility_date": "2026-11-01", "assets": {"directory": "../web/dist"}}`, "../web/dist/i.html": "web"}, Options{})
	if got := sent(t, p)["assets"]; !reflect.DeepEqual(got, map[string]any{"directory": "scafo-assets"}) || contents(t, p)["scafo-assets/i.html"] != "web" {
		t.Errorf("assets %v, files %v", got, paths(p))
	}
}

func TestTheSameTreeIsTheSameBytes(t *testing.T) {
	tree := plain.with(project{
		"wrangler.jsonc": settings(`"assets": {"directory": "public"}, "vars": {"B": "1"}`), "src/a.js": "import './b.js'; import 'p';\n" + worker, "src/b.js": "",
		"node_modules/p/index.js": "", "public/x": strings.Repeat("x", 100_000), "public/y": "y",
	})
	artifact := func(dir string) []byte {
		t.Helper()
		var b bytes.Buffer
		if _, err := run(t, nil, Options{Path: dir, Vars: map[string]string{"C": "c", "A": "a"}}).WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	one, two := tree.write(t), tree.write(t)
	if err := os.Chmod(filepath.Join(two, "src/b.js"), 0o755); err != nil {
		t.Fatal(err)
	}
	first := artifact(one)
	for range 3 {
		if !bytes.Equal(artifact(two), first) {
			t.Fatal("the same tree is other bytes")
		}
	}
	if err := os.WriteFile(filepath.Join(two, "public/y"), []byte("z"), 0o644); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(artifact(two), first) {
		t.Error("another tree is the same bytes")
	}
}

// Packing reads: the folder is afterwards as it was, a build aside.
func TestTheFolderStaysAsItIs(t *testing.T) {
	tree := plain.with(project{"src/a.js": "import '../../x.js';\n" + worker, "../x.js": "", "wrangler.jsonc": settings(`"observability": {"enabled": true}, "assets": {"directory": "."}`), "i.html": ""})
	dir := tree.write(t)
	before := snapshot(t, filepath.Dir(dir))
	run(t, nil, Options{Path: dir, Name: "other", Vars: map[string]string{"A": "b"}})
	if after := snapshot(t, filepath.Dir(dir)); !reflect.DeepEqual(before, after) {
		t.Errorf("before\n%v\nafter\n%v", before, after)
	}
}

func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		out[name] = fmt.Sprint(info.Mode(), info.ModTime())
		if d.Type().IsRegular() {
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			out[name] += string(b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestFilesThatChangeMeanwhile(t *testing.T) {
	for name, body := range map[string]string{"longer": "aaaa", "shorter": "a"} {
		tree := project{"wrangler.jsonc": `{"name": "app", "compatibility_date": "2026-11-01", "assets": {"directory": "p"}}`, "p/a": "aa"}
		dir := tree.write(t)
		p := run(t, nil, Options{Path: dir})
		if err := os.WriteFile(filepath.Join(dir, "p/a"), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := p.WriteTo(io.Discard); err == nil || err.Error() != "p/a: it changed while it was packed" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
