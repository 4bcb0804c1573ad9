// Package storage keeps what an ingress has to share with the others: its objects,
// which are certificates, keys and notes about them, and its locks. Both lie in the
// bucket as documents that change by compare-and-swap alone. They belong to no
// application, so a removal leaves a tombstone.
package storage

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/registry"
)

// DefaultLock is after how long a lock is free again that nobody released, unless
// storage.lockSeconds says otherwise.
const DefaultLock = 600 * time.Second

// Options are what the service takes from its surroundings.
type Options struct {
	// Lock is storage.lockSeconds; 0 takes DefaultLock.
	Lock time.Duration
	// Now is a clock that only grows, for what is watched here; nil takes time.Now.
	Now func() time.Time
	Log *slog.Logger // nil logs nothing
}

// Service is the ingress's storage. All methods are safe for concurrent use, and
// their errors are a *scafo.Error each.
type Service struct {
	r    *registry.Registry
	lock time.Duration
	now  func() time.Time
	log  *slog.Logger

	mu      sync.Mutex
	watched map[string]watch // guarded by mu; locks of others, by key
}

// New makes the service over a registry.
func New(r *registry.Registry, o Options) *Service {
	s := &Service{r: r, lock: o.Lock, now: o.Now, log: o.Log, watched: map[string]watch{}}
	if s.lock <= 0 {
		s.lock = DefaultLock
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// object is the document of one value. Every document of a value is at least
// leastObject bytes long and every tombstone is shorter, so that a listing tells
// them apart without a read of each.
type object struct {
	scafo.Header
	Key  string `json:"key"`
	Body []byte `json:"body"`
	Pad  string `json:"pad"`
}

const leastObject = 256

// pad makes up for what a short value lacks.
var pad = strings.Repeat(" ", leastObject)

// set puts a value into a document.
func (o *object) set(k Key, body []byte) {
	if body == nil {
		body = []byte{}
	}
	o.Key, o.Body = k.text, body
	// What the members around it take only adds to it.
	o.Pad = pad[min(len(pad), len(k.text)+len(body)):]
}

// removers is how many objects one call removes at once.
const removers = 16

// MaxBody is the most bytes that a value may have.
const MaxBody = scafo.MaxStorageObject

func missing(k Key) error {
	return scafo.Errorf(scafo.CodeNotFound, "nothing is kept under the key %s", k)
}

func purpose(ctx context.Context) context.Context { return meter.With(ctx, "storage") }

// Put keeps a value under a key, whatever was there.
func (s *Service) Put(ctx context.Context, k Key, body []byte) error {
	if len(body) > MaxBody {
		return scafo.Errorf(scafo.CodeResourceLimit, "a value has at most %d bytes", MaxBody)
	}
	ctx = purpose(ctx)
	err := s.put(ctx, k, body)
	if corrupt(err) {
		// It would be in the way of this key for ever.
		if err = s.mend(ctx, k.object(), err); err == nil {
			err = s.put(ctx, k, body)
		}
	}
	return err
}

func (s *Service) put(ctx context.Context, k Key, body []byte) error {
	_, err := registry.Update(ctx, s.r, k.object(), func(d *registry.Doc[object]) error {
		d.Value.set(k, body)
		return nil
	})
	return err
}

// Get is the value of a key; not-found when it has none.
func (s *Service) Get(ctx context.Context, k Key) ([]byte, error) {
	d, err := registry.Load[object](purpose(ctx), s.r, k.object())
	switch {
	case err != nil:
		return nil, err
	case !d.Exists:
		return nil, missing(k)
	}
	return d.Value.Body, nil
}

// Stat tells what is known of a key that has a value, or that others are beneath
// of; not-found for every other one. Of a key that has both it is the value's.
func (s *Service) Stat(ctx context.Context, k Key) (scafo.StorageStat, error) {
	ctx = purpose(ctx)
	d, err := registry.Load[object](ctx, s.r, k.object())
	if err != nil {
		return scafo.StorageStat{}, err
	}
	st := scafo.StorageStat{Key: k.text}
	if d.Exists {
		st.Size, st.Modified, st.IsTerminal = int64(len(d.Value.Body)), d.Modified.UTC(), true
		return st, nil
	}
	found := false
	err = s.walk(ctx, k, func(_ string, i bucket.Info) string {
		found = true
		if i.Modified.After(st.Modified) {
			st.Modified = i.Modified.UTC()
		}
		return ""
	})
	if err == nil && !found {
		err = missing(k)
	}
	return st, err
}

// Delete removes a key and everything beneath it; not-found when that is nothing.
func (s *Service) Delete(ctx context.Context, k Key) error {
	ctx = purpose(ctx)
	keys := []string{k.object()}
	err := s.walk(ctx, k, func(_ string, i bucket.Info) string {
		keys = append(keys, i.Key)
		return ""
	})
	if err != nil {
		return err
	}
	removed := make([]bool, len(keys))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(removers)
	for i, key := range keys {
		g.Go(func() error {
			var err error
			removed[i], err = s.remove(gctx, key)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, r := range removed {
		if r {
			return nil
		}
	}
	return missing(k)
}

func (s *Service) remove(ctx context.Context, key string) (bool, error) {
	removed, err := registry.Remove[object](ctx, s.r, key, nil)
	if corrupt(err) {
		if err = s.mend(ctx, key, err); err == nil {
			removed, err = registry.Remove[object](ctx, s.r, key, nil)
		}
	}
	return removed, err
}

func corrupt(err error) bool {
	var c *registry.CorruptError
	return errors.As(err, &c)
}

// mend puts an empty document in the place of an object that is none. What a newer
// release wrote is not such a one.
func (s *Service) mend(ctx context.Context, key string, cause error) error {
	s.log.Warn("an object of the ingress's storage cannot be read and is replaced", "event", "storage.mended", "key", key, "cause", cause)
	o, err := s.r.Bucket().Get(ctx, key)
	if errors.Is(err, bucket.ErrNotFound) {
		return nil
	}
	if err != nil {
		return away(err, "reading "+key)
	}
	d := registry.Doc[object]{Key: key, ETag: o.ETag}
	d.Value.set(Key{}, nil)
	_, err = registry.Swap(ctx, s.r, d)
	if errors.Is(err, bucket.ErrRefused) {
		return nil // somebody else was faster; the next try sees what they wrote
	}
	return err
}

// away is how a failure of the bucket leaves the service.
func away(err error, what string) error {
	var e *scafo.Error
	if errors.As(err, &e) {
		return e
	}
	return scafo.Wrap(err, scafo.CodeStoreUnavailable, "the bucket did not answer as it should: %s", what)
}
