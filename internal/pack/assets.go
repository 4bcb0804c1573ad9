package pack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/scafo/scafo/internal/wrangler"
)

// assets packs the assets directory: what is served of it, and the files that say
// how.
func (p *Package) assets() error {
	c := p.config
	a := c.doc.Field("assets")
	if a == nil {
		return nil
	}
	if a.Kind != '{' {
		return a.Errorf("assets is %s, want an object", a.KindName())
	}
	at := a.Field("directory")
	if at == nil {
		return a.Errorf(`assets has no "directory": add it, or build the project first if its build tool gives it (it leaves a %s)`, redirectFile)
	}
	shown, err := at.Text("assets.directory")
	if err != nil {
		return err
	}
	dir := filepath.FromSlash(shown)
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(c.base, dir)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(real); err == nil && !info.IsDir() {
			return at.Errorf("assets.directory %q is no directory", shown)
		}
	}
	if err != nil {
		hint := "if a build makes it, build the project first"
		if c.build != nil {
			hint = "the build was to make it"
		}
		return at.Errorf("assets.directory %q is not there: %s", shown, hint)
	}
	files, err := p.listAssets(real)
	if err != nil {
		return err
	}
	// In its place, unless what is packed for the build would then be served too.
	to, err := filepath.Rel(c.root, real)
	if to = filepath.ToSlash(to); err != nil || !filepath.IsLocal(to) || to == "." || p.anyBelow(to) {
		to = c.free(assetsDir)
	}
	for i := range files {
		files[i].Path = path.Join(to, files[i].Path)
	}
	p.Files = append(p.Files, files...)
	if to != path.Clean(shown) || c.base != c.root {
		a.Set("directory", wrangler.Made(to, at))
	}
	if len(files) == 0 {
		return at.Errorf("assets.directory %q holds nothing to serve", shown)
	}
	return nil
}

// anyBelow reports whether a file that is packed lies below a directory.
func (p *Package) anyBelow(dir string) bool {
	for _, f := range p.Files {
		if strings.HasPrefix(f.Path, dir+"/") {
			return true
		}
	}
	return false
}

// listAssets lists the files of an assets directory, by their paths in it.
func (p *Package) listAssets(dir string) ([]File, error) {
	c := p.config
	shown := func(name string) string {
		if rel, err := filepath.Rel(c.root, name); err == nil {
			return filepath.ToSlash(rel)
		}
		return name
	}
	patterns, err := readSmall(filepath.Join(dir, wrangler.IgnoreFile), wrangler.MaxIgnore)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", shown(filepath.Join(dir, wrangler.IgnoreFile)), err)
	}
	var out []File
	var total int64
	for _, n := range []string{wrangler.HeadersFile, wrangler.RedirectsFile} {
		name := filepath.Join(dir, n)
		body, err := readSmall(name, wrangler.MaxRules)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", shown(name), err)
		}
		out = append(out, File{Path: n, Size: int64(len(body)), body: body})
	}
	rules := len(out)
	var kept []string
	err = wrangler.WalkAssets(dir, wrangler.ParseIgnore(string(patterns)), func(name, rel string, d fs.DirEntry) error {
		f, err := c.asset(name, rel, shown(name), d)
		if err != nil {
			return err
		}
		if why := secret(rel, f.Source); why != "" {
			kept = append(kept, shown(filepath.Join(dir, filepath.FromSlash(secretPath(rel)))))
			return nil
		}
		out = append(out, f)
		total += f.Size
		switch {
		case len(out)-rules > wrangler.MaxAssets:
			return fmt.Errorf("%s has more than %d files: name what is not to be served in %s", shown(dir), wrangler.MaxAssets, wrangler.IgnoreFile)
		case total > wrangler.MaxAssetTotal:
			return fmt.Errorf("the files of %s have more than %d MiB", shown(dir), wrangler.MaxAssetTotal>>20)
		}
		return nil
	})
	if kept = slices.Compact(kept); len(kept) > 0 {
		p.Notes = append(p.Notes, "left out, since secrets are not served: "+some(kept))
	}
	return out, err
}

// some names the first few of a list.
func some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// asset looks at one file. A link is followed to a file of the project and no
// further: the folder may be somebody else's work.
func (c *config) asset(name, rel, shown string, d fs.DirEntry) (File, error) {
	real := name
	info, err := d.Info()
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if real, err = filepath.EvalSymlinks(name); err != nil {
			return File{}, fmt.Errorf("%s is a link to nothing: name it in %s", shown, wrangler.IgnoreFile)
		}
		if to, rerr := filepath.Rel(c.root, real); rerr != nil || !filepath.IsLocal(to) {
			return File{}, fmt.Errorf("%s is a link that leads out of the project: name it in %s, or put the file there", shown, wrangler.IgnoreFile)
		}
		info, err = os.Stat(real)
	}
	switch {
	case err != nil:
		return File{}, err
	case !info.Mode().IsRegular():
		return File{}, fmt.Errorf("%s is no regular file (a link to a directory is not followed): name it in %s", shown, wrangler.IgnoreFile)
	case info.Size() > wrangler.MaxAssetBytes:
		return File{}, fmt.Errorf("%s has %d bytes; an asset has at most %d MiB", shown, info.Size(), wrangler.MaxAssetBytes>>20)
	case !utf8.ValidString(rel):
		return File{}, fmt.Errorf("%s: its name is not UTF-8", shown)
	}
	return File{Path: rel, Size: info.Size(), Source: real}, nil
}
