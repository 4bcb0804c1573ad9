// Package bundle makes the modules of a Worker from its main module, as Wrangler
// does, with esbuild as a library.
package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"

	"github.com/scafo/scafo/internal/wrangler"
)

// MainModule is what the main module of a bundle is called.
const MainModule = "index.js"

// maxModules bounds how many files the rules may name when nothing is bundled.
const maxModules = 1_000

// ErrOutside is the answer of [Options.Reach] for a file that the project may not
// reach.
var ErrOutside = errors.New("it lies outside the project")

// Options say what is bundled, and how.
type Options struct {
	Dir        string // the project, absolute, links followed; names are shown relative to it
	Entry      string // the main module, absolute, links followed
	Define     map[string]string
	Rules      []wrangler.Rule
	NoBundle   bool // take the modules as they are
	NodeCompat bool // Node's modules may be named without node:
	// NotBelow is a directory without modules, absolute; empty for none.
	NotBelow string
	// Additional is a directory below which every file that the rules match goes along
	// as a module of its own, named by its path there, also when something is bundled:
	// what is imported by a computed name cannot be seen otherwise. Absolute, links
	// followed; empty for none.
	Additional string
	// Reach decides about each file that the build is going to read, links
	// followed; an error ends the build. It is called by several goroutines. Nil
	// lets everything pass. A file in an archive of Yarn's is named by the archive's
	// path and its own in there.
	Reach func(file string) error
	// Imported is told of each import, before it is resolved, by several
	// goroutines. Nil is told nothing.
	Imported func(dir, specifier string)

	Alias       map[string]string
	JSXFactory  string
	JSXFragment string
	TSConfig    string // absolute; empty: the one beside each file
}

// Module is one module of the Worker.
type Module struct {
	Name string // relative to the main module's directory
	Type wrangler.ModuleType
	Body []byte
}

// Result is a Worker's modules.
type Result struct {
	Main     string
	Modules  []Module // the main one first when it was bundled, else by name
	Exports  []string // of the main module; empty without bundling
	Map      *SourceMap
	Warnings []string
	// Node are the modules of Node's that are left to the runtime, without `node:`,
	// sorted; `process` also where only the global may be meant.
	Node []string
}

// Error is a Worker that cannot be bundled.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Run makes the modules.
func Run(ctx context.Context, o Options) (*Result, error) {
	b := &bundler{o: o, main: MainModule}
	var err error
	if b.rules, err = wrangler.NewMatcher(o.Rules); err != nil {
		return nil, err
	}
	r := new(Result)
	if o.NoBundle {
		err = b.unbundled(ctx, r)
	} else {
		err = b.bundled(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	r.Warnings = b.warnings
	for _, m := range r.Modules {
		if bytes.Contains(m.Body, []byte("process.")) {
			b.node.add("process")
		}
	}
	r.Node = b.node.sorted()
	return r, nil
}

// bundler builds one project's modules.
type bundler struct {
	o        Options
	main     string // what the main module is called
	rules    wrangler.Matcher
	warnings []string
	extra    extraModules
	node     nodeModules
	// additional are names of modules by file, settled before the build starts.
	additional map[string]string
}

func (b *bundler) options() api.BuildOptions {
	define := map[string]string{
		"navigator.userAgent":  `"Cloudflare-Workers"`,
		"process.env.NODE_ENV": `"production"`,
	}
	maps.Copy(define, b.o.Define)
	return api.BuildOptions{
		EntryPoints: []string{b.o.Entry}, AbsWorkingDir: b.o.Dir, Outfile: filepath.Join(b.o.Dir, b.main),
		Bundle: true, Format: api.FormatESModule, Target: api.ES2024, Platform: api.PlatformBrowser,
		Conditions: []string{"workerd", "worker", "browser"},
		External:   []string{"cloudflare:*"},
		Define:     define, KeepNames: true, Metafile: true, LogLevel: api.LogLevelSilent,
		Alias: b.o.Alias, JSXFactory: b.o.JSXFactory, JSXFragment: b.o.JSXFragment, Tsconfig: b.o.TSConfig,
		Loader:    map[string]api.Loader{".js": api.LoaderJSX, ".mjs": api.LoaderJSX, ".cjs": api.LoaderJSX},
		Sourcemap: api.SourceMapExternal, SourcesContent: api.SourcesContentExclude,
		LegalComments: api.LegalCommentsNone, Charset: api.CharsetUTF8,
		Plugins: []api.Plugin{b.plugin()},
	}
}

// metafile is what is read of esbuild's account of a build.
type metafile struct {
	Inputs  map[string]struct{} `json:"inputs"`
	Outputs map[string]struct {
		EntryPoint string   `json:"entryPoint"`
		Exports    []string `json:"exports"`
	} `json:"outputs"`
}

// run builds and translates the errors.
func (b *bundler) run(ctx context.Context, o api.BuildOptions) (api.BuildResult, metafile, error) {
	if err := ctx.Err(); err != nil {
		return api.BuildResult{}, metafile{}, err
	}
	build, ctxErr := api.Context(o)
	if ctxErr != nil {
		return api.BuildResult{}, metafile{}, b.failed(ctxErr.Errors)
	}
	defer build.Dispose()
	stop := context.AfterFunc(ctx, build.Cancel)
	r := build.Rebuild()
	stop()
	if err := ctx.Err(); err != nil {
		return r, metafile{}, err
	}
	if len(r.Errors) > 0 {
		return r, metafile{}, b.failed(r.Errors)
	}
	for _, w := range r.Warnings {
		b.warnings = append(b.warnings, b.message(w))
	}
	var meta metafile
	return r, meta, json.Unmarshal([]byte(r.Metafile), &meta)
}

// bundled makes one main module of all that the entry reaches.
func (b *bundler) bundled(ctx context.Context, out *Result) error {
	if err := b.findAdditional(); err != nil {
		return err
	}
	r, meta, err := b.run(ctx, b.options())
	if err != nil {
		return err
	}
	main := Module{Name: b.main, Type: wrangler.ESModule}
	for _, f := range r.OutputFiles {
		switch filepath.Base(f.Path) {
		case b.main:
			main.Body = f.Contents
		case b.main + ".map":
			if out.Map, err = ParseSourceMap(b.main, f.Contents); err != nil {
				return err
			}
		}
	}
	out.Main, out.Exports = b.main, meta.Outputs[b.main].Exports
	out.Modules = append(out.Modules, main)
	for _, x := range b.extra.sorted() {
		out.Modules = append(out.Modules, Module{Name: x.name, Type: x.kind, Body: x.body})
	}
	return nil
}

// findAdditional makes modules of the files that go along whether an import names
// them or not.
func (b *bundler) findAdditional() error {
	if b.o.Additional == "" {
		return nil
	}
	b.additional = map[string]string{}
	found := map[string]wrangler.ModuleType{}
	err := b.scan(b.o.Additional, found, func(file string, kind wrangler.ModuleType) error {
		rel, err := filepath.Rel(b.o.Additional, file)
		if err != nil || file == b.o.Entry {
			return err
		}
		body, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		found[name] = kind
		b.additional[file] = name
		b.extra.add(extraModule{name: name, file: file, kind: kind, body: body})
		return nil
	})
	for found[b.main] != "" {
		b.main = "main-" + b.main
	}
	return err
}

// unbundled takes the modules as they are: the main one, those that it reaches
// by relative imports, and those that the rules name.
func (b *bundler) unbundled(ctx context.Context, out *Result) error {
	o := b.options()
	o.Packages = api.PackagesExternal
	_, meta, err := b.run(ctx, o)
	if err != nil {
		return err
	}
	base := filepath.Dir(b.o.Entry)
	found := map[string]wrangler.ModuleType{}
	add := func(file string, kind wrangler.ModuleType) error {
		rel, err := filepath.Rel(base, file)
		if err != nil || !filepath.IsLocal(rel) {
			return fmt.Errorf("%s: without bundling, modules lie beside main or below it", b.shown(file))
		}
		found[filepath.ToSlash(rel)] = kind
		return nil
	}
	for in := range meta.Inputs {
		file := filepath.Join(b.o.Dir, filepath.FromSlash(in))
		// Neither a namespace of the plugin's nor a module of another type.
		if strings.Contains(in, ":") || b.extra.has(strings.TrimSuffix(file, "?module")) {
			continue
		}
		kind, ok := sourceKind(in)
		if !ok {
			return fmt.Errorf("%s: without bundling, only JavaScript runs", in)
		}
		if err := add(file, kind); err != nil {
			return err
		}
	}
	for _, x := range b.extra.sorted() {
		if err := add(x.file, x.kind); err != nil {
			return err
		}
	}
	if err := b.scan(base, found, add); err != nil {
		return err
	}
	out.Main = filepath.Base(b.o.Entry)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		body, err := os.ReadFile(filepath.Join(base, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		out.Modules = append(out.Modules, Module{Name: name, Type: found[name], Body: body})
	}
	return nil
}

// sourceKind is how a file that was reached by an import is loaded unbundled.
func sourceKind(name string) (wrangler.ModuleType, bool) {
	switch path.Ext(name) {
	case ".js", ".mjs":
		return wrangler.ESModule, true
	case ".cjs":
		return wrangler.CommonJS, true
	case ".json":
		return wrangler.JSON, true
	}
	return "", false
}

// scan adds the files below the main module that the rules name: what is
// imported by a computed name cannot be seen otherwise. Assets, packages and
// hidden files are no modules.
func (b *bundler) scan(base string, found map[string]wrangler.ModuleType, add func(string, wrangler.ModuleType) error) error {
	return filepath.WalkDir(base, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name == base {
			return nil
		}
		if strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || name == b.o.NotBelow {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(base, name)
		if err != nil {
			return err
		}
		if _, ok := found[filepath.ToSlash(rel)]; ok {
			return nil
		}
		kind, ok := b.rules.Match(filepath.ToSlash(rel))
		if !ok {
			return nil
		}
		if len(found) > maxModules {
			return fmt.Errorf("more than %d modules below %s", maxModules, b.shown(base))
		}
		if err := b.reach(name); err != nil {
			return err
		}
		return add(name, kind)
	})
}

// reach asks whether the build may read a file.
func (b *bundler) reach(file string) error {
	if b.o.Reach == nil {
		return nil
	}
	return b.o.Reach(file)
}

// shown is a path as the user knows it.
func (b *bundler) shown(name string) string {
	rel, err := filepath.Rel(b.o.Dir, name)
	if err != nil || !filepath.IsLocal(rel) && b.reach(name) != nil {
		return name
	}
	return filepath.ToSlash(rel)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
