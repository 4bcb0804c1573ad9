package bundle

import (
	"archive/zip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Yarn's Plug'n'Play keeps packages in zip archives and names their files as if the
// archive were a directory; esbuild reads them so. A package that is there several
// times, with other peers each, has a path of its own for each of them.
const (
	archiveMark  = ".zip" + string(filepath.Separator)
	maxInArchive = 64 << 20 // bytes of one file
)

// InArchive splits the path of a file in an archive of Yarn's into the archive and
// the path in there, with slashes.
func InArchive(name string) (archive, inside string, ok bool) {
	before, after, ok := strings.Cut(name, archiveMark)
	if !ok {
		return "", "", false
	}
	return before + ".zip", filepath.ToSlash(after), true
}

// yarns reports whether esbuild would read another file than a path says: one in an
// archive, or where a virtual path leads.
func yarns(name string) bool {
	if strings.Contains(name, archiveMark) {
		return true
	}
	return slices.ContainsFunc(strings.Split(name, string(filepath.Separator)), virtual)
}

// realPath follows the links of a path, also of one in an archive.
func realPath(name string) (string, error) {
	name = devirtualized(name)
	real, err := filepath.EvalSymlinks(name)
	if err == nil {
		return real, nil
	}
	if archive, inside, ok := InArchive(name); ok {
		if info, serr := os.Stat(archive); serr == nil && info.Mode().IsRegular() {
			if real, err = filepath.EvalSymlinks(archive); err != nil {
				return "", err
			}
			return filepath.Join(real, filepath.FromSlash(inside)), nil
		}
	}
	return "", err
}

// virtual reports whether a part of a path begins a virtual one; the second name is
// that of old releases.
func virtual(part string) bool { return part == "__virtual__" || part == "$$virtual" }

// devirtualized is where the file of a virtual path lies: `__virtual__/<id>/<n>` goes
// up n directories from the one that it stands in.
func devirtualized(name string) string {
	parts := strings.Split(name, string(filepath.Separator))
	for i := range parts {
		if !virtual(parts[i]) || i+2 >= len(parts) {
			continue
		}
		n, err := strconv.Atoi(parts[i+2])
		if err != nil {
			continue
		}
		keep := max(1, i-max(0, n)) // the root has no parent
		return devirtualized(strings.Join(slices.Concat(parts[:keep], parts[i+3:]), string(filepath.Separator)))
	}
	return name
}

// readFile reads a file, also one in an archive.
func readFile(name string) ([]byte, error) {
	archive, inside, ok := InArchive(name)
	if !ok {
		return os.ReadFile(name)
	}
	if info, err := os.Stat(archive); err != nil || !info.Mode().IsRegular() {
		return os.ReadFile(name) // a directory of that name
	}
	z, err := zip.OpenReader(archive)
	if err != nil {
		return nil, err
	}
	defer func() { _ = z.Close() }()
	f, err := z.Open(inside)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	body, err := io.ReadAll(io.LimitReader(f, maxInArchive+1))
	if err == nil && len(body) > maxInArchive {
		err = fmt.Errorf("it has more than %d MiB", maxInArchive>>20)
	}
	return body, err
}
