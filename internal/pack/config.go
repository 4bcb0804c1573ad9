package pack

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/wrangler"
)

// config is a configuration on its way to what is packed.
type config struct {
	found
	doc   *wrangler.Value // edited in place
	notes []string
	// bundlerKeys are the bundler options that it uses.
	bundlerKeys []string
	// additional: modules that no import names go along, from below baseDir.
	additional  bool
	baseDir     *wrangler.Value
	build       *wrangler.Value
	secrets     *wrangler.Value
	alias       *wrangler.Value
	jsxFactory  *wrangler.Value
	jsxFragment *wrangler.Value
	tsconfig    *wrangler.Value
}

func (c *config) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// load reads the configuration and makes of it what is sent: one environment, with
// the command line's edits, without the keys that nobody there understands.
func load(f *found, o *Options) (*config, error) {
	doc, err := wrangler.Parse(f.file, f.text)
	if err != nil {
		return nil, err
	}
	if doc.Kind != '{' {
		return nil, doc.Errorf("the configuration is %s, want an object", doc.KindName())
	}
	c := &config{found: *f, doc: doc}
	if f.redirected {
		c.note("using %s, which %s names", f.file, redirectFile)
	}
	if err := c.choose(o.Env); err != nil {
		return nil, err
	}
	if o.Name != "" {
		c.rename(o.Name)
	}
	if err := c.sift(o.Strict); err != nil {
		return nil, err
	}
	if err := c.edit(o); err != nil {
		return nil, err
	}
	c.missDevVars(o.Env)
	return c, nil
}

// edit applies the command line's variables and --no-bundle.
func (c *config) edit(o *Options) error {
	if len(o.Vars) > 0 {
		vars := c.doc.Field("vars")
		if vars == nil {
			vars = wrangler.Made(map[string]string{}, nil)
			c.doc.Set("vars", vars)
		}
		if vars.Kind != '{' {
			return vars.Errorf("vars is %s, want an object", vars.KindName())
		}
		for _, k := range slices.Sorted(maps.Keys(o.Vars)) {
			vars.Set(k, wrangler.Made(o.Vars[k], vars.Field(k)))
		}
	}
	if o.NoBundle {
		c.doc.Set("no_bundle", wrangler.Made(true, c.doc.Field("no_bundle")))
	}
	return c.secretsGiven()
}

// rename gives the Worker another name, also where it names itself.
func (c *config) rename(to string) {
	at := c.doc.Field("name")
	if at != nil {
		own := string(at.Raw)
		for _, in := range []struct {
			list *wrangler.Value
			key  string
		}{
			{c.doc.Field("services"), "service"},
			{c.doc.Field("workflows"), "script_name"},
			{below(c.doc.Field("durable_objects"), "bindings"), "script_name"},
		} {
			if in.list == nil {
				continue
			}
			for _, item := range in.list.Items {
				if v := item.Field(in.key); v != nil && string(v.Raw) == own {
					item.Set(in.key, wrangler.Made(to, v))
				}
			}
		}
	}
	c.doc.Set("name", wrangler.Made(to, at))
}

func below(v *wrangler.Value, name string) *wrangler.Value {
	if v == nil {
		return nil
	}
	return v.Field(name)
}

// secretsGiven holds the command line to the secrets that the project requires.
func (c *config) secretsGiven() error {
	required := below(c.secrets, "required")
	if required == nil {
		return nil
	}
	names, err := required.Texts("secrets.required")
	if err != nil {
		return err
	}
	vars := c.doc.Field("vars")
	for i, n := range names {
		if vars == nil || vars.Field(n) == nil {
			return required.Items[i].Errorf("the secret %q is required and not there: there is no store of secrets; give it with --var %s=…, which keeps it in the fleet's bucket in plain text", n, n)
		}
	}
	return nil
}

// sift takes the keys apart by what is done with them.
func (c *config) sift(strict bool) error {
	var out []string // what is left out, as it is named
	var where []*wrangler.Value
	drop := func(name string, v *wrangler.Value) {
		out, where = append(out, name), append(where, v)
	}
	for _, m := range slices.Clone(c.doc.Fields) {
		rule := keys[m.Name]
		nothing := asksNothing(&m)
		if rule.kind != taken || nothing {
			c.doc.Delete(m.Name)
		}
		if nothing && rule.kind != unknown {
			continue // build tools write every key
		}
		switch rule.kind {
		case unknown:
			return unknownKey(&m)
		case refused:
			return m.Errorf("unsupported key %q: %s", m.Name, rule.todo)
		case cloudflare:
			drop(m.Name, m.Value)
			c.adviseDomains(&m)
		case bundler:
			if err := c.takeBundlerKey(&m); err != nil {
				return err
			}
		case taken:
			siftNested(m.Name, m.Value, drop)
		case handled:
			switch m.Name {
			case "build":
				c.build = m.Value
			case "secrets":
				c.secrets = m.Value
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	if strict {
		return where[0].Errorf("--strict: these keys only mean something at Cloudflare: %s", strings.Join(out, ", "))
	}
	c.notes = slices.Insert(c.notes, 0, "left out, since it only means something at Cloudflare: "+strings.Join(out, ", "))
	return nil
}

// asksNothing reports whether a key is there without any effect. What variables and
// definitions say is theirs.
func asksNothing(m *wrangler.Member) bool {
	if m.Name == "vars" || m.Name == "define" {
		return m.Value.Kind == '{' && len(m.Value.Fields) == 0 || m.Value.Kind == 'n'
	}
	return m.Value.Empty() || string(m.Value.Raw) == `""`
}

func unknownKey(m *wrangler.Member) error {
	if near := wrangler.Nearest(m.Name, slices.Collect(maps.Keys(keys))); near != "" {
		return m.Errorf("unknown key %q: did you mean %q?", m.Name, near)
	}
	return m.Errorf("unknown key %q: remove it", m.Name)
}

// siftNested removes what [nested] lists below one key.
func siftNested(path string, v *wrangler.Value, drop func(string, *wrangler.Value)) {
	for _, name := range nested[path] {
		if f := v.Field(name); f != nil {
			drop(strings.ReplaceAll(path, "[]", "")+"."+name, f)
			v.Delete(name)
		}
	}
	for i := range v.Fields {
		siftNested(path+"."+v.Fields[i].Name, v.Fields[i].Value, drop)
	}
	for _, item := range v.Items {
		siftNested(path+"[]", item, drop)
	}
}

// takeBundlerKey keeps an option of the bundler, which is applied here.
func (c *config) takeBundlerKey(m *wrangler.Member) error {
	if string(m.Value.Raw) == defaults[m.Name] {
		return nil
	}
	switch m.Name {
	case "find_additional_modules":
		on, err := m.Value.Bool(m.Name)
		if err != nil || !on {
			return err
		}
		if b := c.doc.Field("no_bundle"); b != nil && b.Kind == 't' {
			return nil // the same there
		}
		c.additional = true
	case "base_dir":
		c.baseDir = m.Value
		return nil // without additional modules a bundle has no such directory
	case "alias":
		c.alias = m.Value
	case "jsx_factory":
		c.jsxFactory = m.Value
	case "jsx_fragment":
		c.jsxFragment = m.Value
	case "tsconfig":
		c.tsconfig = m.Value
	}
	c.bundlerKeys = append(c.bundlerKeys, m.Name)
	return nil
}

// adviseDomains says which commands do what `routes` asks for.
func (c *config) adviseDomains(m *wrangler.Member) {
	var list []*wrangler.Value
	switch m.Name {
	case "route":
		list = []*wrangler.Value{m.Value}
	case "routes":
		list = m.Value.Items
	}
	seen := map[string]bool{}
	for _, r := range list {
		if p := r.Field("pattern"); p != nil {
			r = p
		}
		pattern, err := r.Text("a route")
		if err != nil {
			continue
		}
		host, wildcard := routeHost(pattern)
		if host == "" || seen[host] {
			continue
		}
		seen[host] = true
		command := "scafo domains add " + c.appName() + " " + host
		if wildcard {
			command += " --wildcard"
		}
		c.note("for the route %s: %s", pattern, command)
	}
}

// appName is the configuration's name, or something to put into a hint.
func (c *config) appName() string {
	if n := c.doc.Field("name"); n != nil {
		if s, err := n.Text("name"); err == nil {
			return s
		}
	}
	return "<application>"
}

// routeHost is the host of a route's pattern, and whether the pattern asks for the
// names below it.
func routeHost(pattern string) (host string, wildcard bool) {
	if !strings.Contains(pattern, "://") {
		pattern = "https://" + pattern
	}
	u, err := url.Parse(pattern)
	if err != nil {
		return "", false
	}
	host = strings.ToLower(u.Hostname())
	for _, prefix := range []string{"*.", "*"} {
		if rest, ok := strings.CutPrefix(host, prefix); ok {
			host, wildcard = rest, true
			break
		}
	}
	if h, err := scafo.ParseHost(host); err != nil || h != host {
		return "", false
	}
	return host, wildcard
}
