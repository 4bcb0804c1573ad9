package layout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/scafo/scafo/internal/bucket"
)

// ErrLostRace: another deploy moved the pointer while this one was writing.
var ErrLostRace = errors.New("another deploy moved the pointer meanwhile: run the deploy again")

// ErrMayHaveCommitted: the answer to the write of the pointer was lost, and what
// became of it could not be read.
var ErrMayHaveCommitted = errors.New("the pointer may have been written: its answer was lost")

// AssetFile is an asset and where its bytes are.
type AssetFile struct {
	Asset
	Source string // the file to read
}

// Bundle is a deployment that is ready to be published.
type Bundle struct {
	Manifest *Manifest
	Contents map[string][]byte // of each module, by name
	// SourceMap leads from the main module back to the project's files; nil: nobody knows
	// the way. It is no part of the version, and one above [MaxSourceMap] is left out.
	SourceMap []byte
	Assets    []AssetFile // sorted by path
}

// SealModules fills in the sizes and digests of the modules.
func (b *Bundle) SealModules() error {
	for i := range b.Manifest.Modules {
		m := &b.Manifest.Modules[i]
		body, ok := b.Contents[m.Name]
		if !ok {
			return fmt.Errorf("module %q has no contents", m.Name)
		}
		m.Bytes, m.SHA256 = int64(len(body)), Digest(body)
	}
	return nil
}

// Seal fills in what follows from the contents: sizes, digests, the index of the
// assets, and the version.
func (b *Bundle) Seal() error {
	m := b.Manifest
	if err := b.SealModules(); err != nil {
		return err
	}
	if m.Assets != nil {
		index, err := b.index()
		if err != nil {
			return err
		}
		m.Assets.Index, m.Assets.Files, m.Assets.Bytes = Digest(index), len(b.Assets), 0
		for _, a := range b.Assets {
			m.Assets.Bytes += a.Bytes
		}
	}
	if err := m.check(); err != nil {
		return err
	}
	_, version, err := m.Encode()
	m.Version = version
	return err
}

func (b *Bundle) index() ([]byte, error) {
	list := make([]Asset, len(b.Assets))
	for i, a := range b.Assets {
		list[i] = a.Asset
	}
	slices.SortFunc(list, func(x, y Asset) int { return strings.Compare(x.Path, y.Path) })
	return json.Marshal(list)
}

// Pointer is what the pointer says once the bundle is published.
func (b *Bundle) Pointer() Pointer {
	m := b.Manifest
	return Pointer{ScriptName: m.ScriptName, Version: m.Version, Prefix: Prefix(m.ScriptName, m.Version), Rollout: Rollout{Percent: 100}}
}

// Before is what the pointer was when a deploy looked at it.
type Before struct {
	pointer Pointer
	etag    string // empty: there was none
}

// Look reads the pointer for a later [PublishAfter].
func Look(ctx context.Context, b bucket.Bucket) (Before, error) {
	p, etag, err := Load(ctx, b)
	if err != nil && !errors.Is(err, ErrNoPointer) && !errors.Is(err, ErrPointer) {
		return Before{}, err
	}
	return Before{p, etag}, nil
}

// Publish is [Look] and [PublishAfter].
func Publish(ctx context.Context, b bucket.Bucket, bundle *Bundle) error {
	before, err := Look(ctx, b)
	if err != nil {
		return err
	}
	return PublishAfter(ctx, b, before, bundle)
}

// PublishAfter writes a sealed bundle: the blobs of its assets first, then modules,
// index and manifest, then the script's pointer, and the pointer itself last, by
// compare-and-swap against what it was before. To publish the same content again is
// safe, and mends what was damaged.
func PublishAfter(ctx context.Context, b bucket.Bucket, before Before, bundle *Bundle) error {
	want := bundle.Pointer()
	if err := putBlobs(ctx, b, bundle.Assets); err != nil {
		return err
	}
	if err := putDeployment(ctx, b, bundle); err != nil {
		return err
	}
	body, err := json.Marshal(want)
	if err != nil {
		return err
	}
	if err := put(ctx, b, ScriptKey(want.ScriptName), body); err != nil {
		return err
	}
	if before.pointer == want {
		return nil
	}
	return swap(ctx, b, before.etag, body, want)
}

// swap moves the pointer. A try that is refused or whose answer is lost is settled
// by reading back; it is made again only while the pointer is what it was, where
// at worst it meets its own success.
func swap(ctx context.Context, b bucket.Bucket, etag string, body []byte, want Pointer) error {
	var err error
	for attempt := range tries {
		if attempt > 0 {
			if err := pause(ctx, attempt); err != nil {
				return err
			}
		}
		if etag == "" {
			_, err = b.Create(ctx, PointerKey, body)
		} else {
			_, err = b.Replace(ctx, PointerKey, etag, body)
		}
		if err == nil || !errors.Is(err, bucket.ErrRefused) && !errors.Is(err, bucket.ErrUnknown) && !errors.Is(err, bucket.ErrUnavailable) {
			return err
		}
		now, nowTag, readErr := Load(ctx, b)
		switch {
		case readErr == nil && now == want:
			return nil // it is what was wanted, whoever wrote it
		case readErr != nil && !errors.Is(readErr, ErrNoPointer) && !errors.Is(readErr, ErrPointer):
			return unsettled(err, readErr)
		case nowTag != etag:
			return ErrLostRace
		}
	}
	return unsettled(err, nil)
}

// unsettled is what is left to say of a write of the pointer that failed with err.
func unsettled(err, readErr error) error {
	err = errors.Join(err, readErr)
	if errors.Is(err, bucket.ErrUnknown) {
		return fmt.Errorf("%w: %w", ErrMayHaveCommitted, err)
	}
	return fmt.Errorf("the pointer was not moved: %w", err)
}

const (
	tries     = 4 // of a write whose repetition does no harm
	firstWait = 50 * time.Millisecond
)

// pause waits before a further try, twice as long each time, with jitter.
func pause(ctx context.Context, attempt int) error {
	wait := firstWait << attempt
	t := time.NewTimer(wait/2 + rand.N(wait/2))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// put writes an object that is always the same under its key, so that to write it
// again does no harm.
func put(ctx context.Context, b bucket.Bucket, key string, body []byte) error {
	var err error
	for attempt := range tries {
		if attempt > 0 {
			if err := pause(ctx, attempt); err != nil {
				return err
			}
		}
		_, err = b.Put(ctx, key, body)
		if !errors.Is(err, bucket.ErrUnavailable) && !errors.Is(err, bucket.ErrUnknown) {
			return err
		}
	}
	return err
}

func putDeployment(ctx context.Context, b bucket.Bucket, bundle *Bundle) error {
	m := bundle.Manifest
	prefix := Prefix(m.ScriptName, m.Version)
	manifest, version, err := m.Encode()
	if err != nil {
		return err
	}
	if version != m.Version {
		return fmt.Errorf("the bundle was changed after it was sealed")
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, mod := range m.Modules {
		g.Go(func() error {
			return put(gctx, b, moduleKey(prefix, mod), bundle.Contents[mod.Name])
		})
	}
	if n := len(bundle.SourceMap); n > 0 && n <= MaxSourceMap {
		g.Go(func() error { return put(gctx, b, m.SourceMapKey(), bundle.SourceMap) })
	}
	if m.Assets != nil {
		index, err := bundle.index()
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		g.Go(func() error {
			return put(gctx, b, prefix+assetsName, index)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// The manifest last: what has one is complete.
	return put(ctx, b, prefix+manifestName, manifest)
}

// putBlobs uploads the assets that the bucket does not have.
func putBlobs(ctx context.Context, b bucket.Bucket, assets []AssetFile) error {
	if len(assets) == 0 {
		return nil
	}
	have := map[string]int64{}
	err := bucket.Walk(ctx, b, blobPrefix, func(i bucket.Info) error {
		have[i.Key] = i.Size
		return nil
	})
	if err != nil {
		return err
	}
	memory := semaphore.NewWeighted(inFlightBytes)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, a := range assets {
		key := BlobKey(a.SHA256)
		if size, ok := have[key]; ok && size == a.Bytes {
			continue
		}
		have[key] = a.Bytes // the same bytes may have several paths
		g.Go(func() error {
			if err := memory.Acquire(ctx, a.Bytes); err != nil {
				return err
			}
			defer memory.Release(a.Bytes)
			body, err := os.ReadFile(a.Source)
			if err != nil {
				return err
			}
			if Digest(body) != a.SHA256 {
				return fmt.Errorf("%s changed while it was published", a.Path)
			}
			return put(ctx, b, key, body)
		})
	}
	return g.Wait()
}

// Unpack writes the modules, sealed at least, to a directory as Fetch would, with
// no assets: enough to try them.
func (b *Bundle) Unpack(dir string) (*Deployment, error) {
	d := &Deployment{Manifest: b.Manifest, Dir: dir}
	for _, sub := range []string{ModulesDir, AssetsDir} {
		if err := os.MkdirAll(dir+"/"+sub, 0o700); err != nil {
			return nil, err
		}
	}
	for _, m := range b.Manifest.Modules {
		if err := os.WriteFile(dir+"/"+ModulesDir+"/"+LocalName(m), b.Contents[m.Name], 0o600); err != nil {
			return nil, err
		}
	}
	return d, nil
}
