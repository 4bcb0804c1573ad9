package server

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/versity/versitygw/backend/meta"
)

// Attributes that are stored last, or nearly so, before a file gets its name:
// the ETag of an object or a part, and then, of an object made of parts, where
// they lie. (Names of versitygw's posix backend; a test fails if they change.)
const (
	etagAttribute  = "etag"
	partsAttribute = "mp-metadata"
)

// disk is what puts things on the disk; tests watch it.
type disk struct {
	syncFile func(*os.File) error
	syncDir  func(string) error
}

var realDisk = disk{syncFile: (*os.File).Sync, syncDir: syncDir}

func syncDir(dir string) error {
	f, err := os.Open(dir) //nolint:gosec // within the served directory
	if err != nil {
		return err
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// durableMeta keeps the metadata in extended attributes, and sees to it that a
// file's content and attributes are on the disk before the file gets its name:
// the backend stores the ETag once all content is written, and renames after
// that.
type durableMeta struct {
	meta.XattrMeta
	disk disk
}

// StoreAttribute implements meta.MetadataStorer.
func (m durableMeta) StoreAttribute(f *os.File, bucket, object, attribute string, value []byte) error {
	if err := m.XattrMeta.StoreAttribute(f, bucket, object, attribute, value); err != nil {
		return err
	}
	if f == nil { // something that has its name already
		return m.syncPath(bucket, object)
	}
	if attribute == etagAttribute || attribute == partsAttribute {
		return m.disk.syncFile(f)
	}
	return nil
}

// DeleteAttribute implements meta.MetadataStorer.
func (m durableMeta) DeleteAttribute(bucket, object, attribute string) error {
	if err := m.XattrMeta.DeleteAttribute(bucket, object, attribute); err != nil {
		return err
	}
	return m.syncPath(bucket, object)
}

func (m durableMeta) syncPath(bucket, object string) error {
	f, err := os.Open(filepath.Join(bucket, object))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read only
	return m.disk.syncFile(f)
}

// maxKnown bounds how many folders are remembered.
const maxKnown = 1 << 16

// folders puts the names of new objects on the disk: the folder that has the
// object, and every folder above it that was made for it. It remembers which
// folders are known to be on the disk, so that most writes cost one sync here.
//
// No folder is removed between the moment that an object gets its name and
// persist (see store.commit), so what persist finds in known is there.
type folders struct {
	disk disk

	mu    sync.Mutex
	known map[string]struct{} // guarded by mu; folders whose own names are on the disk
}

func newFolders(d disk) *folders { return &folders{disk: d, known: map[string]struct{}{}} }

// persist syncs the folder of an object, and above it as far as needed. Paths
// are relative to the served directory, and begin with a bucket.
func (t *folders) persist(bucket, key string) error {
	dir := filepath.Dir(filepath.Join(bucket, key))
	if err := t.disk.syncDir(dir); err != nil {
		return err
	}
	var fresh []string
	for ; dir != bucket && dir != "."; dir = filepath.Dir(dir) {
		if t.has(dir) {
			break // and so are those above it: none is removed while one below it is there
		}
		if err := t.disk.syncDir(filepath.Dir(dir)); err != nil {
			return err
		}
		fresh = append(fresh, dir)
	}
	t.add(fresh)
	return nil
}

func (t *folders) has(dir string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.known[dir]
	return ok
}

func (t *folders) add(dirs []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.known)+len(dirs) > maxKnown {
		clear(t.known)
	}
	for _, d := range dirs {
		t.known[d] = struct{}{}
	}
}

// removed forgets the folders that went with an object, and returns the nearest
// one above it that is still there. It must run before anything can make them
// again.
func (t *folders) removed(bucket, key string) string {
	dir := filepath.Dir(filepath.Join(bucket, key))
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; dir != bucket && dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); err == nil {
			break
		}
		delete(t.known, dir)
	}
	return dir
}

// persistRemoval syncs the folder from which something was removed; if it was
// removed itself in the meantime, the one above it.
func (t *folders) persistRemoval(bucket, dir string) error {
	for {
		err := t.disk.syncDir(dir)
		if !errors.Is(err, fs.ErrNotExist) || dir == bucket || dir == "." {
			return err
		}
		dir = filepath.Dir(dir)
	}
}
