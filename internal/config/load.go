package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/spf13/pflag"
)

// Origin says where a value came from.
type Origin string

// The origins, from the strongest to the weakest.
const (
	OriginFlag    Origin = "flag"
	OriginEnv     Origin = "environment"
	OriginFile    Origin = "file"
	OriginCommand Origin = "command" // what a command such as `up` presumes
	OriginDefault Origin = "default"
	OriginDerived Origin = "derived" // from other values, or from the machine
)

// Loaded is a configuration with where each of its values came from.
type Loaded struct {
	Config
	File    string // the file that was read; empty when none was
	Origins map[string]Origin
}

// Sources is what a configuration is read from.
type Sources struct {
	// Flags holds the command line's flags, as AddFlags made them; may be nil.
	Flags *pflag.FlagSet
	// Env looks a variable up; nil takes none.
	Env func(string) (string, bool)
	// File is the path of the configuration file; empty takes SCAFO_CONFIG, then none.
	File string
	// Presets are values that a command presumes, weaker than what the user said.
	Presets map[string]string
}

// AddFlags defines a flag for every key.
func AddFlags(fs *pflag.FlagSet) {
	for _, k := range Keys() {
		usage := k.Name
		if k.Default != "" {
			usage += " (default " + k.Default + ")"
		}
		switch k.Type() {
		case "list", "map":
			fs.StringArray(k.Flag(), nil, usage+", repeatable")
		case "boolean":
			fs.Bool(k.Flag(), false, usage)
		default:
			fs.String(k.Flag(), "", usage)
		}
	}
}

// Load reads the sources and resolves what one value leaves to another.
func Load(s Sources) (*Loaded, error) {
	l := &Loaded{Origins: map[string]Origin{}}
	env := s.Env
	if env == nil {
		env = func(string) (string, bool) { return "", false }
	}
	if l.File = s.File; l.File == "" {
		l.File, _ = env("SCAFO_CONFIG")
	}
	file, err := readFile(l.File)
	if err != nil {
		return nil, err
	}
	for _, k := range Keys() {
		values, origin, err := pick(k, s, env, file)
		if err != nil {
			return nil, err
		}
		l.Origins[k.Name] = origin
		if values == nil {
			continue
		}
		if err := k.set(&l.Config, values); err != nil {
			return nil, fmt.Errorf("%w (from the %s)", err, describe(k, origin, l.File))
		}
	}
	if err := l.resolve(); err != nil {
		return nil, err
	}
	return l, nil
}

// pick finds the strongest source that names the key; nil values mean that none
// does and that the key has no default.
func pick(k Key, s Sources, env func(string) (string, bool), file map[string][]string) ([]string, Origin, error) {
	if s.Flags != nil {
		if f := s.Flags.Lookup(k.Flag()); f != nil && f.Changed {
			if a, ok := f.Value.(pflag.SliceValue); ok {
				return a.GetSlice(), OriginFlag, nil
			}
			return []string{f.Value.String()}, OriginFlag, nil
		}
	}
	if v, ok := env(k.Env()); ok && v != "" {
		if t := k.Type(); t == "list" || t == "map" {
			return strings.Split(v, ","), OriginEnv, nil
		}
		return []string{v}, OriginEnv, nil
	}
	if v, ok := file[k.Name]; ok {
		return v, OriginFile, nil
	}
	if v, ok := s.Presets[k.Name]; ok {
		return []string{v}, OriginCommand, nil
	}
	if k.Default != "" {
		return []string{k.Default}, OriginDefault, nil
	}
	return nil, OriginDefault, nil
}

func describe(k Key, o Origin, file string) string {
	switch o {
	case OriginFlag:
		return "flag --" + k.Flag()
	case OriginEnv:
		return "variable " + k.Env()
	case OriginFile:
		return "file " + file
	default:
		return string(o)
	}
}

// readFile reads the YAML file into textual values by key. It refuses keys that
// nobody knows, naming the nearest one.
func readFile(path string) (map[string][]string, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the configuration file %s does not exist", path)
	}
	if err != nil {
		return nil, fmt.Errorf("the configuration file: %w", err)
	}
	return parseFile(path, b)
}

func parseFile(path string, b []byte) (map[string][]string, error) {
	tree, err := yaml.Parser().Unmarshal(b)
	if err != nil {
		return nil, fmt.Errorf("the configuration file %s: %w", path, err)
	}
	known := map[string]Key{}
	for _, k := range Keys() {
		known[k.Name] = k
	}
	out := map[string][]string{}
	if err := flatten(tree, "", known, out); err != nil {
		return nil, fmt.Errorf("the configuration file %s: %w", path, err)
	}
	return out, nil
}

func flatten(tree map[string]any, prefix string, known map[string]Key, out map[string][]string) error {
	names := make([]string, 0, len(tree))
	for name := range tree {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, n := range names {
		name := prefix + n
		if k, ok := known[name]; ok {
			values, err := scalars(k, tree[n])
			if err != nil {
				return err
			}
			if values != nil {
				out[name] = values
			}
			continue
		}
		if !isSection(name, known) {
			return fmt.Errorf("unknown key %s; did you mean %s?", name, nearest(name, known))
		}
		switch sub := tree[n].(type) {
		case nil:
		case map[string]any:
			if err := flatten(sub, name+".", known, out); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s holds other keys, it has no value of its own", name)
		}
	}
	return nil
}

func isSection(name string, known map[string]Key) bool {
	for k := range known {
		if strings.HasPrefix(k, name+".") {
			return true
		}
	}
	return false
}

// scalars turns a YAML value into the textual values that Key.set takes; nil for
// an explicit null.
func scalars(k Key, v any) ([]string, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case []any:
		if k.Type() != "list" {
			return nil, fmt.Errorf("%s is a %s, not a list", k.Name, k.Type())
		}
		out := []string{}
		for _, e := range v {
			switch e.(type) {
			case []any, map[string]any, nil:
				return nil, fmt.Errorf("%s is a list of plain values", k.Name)
			}
			out = append(out, fmt.Sprint(e))
		}
		return out, nil
	case map[string]any:
		if k.Type() != "map" {
			return nil, fmt.Errorf("%s is a %s, not a map", k.Name, k.Type())
		}
		m := map[string]string{}
		for name, e := range v {
			switch e.(type) {
			case []any, map[string]any, nil:
				return nil, fmt.Errorf("%s is a map of plain values", k.Name)
			}
			m[name] = fmt.Sprint(e)
		}
		return sortedItems(m), nil
	default:
		if t := k.Type(); t == "map" {
			return nil, fmt.Errorf("%s is a map, not a plain value", k.Name)
		}
		return []string{fmt.Sprint(v)}, nil
	}
}

func sortedItems(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

// nearest is the known key with the least edit distance to name.
func nearest(name string, known map[string]Key) string {
	best, least := "", 1<<30
	for k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least || d == least && k < best {
			best, least = k, d
		}
	}
	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
