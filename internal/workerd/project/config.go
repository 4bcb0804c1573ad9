package project

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/wrangler"
)

// The names of a configuration, in the order in which they are looked for.
var configNames = []string{"wrangler.jsonc", "wrangler.json"}

// ConfigError is something wrong in a project's configuration, and where.
type ConfigError = wrangler.ConfigError

// Config is what a Wrangler configuration asks for.
type Config struct {
	Name               string
	Main               string // relative to the project, as written; empty: assets only
	CompatibilityDate  string
	CompatibilityFlags []string
	Vars               map[string]json.RawMessage
	DurableObjects     []layout.DurableObject
	Classes            []layout.Class
	Assets             *Assets
	Services           layout.Services
	Define             map[string]string
	Rules              []wrangler.Rule
	NoBundle           bool

	databases []database
}

// Assets is the `assets` key.
type Assets struct {
	Directory        string
	Binding          string
	HTMLHandling     string
	NotFoundHandling string
	RunWorkerFirst   json.RawMessage

	at *wrangler.Value
}

// Project is a directory with its configuration.
type Project struct {
	Dir    string // absolute, links followed
	File   string // the configuration's name, for messages
	Config Config

	mainAt *wrangler.Value
}

// Open reads the configuration of a project: path is its directory, or the
// configuration itself.
func Open(path string) (*Project, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("project: %w", err)
	}
	dir, names := path, configNames
	if !info.IsDir() {
		dir, names = filepath.Dir(path), []string{filepath.Base(path)}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := readConfig(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p := &Project{Dir: dir, File: name}
		return p, p.read(text)
	}
	if _, err := os.Stat(filepath.Join(dir, "wrangler.toml")); err == nil {
		return nil, fmt.Errorf("%s has only a wrangler.toml: convert it to wrangler.jsonc", path)
	}
	return nil, fmt.Errorf("%s has neither wrangler.jsonc nor wrangler.json", path)
}

func readConfig(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > wrangler.MaxConfig {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", filepath.Base(name), wrangler.MaxConfig)
	}
	return os.ReadFile(name)
}

// read fills the configuration from its text.
func (p *Project) read(text []byte) error {
	v, err := wrangler.Parse(p.File, text)
	if err != nil {
		return err
	}
	if v.Kind != '{' {
		return v.Errorf("the configuration is %s, want an object", v.KindName())
	}
	c := &p.Config
	var bindings []boundClass
	var migrated []migration
	var scripts servicesAt
	taken := map[string]func(*wrangler.Value) error{
		"$schema":            func(*wrangler.Value) error { return nil },
		"name":               wrangler.Into("name", &c.Name),
		"main":               func(v *wrangler.Value) (err error) { p.mainAt = v; c.Main, err = v.Text("main"); return err },
		"compatibility_date": wrangler.Into("compatibility_date", &c.CompatibilityDate),
		"compatibility_flags": func(v *wrangler.Value) (err error) {
			c.CompatibilityFlags, err = v.Texts("compatibility_flags")
			return err
		},
		"no_bundle":       func(v *wrangler.Value) (err error) { c.NoBundle, err = v.Bool("no_bundle"); return err },
		"vars":            func(v *wrangler.Value) (err error) { c.Vars, err = readVars(v); return err },
		"define":          func(v *wrangler.Value) (err error) { c.Define, err = readDefine(v); return err },
		"rules":           func(v *wrangler.Value) (err error) { c.Rules, err = wrangler.ReadRules(v); return err },
		"assets":          func(v *wrangler.Value) (err error) { c.Assets, err = readAssets(v); return err },
		"migrations":      func(v *wrangler.Value) (err error) { migrated, err = readMigrations(v); return err },
		"durable_objects": func(v *wrangler.Value) (err error) { bindings, err = readBindings(v, &scripts); return err },
	}
	maps.Copy(taken, c.takeServices(&scripts))
	for i := range v.Fields {
		m := &v.Fields[i]
		fn, ok := taken[m.Name]
		if !ok {
			return refuseKey(m, taken)
		}
		if err := fn(m.Value); err != nil {
			return err
		}
	}
	if c.Name != "" {
		if err := scripts.check(c.Name); err != nil {
			return err
		}
	}
	if c.Classes, err = classes(migrated); err != nil {
		return err
	}
	if err := c.bind(bindings); err != nil {
		return err
	}
	return p.complete(v)
}

// complete checks what concerns several keys.
func (p *Project) complete(top *wrangler.Value) error {
	c := &p.Config
	at := func(key string) *wrangler.Value {
		for i := range top.Fields {
			if top.Fields[i].Name == key {
				return top.Fields[i].Value
			}
		}
		return top
	}
	switch {
	case c.Name == "":
		return at("name").Errorf(`"name" is missing`)
	case !layout.ValidScript(c.Name):
		return at("name").Errorf("name %q: want letters, digits, hyphens and underscores, at most 63, no hyphen in front", c.Name)
	case c.CompatibilityDate == "":
		return at("compatibility_date").Errorf(`"compatibility_date" is missing: set it to the day on which the Worker was last tested, as YYYY-MM-DD`)
	case c.Main == "" && c.Assets == nil:
		return at("main").Errorf(`neither "main" nor "assets": there is nothing to serve`)
	case c.Main == "" && (len(c.DurableObjects) > 0 || len(c.Classes) > 0):
		return at("main").Errorf(`Durable Objects need a Worker: "main" is missing`)
	case c.Main == "" && c.needWorker() != "":
		return at("main").Errorf(`%s: "main" is missing, and there is no Worker to serve them`, c.needWorker())
	case c.Assets != nil && c.Main == "" && c.Assets.Binding != "":
		return c.Assets.at.Errorf(`assets.binding needs a Worker: "main" is missing`)
	case c.Assets != nil && c.Main == "" && len(c.Assets.RunWorkerFirst) > 0 && string(c.Assets.RunWorkerFirst) != "false":
		return c.Assets.at.Errorf(`assets.run_worker_first needs a Worker: "main" is missing`)
	}
	if _, err := time.Parse(time.DateOnly, c.CompatibilityDate); err != nil {
		return at("compatibility_date").Errorf("compatibility_date %q is no day as YYYY-MM-DD", c.CompatibilityDate)
	}
	names := map[string]string{}
	for _, b := range c.bindingNames() {
		if by, ok := names[b[0]]; ok {
			return top.Errorf("the binding %q is given by %s and by %s", b[0], by, b[1])
		}
		names[b[0]] = b[1]
	}
	return nil
}

// bindingNames lists every binding with the key that gives it.
func (c *Config) bindingNames() [][2]string {
	var out [][2]string
	for name := range c.Vars {
		out = append(out, [2]string{name, "vars"})
	}
	for _, d := range c.DurableObjects {
		out = append(out, [2]string{d.Binding, "durable_objects"})
	}
	if c.Assets != nil && c.Assets.Binding != "" {
		out = append(out, [2]string{c.Assets.Binding, "assets"})
	}
	return append(out, c.serviceNames()...)
}

func readVars(v *wrangler.Value) (map[string]json.RawMessage, error) {
	if v.Kind != '{' {
		return nil, v.Errorf("vars is %s, want an object", v.KindName())
	}
	out := map[string]json.RawMessage{}
	for _, m := range v.Fields {
		if m.Name == "" {
			return nil, m.Errorf("a variable without a name")
		}
		out[m.Name] = m.Value.Raw
	}
	return out, nil
}

func readDefine(v *wrangler.Value) (map[string]string, error) {
	if v.Kind != '{' {
		return nil, v.Errorf("define is %s, want an object", v.KindName())
	}
	out := map[string]string{}
	for _, m := range v.Fields {
		s, err := m.Value.Text("define." + m.Name)
		if err != nil {
			return nil, err
		}
		out[m.Name] = s
	}
	return out, nil
}

func readAssets(v *wrangler.Value) (*Assets, error) {
	a := &Assets{at: v}
	err := v.Object("assets", map[string]func(*wrangler.Value) error{
		"directory": wrangler.Into("assets.directory", &a.Directory),
		"binding":   wrangler.Into("assets.binding", &a.Binding),
		"html_handling": wrangler.OneOf("assets.html_handling", &a.HTMLHandling,
			"auto-trailing-slash", "force-trailing-slash", "drop-trailing-slash", "none"),
		"not_found_handling": wrangler.OneOf("assets.not_found_handling", &a.NotFoundHandling,
			"single-page-application", "404-page", "none"),
		"run_worker_first": func(v *wrangler.Value) error {
			a.RunWorkerFirst = v.Raw
			if v.Kind == '[' {
				_, err := v.Texts("assets.run_worker_first")
				return err
			}
			_, err := v.Bool("assets.run_worker_first")
			return err
		},
	})
	if err == nil && a.Directory == "" {
		err = v.Errorf(`assets has no "directory"`)
	}
	return a, err
}
