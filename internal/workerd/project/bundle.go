package project

import (
	"context"
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

	"github.com/scafo/scafo/internal/workerd/layout"
)

// Product is what manifests name as their maker.
const Product = "celld-workerd"

// mainModule is what a bundle's main module is called.
const mainModule = "index.js"

// Built is a project that was built.
type Built struct {
	Bundle   *layout.Bundle // not sealed yet: its assets may still be missing
	Warnings []string       // of the bundler
	Map      *SourceMap     // of the main module; nil without bundling
}

// Build makes the modules and the manifest, sealed but for the assets: these come
// from [Project.CollectAssets], which may run beside it, and [Built.Seal] joins
// them.
func (p *Project) Build(ctx context.Context) (*Built, error) {
	c := &p.Config
	m := &layout.Manifest{
		V: layout.ManifestVersion, Product: Product, ScriptName: c.Name,
		CompatibilityDate: c.CompatibilityDate, CompatibilityFlags: c.CompatibilityFlags,
		Modules: []layout.Module{}, Vars: c.Vars, DurableObjects: c.DurableObjects, Classes: c.Classes,
	}
	if c.Assets != nil {
		m.Assets = c.Assets.manifest()
	}
	out := &Built{Bundle: &layout.Bundle{Manifest: m, Contents: map[string][]byte{}}}
	if c.Main == "" {
		return out, nil
	}
	entry, err := p.entry()
	if err != nil {
		return nil, err
	}
	b := &bundler{project: p, bundle: out.Bundle, entry: entry}
	if b.rules, err = newMatcher(c.Rules); err != nil {
		return nil, err
	}
	if c.NoBundle {
		err = b.unbundled(ctx)
	} else {
		out.Map, err = b.bundled(ctx)
	}
	if err != nil {
		return nil, err
	}
	out.Warnings = b.warnings
	total := 0
	for _, body := range out.Bundle.Contents {
		total += len(body)
	}
	if total > layout.MaxModule {
		return nil, fmt.Errorf("the Worker's modules have %d bytes; they may have %d MiB", total, layout.MaxModule>>20)
	}
	return out, out.Bundle.SealModules()
}

// CollectedAssets are a project's assets, read and hashed.
type CollectedAssets struct {
	assets *layout.Assets
	files  []layout.AssetFile
}

// CollectAssets reads and hashes the assets; nil when the project has none.
func (p *Project) CollectAssets(ctx context.Context) (*CollectedAssets, error) {
	if p.Config.Assets == nil {
		return nil, nil
	}
	a, files, err := p.collectAssets(ctx)
	if err != nil {
		return nil, err
	}
	return &CollectedAssets{a, files}, nil
}

// Seal puts the assets into the bundle and computes its digests and version.
func (b *Built) Seal(a *CollectedAssets) error {
	if a != nil {
		b.Bundle.Manifest.Assets, b.Bundle.Assets = a.assets, a.files
	}
	return b.Bundle.Seal()
}

// entry is the main module's file, links followed.
func (p *Project) entry() (string, error) {
	c := &p.Config
	name := filepath.Join(p.Dir, filepath.FromSlash(c.Main))
	real, err := p.inside(name)
	if err != nil {
		return "", p.mainAt.errorf("main %q: %v", c.Main, err)
	}
	if info, err := os.Stat(real); err != nil || !info.Mode().IsRegular() {
		return "", p.mainAt.errorf("main %q is no file", c.Main)
	}
	if strings.HasSuffix(real, ".py") {
		return "", p.mainAt.errorf("main %q: Workers in Python are not served", c.Main)
	}
	return real, nil
}

// bundler builds one project's modules.
type bundler struct {
	project  *Project
	bundle   *layout.Bundle
	entry    string
	rules    matcher
	warnings []string
	extra    extraModules
}

func (b *bundler) options() api.BuildOptions {
	p := b.project
	define := map[string]string{
		"navigator.userAgent":  `"Cloudflare-Workers"`,
		"process.env.NODE_ENV": `"production"`,
	}
	maps.Copy(define, p.Config.Define)
	return api.BuildOptions{
		EntryPoints: []string{b.entry}, AbsWorkingDir: p.Dir, Outfile: filepath.Join(p.Dir, mainModule),
		Bundle: true, Format: api.FormatESModule, Target: api.ES2024, Platform: api.PlatformBrowser,
		Conditions: []string{"workerd", "worker", "browser"},
		External:   []string{"cloudflare:*"},
		Define:     define, KeepNames: true, Metafile: true, LogLevel: api.LogLevelSilent,
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

// maxErrors is how many errors of a build are shown.
const maxErrors = 10

func (b *bundler) failed(errs []api.Message) error {
	var out []error
	for i, e := range errs {
		if i == maxErrors {
			out = append(out, fmt.Errorf("and %d more", len(errs)-i))
			break
		}
		out = append(out, errors.New(b.message(e)))
	}
	return &BuildError{errors.Join(out...)}
}

// BuildError is a project that cannot be bundled.
type BuildError struct{ Err error }

func (e *BuildError) Error() string { return e.Err.Error() }
func (e *BuildError) Unwrap() error { return e.Err }

// message renders a message of esbuild's with where it points to.
func (b *bundler) message(m api.Message) string {
	l := m.Location
	if l == nil {
		return m.Text
	}
	if !filepath.IsLocal(l.File) && (l.Namespace == "" || l.Namespace == "file") {
		// A tsconfig.json may extend anything. What is in there is not shown.
		return b.outside(l.File, errOutside).Error()
	}
	s := fmt.Sprintf("%s:%d:%d: %s", l.File, l.Line, l.Column+1, m.Text)
	if line := strings.TrimSpace(l.LineText); line != "" && len(line) <= maxShownLine {
		s += "\n    " + line
	}
	if name, ok := unresolvedPackage(m.Text); ok {
		s += fmt.Sprintf("\n  is the package %q installed? run npm install in the project before you deploy", name)
	}
	return s
}

// maxShownLine is the longest line of a source that is shown with an error.
const maxShownLine = 120

// unresolvedPackage is the package that a message says cannot be found.
func unresolvedPackage(text string) (string, bool) {
	rest, ok := strings.CutPrefix(text, `Could not resolve "`)
	name, _, found := strings.Cut(rest, `"`)
	return name, ok && found && !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "/")
}

// bundled makes one main module of all that the entry reaches.
func (b *bundler) bundled(ctx context.Context) (*SourceMap, error) {
	r, meta, err := b.run(ctx, b.options())
	if err != nil {
		return nil, err
	}
	var sm *SourceMap
	for _, f := range r.OutputFiles {
		switch filepath.Base(f.Path) {
		case mainModule:
			b.bundle.Contents[mainModule] = f.Contents
		case mainModule + ".map":
			if sm, err = parseSourceMap(mainModule, f.Contents); err != nil {
				return nil, err
			}
		}
	}
	if len(meta.Outputs[mainModule].Exports) == 0 {
		return nil, b.project.mainAt.errorf("main %q exports nothing: want a module Worker, `export default { fetch(request, env, ctx) { … } }`", b.project.Config.Main)
	}
	m := b.bundle.Manifest
	m.Main = mainModule
	m.Modules = append(m.Modules, layout.Module{Name: mainModule, Type: layout.ESModule})
	for _, x := range b.extra.sorted() {
		m.Modules = append(m.Modules, layout.Module{Name: x.name, Type: x.kind})
		b.bundle.Contents[x.name] = x.body
	}
	return sm, nil
}

// unbundled takes the modules as they are: the main one, those that it reaches
// by relative imports, and those that the rules name.
func (b *bundler) unbundled(ctx context.Context) error {
	o := b.options()
	o.Packages = api.PackagesExternal
	_, meta, err := b.run(ctx, o)
	if err != nil {
		return err
	}
	base := filepath.Dir(b.entry)
	found := map[string]layout.ModuleType{}
	add := func(file string, kind layout.ModuleType) error {
		rel, err := filepath.Rel(base, file)
		if err != nil || !filepath.IsLocal(rel) {
			return fmt.Errorf("%s: without bundling, modules lie beside main or below it", b.project.shown(file))
		}
		found[filepath.ToSlash(rel)] = kind
		return nil
	}
	for in := range meta.Inputs {
		if strings.Contains(in, ":") { // a namespace of the plugin's, no file
			continue
		}
		kind, ok := sourceKind(in)
		if !ok {
			return fmt.Errorf("%s: without bundling, only JavaScript runs", in)
		}
		if err := add(filepath.Join(b.project.Dir, filepath.FromSlash(in)), kind); err != nil {
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
	m := b.bundle.Manifest
	m.Main = filepath.Base(b.entry)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		body, err := os.ReadFile(filepath.Join(base, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if err := layout.ValidModuleName(name); err != nil {
			return err
		}
		m.Modules = append(m.Modules, layout.Module{Name: name, Type: found[name]})
		b.bundle.Contents[name] = body
	}
	return nil
}

// sourceKind is how a file that was reached by an import is loaded unbundled.
func sourceKind(name string) (layout.ModuleType, bool) {
	switch path.Ext(name) {
	case ".js", ".mjs":
		return layout.ESModule, true
	case ".cjs":
		return layout.CommonJS, true
	case ".json":
		return layout.JSON, true
	}
	return "", false
}

// scan adds the files below the main module that the rules name: what is
// imported by a computed name cannot be seen otherwise. Assets, packages and
// hidden files are no modules.
func (b *bundler) scan(base string, found map[string]layout.ModuleType, add func(string, layout.ModuleType) error) error {
	p := b.project
	assets := ""
	if a := p.Config.Assets; a != nil {
		assets = filepath.Join(p.Dir, filepath.FromSlash(a.Directory))
	}
	return filepath.WalkDir(base, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name == base {
			return nil
		}
		if strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || name == assets {
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
		if kind, ok := b.rules.match(filepath.ToSlash(rel)); ok {
			if len(found) > layout.MaxModules {
				return fmt.Errorf("more than %d modules below %s", layout.MaxModules, p.shown(base))
			}
			return add(name, kind)
		}
		return nil
	})
}
