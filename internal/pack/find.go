package pack

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scafo/scafo/internal/wrangler"
)

// The names of a configuration, in the order in which they are looked for.
var configNames = []string{"wrangler.jsonc", "wrangler.json"}

// redirectFile says where a build tool left the configuration that it made.
const redirectFile = ".wrangler/deploy/config.json"

// convert turns a wrangler.toml into JSON with nothing but Python's library.
const convert = `python3 -c 'import json, tomllib; print(json.dumps(tomllib.load(open("wrangler.toml", "rb")), indent=2, default=str))' > wrangler.jsonc`

// found is a configuration and the directory that it is packed for.
type found struct {
	root       string // what the artifact's root stands for: absolute, links followed
	base       string // the configuration's directory, which its paths start from
	file       string // the configuration, relative to root, for messages
	packedAs   string // its name at the artifact's root
	redirected bool
	text       []byte
}

// find looks for the configuration of a project: path is its directory, or the
// configuration itself.
func find(path string) (*found, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no %s", path)
	}
	if err != nil {
		return nil, err
	}
	dir, name := path, ""
	if !info.IsDir() {
		dir, name = filepath.Dir(path), filepath.Base(path)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	f := &found{root: dir, base: dir}
	if name != "" {
		switch filepath.Ext(name) {
		case ".toml":
			return nil, onlyTOML(path)
		case ".json", ".jsonc":
		default:
			return nil, fmt.Errorf("%s is neither a project's folder nor its wrangler.jsonc: give one of those", path)
		}
		f.file, f.packedAs = name, configNames[1]
		if filepath.Ext(name) == ".jsonc" {
			f.packedAs = configNames[0]
		}
		return f, f.read()
	}
	if ok, err := f.redirect(); ok || err != nil {
		return f, err
	}
	for _, name := range configNames {
		f.file, f.packedAs = name, name
		if err := f.read(); !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "wrangler.toml")); err == nil {
		return nil, onlyTOML(path)
	}
	return nil, fmt.Errorf("%s is no Wrangler project: it has neither wrangler.jsonc nor wrangler.json (looked for those, and for %s)%s", path, redirectFile, cmp.Or(projectAround(path, dir), projectsIn(path, dir)))
}

// How far below a folder that is no project projects are looked for, how many entries are
// looked at, and how many projects are named.
const (
	belowDepth   = 3
	belowEntries = 5000
	belowNamed   = 5
)

// projectsIn says which folders in dir are projects, as path would be continued to them: it may
// be the root of several.
func projectsIn(path, dir string) string {
	var found []string
	entries, more := 0, false
	_ = filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error { // what cannot be read is none
		if entries++; entries > belowEntries {
			return fs.SkipAll
		}
		rel, relErr := filepath.Rel(dir, at)
		if err != nil || relErr != nil || !d.IsDir() || rel == "." {
			return nil
		}
		if name := d.Name(); strings.HasPrefix(name, ".") || name == "node_modules" || strings.Count(rel, string(filepath.Separator)) >= belowDepth {
			return fs.SkipDir
		}
		if !isProject(at) {
			return nil
		}
		if len(found) == belowNamed {
			more = true
			return fs.SkipAll
		}
		found = append(found, filepath.Join(path, rel))
		return fs.SkipDir
	})
	if len(found) == 0 {
		return ""
	}
	list := strings.Join(found, ", ")
	if more {
		list += ", …"
	}
	return "; projects in it: " + list
}

// projectAround says which folder around dir is a project, as path would be continued to it.
func projectAround(path, dir string) string {
	for parent := filepath.Dir(dir); parent != dir; dir, parent = parent, filepath.Dir(parent) {
		path = filepath.Join(path, "..")
		if !isProject(parent) {
			continue
		}
		if same(path, parent) {
			parent = path // as the user would say it
		}
		return "; the folder around it is one: scafo deploy " + parent
	}
	return ""
}

// isProject reports whether a folder has what find looks for.
func isProject(dir string) bool {
	return slices.ContainsFunc([]string{redirectFile, configNames[0], configNames[1]}, func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	})
}

// same reports whether both lead to one file; through links they may not.
func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

func onlyTOML(path string) error {
	return fmt.Errorf("%s has only a wrangler.toml, which is not read: convert it to wrangler.jsonc. The keys stay the same; this does it:\n  %s", path, convert)
}

// redirect follows a build tool's note to the configuration that it made.
func (f *found) redirect() (bool, error) {
	text, err := readSmall(filepath.Join(f.root, redirectFile), wrangler.MaxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", redirectFile, err)
	}
	v, err := wrangler.Parse(redirectFile, text)
	if err != nil {
		return false, err
	}
	to := v.Field("configPath")
	if to == nil {
		return false, v.Errorf(`"configPath" is missing: build the project again, or remove the file`)
	}
	rel, err := to.Text("configPath")
	if err != nil {
		return false, err
	}
	at := filepath.FromSlash(rel)
	if !filepath.IsAbs(at) {
		at = filepath.Join(f.root, filepath.Dir(redirectFile), at)
	}
	real, err := filepath.EvalSymlinks(at)
	if err != nil {
		return false, to.Errorf("configPath %q is not there: build the project again, or remove %s", rel, redirectFile)
	}
	if f.file, err = filepath.Rel(f.root, real); err != nil || !filepath.IsLocal(f.file) {
		return false, to.Errorf("configPath %q leads out of the project", rel)
	}
	f.file = filepath.ToSlash(f.file)
	f.base, f.packedAs, f.redirected = filepath.Dir(real), configNames[1], true
	if filepath.Ext(real) == ".jsonc" {
		f.packedAs = configNames[0]
	}
	return true, f.read()
}

// read fills in the configuration's text.
func (f *found) read() error {
	text, err := readSmall(filepath.Join(f.root, filepath.FromSlash(f.file)), wrangler.MaxConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", f.file, err)
	}
	f.text = text
	return err
}

// readSmall reads a file that must be a regular one of at most so many bytes.
func readSmall(name string, most int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("it is no file of at most %d KiB", most>>10)
	}
	return os.ReadFile(name)
}
