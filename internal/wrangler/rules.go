package wrangler

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// ModuleType is how the runtime loads a module, by Wrangler's names.
type ModuleType string

// The types that a rule may name, and JSON, which follows from a file's name.
const (
	ESModule     ModuleType = "ESModule"
	CommonJS     ModuleType = "CommonJS"
	Text         ModuleType = "Text"
	Data         ModuleType = "Data"
	CompiledWasm ModuleType = "CompiledWasm"
	JSON         ModuleType = "JSON"
)

// Rule says how files that match are loaded when they are imported.
type Rule struct {
	Type        ModuleType
	Globs       []string
	Fallthrough bool
}

// defaultRules hold beneath a project's own.
var defaultRules = []Rule{
	{Type: Text, Globs: []string{"**/*.txt", "**/*.html", "**/*.sql"}},
	{Type: Data, Globs: []string{"**/*.bin"}},
	{Type: CompiledWasm, Globs: []string{"**/*.wasm", "**/*.wasm?module"}},
}

// ReadRules reads the value of `rules`.
func ReadRules(v *Value) ([]Rule, error) {
	var out []Rule
	err := v.Each("rules", func(item *Value) error {
		var r Rule
		err := item.Object("a rule", map[string]func(*Value) error{
			"type": OneOf("a rule's type", (*string)(&r.Type), "ESModule", "CommonJS", "Text", "Data", "CompiledWasm"),
			"globs": func(v *Value) (err error) {
				r.Globs, err = v.Texts("a rule's globs")
				return err
			},
			"fallthrough": func(v *Value) (err error) {
				r.Fallthrough, err = v.Bool("a rule's fallthrough")
				return err
			},
		})
		if err == nil && (r.Type == "" || len(r.Globs) == 0) {
			err = item.Errorf("a rule needs type and globs")
		}
		out = append(out, r)
		return err
	})
	return out, err
}

// Matcher tells the type of a file by its path relative to the project.
type Matcher []typedGlob

type typedGlob struct {
	pattern *regexp.Regexp
	kind    ModuleType
}

// NewMatcher puts a project's rules before the default ones. A rule ends the
// rules of its type that come after it, unless it says fallthrough.
func NewMatcher(rules []Rule) (Matcher, error) {
	var m Matcher
	ended := map[ModuleType]bool{}
	for _, r := range slices.Concat(rules, defaultRules) {
		if ended[r.Type] {
			continue
		}
		for _, g := range r.Globs {
			pattern, err := glob(g)
			if err != nil {
				return nil, fmt.Errorf("the glob %q of a rule: %w", g, err)
			}
			m = append(m, typedGlob{pattern, r.Type})
		}
		ended[r.Type] = !r.Fallthrough
	}
	return m, nil
}

// Match is the type of the file at path, relative to the project.
func (m Matcher) Match(path string) (ModuleType, bool) {
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
