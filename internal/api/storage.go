package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/storage"
)

// Storage is what the ingress keeps in the bucket: objects and locks.
type Storage interface {
	Put(ctx context.Context, k storage.Key, body []byte) error
	Get(ctx context.Context, k storage.Key) ([]byte, error)
	Delete(ctx context.Context, k storage.Key) error
	List(ctx context.Context, k storage.Key, recursive bool) ([]string, error)
	Stat(ctx context.Context, k storage.Key) (scafo.StorageStat, error)
	// Acquire never waits: a lock that another has is a cas-conflict.
	Acquire(ctx context.Context, name storage.Key, holder string, lease time.Duration) (granted time.Duration, err error)
	Release(ctx context.Context, name storage.Key, holder string) error
}

const (
	objectsPath = "/v1/storage/objects/"
	locksPath   = "/v1/storage/locks/"
)

func (s *server) storageRoutes() []route {
	if s.Storage == nil {
		return nil
	}
	on := func(method, path string, h handler) route {
		return route{method: method, path: path, access: access{kind: ingressToken}, handle: versioned(h)}
	}
	return []route{
		on(http.MethodPut, objectsPath+"**", s.putObject),
		on(http.MethodGet, objectsPath+"**", s.getObject),
		on(http.MethodDelete, objectsPath+"**", s.deleteObject),
		on(http.MethodGet, "/v1/storage/list", s.listObjects),
		on(http.MethodGet, "/v1/storage/stat", s.statObject),
		on(http.MethodPost, locksPath+"**", s.acquireLock),
		on(http.MethodDelete, locksPath+"**", s.releaseLock),
	}
}

// versioned refuses a version of the storage protocol that this release does not
// speak.
func versioned(h handler) handler {
	return func(ctx context.Context, c *call) (answer, error) {
		for _, v := range c.r.Header.Values(scafo.StorageVersionHeader) {
			if v != "" && v != scafo.StorageVersion {
				return answer{}, scafo.Errorf(scafo.CodeInvalidInput, "this node speaks version %s of the storage protocol (%s)", scafo.StorageVersion, scafo.StorageVersionHeader)
			}
		}
		return h(ctx, c)
	}
}

// pathKey is the key that follows in the path, as it was escaped.
func pathKey(c *call, prefix string) (storage.Key, error) {
	return storage.ParsePath(strings.TrimPrefix(c.r.URL.EscapedPath(), prefix))
}

func noContent() answer { return answer{status: http.StatusNoContent} }

func (s *server) putObject(ctx context.Context, c *call) (answer, error) {
	k, err := pathKey(c, objectsPath)
	if err != nil {
		return answer{}, err
	}
	body, err := readObjectBody(c)
	if err != nil {
		return answer{}, err
	}
	if err := s.Storage.Put(ctx, k, body); err != nil {
		return answer{}, err
	}
	return noContent(), nil
}

// readObjectBody reads a value.
func readObjectBody(c *call) ([]byte, error) {
	return c.body(storage.MaxBody, "the value is larger than")
}

func (s *server) getObject(ctx context.Context, c *call) (answer, error) {
	k, err := pathKey(c, objectsPath)
	if err != nil {
		return answer{}, err
	}
	body, err := s.Storage.Get(ctx, k)
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusOK, body: body}.with("Content-Type", "application/octet-stream"), nil
}

func (s *server) deleteObject(ctx context.Context, c *call) (answer, error) {
	k, err := pathKey(c, objectsPath)
	if err != nil {
		return answer{}, err
	}
	if err := s.Storage.Delete(ctx, k); err != nil {
		return answer{}, err
	}
	return noContent(), nil
}

func (s *server) listObjects(ctx context.Context, c *call) (answer, error) {
	q, err := query(c)
	if err != nil {
		return answer{}, err
	}
	k, err := storage.ParsePrefix(q.Get("prefix"))
	if err != nil {
		return answer{}, err
	}
	recursive := q.Get("recursive")
	keys, err := s.Storage.List(ctx, k, recursive == "true" || recursive == "1")
	if err != nil {
		return answer{}, err
	}
	return ok(keys)
}

func (s *server) statObject(ctx context.Context, c *call) (answer, error) {
	q, err := query(c)
	if err != nil {
		return answer{}, err
	}
	k, err := storage.ParseKey(q.Get("key"))
	if err != nil {
		return answer{}, err
	}
	st, err := s.Storage.Stat(ctx, k)
	if err != nil {
		return answer{}, err
	}
	return ok(st)
}

func query(c *call) (url.Values, error) {
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, scafo.Wrap(err, scafo.CodeInvalidInput, "the query does not read")
	}
	return q, nil
}

func (s *server) acquireLock(ctx context.Context, c *call) (answer, error) {
	name, holder, err := lockOf(c)
	if err != nil {
		return answer{}, err
	}
	lease, err := askedLease(c.r.Header)
	if err != nil {
		return answer{}, err
	}
	granted, err := s.Storage.Acquire(ctx, name, holder, lease)
	if err != nil {
		return answer{}, err
	}
	return noContent().with(scafo.LockSecondsHeader, strconv.FormatInt(int64(granted/time.Second), 10)), nil
}

func (s *server) releaseLock(ctx context.Context, c *call) (answer, error) {
	name, holder, err := lockOf(c)
	if err != nil {
		return answer{}, err
	}
	if err := s.Storage.Release(ctx, name, holder); err != nil {
		return answer{}, err
	}
	return noContent(), nil
}

// lockOf is the lock that a call names, and its holder where it says who that is.
func lockOf(c *call) (name storage.Key, holder string, err error) {
	if name, err = pathKey(c, locksPath); err != nil {
		return name, "", err
	}
	holder = c.r.Header.Get(scafo.LockHolderHeader)
	return name, holder, storage.CheckHolder(holder)
}

// maxAskedLease keeps the number within what a duration can be.
const maxAskedLease = 1 << 31

// askedLease is for how long a lock is wanted; 0 where the call does not say.
func askedLease(h http.Header) (time.Duration, error) {
	text := h.Get(scafo.LockSecondsHeader)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 {
		return 0, scafo.Errorf(scafo.CodeInvalidInput, "%s is a whole number of seconds, at least 1", scafo.LockSecondsHeader)
	}
	return time.Duration(min(n, maxAskedLease)) * time.Second, nil
}
