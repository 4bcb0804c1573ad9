package project

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/wrangler"
	"github.com/scafo/scafo/internal/wrangler/bundle"
)

// collectAssets reads the assets directory: which files are served, with their
// sizes and digests, and the texts that say how.
func (p *Project) collectAssets(ctx context.Context) (*layout.Assets, []layout.AssetFile, error) {
	c := p.Config.Assets
	dir, err := p.inside(filepath.Join(p.Dir, filepath.FromSlash(c.Directory)))
	if err != nil {
		return nil, nil, c.at.Errorf("assets.directory %q: %v", c.Directory, err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, nil, c.at.Errorf("assets.directory %q is no directory", c.Directory)
	}
	a := c.manifest()
	var patterns string
	for _, f := range []struct {
		name string
		most int64
		to   *string
	}{{wrangler.HeadersFile, layout.MaxRules, &a.Headers}, {wrangler.RedirectsFile, layout.MaxRules, &a.Redirects}, {wrangler.IgnoreFile, wrangler.MaxIgnore, &patterns}} {
		if *f.to, err = p.readSmall(filepath.Join(dir, f.name), f.most); err != nil {
			return nil, nil, err
		}
	}
	files, err := p.listAssets(dir, wrangler.ParseIgnore(patterns))
	if err != nil {
		return nil, nil, err
	}
	return a, files, digestAll(ctx, files)
}

// manifest is what the configuration itself says of the assets.
func (a *Assets) manifest() *layout.Assets {
	return &layout.Assets{
		Binding: a.Binding, HTMLHandling: a.HTMLHandling, NotFoundHandling: a.NotFoundHandling, RunWorkerFirst: a.RunWorkerFirst,
	}
}

// readSmall reads a text beside the assets, empty when there is none.
func (p *Project) readSmall(name string, most int64) (string, error) {
	shown := p.shown(name)
	real, err := p.inside(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	info, err := os.Stat(real)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return "", fmt.Errorf("%s is no file of at most %d KiB", shown, most>>10)
	}
	b, err := os.ReadFile(real)
	if err != nil {
		return "", err
	}
	if !utf8.Valid(b) {
		return "", fmt.Errorf("%s is not UTF-8", shown)
	}
	return strings.TrimPrefix(string(b), string(wrangler.ByteOrderMark)), nil
}

// listAssets finds the files that are served, sorted by path, and holds them to
// the limits.
func (p *Project) listAssets(dir string, ignored wrangler.Ignore) ([]layout.AssetFile, error) {
	var out []layout.AssetFile
	var total int64
	err := wrangler.WalkAssets(dir, ignored, func(name, rel string, d fs.DirEntry) error {
		f, err := p.asset(name, rel, d)
		if err != nil {
			return err
		}
		out = append(out, f)
		total += f.Bytes
		switch {
		case len(out) > layout.MaxAssets:
			return fmt.Errorf("%s has more than %d files", p.shown(dir), layout.MaxAssets)
		case total > layout.MaxAssetTotal:
			return fmt.Errorf("the files of %s have more than %d MiB", p.shown(dir), layout.MaxAssetTotal>>20)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(x, y layout.AssetFile) int { return strings.Compare(x.Path, y.Path) })
	return out, nil
}

// asset looks at one file, links followed. The walk follows none, so that what is
// no link itself lies inside.
func (p *Project) asset(name, rel string, d fs.DirEntry) (layout.AssetFile, error) {
	shown, real := p.shown(name), name
	info, err := d.Info()
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if real, err = p.inside(name); err != nil {
			return layout.AssetFile{}, fmt.Errorf("%s: %w", shown, err)
		}
		info, err = os.Stat(real)
	}
	if err != nil {
		return layout.AssetFile{}, err
	}
	switch {
	case !info.Mode().IsRegular():
		return layout.AssetFile{}, fmt.Errorf("%s is no regular file (a link to a directory is not followed): name it in %s", shown, wrangler.IgnoreFile)
	case info.Size() > layout.MaxAssetBytes:
		return layout.AssetFile{}, fmt.Errorf("%s has %d bytes; an asset has at most %d MiB", shown, info.Size(), layout.MaxAssetBytes>>20)
	case !utf8.ValidString(rel) || !fs.ValidPath(rel):
		return layout.AssetFile{}, fmt.Errorf("%s: its name is not UTF-8", shown)
	}
	return layout.AssetFile{Asset: layout.Asset{Path: rel, Bytes: info.Size()}, Source: real}, nil
}

// digestAll fills in the digests.
func digestAll(ctx context.Context, files []layout.AssetFile) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for i := range files {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			f, err := os.Open(files[i].Source)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			h := sha256.New()
			n, err := io.Copy(h, io.LimitReader(f, layout.MaxAssetBytes+1))
			if err != nil {
				return err
			}
			if n != files[i].Bytes {
				return fmt.Errorf("%s changed while it was read", files[i].Path)
			}
			files[i].SHA256 = hex.EncodeToString(h.Sum(nil))
			return nil
		})
	}
	return g.Wait()
}

// inside follows the links of a path and refuses one that ends outside the
// project.
func (p *Project) inside(name string) (string, error) {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		// Without the absolute path, which is of no use to who deploys.
		var pe *fs.PathError
		if errors.As(err, &pe) {
			return "", pe.Err
		}
		return "", err
	}
	rel, err := filepath.Rel(p.Dir, real)
	if err != nil || !filepath.IsLocal(rel) {
		return "", bundle.ErrOutside
	}
	return real, nil
}

// shown is a path as the user knows it.
func (p *Project) shown(name string) string {
	rel, err := filepath.Rel(p.Dir, name)
	if err != nil || !filepath.IsLocal(rel) {
		return name
	}
	return filepath.ToSlash(rel)
}
