// Package memory is a bucket in memory, for tests. It answers as a good S3 store
// does; package fault makes it answer as a bad one.
package memory

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // an ETag is an MD5 by convention, not for safety
	"encoding/binary"
	"encoding/hex"
	"errors"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo/internal/bucket"
)

// MaxPage is the most rows that one page of a listing has, as in S3.
const MaxPage = 1000

// behind follows every key that has the prefix before it: the byte occurs in no
// UTF-8 text.
const behind = "\xff"

var _ bucket.Bucket = (*Store)(nil)

// Store is a bucket in memory.
type Store struct {
	now     func() time.Time
	content bool
	files   bool

	mu      sync.Mutex
	objects map[string]object // guarded by mu
	writes  uint64            // guarded by mu; how many writes there were
}

type object struct {
	body     []byte
	etag     string
	modified time.Time
}

// Option changes how a new store behaves.
type Option func(*Store)

// WithClock gives the store its time; the default is time.Now.
func WithClock(now func() time.Time) Option { return func(s *Store) { s.now = now } }

// ContentETags makes an ETag depend on the content alone, as the MD5 of S3 does:
// writing x, y and x again shows the first ETag again. Without it every write
// has an ETag of its own.
func ContentETags() Option { return func(s *Store) { s.content = true } }

// Files makes the store refuse a key below another key (p and then p/q, or the
// other way round), as stores over a file system do.
func Files() Option { return func(s *Store) { s.files = true } }

// New makes an empty store.
func New(opts ...Option) *Store {
	s := &Store{now: time.Now, objects: map[string]object{}}
	for _, o := range opts {
		o(s)
	}
	return s
}

func fail(op, key string, kind, cause error) error {
	return &bucket.Error{Op: op, Key: key, Kind: kind, Err: cause}
}

// Get implements bucket.Bucket.
func (s *Store) Get(ctx context.Context, key string) (*bucket.Object, error) {
	return s.GetIfChanged(ctx, key, "")
}

// GetIfChanged implements bucket.Bucket.
func (s *Store) GetIfChanged(ctx context.Context, key, etag string) (*bucket.Object, error) {
	if err := enter(ctx, "get", key); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	switch {
	case !ok:
		return nil, fail("get", key, bucket.ErrNotFound, nil)
	case etag != "" && o.etag == etag:
		return nil, fail("get", key, bucket.ErrNotModified, nil)
	}
	return &bucket.Object{
		Key: key, Body: bytes.Clone(o.body), ETag: o.etag,
		Modified: o.modified, Date: s.second(),
	}, nil
}

// Create implements bucket.Bucket.
func (s *Store) Create(ctx context.Context, key string, body []byte) (string, error) {
	return s.write(ctx, "create", key, body, func(_ object, exists bool) bool { return !exists })
}

// Replace implements bucket.Bucket.
func (s *Store) Replace(ctx context.Context, key, etag string, body []byte) (string, error) {
	return s.write(ctx, "replace", key, body, func(o object, exists bool) bool {
		return exists && etag != "" && o.etag == etag
	})
}

// Put implements bucket.Bucket.
func (s *Store) Put(ctx context.Context, key string, body []byte) (string, error) {
	return s.write(ctx, "put", key, body, func(object, bool) bool { return true })
}

func (s *Store) write(ctx context.Context, op, key string, body []byte, allowed func(object, bool) bool) (string, error) {
	if err := enter(ctx, op, key); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, exists := s.objects[key]
	if !allowed(old, exists) {
		return "", fail(op, key, bucket.ErrRefused, nil)
	}
	if s.files && !exists {
		if err := s.collides(key); err != nil {
			return "", fail(op, key, bucket.ErrInvalid, err)
		}
	}
	s.writes++
	o := object{body: bytes.Clone(body), modified: s.second()}
	sum := md5.New() //nolint:gosec // see the import
	sum.Write(body)
	if !s.content {
		sum.Write(binary.BigEndian.AppendUint64(nil, s.writes))
	}
	o.etag = `"` + hex.EncodeToString(sum.Sum(nil)) + `"`
	s.objects[key] = o
	return o.etag, nil
}

// collides says whether the key would be a folder and a file at once.
func (s *Store) collides(key string) error {
	for i := range len(key) {
		if key[i] == '/' {
			if _, ok := s.objects[key[:i]]; ok {
				return errors.New("a parent of the key is an object")
			}
		}
	}
	for k := range s.objects {
		if strings.HasPrefix(k, key+"/") {
			return errors.New("the key is the parent of an object")
		}
	}
	return nil
}

// Delete implements bucket.Bucket.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := enter(ctx, "delete", key); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, key)
	return nil
}

// List implements bucket.Bucket.
func (s *Store) List(ctx context.Context, prefix string, o bucket.ListOptions) (bucket.Page, error) {
	if err := ctx.Err(); err != nil {
		return bucket.Page{}, fail("list", prefix, bucket.ErrUnavailable, err)
	}
	limit := o.Max
	if limit <= 0 || limit > MaxPage {
		limit = MaxPage
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for k := range s.objects {
		if strings.HasPrefix(k, prefix) && k > o.After {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)

	var page bucket.Page
	var last string // the After that continues behind the last row
	for _, k := range keys {
		rolled, isPrefix := rollUp(prefix, k, o.Delimiter)
		if isPrefix && last == rolled+behind {
			continue
		}
		if len(page.Objects)+len(page.Prefixes) == limit {
			page.Next = last
			return page, nil
		}
		if isPrefix {
			page.Prefixes = append(page.Prefixes, rolled)
			last = rolled + behind
			continue
		}
		obj := s.objects[k]
		page.Objects = append(page.Objects, bucket.Info{
			Key: k, ETag: obj.etag, Size: int64(len(obj.body)), Modified: obj.modified,
		})
		last = k
	}
	return page, nil
}

func rollUp(prefix, key, delimiter string) (string, bool) {
	if delimiter == "" {
		return "", false
	}
	i := strings.Index(key[len(prefix):], delimiter)
	if i < 0 {
		return "", false
	}
	return key[:len(prefix)+i+len(delimiter)], true
}

// Dump is a copy of everything in the store, for a test's last look at the whole
// of it.
func (s *Store) Dump() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string][]byte, len(s.objects))
	for k, o := range s.objects {
		all[k] = bytes.Clone(o.body)
	}
	return all
}

// second is the store's time as HTTP has it: whole seconds.
func (s *Store) second() time.Time { return s.now().UTC().Truncate(time.Second) }

// enter refuses what no store would take, and does nothing for a caller that has
// gone: it stands in for a request that was never sent.
func enter(ctx context.Context, op, key string) error {
	if err := bucket.CheckKey(key); err != nil {
		return fail(op, key, bucket.ErrInvalid, err)
	}
	if err := ctx.Err(); err != nil {
		return fail(op, key, bucket.ErrUnavailable, err)
	}
	return nil
}
