package project

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/scafo/scafo/internal/workerd/layout"
)

// moduleTypes are the types that a rule may name.
var moduleTypes = map[string]layout.ModuleType{
	"ESModule": layout.ESModule, "CommonJS": layout.CommonJS, "Text": layout.Text,
	"Data": layout.Data, "CompiledWasm": layout.Wasm,
}

// defaultRules hold beneath a project's own.
var defaultRules = []Rule{
	{Type: "Text", Globs: []string{"**/*.txt", "**/*.html", "**/*.sql"}},
	{Type: "Data", Globs: []string{"**/*.bin"}},
	{Type: "CompiledWasm", Globs: []string{"**/*.wasm", "**/*.wasm?module"}},
}

func readRules(v *value) ([]Rule, error) {
	var out []Rule
	err := v.each("rules", func(item *value) error {
		var r Rule
		err := item.object("a rule", map[string]func(*value) error{
			"type": oneOf("a rule's type", &r.Type, "ESModule", "CommonJS", "Text", "Data", "CompiledWasm"),
			"globs": func(v *value) (err error) {
				r.Globs, err = v.strings("a rule's globs")
				return err
			},
			"fallthrough": func(v *value) (err error) {
				r.Fallthrough, err = v.boolean("a rule's fallthrough")
				return err
			},
		})
		if err == nil && (r.Type == "" || len(r.Globs) == 0) {
			err = item.errorf("a rule needs type and globs")
		}
		out = append(out, r)
		return err
	})
	return out, err
}

// matcher tells the type of a file by its path relative to the project.
type matcher []typedGlob

type typedGlob struct {
	pattern *regexp.Regexp
	kind    layout.ModuleType
}

// newMatcher puts a project's rules before the default ones. A rule ends the
// rules of its type that come after it, unless it says fallthrough.
func newMatcher(rules []Rule) (matcher, error) {
	var m matcher
	ended := map[string]bool{}
	for _, r := range slices.Concat(rules, defaultRules) {
		if ended[r.Type] {
			continue
		}
		for _, g := range r.Globs {
			pattern, err := glob(g)
			if err != nil {
				return nil, fmt.Errorf("the glob %q of a rule: %w", g, err)
			}
			m = append(m, typedGlob{pattern, moduleTypes[r.Type]})
		}
		ended[r.Type] = !r.Fallthrough
	}
	return m, nil
}

func (m matcher) match(path string) (layout.ModuleType, bool) {
	for _, g := range m {
		if g.pattern.MatchString(path) {
			return g.kind, true
		}
	}
	return "", false
}

// glob translates a pattern in which ** is any number of directories and * any
// run of characters within one; everything else stands for itself.
func glob(pattern string) (*regexp.Regexp, error) {
	var b strings.Builder
	b.WriteString(`^(?s:`)
	pattern = strings.TrimPrefix(pattern, "./")
	for len(pattern) > 0 {
		switch {
		case strings.HasPrefix(pattern, "**/"):
			b.WriteString(`(?:.*/)?`)
			pattern = pattern[3:]
		case strings.HasPrefix(pattern, "**"):
			b.WriteString(`.*`)
			pattern = pattern[2:]
		case pattern[0] == '*':
			b.WriteString(`[^/]*`)
			pattern = pattern[1:]
		default:
			end := strings.IndexByte(pattern, '*')
			if end < 0 {
				end = len(pattern)
			}
			b.WriteString(regexp.QuoteMeta(pattern[:end]))
			pattern = pattern[end:]
		}
	}
	b.WriteString(`)$`)
	return regexp.Compile(b.String())
}
