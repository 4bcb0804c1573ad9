//go:build system

package system

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/paralleltest"
)

// SvelteKit builds a Worker beside the assets that it serves, imports that Worker's
// runtime from node_modules, and keeps pages in the default cache.
func TestSvelteKit(t *testing.T) {
	paralleltest.Beside(t)
	dir := project(t, map[string]string{
		"package.json": `{"name": "svelte-app", "private": true, "type": "module", "devDependencies": {"@sveltejs/kit": "^2.0.0", "svelte": "^5.0.0",
			"vite": "^6.0.0", "@sveltejs/vite-plugin-svelte": "^5.0.0", "@sveltejs/adapter-cloudflare": "^7.0.0"}}`,
		"svelte.config.js":           "import adapter from '@sveltejs/adapter-cloudflare';\nexport default { kit: { adapter: adapter() } };\n",
		"vite.config.js":             "import { sveltekit } from '@sveltejs/kit/vite';\nexport default { plugins: [sveltekit()] };\n",
		"src/app.html":               "<!doctype html><html><head>%sveltekit.head%</head><body>%sveltekit.body%</body></html>",
		"src/routes/+page.svelte":    "<script>let { data } = $props();</script>\n<h1>{data.path}</h1>\n",
		"src/routes/+page.server.js": "export const load = ({ url, setHeaders }) => { setHeaders({ 'Cache-Control': 'public, max-age=60' }); return { path: 'svelte ' + url.search }; };\n",
	})
	fill(t, filepath.Join(fromNPM(t, "create-cloudflare", startersVersion), "templates", "svelte", "workers", "templates"), dir, "svelte-app")
	npm(t, dir, "install")
	command(t, dir, "npx", "--no-install", "vite", "build")
	f := newFleet(t)
	url := f.deploy(dir)
	for _, path := range []string{"/?a", "/?b", "/?a"} { // the last from the cache
		if got := f.body(url + path); !strings.Contains(got, "svelte "+path[1:]+"<") {
			t.Errorf("%s: %q", path, tail(got, 500))
		}
	}
	if got := f.body(url + "/_app/version.json"); !strings.Contains(got, "version") {
		t.Errorf("%q", got)
	}
	if status, _, err := f.get(url + "/_worker.js"); err != nil || status == 200 {
		t.Errorf("the Worker's code is served: %d %v", status, err)
	}
}

// Packages that were written for Node, in a Worker whose compatibility date is older
// than what they import.
func TestPackagesForNode(t *testing.T) {
	paralleltest.Beside(t)
	dir := project(t, map[string]string{
		"package.json":   `{"name": "node-app", "private": true, "type": "module", "dependencies": {"express": "^5.0.0", "jsonwebtoken": "^9.0.0", "pg": "^8.0.0", "lodash": "^4.0.0"}}`,
		"wrangler.jsonc": `{"name": "node-app", "main": "a.ts", "compatibility_date": "2025-03-01", "compatibility_flags": ["nodejs_compat"]}`,
		"a.ts": `import express from "express"; import jwt from "jsonwebtoken"; import pg from "pg"; import _ from "lodash";
export default { fetch() {
  const token = jwt.sign({ a: 1 }, "a secret of some length"); const app = express(); app.get("/", () => {});
  return Response.json([(jwt.verify(token, "a secret of some length") as any).a, typeof pg.Client, _.chunk([1, 2, 3], 2), typeof app.handle]);
} };`,
	})
	npm(t, dir, "install")
	f := newFleet(t)
	if got := f.body(f.deploy(dir)); got != `[1,"function",[[1,2],[3]],"function"]` {
		t.Errorf("%q", got)
	}
}
