package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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

func (e *extraModules) has(file string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.list, func(x extraModule) bool { return x.file == file })
}

func (e *extraModules) sorted() []extraModule {
	e.mu.Lock()
	defer e.mu.Unlock()
	slices.SortFunc(e.list, func(a, b extraModule) int { return strings.Compare(a.name, b.name) })
	return e.list
}

// nodeModules are the modules of Node's that imports name. The bundler's callbacks come
// from several goroutines.
type nodeModules struct {
	mu    sync.Mutex // guards names
	names map[string]bool
}

func (n *nodeModules) add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.names == nil {
		n.names = map[string]bool{}
	}
	n.names[name] = true
}

func (n *nodeModules) sorted() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.names))
}

// resolving marks a resolution that the plugin itself asked for.
type resolving struct{}

// Namespaces of the plugin's own modules.
const nodeRequire = "scafo-node-require"

// plugin asks for each file that is loaded whether the build may read it, turns
// files that the rules name into modules of their own, and leaves what the runtime
// brings along to it.
//
// It resolves as little as it can by itself: each resolution that a plugin asks for
// reads the directories and package.json files on its way anew.
func (b *bundler) plugin() api.Plugin {
	return api.Plugin{Name: "scafo", Setup: func(build api.PluginBuild) {
		build.OnResolve(api.OnResolveOptions{Filter: `.*`, Namespace: "file"}, func(a api.OnResolveArgs) (api.OnResolveResult, error) {
			if _, own := a.PluginData.(resolving); own || a.Kind == api.ResolveEntryPoint {
				return api.OnResolveResult{}, nil
			}
			return b.resolve(build, a), nil
		})
		build.OnResolve(api.OnResolveOptions{Filter: `.*`, Namespace: nodeRequire}, func(a api.OnResolveArgs) (api.OnResolveResult, error) {
			return api.OnResolveResult{Path: a.Path, External: true}, nil
		})
		build.OnLoad(api.OnLoadOptions{Filter: `.*`, Namespace: nodeRequire}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
			// require() of a module that is an ES module at run time.
			body := fmt.Sprintf("import lib from %q;\nmodule.exports = lib;", a.Path)
			return api.OnLoadResult{Contents: &body, Loader: api.LoaderJS}, nil
		})
		build.OnLoad(api.OnLoadOptions{Filter: `.*`, Namespace: "file"}, b.load)
	}}
}

// resolve decides what an import is, where its name alone tells.
func (b *bundler) resolve(build api.PluginBuild, a api.OnResolveArgs) api.OnResolveResult {
	if _, ours := a.PluginData.(extraModule); ours {
		return api.OnResolveResult{Path: a.Path, External: true}
	}
	if strings.HasPrefix(a.Path, "cloudflare:") {
		return api.OnResolveResult{Path: a.Path, External: true}
	}
	if builtin, ok := nodeBuiltin(a.Path); ok {
		if strings.HasPrefix(a.Path, "node:") || b.o.NodeCompat {
			return b.external(a, builtin)
		}
		// A package of that name stands in for it, if there is one.
		r := build.Resolve(a.Path, api.ResolveOptions{
			Importer: a.Importer, Namespace: a.Namespace, ResolveDir: a.ResolveDir, Kind: a.Kind, PluginData: resolving{}, With: a.With,
		})
		if len(r.Errors) > 0 {
			return b.external(a, builtin)
		}
	}
	if strings.HasPrefix(a.Path, ".") {
		file, _, _ := strings.Cut(a.Path, "?")
		if name, ok := b.additional[filepath.Join(a.ResolveDir, filepath.FromSlash(file))]; ok {
			return api.OnResolveResult{Path: "./" + name, External: true}
		}
	}
	if b.o.Imported != nil {
		b.o.Imported(a.ResolveDir, a.Path)
	}
	return api.OnResolveResult{}
}

// load is asked before a file is read, in whatever way an import led to it.
func (b *bundler) load(a api.OnLoadArgs) (api.OnLoadResult, error) {
	real, err := realPath(a.Path)
	if errors.Is(err, fs.ErrNotExist) && !yarns(a.Path) {
		// A package.json turns this file off (`"browser": {"./x": false}`): esbuild puts
		// an empty module there.
		return api.OnLoadResult{}, nil
	}
	if err == nil {
		err = b.reach(real)
	}
	if err != nil {
		return api.OnLoadResult{}, outside(a.Path, err)
	}
	rel := b.shown(real)
	if a.Suffix == "?module" {
		rel += a.Suffix
	}
	kind, ok := b.rules.Match(rel)
	if ok && kind != wrangler.ESModule && kind != wrangler.CommonJS && a.With["type"] == "" && real != b.o.Entry {
		return b.extraModule(real, kind)
	}
	if !yarns(a.Path) {
		return api.OnLoadResult{}, nil
	}
	// What was asked about is what is read.
	body, err := readFile(real)
	if err != nil {
		return api.OnLoadResult{}, b.unreadable(real, err)
	}
	contents := string(body)
	return api.OnLoadResult{Contents: &contents, Loader: api.LoaderDefault}, nil
}

// wasmMagic is how every WebAssembly module begins.
var wasmMagic = []byte("\x00asm")

// extraModule makes a module of a file. Its name has the digest of its bytes, so
// that two files of one name do not meet.
func (b *bundler) extraModule(file string, kind wrangler.ModuleType) (api.OnLoadResult, error) {
	body, err := readFile(file)
	if err != nil {
		return api.OnLoadResult{}, b.unreadable(file, err)
	}
	if kind == wrangler.CompiledWasm && !bytes.HasPrefix(body, wasmMagic) {
		return api.OnLoadResult{}, fmt.Errorf("%s is no WebAssembly: it does not begin as one", b.shown(file))
	}
	x := extraModule{name: digest(body)[:16] + "-" + filepath.Base(file), file: file, kind: kind, body: body}
	b.extra.add(x)
	stub := fmt.Sprintf("export { default } from %q;", "./"+x.name)
	return api.OnLoadResult{Contents: &stub, Loader: api.LoaderJS, PluginData: x}, nil
}

// unreadable says of a file that it cannot be read, by the path that the user knows.
func (b *bundler) unreadable(file string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w", b.shown(file), err)
}

// external leaves a module of Node's to the runtime, which says itself when it
// does not have it.
func (b *bundler) external(a api.OnResolveArgs, name string) api.OnResolveResult {
	b.node.add(strings.TrimPrefix(name, "node:"))
	if a.Kind == api.ResolveJSRequireCall {
		return api.OnResolveResult{Path: name, Namespace: nodeRequire}
	}
	return api.OnResolveResult{Path: name, External: true}
}

var nodeNames = func() map[string]bool {
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
	if nodeNames[first] && (first == name || name == "fs/promises" || name == "dns/promises" || name == "stream/promises" ||
		name == "stream/web" || name == "stream/consumers" || name == "timers/promises" || name == "path/posix" ||
		name == "path/win32" || name == "util/types" || name == "assert/strict" || name == "readline/promises") {
		return "node:" + name, true
	}
	return "", false
}
