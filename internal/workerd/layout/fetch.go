package layout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/scafo/scafo/internal/bucket"
)

// ErrDigest: what lies in the bucket is not what the manifest, or the version,
// says.
var ErrDigest = errors.New("digest mismatch")

// ErrNoPointer: nothing was deployed yet.
var ErrNoPointer = errors.New("no deployment")

// ErrPointer: the pointer cannot be read as one.
var ErrPointer = errors.New("unreadable pointer")

const (
	parallel      = 16       // requests to the bucket at a time
	inFlightBytes = 64 << 20 // of assets in memory at a time
)

// Load reads the pointer with its ETag; ErrNoPointer when there is none.
func Load(ctx context.Context, b bucket.Bucket) (Pointer, string, error) {
	o, err := b.Get(ctx, PointerKey)
	if errors.Is(err, bucket.ErrNotFound) {
		return Pointer{}, "", ErrNoPointer
	}
	if err != nil {
		return Pointer{}, "", err
	}
	var p Pointer
	if err := json.Unmarshal(o.Body, &p); err != nil {
		return Pointer{}, o.ETag, fmt.Errorf("%w: %s: %w", ErrPointer, PointerKey, err)
	}
	if err := p.check(); err != nil {
		return p, o.ETag, fmt.Errorf("%w: %w", ErrPointer, err)
	}
	return p, o.ETag, nil
}

// Deployment is a fetched deployment: its manifest, and a directory with
// modules/ and assets/ in it.
type Deployment struct {
	*Manifest
	Dir string
}

// Remove takes the deployment off the disk; the cache of assets stays.
func (d *Deployment) Remove() error { return os.RemoveAll(d.Dir) }

// FetchOptions say where a deployment is put.
type FetchOptions struct {
	Root   string // each fetch makes a directory of its own below it
	Assets string // the cache of assets by digest; empty: none
}

// Fetch brings a deployment to the local disk and verifies every byte of it. Each
// call makes a new directory, the caller's to remove. An error that is none of
// the bucket's own (unavailable, unknown, denied) says that the deployment is
// broken.
func Fetch(ctx context.Context, b bucket.Bucket, p Pointer, o FetchOptions) (*Deployment, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPointer, err)
	}
	m, err := manifest(ctx, b, p)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Root, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Root, p.Version+"-")
	if err != nil {
		return nil, err
	}
	d := &Deployment{Manifest: m, Dir: dir}
	if err := d.fill(ctx, b, p, o); err != nil {
		return nil, errors.Join(err, d.Remove())
	}
	return d, nil
}

func manifest(ctx context.Context, b bucket.Bucket, p Pointer) (*Manifest, error) {
	key := p.Prefix + manifestName
	o, err := b.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if len(o.Body) > maxJSON || Digest(o.Body)[:versionLength] != p.Version {
		return nil, fmt.Errorf("%w: %s is not the manifest of version %s", ErrDigest, key, p.Version)
	}
	m := &Manifest{Version: p.Version}
	if err := json.Unmarshal(o.Body, m); err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return m, nil
}

// fill writes modules and assets into the deployment's directory.
func (d *Deployment) fill(ctx context.Context, b bucket.Bucket, p Pointer, o FetchOptions) error {
	root, err := os.OpenRoot(d.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if err := root.Mkdir(ModulesDir, 0o700); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, m := range d.Modules {
		g.Go(func() error {
			body, err := get(ctx, b, moduleKey(p.Prefix, m), m.SHA256, m.Bytes)
			if err != nil {
				return err
			}
			// Two modules may have the same bytes, and then the same file.
			return root.WriteFile(path.Join(ModulesDir, LocalName(m)), body, 0o600)
		})
	}
	if d.Assets != nil {
		g.Go(func() error { return d.fillAssets(ctx, b, p, o, root) })
	}
	return g.Wait()
}

// get reads an object that must have this digest and size.
func get(ctx context.Context, b bucket.Bucket, key, sha string, size int64) ([]byte, error) {
	o, err := b.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if (size >= 0 && int64(len(o.Body)) != size) || Digest(o.Body) != sha {
		return nil, fmt.Errorf("%w: %s has not the bytes that were published", ErrDigest, key)
	}
	return o.Body, nil
}

func (d *Deployment) fillAssets(ctx context.Context, b bucket.Bucket, p Pointer, o FetchOptions, root *os.Root) error {
	if err := root.Mkdir(AssetsDir, 0o700); err != nil {
		return err
	}
	body, err := get(ctx, b, p.Prefix+assetsName, d.Assets.Index, -1)
	if err != nil {
		return err
	}
	var index []Asset
	if err := json.Unmarshal(body, &index); err != nil {
		return fmt.Errorf("%s: %w", assetsName, err)
	}
	if len(index) > MaxAssets {
		return fmt.Errorf("%s lists more than %d files", assetsName, MaxAssets)
	}
	if o.Assets != "" {
		if err := os.MkdirAll(o.Assets, 0o700); err != nil {
			return err
		}
	}
	memory := semaphore.NewWeighted(inFlightBytes)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, a := range index {
		if !fs.ValidPath(a.Path) || a.Path == "." || !digestPattern.MatchString(a.SHA256) || a.Bytes < 0 || a.Bytes > MaxAssetBytes {
			return errors.Join(fmt.Errorf("%s lists a file that cannot be: %q", assetsName, a.Path), g.Wait())
		}
		if err := root.MkdirAll(path.Dir(path.Join(AssetsDir, a.Path)), 0o700); err != nil {
			return errors.Join(err, g.Wait())
		}
		g.Go(func() error {
			if err := memory.Acquire(ctx, a.Bytes); err != nil {
				return err
			}
			defer memory.Release(a.Bytes)
			return d.asset(ctx, b, a, o.Assets, root)
		})
	}
	return g.Wait()
}

// asset puts one file in its place, from the cache when it is there.
func (d *Deployment) asset(ctx context.Context, b bucket.Bucket, a Asset, cache string, root *os.Root) error {
	name := filepath.Join(AssetsDir, filepath.FromSlash(a.Path))
	if cache == "" {
		body, err := get(ctx, b, BlobKey(a.SHA256), a.SHA256, a.Bytes)
		if err != nil {
			return err
		}
		if err := root.WriteFile(name, body, 0o600); err != nil {
			return err
		}
		return root.Chtimes(name, a.time(), a.time())
	}
	cached := filepath.Join(cache, a.SHA256)
	// A cached file is complete, since it got its name when it was; its size is
	// looked at for disks that lost its end with the power.
	info, err := os.Stat(cached)
	if err != nil || info.Size() != a.Bytes {
		body, err := get(ctx, b, BlobKey(a.SHA256), a.SHA256, a.Bytes)
		if err != nil {
			return err
		}
		if err := writeWhole(cached, body); err != nil {
			return err
		}
	}
	if info == nil || !info.ModTime().Equal(a.time()) {
		if err := os.Chtimes(cached, a.time(), a.time()); err != nil {
			return err
		}
	}
	if err := os.Link(cached, filepath.Join(d.Dir, name)); err == nil {
		return nil
	}
	// Another file system, or too many links: copy.
	if err := copyFile(cached, name, root); err != nil {
		return err
	}
	return root.Chtimes(name, a.time(), a.time())
}

// The range of the times that files of assets get, in nanoseconds: 2001 to 2033.
const (
	firstTime = 1e18
	times     = 1e18
)

// time is when an asset's file is said to be changed. The runtime makes its ETag of
// that and of the size, so it follows from the content: every node and every deploy
// gives the same content the same ETag, and other content another one.
func (a Asset) time() time.Time {
	sum, err := strconv.ParseUint(a.SHA256[:16], 16, 64)
	if err != nil {
		sum = 0 // it was checked to be a digest
	}
	return time.Unix(0, firstTime+int64(sum%times))
}

// writeWhole writes a file that appears under its name only when it is complete.
func writeWhole(name string, body []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".partial-*")
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func copyFile(from, to string, root *os.Root) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := root.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
