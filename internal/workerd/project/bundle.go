package project

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/wrangler"
	"github.com/scafo/scafo/internal/wrangler/bundle"
)

// Product is what manifests name as their maker.
const Product = "celld-workerd"

// Built is a project that was built.
type Built struct {
	Bundle   *layout.Bundle    // not sealed yet: its assets may still be missing
	Warnings []string          // of the bundler
	Map      *bundle.SourceMap // of the main module; nil without bundling
}

// Build makes the modules and the manifest, sealed but for the assets: these come
// from [Project.CollectAssets], which may run beside it, and [Built.Seal] joins
// them.
func (p *Project) Build(ctx context.Context) (*Built, error) {
	c := &p.Config
	m := &layout.Manifest{
		Product: Product, ScriptName: c.Name,
		CompatibilityDate: c.CompatibilityDate, CompatibilityFlags: c.CompatibilityFlags,
		Modules: []layout.Module{}, Vars: c.Vars, DurableObjects: c.DurableObjects, Classes: c.Classes,
		Services: c.Services,
	}
	var err error
	if m.Migrations, err = p.migrations(); err != nil {
		return nil, err
	}
	m.SetFormat()
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
	r, err := bundle.Run(ctx, p.bundling(entry))
	if err != nil {
		return nil, err
	}
	if !c.NoBundle && len(r.Exports) == 0 {
		return nil, p.mainAt.Errorf("main %q exports nothing: want a module Worker, `export default { fetch(request, env, ctx) { … } }`", c.Main)
	}
	m.Main, out.Warnings, out.Map = r.Main, r.Warnings, r.Map
	if r.Map != nil {
		out.Bundle.SourceMap = r.Map.Text
	}
	m.CompatibilityFlags = slices.Concat(m.CompatibilityFlags, wrangler.NodeFlags(c.CompatibilityDate, c.CompatibilityFlags, r.Node))
	for _, x := range r.Modules {
		if err := layout.ValidModuleName(x.Name); err != nil {
			return nil, err
		}
		m.Modules = append(m.Modules, layout.Module{Name: x.Name, Type: moduleTypes[x.Type]})
		out.Bundle.Contents[x.Name] = x.Body
	}
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
		return "", p.mainAt.Errorf("main %q: %v", c.Main, err)
	}
	if info, err := os.Stat(real); err != nil || !info.Mode().IsRegular() {
		return "", p.mainAt.Errorf("main %q is no file", c.Main)
	}
	if strings.HasSuffix(real, ".py") {
		return "", p.mainAt.Errorf("main %q: Workers in Python are not served", c.Main)
	}
	return real, nil
}

// moduleTypes are the manifest's names of the types of modules.
var moduleTypes = map[wrangler.ModuleType]layout.ModuleType{
	wrangler.ESModule: layout.ESModule, wrangler.CommonJS: layout.CommonJS, wrangler.Text: layout.Text,
	wrangler.Data: layout.Data, wrangler.CompiledWasm: layout.Wasm, wrangler.JSON: layout.JSON,
}

// bundling says how the project is bundled: out of nothing but its own files.
func (p *Project) bundling(entry string) bundle.Options {
	c := &p.Config
	o := bundle.Options{
		Dir: p.Dir, Entry: entry, Define: c.Define, Rules: c.Rules, NoBundle: c.NoBundle,
		NodeCompat: wrangler.NodeCompat(c.CompatibilityDate, c.CompatibilityFlags),
		Reach: func(file string) error {
			_, err := p.inside(file)
			return err
		},
	}
	if c.Assets != nil {
		o.NotBelow = filepath.Join(p.Dir, filepath.FromSlash(c.Assets.Directory))
	}
	return o
}
