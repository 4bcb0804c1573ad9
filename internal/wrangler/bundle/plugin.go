package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/evanw/esbuild/pkg/api"

	"github.com/scafo/scafo/internal/wrangler"
)

// extraModules are files that an import names and that are no JavaScript. They
// become modules of their own. The bundler's callbacks come from several
// goroutines.
type extraModules struct {
	mu   sync.Mutex // guards list
	list []extraModule
}

type extraModule struct {
	name string // of the module
	file string
	kind wrangler.ModuleType
	body []byte
}

func (e *extraModules) add(x extraModule) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.ContainsFunc(e.list, func(o extraModule) bool { return o.name == x.name }) {
		e.list = append(e.list, x)
	}
}

func (e *extraModules) sorted() []extraModule {
	e.mu.Lock()
	defer e.mu.Unlock()
	slices.SortFunc(e.list, func(a, b extraModule) int { return strings.Compare(a.name, b.name) })
	return e.list
}

// resolving marks a resolution that the plugin itself asked for.
type resolving struct{}

// Namespaces of the plugin's own modules.
const nodeRequire = "scafo-node-require"

// plugin confines the build to the project, turns files that the rules name into
// modules of their own, and leaves what the runtime brings along to it.
func (b *bundler) plugin() api.Plugin {
	return api.Plugin{Name: "scafo", Setup: func(build api.PluginBuild) {
		build.OnResolve(api.OnResolveOptions{Filter: `.*`, Namespace: "file"}, func(a api.OnResolveArgs) (api.OnResolveResult, error) {
			if _, own := a.PluginData.(resolving); own || a.Kind == api.ResolveEntryPoint {
				return api.OnResolveResult{}, nil
			}
			return b.resolve(build, a)
		})
		build.OnResolve(api.OnResolveOptions{Filter: `.*`, Namespace: nodeRequire}, func(a api.OnResolveArgs) (api.OnResolveResult, error) {
			return api.OnResolveResult{Path: a.Path, External: true}, nil
		})
		build.OnLoad(api.OnLoadOptions{Filter: `.*`, Namespace: nodeRequire}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
			// require() of a module that is an ES module at run time.
			body := fmt.Sprintf("import lib from %q;\nmodule.exports = lib;", a.Path)
			return api.OnLoadResult{Contents: &body, Loader: api.LoaderJS}, nil
		})
		// The last gate, for every way in which a file may be reached.
		build.OnLoad(api.OnLoadOptions{Filter: `.*`, Namespace: "file"}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
			if err := b.reach(a.Path); err != nil {
				return api.OnLoadResult{}, outside(a.Path, err)
			}
			return api.OnLoadResult{}, nil
		})
	}}
}

// resolve decides what an import is.
func (b *bundler) resolve(build api.PluginBuild, a api.OnResolveArgs) (api.OnResolveResult, error) {
	builtin, isBuiltin := nodeBuiltin(a.Path)
	if isBuiltin && (strings.HasPrefix(a.Path, "node:") || b.o.NodeCompat) {
		return external(a, builtin), nil
	}
	if strings.HasPrefix(a.Path, "cloudflare:") {
		return api.OnResolveResult{Path: a.Path, External: true}, nil
	}
	if b.o.NoBundle && !strings.HasPrefix(a.Path, ".") && !strings.HasPrefix(a.Path, "/") {
		return api.OnResolveResult{}, nil
	}
	want := strings.TrimSuffix(a.Path, "?module")
	r := build.Resolve(want, api.ResolveOptions{
		Importer: a.Importer, Namespace: a.Namespace, ResolveDir: a.ResolveDir, Kind: a.Kind, PluginData: resolving{}, With: a.With,
	})
	if len(r.Errors) > 0 {
		if isBuiltin {
			return external(a, builtin), nil
		}
		return api.OnResolveResult{}, nil // esbuild says it better, with a note
	}
	if r.External || r.Namespace != "file" || r.Path == "" {
		return api.OnResolveResult{}, nil
	}
	real, err := filepath.EvalSymlinks(r.Path)
	if err == nil {
		err = b.reach(real)
	}
	if err != nil {
		return api.OnResolveResult{Errors: []api.Message{{Text: outside(a.Path, err).Error()}}}, nil
	}
	if b.o.Resolved != nil {
		b.o.Resolved(a.ResolveDir, want, real)
	}
	rel := b.shown(real)
	if want != a.Path {
		rel += "?module"
	}
	kind, ok := b.rules.Match(rel)
	if !ok || kind == wrangler.ESModule || kind == wrangler.CommonJS {
		return api.OnResolveResult{}, nil
	}
	return b.extraModule(real, kind)
}

// extraModule makes a module of a file. Its name has the digest of its bytes, so
// that two files of one name do not meet.
func (b *bundler) extraModule(file string, kind wrangler.ModuleType) (api.OnResolveResult, error) {
	body, err := os.ReadFile(file)
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return api.OnResolveResult{}, fmt.Errorf("%s: %w", b.shown(file), err)
	}
	name := digest(body)[:16] + "-" + filepath.Base(file)
	b.extra.add(extraModule{name: name, file: file, kind: kind, body: body})
	return api.OnResolveResult{Path: "./" + name, External: true}, nil
}

// external leaves a module of Node's to the runtime, which says itself when it
// does not have it.
func external(a api.OnResolveArgs, name string) api.OnResolveResult {
	if a.Kind == api.ResolveJSRequireCall {
		return api.OnResolveResult{Path: name, Namespace: nodeRequire}
	}
	return api.OnResolveResult{Path: name, External: true}
}

var nodeModules = func() map[string]bool {
	m := map[string]bool{}
	for name := range strings.FieldsSeq(`assert async_hooks buffer child_process cluster console constants crypto
		dgram diagnostics_channel dns domain events fs http http2 https inspector module net os path perf_hooks process
		punycode querystring readline repl stream string_decoder sys timers tls trace_events tty url util v8 vm wasi
		worker_threads zlib`) {
		m[name] = true
	}
	return m
}()

// nodeBuiltin is the full name of a module that comes with Node.
func nodeBuiltin(name string) (string, bool) {
	if strings.HasPrefix(name, "node:") {
		return name, true
	}
	first, _, _ := strings.Cut(name, "/")
	if nodeModules[first] && (first == name || name == "fs/promises" || name == "dns/promises" || name == "stream/promises" ||
		name == "stream/web" || name == "stream/consumers" || name == "timers/promises" || name == "path/posix" ||
		name == "path/win32" || name == "util/types" || name == "assert/strict" || name == "readline/promises") {
		return "node:" + name, true
	}
	return "", false
}
