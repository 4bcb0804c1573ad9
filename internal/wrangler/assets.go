package wrangler

import (
	"fmt"
	"io/fs"
	"path/filepath"
)

// Files at the top of an assets directory that are never served themselves.
const (
	IgnoreFile    = ".assetsignore"
	HeadersFile   = "_headers"
	RedirectsFile = "_redirects"
	workerFile    = "_worker.js"
)

// Limits of a project.
const (
	MaxConfig     = 1 << 20 // bytes of a configuration
	MaxIgnore     = 1 << 20 // of .assetsignore
	MaxRules      = 100 << 10
	MaxAssets     = 20_000
	MaxAssetBytes = 25 << 20
	MaxAssetTotal = 1 << 30
)

// WalkAssets visits what is served of an assets directory, in order: all but what
// is ignored and the files that say how. Directories are not visited, and links not
// followed. rel is the path below dir, with slashes.
func WalkAssets(dir string, ignored Ignore, visit func(name, rel string, d fs.DirEntry) error) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch {
		case rel == ".":
			return nil
		case d.IsDir() && ignored.MatchOne(rel, true):
			return fs.SkipDir
		case !d.IsDir() && (rel == IgnoreFile || rel == HeadersFile || rel == RedirectsFile || ignored.Match(rel)):
			return nil
		case rel == workerFile:
			return fmt.Errorf("%s: code must not be served as an asset: name it in %s", filepath.Join(filepath.Base(dir), workerFile), IgnoreFile)
		case d.IsDir():
			return nil
		}
		return visit(name, rel, d)
	})
}
