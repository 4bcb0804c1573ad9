package registry

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/mistake"
)

// Announcements are merged to one write of the revision a second, over time. A
// few may be made at once, so that a chain of steps that each announce their
// change (a deploy has a dozen) waits for the bucket alone and for no clock.
const (
	announceEvery = time.Second
	announceBurst = 24
	// announceTimeout bounds one write of the revision with all its tries. It does
	// not end with the call that asked: what was changed must be told, also when
	// the one who changed it has gone away.
	announceTimeout = 20 * time.Second
)

// announcer merges what the calls of this process have to announce.
type announcer struct {
	mu      sync.Mutex
	keys    []string                        // not announced yet; guarded by mu
	waiters []chan error                    // of the next write; guarded by mu
	left    bool                            // keys that nobody waits for are to be written too; guarded by mu
	running bool                            // a goroutine is writing; guarded by mu
	heard   func(context.Context, []string) // told of each call's keys; guarded by mu
	saved   int                             // announcements that may be made at once; guarded by mu
	counted time.Time                       // up to when saved was counted; guarded by mu
	// revision is the document as it was last written or read here, so that an
	// announcement is one request. Only the running goroutine touches it.
	revision *Doc[scafo.Revision]
}

// Announce tells the fleet that documents changed, and returns once it can be
// read. When that fails the keys stay with the next announcement.
func (r *Registry) Announce(ctx context.Context, keys ...string) error {
	a := &r.tell
	a.mu.Lock()
	for _, k := range keys {
		if !slices.Contains(a.keys, k) {
			a.keys = append(a.keys, k)
		}
	}
	heard := a.heard
	if len(keys) == 0 {
		a.mu.Unlock()
		return nil
	}
	done := make(chan error, 1)
	a.waiters = append(a.waiters, done)
	a.start(ctx, r)
	a.mu.Unlock()
	if heard != nil {
		heard(ctx, keys)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return unavailable(ctx.Err(), "announcing a change")
	}
}

// OnChange has f told of the keys of each announcement that this process makes,
// before the fleet can read it: what follows from a change here, or is passed on to
// other nodes directly, need not wait for the revision. f must not block. A second
// call replaces the first one's.
func (r *Registry) OnChange(f func(ctx context.Context, keys []string)) {
	r.tell.mu.Lock()
	defer r.tell.mu.Unlock()
	r.tell.heard = f
}

// Unannounced is how many changed keys could not be announced yet.
func (r *Registry) Unannounced() int {
	r.tell.mu.Lock()
	defer r.tell.mu.Unlock()
	return len(r.tell.keys)
}

// announceSoon begins to announce keys, and waits for nothing: it is for what nobody
// relies on yet, or any more.
func (r *Registry) announceSoon(ctx context.Context, keys ...string) {
	a := &r.tell
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range keys {
		if !slices.Contains(a.keys, k) {
			a.keys = append(a.keys, k)
		}
	}
	a.left = true
	a.start(ctx, r)
}

// announceLeft begins to announce what an earlier call could not, and waits for
// nothing.
func (r *Registry) announceLeft(ctx context.Context) {
	r.tell.mu.Lock()
	defer r.tell.mu.Unlock()
	if len(r.tell.keys) > 0 && !r.tell.running {
		r.tell.left = true
		r.tell.start(ctx, r)
	}
}

// start makes sure that a goroutine writes. It ends by itself: each of its writes
// is bounded, and it makes no more of them than somebody asks for. The caller
// holds mu.
func (a *announcer) start(ctx context.Context, r *Registry) {
	if !a.running {
		a.running = true
		go r.announce(context.WithoutCancel(ctx))
	}
}

// announce writes the revision until nobody waits for it any more, and ends.
func (r *Registry) announce(ctx context.Context) {
	ctx = meter.With(ctx, "revision")
	a := &r.tell
	for {
		a.mu.Lock()
		if len(a.waiters) == 0 && !a.left {
			a.running = false
			a.mu.Unlock()
			return
		}
		wait := a.take(time.Now())
		a.mu.Unlock()
		if wait > 0 {
			if pause(ctx, wait) != nil {
				continue // never: this context has no end
			}
		}
		a.mu.Lock()
		keys, waiters := a.keys, a.waiters
		a.keys, a.waiters, a.left = nil, nil, false
		a.mu.Unlock()
		err := r.writeRevision(ctx, keys)
		if err != nil {
			a.mu.Lock()
			for _, k := range a.keys {
				if !slices.Contains(keys, k) {
					keys = append(keys, k)
				}
			}
			// One more than the revision holds makes every reader list, which finds
			// whatever is left out here.
			a.keys = keys[:min(len(keys), scafo.MaxChanges+1)]
			a.mu.Unlock()
		}
		for _, w := range waiters {
			w <- err
		}
	}
}

// take spends one announcement and says how long it has to wait. The caller holds
// mu.
func (a *announcer) take(now time.Time) time.Duration {
	if a.counted.IsZero() {
		a.saved, a.counted = announceBurst, now
	}
	for a.saved < announceBurst && now.Sub(a.counted) >= announceEvery {
		a.saved++
		a.counted = a.counted.Add(announceEvery)
	}
	if a.saved == announceBurst {
		a.counted = now
	}
	if a.saved > 0 {
		a.saved--
		return 0
	}
	a.counted = a.counted.Add(announceEvery)
	return a.counted.Sub(now)
}

func (r *Registry) writeRevision(ctx context.Context, keys []string) error {
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	base := r.tell.revision
	r.tell.revision = nil
	d, err := updateFrom[scafo.Revision](ctx, r, base, RevisionKey, func(d *Doc[scafo.Revision]) error {
		if mistake.Made(mistake.AnnouncementMissing) {
			keys = slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return strings.HasPrefix(k, PlacementPrefix) })
		}
		d.Value = announced(d.Value, keys)
		return nil
	})
	if err != nil {
		var e *scafo.Error
		if !errors.As(err, &e) {
			return unavailable(err, "announcing a change")
		}
		return err
	}
	r.tell.revision = &d
	return nil
}

// announced is a revision with keys that changed. A key stands in it once, with
// its newest announcement; what falls out is behind Since.
func announced(old scafo.Revision, keys []string) scafo.Revision {
	next := scafo.Revision{Header: old.Header, Counter: old.Counter + 1, Since: old.Since}
	for _, c := range old.Changed {
		if !slices.Contains(keys, c.Key) {
			next.Changed = append(next.Changed, c)
		}
	}
	for _, k := range keys {
		next.Changed = append(next.Changed, scafo.Change{Counter: next.Counter, Key: k})
	}
	if over := len(next.Changed) - scafo.MaxChanges; over > 0 {
		next.Since = next.Changed[over-1].Counter
		next.Changed = slices.Clone(next.Changed[over:])
	}
	return next
}

// changedSince lists the keys that were announced after a counter; ok is false
// when the reader has to list, since some of them are not in the revision any
// more, or since the revision is an older one than the reader knew.
func changedSince(rev scafo.Revision, counter int64) (keys []string, ok bool) {
	if counter < rev.Since || counter > rev.Counter {
		return nil, false
	}
	for _, c := range rev.Changed {
		if c.Counter > counter {
			keys = append(keys, c.Key)
		}
	}
	return keys, true
}
