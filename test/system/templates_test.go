//go:build system

package system

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/pack"
	"github.com/scafo/scafo/internal/paralleltest"
)

// What is taken from npm while the tests run, by exact version.
const (
	startersVersion = "2.67.4" // of create-cloudflare: the official starters
	viteVersion     = "9.3.0"  // of create-vite: what the starter for React builds upon
	pnpmVersion     = "12.4.2"
	yarnVersion     = "4.18.1"
)

// npm runs npm in a folder. Its cache makes all but the first run fast.
func npm(t testing.TB, dir string, args ...string) {
	t.Helper()
	command(t, dir, "npm", append(args, "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")...)
}

func command(t testing.TB, dir, name string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir, c.Env = dir, append(environment(), "CI=1", "WRANGLER_SEND_METRICS=false", "YARN_ENABLE_TELEMETRY=0", "YARN_ENABLE_IMMUTABLE_INSTALLS=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, tail(string(out), 3000))
	}
}

// fromNPM unpacks a package and returns its folder.
func fromNPM(t testing.TB, name, version string) string {
	t.Helper()
	dir := t.TempDir()
	npm(t, dir, "pack", name+"@"+version, "--silent")
	all, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(all) != 1 {
		t.Fatalf("npm pack made %v: %v", all, err)
	}
	f, err := os.Open(all[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return filepath.Join(dir, "package")
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		body, err := io.ReadAll(r)
		if err == nil {
			err = errors.Join(root.MkdirAll(filepath.Dir(h.Name), 0o755), root.WriteFile(h.Name, body, 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// placeholders are what the starters' own tool fills in.
func placeholders(name string) *strings.Replacer {
	return strings.NewReplacer("<WORKER_NAME>", name, "<PACKAGE_NAME>", name, "<COMPATIBILITY_DATE>", "2026-11-01")
}

// fill copies a starter over a folder, as its own tool does: placeholders are filled,
// and files that npm would not carry get their names.
func fill(t testing.TB, from, to, name string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		at := filepath.Join(to, strings.ReplaceAll(rel, "__dot__", "."))
		switch filepath.Ext(at) {
		case ".json", ".jsonc", ".toml":
			body = []byte(placeholders(name).Replace(string(body)))
		}
		return errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, body, 0o644))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mayRefuse are keys that the runtime may still refuse by name: none, since it
// serves them all.
var mayRefuse []string

// deployStarter deploys a starter; ok is false where the runtime refused it by the
// name of a key that [mayRefuse] lists.
func deployStarter(t *testing.T, f *fleet, dir string) (url string, ok bool) {
	t.Helper()
	out, errs, err := f.scafo("deploy", dir)
	if err == nil {
		return strings.TrimSpace(out), true
	}
	for _, key := range mayRefuse {
		// At its place, by its name, as `unsupported key "queues"` or `triggers.crons`.
		if regexp.MustCompile(`wrangler\.jsonc:\d+:\d+: (unsupported key "` + key + `"|` + key + `\.\w+): `).MatchString(errs) {
			return "", false
		}
	}
	t.Fatalf("%v\n%s", err, errs)
	return "", false
}

// want is a request to a deployed starter.
type want struct {
	path, part string
	status     int
}

// starters are the official templates that need nothing but their own files and what
// npm installs for them.
var starters = map[string]struct {
	dir     string // in templates/
	install bool   // dependencies of any kind
	asks    []want
	refused string // at the client: the sentence
}{
	"hello-js":        {"hello-world/js", false, []want{{"/", "Hello World!", 200}}, ""},
	"hello-ts":        {"hello-world/ts", true, []want{{"/", "Hello World!", 200}}, ""},
	"object-js":       {"hello-world-durable-object/js", false, []want{{"/", "Hello, world!", 200}}, ""},
	"object-ts":       {"hello-world-durable-object/ts", false, []want{{"/", "Hello, world!", 200}}, ""},
	"assets-js":       {"hello-world-with-assets/js", false, []want{{"/", "<html", 200}, {"/message", "Hello, World!", 200}, {"/nope", "Not Found", 404}}, ""},
	"assets-ts":       {"hello-world-with-assets/ts", false, []want{{"/", "<html", 200}, {"/message", "Hello, World!", 200}, {"/nope", "Not Found", 404}}, ""},
	"assets-only":     {"hello-world-assets-only/templates", false, []want{{"/", "<html", 200}, {"/nope", "", 404}}, ""},
	"object-assets":   {"hello-world-durable-object-with-assets/ts", false, []want{{"/", "<html", 200}, {"/message", "Hello, world!", 200}}, ""},
	"common-ts":       {"common/ts", true, []want{{"/api/todos", "Todos Index!", 200}, {"/api/todos/7", "Todo #7", 200}, {"/api/nope", "Not Found.", 404}}, ""},
	"openapi":         {"openapi/ts", true, []want{{"/", "<html", 200}, {"/openapi.json", `"/api/tasks"`, 200}, {"/api/tasks?page=0&isCompleted=true", `"success":true`, 200}, {"/api/tasks?page=nope", "success", 400}}, ""},
	"scheduled":       {"scheduled/ts", false, []want{{"/", "To test the scheduled handler", 200}}, ""},
	"queues":          {"queues/ts", false, []want{{"/", "Sent message to the queue", 200}}, ""},
	"workflows":       {"hello-world-workflows/ts", false, []want{{"/", `"id"`, 200}, {"/favicon.ico", "{}", 404}}, ""},
	"hello-in-python": {"hello-world/py", false, nil, `main "src/entry.py": Workers in Python are not served`},
}

// Every official starter deploys as it is, or is refused by the name of what it needs.
func TestOfficialStarters(t *testing.T) {
	paralleltest.Beside(t)
	from := fromNPM(t, "create-cloudflare", startersVersion)
	f := newFleet(t)
	for _, name := range sortedKeys(starters) {
		s := starters[name]
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fill(t, filepath.Join(from, "templates", filepath.FromSlash(s.dir)), dir, name)
			if s.install {
				npm(t, dir, "install")
			}
			before := tree(t, dir)
			if s.refused != "" {
				_, errs, err := f.scafo("deploy", dir)
				if err == nil || !strings.Contains(errs, s.refused) {
					t.Fatalf("%v %s", err, errs)
				}
				return
			}
			url, ok := deployStarter(t, f, dir)
			if !ok {
				t.Log("this runtime does not serve it, and says so")
				return
			}
			for _, w := range s.asks {
				status, body, err := f.get(url + w.path)
				if err != nil || status != w.status || !strings.Contains(body, w.part) {
					t.Errorf("%s: %d %q %v", w.path, status, tail(body, 300), err)
				}
			}
			if after := tree(t, dir); !slices.Equal(before, after) {
				t.Error("the folder is another one after the deploy")
			}
		})
	}
}

// A starter whose node_modules hold Wrangler and its runtime sends kilobytes.
func TestToolsAreNotSent(t *testing.T) {
	paralleltest.Beside(t)
	dir := t.TempDir()
	fill(t, filepath.Join(fromNPM(t, "create-cloudflare", startersVersion), "templates", "hello-world", "ts"), dir, "tools")
	npm(t, dir, "install")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "wrangler", "package.json")); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t)
	var got struct {
		Artifact struct{ Files, Sent int64 }
	}
	if err := json.Unmarshal([]byte(f.must("deploy", "--json", dir)), &got); err != nil {
		t.Fatal(err)
	}
	if got.Artifact.Sent < 100 || got.Artifact.Sent > 1<<20 || got.Artifact.Files > 10 {
		t.Errorf("%d files, %d bytes were sent", got.Artifact.Files, got.Artifact.Sent)
	}
}

// The configurations of all starters are read: what is refused is refused for what it
// asks for.
func TestConfigurationsOfStarters(t *testing.T) {
	paralleltest.Beside(t)
	from := filepath.Join(fromNPM(t, "create-cloudflare", startersVersion), "templates")
	accepted, refusals := 0, map[string]string{}
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "wrangler.jsonc" {
			return err
		}
		dir := t.TempDir()
		rel, _ := filepath.Rel(from, filepath.Dir(path))
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "wrangler.jsonc"), []byte(placeholders("starter").Replace(string(body))), 0o644); err != nil {
			return err
		}
		if _, err := pack.Load(pack.Options{Path: dir}); err != nil {
			refusals[rel] = err.Error()
			return nil
		}
		accepted++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Pages is another product.
	allowed := regexp.MustCompile(`unsupported key "pages_build_output_dir"|neither "main" nor "assets"`)
	for rel, why := range refusals {
		if !allowed.MatchString(why) {
			t.Errorf("%s: %s", rel, why)
		}
	}
	if accepted < 25 {
		t.Errorf("%d of %d are taken: %v", accepted, accepted+len(refusals), refusals)
	}
	t.Logf("%d taken, %d refused", accepted, len(refusals))
}

// The starter for Hono is a few files over a package.
func TestHonoStarter(t *testing.T) {
	paralleltest.Beside(t)
	dir := project(t, map[string]string{"package.json": `{"name": "hono-app", "private": true, "dependencies": {"hono": "^4.12.0"}}`})
	fill(t, filepath.Join(fromNPM(t, "create-cloudflare", startersVersion), "templates", "hono", "workers", "templates"), dir, "hono-app")
	npm(t, dir, "install")
	f := newFleet(t)
	url := f.deploy(dir)
	if got := f.body(url + "/message"); got != "Hello Hono!" {
		t.Errorf("%q", got)
	}
	if got := f.body(url + "/"); !strings.Contains(got, "<html") {
		t.Errorf("%q", got)
	}
}

// The starter for React under Vite: its build leaves a configuration that points to
// what it built, in a folder that git ignores.
func TestReactStarter(t *testing.T) {
	paralleltest.Beside(t)
	dir := t.TempDir()
	fill(t, filepath.Join(fromNPM(t, "create-vite", viteVersion), "template-react-ts"), dir, "react-app")
	fill(t, filepath.Join(fromNPM(t, "create-cloudflare", startersVersion), "templates", "react", "workers", "ts"), dir, "react-app")
	// As the starter's own tool edits Vite's configuration.
	at := filepath.Join(dir, "vite.config.ts")
	body, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace("import { cloudflare } from '@cloudflare/vite-plugin'\n"+string(body), "[react()]", "[react(), cloudflare()]", 1)
	if err := os.WriteFile(at, []byte(edited), 0o644); err != nil {
		t.Fatal(err)
	}
	npm(t, dir, "install", "-D", "@cloudflare/vite-plugin")
	command(t, dir, "npx", "--no-install", "vite", "build")
	f := newFleet(t)
	url := f.deploy(dir)
	page := f.body(url + "/")
	script := regexp.MustCompile(`src="(/assets/[^"]+\.js)"`).FindStringSubmatch(page)
	if script == nil {
		t.Fatalf("no script in %q", page)
	}
	if got := f.body(url + script[1]); !strings.Contains(got, "react") {
		t.Errorf("the script is %q", tail(got, 200))
	}
	if got := f.body(url + "/api/"); got != `{"name":"Cloudflare"}` {
		t.Errorf("%q", got)
	}
}

// workspace is a monorepo with an application that uses a package beside it.
func workspace(t testing.TB, version string) string {
	return project(t, map[string]string{
		"package.json":                 `{"name": "root", "private": true, "workspaces": ["apps/*", "packages/*"]}`,
		"pnpm-workspace.yaml":          "packages:\n  - apps/*\n  - packages/*\n",
		"packages/lib/package.json":    `{"name": "@acme/lib", "version": "1.0.0", "main": "src/index.ts", "dependencies": {"hono": "^4.12.0"}}`,
		"packages/lib/src/index.ts":    `import { Hono } from "hono"; export const app = new Hono(); app.get("/", (c) => c.text("from the linked package"));`,
		"apps/web/package.json":        `{"name": "web", "private": true, "dependencies": {"@acme/lib": "` + version + `", "itty-router": "^5.0.0"}}`,
		"apps/web/src/index.ts":        `import { app } from "@acme/lib"; import { json } from "itty-router"; app.get("/json", () => json({ ok: true })); export default app;`,
		"apps/web/wrangler.jsonc":      `{"name": "web", "main": "src/index.ts", "compatibility_date": "2026-11-01"}`,
		"packages/unused/package.json": `{"name": "@acme/unused", "version": "1.0.0"}`,
	})
}

// Workspaces of npm, pnpm and Yarn, the last without any node_modules.
func TestWorkspaces(t *testing.T) {
	paralleltest.Beside(t)
	tools := t.TempDir()
	npm(t, tools, "install", "--prefix", tools, "pnpm@"+pnpmVersion, "@yarnpkg/cli-dist@"+yarnVersion)
	f := newFleet(t)
	for name, w := range map[string]struct {
		version string
		install func(t *testing.T, dir string)
		why     string
	}{
		"npm": {"*", func(t *testing.T, dir string) { npm(t, dir, "install") }, "which lies outside the folder"},
		"pnpm": {"workspace:*", func(t *testing.T, dir string) {
			command(t, dir, "sh", filepath.Join(tools, "node_modules", "pnpm", "pnpm"), "install", "--prefer-offline", "--ignore-scripts")
		}, "which lies outside the folder"},
		"yarn": {"workspace:*", func(t *testing.T, dir string) {
			command(t, dir, "node", filepath.Join(tools, "node_modules", "@yarnpkg", "cli-dist", "bin", "yarn.js"), "install")
			if _, err := os.Stat(filepath.Join(dir, ".pnp.cjs")); err != nil {
				t.Fatal(err)
			}
		}, "an archive of Yarn's"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := workspace(t, w.version)
			w.install(t, dir)
			out, errs, err := f.scafo("deploy", filepath.Join(dir, "apps", "web"), "--name", "web-"+name)
			if err != nil || !strings.Contains(errs, "bundled here, since it imports ") || !strings.Contains(errs, w.why) {
				t.Fatalf("%v %s", err, errs)
			}
			url := strings.TrimSpace(out)
			if got := f.body(url + "/"); got != "from the linked package" {
				t.Errorf("%q", got)
			}
			if got := f.body(url + "/json"); got != `{"ok":true}` {
				t.Errorf("%q", got)
			}
		})
	}
}

// tree lists a folder's files with their sizes and times.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			out = append(out, fmt.Sprint(path, info.Mode(), info.Size(), info.ModTime()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	out := []string{}
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
