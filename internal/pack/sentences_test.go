package pack

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata/sentences.txt anew")

const sentencesFile = "testdata/sentences.txt"

// broken are projects that cannot be sent, by what is wrong with them.
var broken = map[string]struct {
	project project
	options Options
}{
	"no configuration":                         {project{"src/a.js": worker}, Options{}},
	"only wrangler.toml":                       {project{"wrangler.toml": `name = "app"`}, Options{}},
	"no JSON":                                  {project{"wrangler.jsonc": "{\n  \"name\": \"app\",\n  oops\n}"}, Options{}},
	"no object":                                {project{"wrangler.jsonc": "[]"}, Options{}},
	"a key that stands twice":                  {project{"wrangler.jsonc": settings("\"vars\": {},\n\"vars\": {}")}, Options{}},
	"an unknown key":                           {project{"wrangler.jsonc": settings(`"var": {"A": "b"}`)}, Options{}},
	"an unknown key like none":                 {project{"wrangler.jsonc": settings(`"completely_different": 1`)}, Options{}},
	"no name":                                  {project{"wrangler.jsonc": `{"main": "a.js", "compatibility_date": "2026-11-01"}`}, Options{}},
	"a name that is none":                      {project{"wrangler.jsonc": `{"name": "My App", "main": "a.js", "compatibility_date": "2026-11-01"}`}, Options{}},
	"a template's name":                        {project{"wrangler.jsonc": `{"name": "<WORKER_NAME>", "main": "a.js", "compatibility_date": "2026-11-01"}`}, Options{}},
	"no date":                                  {project{"wrangler.jsonc": `{"name": "app", "main": "a.js"}`}, Options{}},
	"a date that is none":                      {project{"wrangler.jsonc": `{"name": "app", "main": "a.js", "compatibility_date": "<COMPATIBILITY_DATE>"}`}, Options{}},
	"nothing to serve":                         {project{"wrangler.jsonc": `{"name": "app", "compatibility_date": "2026-11-01"}`}, Options{}},
	"no main":                                  {plain.with(project{"wrangler.jsonc": settings(""), "src/a.js": "-> nowhere"}), Options{}},
	"main is a directory":                      {project{"wrangler.jsonc": settings(""), "src/a.js/x": ""}, Options{}},
	"main in Python":                           {project{"wrangler.jsonc": `{"name": "app", "main": "a.py", "compatibility_date": "2026-11-01"}`, "a.py": ""}, Options{}},
	"main exports nothing":                     {plain.with(project{"src/a.js": "addEventListener('fetch', () => {})"}), Options{}},
	"a syntax error":                           {plain.with(project{"src/a.js": "export default {\n  fetch() { return new Response('x' }\n}"}), Options{}},
	"a type in JavaScript":                     {plain.with(project{"src/a.js": "export default { fetch(r: Request) {} }"}), Options{}},
	"a file that is not there":                 {plain.with(project{"src/a.js": "import './nope';\n" + worker}), Options{}},
	"a package":                                {plain.with(project{"src/a.js": "import '@scope/p/sub';\n" + worker}), Options{}},
	"a build tool's module":                    {plain.with(project{"src/a.js": "import 'virtual:routes';\n" + worker}), Options{}},
	"several packages":                         {plain.with(project{"src/a.js": "import 'p'; import 'q'; import 'p/sub';\n" + worker}), Options{}},
	"a file without a rule":                    {plain.with(project{"src/a.js": "import './p.png';\n" + worker, "src/p.png": ""}), Options{}},
	"an error outside":                         {plain.with(project{"src/a.js": "import '../../lib/b';\n" + worker, "../lib/b.ts": "\nlet 1;"}), Options{}},
	"JSON that is none":                        {plain.with(project{"src/a.js": "import './j.json';\n" + worker, "src/j.json": "{,}"}), Options{}},
	"an imported .env":                         {plain.with(project{"wrangler.jsonc": settings(`"rules": [{"type": "Text", "globs": ["**/.env"]}]`), "src/a.js": "import e from '../.env';\n" + worker, ".env": "KEY=1"}), Options{}},
	"WebAssembly that is none":                 {plain.with(project{"src/a.js": "import w from './w.wasm';\n" + worker, "src/w.wasm": "(module)"}), Options{}},
	"an export that is not there":              {plain.with(project{"src/a.js": "import { b } from './b';\nconsole.log(b);\n" + worker, "src/b.ts": "export const a = 1;"}), Options{}},
	"two exports of a name":                    {plain.with(project{"src/a.js": "export const a = 1;\nexport const a = 2;\n" + worker}), Options{}},
	"a constant that changes":                  {plain.with(project{"src/a.js": "const a = 1;\na = 2;\n" + worker}), Options{}},
	"await in a function":                      {plain.with(project{"src/a.js": "function f() { await g(); }\n" + worker}), Options{}},
	"a folder as a module":                     {plain.with(project{"src/a.js": "import './d';\n" + worker, "src/d/readme.txt": ""}), Options{}},
	"a subpath that a package keeps":           {plain.with(project{"src/a.js": "import 'p/inner';\n" + worker, "node_modules/p/package.json": `{"exports": {".": "./m.js"}}`, "node_modules/p/m.js": "", "node_modules/p/inner.js": ""}), Options{}},
	"a link to nothing":                        {plain.with(project{"src/a.js": "import './l.js';\n" + worker, "src/l.js": "-> nowhere.js"}), Options{}},
	"a module behind a link out that is a key": {plain.with(project{"src/a.js": "import k from './k.json';\n" + worker, "src/k.json": "-> ../../k.json", "../k.json": `{"kty": "OKP", "d": "x"}`}), Options{}},
	"a package that Plug'n'Play does not know": {plain.with(project{"src/a.js": "import 'p';\n" + worker, ".pnp.cjs": "", ".pnp.data.json": `{"__info": [], "dependencyTreeRoots": [{"name": "app", "reference": "workspace:."}], "enableTopLevelFallback": true,
		"fallbackExclusionList": [], "fallbackPool": [], "ignorePatternData": null, "packageRegistryData": [[null, [[null, {"packageLocation": "./", "packageDependencies": [], "linkType": "SOFT"}]]]]}`}), Options{}},
	"a name on the command line": {plain, Options{Env: "prod", Name: "UPPER"}},
	"a package of a workspace":   {plain.with(project{"src/a.js": "import 'p';\n" + worker, "../pnpm-lock.yaml": "", "../package.json": "{}"}), Options{}},
	"an imported key":            {plain.with(project{"src/a.js": "import k from '../admin.json';\n" + worker, "admin.json": `{"kty": "OKP", "d": "x"}`}), Options{}},
	"TypeScript not bundled":     {plain.with(project{"src/a.js": "import './b.ts';\n" + worker, "src/b.ts": ""}), Options{NoBundle: true}},
	"outside and not bundled":    {plain.with(project{"src/a.js": "import '../../b.js';\n" + worker, "../b.js": ""}), Options{NoBundle: true}},
	"no assets":                  {plain.with(project{"wrangler.jsonc": settings(`"assets": {"directory": "dist"}`)}), Options{}},
	"assets before the build":    {plain.with(project{"wrangler.jsonc": settings(`"assets": {"directory": "dist"}, "build": {"command": "true"}`)}), Options{}},
	"assets without directory":   {plain.with(project{"wrangler.jsonc": settings(`"assets": {"binding": "ASSETS"}`)}), Options{}},
	"assets that are a file":     {plain.with(project{"wrangler.jsonc": settings(`"assets": {"directory": "src/a.js"}`)}), Options{}},
	"empty assets":               {plain.with(project{"wrangler.jsonc": settings(`"assets": {"directory": "p"}`), "p/.assetsignore": ""}), Options{}},
	"a Worker among the assets":  {plain.with(project{"wrangler.jsonc": settings(`"assets": {"directory": "p"}`), "p/_worker.js": ""}), Options{}},
	"an asset that leads out":    {plain.with(project{"wrangler.jsonc": settings(`"assets": {"directory": "p"}`), "p/x": "-> /etc/hostname"}), Options{}},
	"a build that fails":         {plain.with(project{"wrangler.jsonc": settings(`"build": {"command": "exit 3"}`)}), Options{}},
	"a build elsewhere":          {plain.with(project{"wrangler.jsonc": settings(`"build": {"command": "true", "cwd": "nope"}`)}), Options{}},
	"an environment":             {plain.with(project{"wrangler.jsonc": settings(`"env": {"dev": {}, "prod": {}}`)}), Options{Env: "production"}},
	"--strict":                   {plain.with(project{"wrangler.jsonc": settings("\"observability\": {\"enabled\": true},\n\"routes\": [\"a.example.com\"]")}), Options{Strict: true}},
	"a secret":                   {plain.with(project{"wrangler.jsonc": settings(`"secrets": {"required": ["API_KEY"]}`)}), Options{}},
	"a Pages project":            {project{"wrangler.json": `{"name": "app", "pages_build_output_dir": "./dist", "compatibility_date": "2026-11-01"}`}, Options{}},
	"Workers Sites":              {plain.with(project{"wrangler.jsonc": settings(`"site": {"bucket": "./public"}`)}), Options{}},
	"an AI":                      {plain.with(project{"wrangler.jsonc": settings(`"ai": {"binding": "AI"}`)}), Options{}},
	"Vectorize":                  {plain.with(project{"wrangler.jsonc": settings(`"vectorize": [{"binding": "V", "index_name": "i"}]`)}), Options{}},
	"Hyperdrive":                 {plain.with(project{"wrangler.jsonc": settings(`"hyperdrive": [{"binding": "H", "id": "i"}]`)}), Options{}},
	"access":                     {plain.with(project{"wrangler.jsonc": settings(`"access": {"enabled": true}`)}), Options{}},
	"additional modules":         {plain.with(project{"wrangler.jsonc": settings(`"find_additional_modules": true, "base_dir": "nope"`)}), Options{}},
	"another base":               {plain.with(project{"wrangler.jsonc": settings(`"base_dir": ".", "no_bundle": true`)}), Options{}},
	"a rule for Python":          {plain.with(project{"wrangler.jsonc": settings(`"rules": [{"type": "PythonModule", "globs": ["*.py"]}]`)}), Options{}},
	"vars that are a list":       {plain.with(project{"wrangler.jsonc": settings(`"vars": ["A"]`)}), Options{Vars: map[string]string{"A": "b"}}},
	"a redirect to nothing":      {plain.with(project{".wrangler/deploy/config.json": `{"configPath": "../../dist/wrangler.json"}`}), Options{}},
	"a redirect without a path":  {plain.with(project{".wrangler/deploy/config.json": `{}`}), Options{}},
	"a redirect out":             {plain.with(project{".wrangler/deploy/config.json": `{"configPath": "../../../x.json"}`, "../x.json": "{}"}), Options{}},
	"a redirect and --env": {plain.with(project{".wrangler/deploy/config.json": `{"configPath": "../../d/wrangler.json"}`,
		"d/wrangler.json": `{"name": "app", "main": "../src/a.js", "compatibility_date": "2026-11-01", "targetEnvironment": "dev"}`}), Options{Env: "prod"}},
	"a redirect with environments": {plain.with(project{".wrangler/deploy/config.json": `{"configPath": "../../d/wrangler.json"}`,
		"d/wrangler.json": `{"name": "app", "main": "../src/a.js", "compatibility_date": "2026-11-01", "env": {"a": {}}}`}), Options{}},
}

// A path that is no folder is a configuration's, and nothing else.
func TestPathsThatAreNoProject(t *testing.T) {
	dir := plain.with(project{"app.tar.gz": "x", "README.md": "# x"}).write(t)
	for name, want := range map[string]string{
		"app.tar.gz": "is neither a project's folder nor its wrangler.jsonc",
		"README.md":  "is neither a project's folder nor its wrangler.jsonc",
		"none":       "there is no ",
	} {
		if _, err := Run(t.Context(), Options{Path: filepath.Join(dir, name)}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Run(t.Context(), Options{Path: filepath.Join(dir, "wrangler.jsonc")}); err != nil {
		t.Errorf("the configuration itself: %v", err)
	}
}

// Who stands in a folder of a project is told where the project is.
func TestTheFolderAround(t *testing.T) {
	dir := plain.with(project{"src/deep/x.js": "", ".wrangler/deploy/x": ""}).write(t)
	t.Chdir(filepath.Join(dir, "src", "deep"))
	for path, want := range map[string]string{
		".": "scafo deploy ../..", "../": "scafo deploy ../..", filepath.Join(dir, "src"): "scafo deploy " + dir, ".." + string(filepath.Separator) + "deep": "scafo deploy ../..",
	} {
		_, err := Run(t.Context(), Options{Path: path})
		if err == nil || !strings.HasSuffix(err.Error(), "; the folder around it is one: "+want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
}

// Who stands at the root of several projects is told which those are.
func TestTheProjectsBelow(t *testing.T) {
	dir := project{"apps/web/wrangler.jsonc": "{}", "apps/api/wrangler.json": "{}", "apps/api/deep/wrangler.json": "{}", "node_modules/x/wrangler.json": "{}",
		".hidden/wrangler.json": "{}", "a/b/c/wrangler.json": "{}", "1/2/3/4/wrangler.json": "{}"}.write(t)
	t.Chdir(dir)
	const want = "; projects in it: a/b/c, apps/api, apps/web"
	if _, err := Run(t.Context(), Options{Path: "."}); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	for _, n := range []string{"e", "f", "g"} {
		if err := os.MkdirAll(n, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(n, "wrangler.jsonc"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Run(t.Context(), Options{Path: "."}); err == nil || !strings.HasSuffix(err.Error(), want+", e, f, …") {
		t.Errorf("%v, want five of six", err)
	}
}

// The date that a user is told to take is one that the runtime knows: its version is
// the day of its making.
func TestTheSuggestedDate(t *testing.T) {
	body, err := os.ReadFile("../../package.json")
	if err != nil {
		t.Fatal(err)
	}
	var p struct{ Dependencies struct{ Workerd string } }
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatal(err)
	}
	fields := strings.Split(p.Dependencies.Workerd, ".")
	made, err := time.Parse("20060102", fields[1])
	if err != nil {
		t.Fatal(err)
	}
	suggested, err := time.Parse(time.DateOnly, suggestedDate)
	if err != nil || suggested.After(made) || made.Sub(suggested) > 90*24*time.Hour {
		t.Errorf("%s is suggested, and workerd is %s: %v", suggestedDate, p.Dependencies.Workerd, err)
	}
}

// What a user sees of a project that cannot be sent, word by word.
func TestSentences(t *testing.T) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(broken)) {
		c := broken[name]
		dir := c.project.write(t)
		c.options.Path = dir
		_, err := Run(t.Context(), c.options)
		if err == nil {
			t.Errorf("%s: it is packed", name)
			continue
		}
		said := strings.ReplaceAll(err.Error(), dir, "DIR")
		fmt.Fprintf(&b, "# %s\n%s\n\n", name, said)
	}
	if *update {
		if err := os.WriteFile(sentencesFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(sentencesFile)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("%s is not what is said (-update writes it anew):\n%s", sentencesFile, b.String())
	}
}
