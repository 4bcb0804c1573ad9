// Package pack makes of a Wrangler project the artifact that a node deploys: what
// the build reads and nothing else, with the configuration as a runtime takes it.
// The project itself is only read.
package pack

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/wrangler"
	"github.com/scafo/scafo/internal/wrangler/bundle"
)

// Options say what is packed, and how.
type Options struct {
	Path     string            // the project's directory, or its configuration
	Name     string            // of the application; empty: the configuration's
	Env      string            // the environment; empty: none
	Vars     map[string]string // set beside the configuration's
	NoBundle bool              // send the modules as they are
	NoBuild  bool              // do not run build.command
	Strict   bool              // refuse keys that would be left out
	// NoMigrations sends no migrations of D1 databases.
	NoMigrations bool
	// Output takes what the build command prints; nil drops it.
	Output io.Writer
	// Progress is told what takes long; nil is told nothing.
	Progress func(step string)
}

// Package is a project that was packed.
type Package struct {
	Name  string // of the application
	Files []File // sorted by path
	Bytes int64  // of all files
	// Notes say what was left out or done differently, a line each.
	Notes []string
	// Warnings are the bundler's.
	Warnings []string

	// dirs are directories that the resolver wants to see though nothing in them is
	// packed: without them it does not apply the `browser` field of a package.json to
	// what is imported from there.
	dirs   []string
	config *config
	// noMigrations: those of D1 databases stay here.
	noMigrations bool
	positions    *wrangler.Positions
	sourceMap    *bundle.SourceMap // of a Worker that was bundled here
}

// Names of what is made here, at the artifact's root.
const (
	workerDir = "scafo-worker"
	assetsDir = "scafo-assets"
	sqlDir    = "scafo-migrations"
)

// Project is a project whose configuration was read, and nothing else yet.
type Project struct {
	Name    string // of the application
	options Options
	config  *config
}

// Run packs a project.
func Run(ctx context.Context, o Options) (*Package, error) {
	p, err := Load(o)
	if err != nil {
		return nil, err
	}
	return p.Pack(ctx)
}

// Load reads a project's configuration and checks what needs nothing else.
func Load(o Options) (*Project, error) {
	if o.Output == nil {
		o.Output = io.Discard
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	f, err := find(o.Path)
	if err != nil {
		return nil, err
	}
	p := &Project{options: o}
	if p.config, err = load(f, &o); err != nil {
		return nil, err
	}
	if p.Name, err = p.config.name(); err != nil {
		return nil, err
	}
	return p, p.config.check()
}

// Dir is the project's directory, absolute, links followed.
func (p *Project) Dir() string { return p.config.root }

// Pack builds the project and packs it. It is called once.
func (p *Project) Pack(ctx context.Context) (*Package, error) {
	c := p.config
	out := &Package{Name: p.Name, config: c, noMigrations: p.options.NoMigrations}
	if !p.options.NoBuild {
		if err := c.runBuild(ctx, p.options.Output, p.options.Progress); err != nil {
			return nil, err
		}
	}
	if err := out.worker(ctx); err != nil {
		return nil, err
	}
	if err := out.assets(); err != nil {
		return nil, err
	}
	if err := out.migrations(); err != nil {
		return nil, err
	}
	body, positions := wrangler.Encode(c.doc)
	out.positions = positions
	out.Files = append(out.Files, File{Path: c.packedAs, Size: int64(len(body)), body: body})
	slices.SortFunc(out.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	for _, f := range out.Files {
		out.Bytes += f.Size
	}
	out.Notes = append(c.notes, out.Notes...)
	return out, nil
}

// name is the application's.
func (c *config) name() (string, error) {
	at := c.doc.Field("name")
	if at == nil {
		return "", c.doc.Errorf(`"name" is missing: add it, or give --name`)
	}
	s, err := at.Text("name")
	if err != nil {
		return "", err
	}
	if _, err := scafo.ParseApplicationName(s); err != nil {
		return "", at.Errorf("name %q names no application: want lower-case letters, digits and hyphens, at most 63, no hyphen at either end; --name gives another one", s)
	}
	return s, nil
}

// suggestedDate is what a configuration without a compatibility date is told to take: one
// that the runtime knows, which is older than the day on which somebody is told.
const suggestedDate = "2026-11-01"

// check looks for what every runtime refuses, before the build takes its time.
func (c *config) check() error {
	date := c.doc.Field("compatibility_date")
	if date == nil {
		return c.doc.Errorf(`"compatibility_date" is missing: add "compatibility_date": %q`, suggestedDate)
	}
	s, err := date.Text("compatibility_date")
	if err != nil {
		return err
	}
	if _, err := time.Parse(time.DateOnly, s); err != nil {
		return date.Errorf("compatibility_date %q is no day as YYYY-MM-DD", s)
	}
	if c.doc.Field("main") == nil && c.doc.Field("assets") == nil {
		return c.doc.Errorf(`neither "main" nor "assets": there is nothing to serve; if a build tool gives them, build the project first`)
	}
	return nil
}

// entryEndings are tried for a main without one.
var entryEndings = []string{".ts", ".tsx", ".js", ".jsx"}

// entry is the main module's file, links followed.
func (c *config) entry(at *wrangler.Value) (string, error) {
	main, err := at.Text("main")
	if err != nil {
		return "", err
	}
	name := filepath.FromSlash(main)
	if !filepath.IsAbs(name) {
		name = filepath.Join(c.base, name)
	}
	tries := []string{name}
	if filepath.Ext(name) == "" {
		for _, e := range entryEndings {
			tries = append(tries, name+e)
		}
	}
	for _, t := range tries {
		real, err := filepath.EvalSymlinks(t)
		if err != nil {
			continue
		}
		if info, err := os.Stat(real); err == nil && info.Mode().IsRegular() {
			if filepath.Ext(real) == ".py" {
				return "", at.Errorf("main %q: Workers in Python are not served", main)
			}
			return real, nil
		}
	}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return "", at.Errorf("main %q is a directory: name the file", main)
	}
	hint := "if a build makes it, build the project first"
	if c.build != nil {
		hint = "the build was to make it"
	}
	return "", at.Errorf("main %q is not there: %s", main, hint)
}

// worker packs the main module with all that it reaches.
func (p *Package) worker(ctx context.Context) error {
	c := p.config
	at := c.doc.Field("main")
	if at == nil {
		return nil
	}
	entry, err := c.entry(at)
	if err != nil {
		return err
	}
	k := newCollector(c.root)
	o, err := c.bundling(entry, k)
	if err != nil {
		return err
	}
	r, err := bundle.Run(ctx, o)
	if err != nil {
		return err
	}
	p.Warnings = r.Warnings
	if !o.NoBundle && len(r.Exports) == 0 {
		return at.Errorf("main exports nothing: want a module Worker, `export default { fetch(request, env, ctx) { … } }`")
	}
	outside := k.descriptions()
	if why := c.bundledHere(k, outside, o.NoBundle); why != "" {
		p.Notes = append(p.Notes, "bundled here, since "+why)
		p.bundled(r, at)
		return nil
	}
	rel, inside := k.rel(entry)
	if !inside {
		return at.Errorf("main lies outside the project, and nothing is bundled: bring it inside")
	}
	if main, _ := at.Text("main"); path.Clean(main) != rel || c.base != c.root {
		c.doc.Set("main", wrangler.Made(rel, at))
	}
	for rel := range k.files {
		if err := p.add(rel, filepath.Join(c.root, filepath.FromSlash(rel))); err != nil {
			return err
		}
	}
	p.dirs = k.empty()
	return nil
}

// bundledHere says why the Worker is bundled on this machine, or nothing.
func (c *config) bundledHere(k *collector, extends string, noBundle bool) string {
	switch {
	case noBundle:
		return ""
	case len(c.bundlerKeys) > 0:
		return "it sets " + strings.Join(c.bundlerKeys, ", ")
	case k.files[configNames[0]] || k.files[configNames[1]]:
		return "it imports its own configuration, which is sent in another form"
	case len(k.zipped) > 0:
		return "it imports out of " + first(k.zipped) + ", an archive of Yarn's"
	case len(k.outside) > 0:
		return "it imports " + first(k.outside) + ", which lies outside the folder"
	case len(k.linked) > 0:
		return "it imports through " + first(k.linked) + ", which is a link"
	case extends != "":
		return "a tsconfig.json extends " + extends + ", which lies outside the folder or behind a link"
	}
	return ""
}

// bundling says how the project is bundled, as the runtime will.
func (c *config) bundling(entry string, k *collector) (bundle.Options, error) {
	o := bundle.Options{Dir: c.root, Entry: entry, Reach: k.reach, Imported: k.imported}
	var err error
	read := func(name string, fn func(v *wrangler.Value)) {
		if v := c.doc.Field(name); v != nil && err == nil {
			fn(v)
		}
	}
	read("no_bundle", func(v *wrangler.Value) { o.NoBundle, err = v.Bool("no_bundle") })
	read("rules", func(v *wrangler.Value) { o.Rules, err = wrangler.ReadRules(v) })
	read("define", func(v *wrangler.Value) { o.Define, err = texts("define", v) })
	var flags []string
	read("compatibility_flags", func(v *wrangler.Value) {
		flags, err = v.Texts("compatibility_flags")
	})
	read("compatibility_date", func(v *wrangler.Value) {
		var date string
		date, err = v.Text("compatibility_date")
		o.NodeCompat = wrangler.NodeCompat(date, flags)
	})
	read("assets", func(v *wrangler.Value) {
		if d := v.Field("directory"); d != nil {
			var s string
			s, err = d.Text("assets.directory")
			o.NotBelow = filepath.Join(c.base, filepath.FromSlash(s))
		}
	})
	if err != nil {
		return o, err
	}
	if c.additional && !o.NoBundle || c.baseDir != nil && o.NoBundle {
		root, err := c.moduleRoot(entry)
		switch {
		case err != nil:
			return o, err
		case !o.NoBundle:
			o.Additional = root
		case root != filepath.Dir(entry):
			return o, c.baseDir.Errorf("unsupported key %q: without bundling, modules lie beside main or below it", "base_dir")
		}
	}
	if c.alias != nil {
		if o.Alias, err = texts("alias", c.alias); err != nil {
			return o, err
		}
	}
	for _, t := range []struct {
		name string
		v    *wrangler.Value
		to   *string
	}{{"jsx_factory", c.jsxFactory, &o.JSXFactory}, {"jsx_fragment", c.jsxFragment, &o.JSXFragment}, {"tsconfig", c.tsconfig, &o.TSConfig}} {
		if t.v == nil {
			continue
		}
		if *t.to, err = t.v.Text(t.name); err != nil {
			return o, err
		}
	}
	if o.TSConfig != "" && !filepath.IsAbs(o.TSConfig) {
		o.TSConfig = filepath.Join(c.base, filepath.FromSlash(o.TSConfig))
	}
	return o, nil
}

// moduleRoot is the directory whose modules go along: base_dir, or main's.
func (c *config) moduleRoot(entry string) (string, error) {
	if c.baseDir == nil {
		return filepath.Dir(entry), nil
	}
	rel, err := c.baseDir.Text("base_dir")
	if err != nil {
		return "", err
	}
	dir := filepath.FromSlash(rel)
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(c.base, dir)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err == nil {
		if info, serr := os.Stat(real); serr != nil || !info.IsDir() {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		return "", c.baseDir.Errorf("base_dir %q is no directory", rel)
	}
	return real, nil
}

// texts reads an object of strings.
func texts(what string, v *wrangler.Value) (map[string]string, error) {
	if v.Kind != '{' {
		return nil, v.Errorf("%s is %s, want an object", what, v.KindName())
	}
	out := map[string]string{}
	for _, m := range v.Fields {
		s, err := m.Value.Text(what + "." + m.Name)
		if err != nil {
			return nil, err
		}
		out[m.Name] = s
	}
	return out, nil
}

// bundled packs modules that were made here, and says so in the configuration.
func (p *Package) bundled(r *bundle.Result, main *wrangler.Value) {
	c := p.config
	dir := c.free(workerDir)
	rules := []map[string]any{}
	for _, m := range r.Modules {
		p.Files = append(p.Files, File{Path: path.Join(dir, m.Name), Size: int64(len(m.Body)), body: m.Body})
		if m.Name != r.Main {
			// By their very names: the project's own patterns were for its own paths.
			rules = append(rules, map[string]any{"type": m.Type, "globs": []string{"**/" + m.Name}, "fallthrough": true})
		}
	}
	p.sourceMap = r.Map
	c.doc.Set("main", wrangler.Made(path.Join(dir, r.Main), main))
	c.doc.Set("no_bundle", wrangler.Made(true, main))
	c.doc.Delete("define")
	c.doc.Delete("rules")
	if len(rules) > 0 {
		c.doc.Set("rules", wrangler.Made(rules, main))
	}
}

// free is a name at the root that the project does not have.
func (c *config) free(name string) string {
	for {
		if _, err := os.Lstat(filepath.Join(c.root, name)); err != nil {
			return name
		}
		name += "-"
	}
}

// add packs a file of the project.
func (p *Package) add(rel, source string) error {
	if why := secret(rel, source); why != "" {
		return &SecretError{rel, why}
	}
	if rel == p.config.packedAs || slices.Contains(configNames, rel) {
		return nil // the configuration is made anew
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	p.Files = append(p.Files, File{Path: rel, Size: info.Size(), Source: source})
	return nil
}

var configPlace = regexp.MustCompile(`(?:[A-Za-z0-9_./-]*/)?wrangler\.jsonc?:(\d+):(\d+)`)

// Explain leads the places in a runtime's sentence, which are those of what was
// packed, back to the user's own files.
func (p *Package) Explain(text string) string {
	text = configPlace.ReplaceAllStringFunc(text, func(s string) string {
		m := configPlace.FindStringSubmatch(s)
		line, err1 := strconv.Atoi(m[1])
		column, err2 := strconv.Atoi(m[2])
		if err1 != nil || err2 != nil {
			return s
		}
		if at, ok := p.positions.Origin(line, column); ok {
			return at
		}
		return p.config.file
	})
	return p.sourceMap.Rewrite(text)
}

// Size is a number of bytes as a person reads it.
func Size(n int64) string {
	const unit = 1000
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n), -1
	for f >= unit && i < 3 {
		f /= unit
		i++
	}
	return fmt.Sprintf("%.1f %cB", f, "KMGT"[i])
}
