package pack

import (
	"fmt"
	"slices"
	"strings"

	"github.com/scafo/scafo/internal/wrangler"
)

// NoEnvironment is an --env that the configuration does not know.
type NoEnvironment struct {
	Name  string
	File  string
	Known []string
}

func (e *NoEnvironment) Error() string {
	s := fmt.Sprintf("%s has no environment %q", e.File, e.Name)
	if len(e.Known) > 0 {
		s += ": it has " + strings.Join(e.Known, ", ")
	}
	return s
}

// choose merges one environment into the top level, or leaves all of them out.
func (c *config) choose(name string) error {
	all := c.doc.Field("env")
	c.doc.Delete("env")
	if all != nil && all.Kind != '{' {
		return all.Errorf("env is %s, want an object", all.KindName())
	}
	if c.redirected {
		return c.checkTarget(name, all)
	}
	if name == "" {
		return nil
	}
	own := c.doc.Field("name")
	if all == nil {
		// The whole configuration, under the environment's name.
		c.note("%s has no environments: %q only changes the name", c.file, name)
		return c.suffix(own, name)
	}
	env := all.Field(name)
	if env == nil {
		e := &NoEnvironment{Name: name, File: c.file}
		for _, m := range all.Fields {
			e.Known = append(e.Known, m.Name)
		}
		slices.Sort(e.Known)
		return e
	}
	if env.Kind != '{' {
		return env.Errorf("env.%s is %s, want an object", name, env.KindName())
	}
	c.dropOwn(name, env)
	for _, m := range env.Fields {
		// The two ask for the same.
		if m.Name == "route" || m.Name == "routes" {
			c.doc.Delete("route")
			c.doc.Delete("routes")
		}
		c.doc.SetMember(m)
	}
	if env.Field("name") == nil {
		return c.suffix(own, name)
	}
	return nil
}

// suffix names an environment's Worker after it.
func (c *config) suffix(own *wrangler.Value, env string) error {
	if own == nil {
		return nil // what is missing is said later
	}
	s, err := own.Text("name")
	if err != nil {
		return err
	}
	c.doc.Set("name", wrangler.Made(s+"-"+env, own))
	return nil
}

// dropOwn removes what the top level has for itself alone, and says what an
// environment lacks by that: it is seldom meant.
func (c *config) dropOwn(name string, env *wrangler.Value) {
	for _, m := range slices.Clone(c.doc.Fields) {
		rule := keys[m.Name]
		if rule.inherited || rule.kind == unknown || topLevelOnly[m.Name] {
			continue
		}
		in := env.Field(m.Name)
		c.doc.Delete(m.Name)
		if m.Value.Empty() || rule.kind == cloudflare {
			continue
		}
		if in == nil {
			c.note("%q of the top level does not hold for env.%s, which does not have it", m.Name, name)
			continue
		}
		if m.Name != "vars" && m.Name != "define" {
			continue
		}
		var missing []string
		for _, f := range m.Value.Fields {
			if in.Field(f.Name) == nil {
				missing = append(missing, f.Name)
			}
		}
		if len(missing) > 0 {
			c.note("of the top level's %q, env.%s does not have %s", m.Name, name, strings.Join(missing, ", "))
		}
	}
}

// topLevelOnly are keys that hold for every environment and stand in none.
var topLevelOnly = map[string]bool{
	"alias": true, "site": true, "wasm_modules": true, "text_blobs": true, "data_blobs": true, "pages_build_output_dir": true,
	"keep_vars": true, "send_metrics": true, "dev": true,
}

// checkTarget holds --env to what a built configuration was built for.
func (c *config) checkTarget(name string, all *wrangler.Value) error {
	if all != nil && len(all.Fields) > 0 {
		return all.Errorf("a built configuration has environments of its own: build the project again with a newer tool")
	}
	if name == "" {
		return nil
	}
	built := ""
	if t := c.doc.Field("targetEnvironment"); t != nil && t.Kind == '"' {
		var err error
		if built, err = t.Text("targetEnvironment"); err != nil {
			return err
		}
	}
	if built == name {
		return nil
	}
	what := "no environment"
	if built != "" {
		what = fmt.Sprintf("the environment %q", built)
	}
	return fmt.Errorf("%s was built for %s: build it again with CLOUDFLARE_ENV=%s", c.file, what, name)
}
