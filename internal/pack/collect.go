package pack

import (
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/scafo/scafo/internal/wrangler"
	"github.com/scafo/scafo/internal/wrangler/bundle"
)

// collector notes what a build reads. The bundler calls it from several goroutines.
type collector struct {
	root string

	mu      sync.Mutex                        // guards all below
	files   map[string]bool                   // inside the project, relative to it, with slashes
	outside map[string]bool                   // outside, as they are shown
	zipped  map[string]bool                   // archives of Yarn's that files were read from
	linked  map[string]bool                   // links inside the project that imports went through
	looked  map[string]bool                   // paths that were looked at
	asked   map[string]bool                   // directories that the resolver looks into
	lists   map[string]map[string]fs.FileMode // of directories
}

func newCollector(root string) *collector {
	return &collector{
		root: root, files: map[string]bool{}, outside: map[string]bool{}, zipped: map[string]bool{}, linked: map[string]bool{},
		looked: map[string]bool{}, asked: map[string]bool{}, lists: map[string]map[string]fs.FileMode{},
	}
}

// rel is a path relative to the project, with slashes, and whether it lies inside.
func (k *collector) rel(name string) (string, bool) {
	rel, err := filepath.Rel(k.root, name)
	if err != nil {
		return name, false
	}
	return filepath.ToSlash(rel), filepath.IsLocal(rel)
}

// reach notes a file that the build reads, links followed, or refuses it.
func (k *collector) reach(file string) error {
	shown, inside := k.rel(file)
	if why := secret(shown, file); why != "" {
		return &SecretError{shown, why}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if archive, _, ok := bundle.InArchive(file); ok {
		if info, err := os.Stat(archive); err == nil && info.Mode().IsRegular() {
			k.zipped[filepath.Base(archive)] = true
			return nil
		}
	}
	if inside {
		k.files[shown] = true
	} else {
		k.outside[shown] = true
	}
	return nil
}

// sourceEndings are those that the resolver adds to an import.
var sourceEndings = []string{".tsx", ".ts", ".jsx", ".js", ".css", ".json", ".mjs", ".cjs", ".mts", ".cts"}

// imported notes what the resolver looks at for an import: links, which an artifact
// does not have, and directories that may hold nothing but a package.json.
func (k *collector) imported(dir, specifier string) {
	specifier, _, _ = strings.Cut(specifier, "?")
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case strings.HasPrefix(specifier, "."):
		k.look(filepath.Join(dir, filepath.FromSlash(specifier)))
	case specifier == "" || strings.HasPrefix(specifier, "/") || strings.HasPrefix(specifier, "#"):
	default:
		name := packageName(specifier)
		for d := dir; ; d = filepath.Dir(d) {
			if _, inside := k.rel(d); !inside {
				return
			}
			if _, ok := k.list(filepath.Join(d, "node_modules", filepath.Dir(name)))[filepath.Base(name)]; ok {
				k.look(filepath.Join(d, "node_modules", filepath.FromSlash(specifier)))
				return
			}
		}
	}
}

// packageName is the package of an import: its first part, or two under a scope.
func packageName(specifier string) string {
	parts := strings.SplitN(specifier, "/", 3)
	if strings.HasPrefix(specifier, "@") && len(parts) > 1 {
		return filepath.Join(parts[0], parts[1])
	}
	return parts[0]
}

// list is what a directory holds. k.mu is held.
func (k *collector) list(dir string) map[string]fs.FileMode {
	if l, ok := k.lists[dir]; ok {
		return l
	}
	l := map[string]fs.FileMode{}
	// One that cannot be read holds nothing that a build could.
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		l[e.Name()] = e.Type()
	}
	k.lists[dir] = l
	return l
}

// look goes down to a path inside the project and notes the links and the
// directories on the way. k.mu is held.
func (k *collector) look(target string) {
	shown, inside := k.rel(target)
	if !inside || k.looked[target] {
		return
	}
	k.looked[target] = true
	at := k.root
	parts := strings.Split(shown, "/")
	for i, part := range parts {
		l := k.list(at)
		names := []string{part}
		if _, ok := l[part]; i == len(parts)-1 && !ok {
			// A source, named without its ending or with that of what is made of it.
			stem := strings.TrimSuffix(part, path.Ext(part))
			for _, e := range sourceEndings {
				names = append(names, part+e, stem+e)
			}
		}
		for _, n := range names {
			mode, ok := l[n]
			if !ok {
				continue
			}
			name, _ := k.rel(filepath.Join(at, n))
			switch {
			case mode&fs.ModeSymlink != 0:
				k.linked[name] = true
			case mode.IsDir():
				k.asked[name] = true
			}
		}
		at = filepath.Join(at, part)
	}
}

// first is the first of a set in order.
func first(set map[string]bool) string {
	for _, s := range slices.Sorted(maps.Keys(set)) {
		return s
	}
	return ""
}

// descriptions adds the files that say how sources are resolved and compiled:
// package.json in every directory on the way, and tsconfig.json with all that it
// extends. It says which of them lies outside, if any does.
func (k *collector) descriptions() string {
	dirs := map[string]bool{}
	up := func(d string) {
		for ; !dirs[d]; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	for f := range k.files {
		up(path.Dir(f))
	}
	for d := range k.asked {
		up(d)
	}
	out := ""
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		k.add(path.Join(d, "package.json"))
		if d == "node_modules" || strings.HasPrefix(d, "node_modules/") || strings.Contains(d, "/node_modules") {
			continue // the compiler's options in packages count for nothing
		}
		for _, n := range []string{"tsconfig.json", "jsconfig.json"} {
			if k.add(path.Join(d, n)) {
				if o := k.extends(filepath.Join(k.root, d, n), 0); o != "" && out == "" {
					out = o
				}
				break
			}
		}
	}
	return out
}

// empty lists the directories that the resolver looked into and of which no file is
// packed.
func (k *collector) empty() []string {
	full := map[string]bool{}
	for f := range k.files {
		for d := path.Dir(f); !full[d]; d = path.Dir(d) {
			full[d] = true
		}
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(k.asked)), func(d string) bool { return full[d] })
}

// add notes a file of the project if it is there.
func (k *collector) add(rel string) bool {
	info, err := os.Stat(filepath.Join(k.root, filepath.FromSlash(rel)))
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	k.files[rel] = true
	return true
}

// maxExtends bounds a chain of configurations that extend each other.
const maxExtends = 16

// extends adds what a tsconfig.json extends, and says what of it lies outside the
// project or behind a link.
func (k *collector) extends(name string, depth int) string {
	text, err := readSmall(name, wrangler.MaxConfig)
	if err != nil || depth > maxExtends {
		return ""
	}
	v, err := wrangler.Parse("", text)
	if err != nil {
		return "" // the bundler says it
	}
	e := v.Field("extends")
	if e == nil {
		return ""
	}
	list := e.Items
	if e.Kind == '"' {
		list = append(list, e)
	}
	for _, item := range list {
		s, err := item.Text("extends")
		if err != nil {
			continue
		}
		for _, c := range k.extendCandidates(filepath.Dir(name), s) {
			if info, err := os.Stat(c); err != nil || !info.Mode().IsRegular() {
				continue
			}
			rel, inside := k.rel(c)
			if real, err := filepath.EvalSymlinks(c); err != nil || real != c || !inside {
				return rel
			}
			k.files[rel] = true
			// A package says in its package.json which file it means.
			k.add(path.Join(path.Dir(rel), "package.json"))
			if out := k.extends(c, depth+1); out != "" {
				return out
			}
			break
		}
	}
	return ""
}

// extendCandidates are the files that `extends` may mean.
func (k *collector) extendCandidates(dir, s string) []string {
	endings := func(p string) []string { return []string{p, p + ".json", filepath.Join(p, "tsconfig.json")} }
	if filepath.IsAbs(s) {
		return endings(s)
	}
	if strings.HasPrefix(s, ".") {
		return endings(filepath.Join(dir, filepath.FromSlash(s)))
	}
	var out []string
	for d := dir; ; d = filepath.Dir(d) {
		out = append(out, endings(filepath.Join(d, "node_modules", filepath.FromSlash(s)))...)
		if d == filepath.Dir(d) {
			return out
		}
	}
}
