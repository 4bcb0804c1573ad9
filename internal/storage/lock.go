package storage

import (
	"context"
	"errors"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/registry"
)

// lock is the document of a lock that somebody has.
type lock struct {
	scafo.Header
	Name string `json:"name"`
	// Holder is who has it; empty for one who did not say.
	Holder string `json:"holder,omitempty"`
	// Seconds is after how long without a renewal it is free again.
	Seconds int64 `json:"seconds"`
}

func (l *lock) lease() time.Duration { return time.Duration(l.Seconds) * time.Second }

// watch is a lock as it was first seen here with this ETag.
type watch struct {
	etag  string
	since time.Time
	lease time.Duration
}

const (
	// maxWatched bounds the locks of others that are watched at once.
	maxWatched = 4096
	// granularity is what an age by the store's clock may be too much by: its times
	// are whole seconds.
	granularity = time.Second
)

// MaxHolder bounds the name of a holder, in bytes.
const MaxHolder = 128

// CheckHolder refuses what is no name of a holder: printable ASCII without spaces.
func CheckHolder(s string) error {
	if len(s) > MaxHolder {
		return scafo.Errorf(scafo.CodeInvalidInput, "a lock's holder has at most %d characters", MaxHolder)
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return scafo.Errorf(scafo.CodeInvalidInput, "a lock's holder is printable ASCII without spaces")
		}
	}
	return nil
}

// Acquire takes a lock or, for the holder who has it, renews it. It never waits:
// one that another has is a cas-conflict. An empty holder is one who does not say
// who it is, and renews nothing. The lock is free again when it was not renewed for
// as long as lease says, which 0 and everything longer than the node's own bound
// set to that bound; granted is what came of it.
func (s *Service) Acquire(ctx context.Context, name Key, holder string, lease time.Duration) (granted time.Duration, err error) {
	ctx = purpose(ctx)
	if lease <= 0 || lease > s.lock {
		lease = s.lock
	}
	lease = max(lease.Truncate(time.Second), time.Second)
	d, err := registry.Load[lock](ctx, s.r, name.lock())
	if corrupt(err) {
		d, err = s.damaged(ctx, name)
	}
	if err != nil {
		return 0, err
	}
	if d.Exists && (holder == "" || d.Value.Holder != holder) && !s.expired(d) {
		return 0, held(name)
	}
	d.Value = lock{Name: name.text, Holder: holder, Seconds: int64(lease / time.Second)}
	written, err := registry.Swap(ctx, s.r, d)
	if errors.Is(err, bucket.ErrRefused) {
		return 0, held(name)
	}
	if err != nil {
		return 0, err
	}
	// It was written before now, so its age by this clock is never too much.
	s.see(written)
	return lease, nil
}

func held(name Key) error {
	return scafo.Errorf(scafo.CodeCASConflict, "the lock %s is held", name)
}

// damaged is a lock whose document cannot be read. It is somebody's until it has
// been as it is for the longest that a lock may last.
func (s *Service) damaged(ctx context.Context, name Key) (registry.Doc[lock], error) {
	o, err := s.r.Bucket().Get(ctx, name.lock())
	if errors.Is(err, bucket.ErrNotFound) {
		return registry.Doc[lock]{Key: name.lock()}, nil
	}
	if err != nil {
		return registry.Doc[lock]{}, away(err, "reading "+name.lock())
	}
	d := registry.Doc[lock]{Key: name.lock(), ETag: o.ETag, Exists: true, Modified: o.Modified, Date: o.Date}
	d.Value.Seconds = int64(s.lock / time.Second)
	return d, nil
}

// expired tells whether a lock has outlived its lease: by the store's own clock,
// or because it was watched here for that long and did not change. No clock of a
// holder has a say.
func (s *Service) expired(d registry.Doc[lock]) bool {
	lease := d.Value.lease()
	if age, ok := d.Age(); ok && age >= lease+granularity {
		return true
	}
	return s.see(d) >= lease
}

// see is for how long the lock was seen as it is.
func (s *Service) see(d registry.Doc[lock]) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if w, ok := s.watched[d.Key]; ok && w.etag == d.ETag {
		return now.Sub(w.since)
	}
	if len(s.watched) >= maxWatched {
		s.forgetOne(now)
	}
	s.watched[d.Key] = watch{etag: d.ETag, since: now, lease: d.Value.lease()}
	return 0
}

// forgetOne makes room for one more: the locks that have ended go, or else any one,
// which is then judged by the store's clock or watched again. The caller holds mu.
func (s *Service) forgetOne(now time.Time) {
	for k, w := range s.watched {
		if now.Sub(w.since) > 2*w.lease {
			delete(s.watched, k)
		}
	}
	for k := range s.watched {
		if len(s.watched) < maxWatched {
			return
		}
		delete(s.watched, k)
	}
}

// Release gives a lock back. A lock that is another's stays, and that is no error:
// what the caller had is not held by it any more either way. Who does not say who it
// is gives back what was taken by somebody who did not say either.
func (s *Service) Release(ctx context.Context, name Key, holder string) error {
	removed, err := registry.Remove(purpose(ctx), s.r, name.lock(), func(l lock) error {
		if l.Holder != holder {
			return registry.ErrKeep
		}
		return nil
	})
	if corrupt(err) {
		return nil // it ends by itself
	}
	if removed {
		s.mu.Lock()
		delete(s.watched, name.lock())
		s.mu.Unlock()
	}
	return err
}
