package deletion

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/registry"
)

// lookAgain is when, after a deletion, its keys are looked for once more: what a
// process wrote that nobody reached, a write that the store held back, a placement
// of a coordinator that was late. None of it can reach another application, so this
// is for tidiness, and the next deletion of that name finds it too.
func lookAgain() []time.Duration {
	return []time.Duration{30 * time.Second, 5 * time.Minute, 20 * time.Minute, time.Hour}
}

// maxLate bounds the deletions that are remembered for that.
const maxLate = 1024

// lateKeys are the lives that are looked at again.
type lateKeys struct {
	mu   sync.Mutex
	list []lateLife // guarded by mu
	wake chan struct{}
}

type lateLife struct {
	name string
	uids []string
	next time.Time
	left []time.Duration // from one look to the next
}

// later remembers lives that have ended.
func (s *Service) later(name string, lives map[string]bool) {
	s.late.mu.Lock()
	defer s.late.mu.Unlock()
	if len(s.late.list) < maxLate {
		looks := lookAgain()
		s.late.list = append(s.late.list, lateLife{
			name: name, uids: slices.Sorted(maps.Keys(lives)), next: time.Now().Add(looks[0]), left: looks[1:],
		})
	}
	select {
	case s.late.wake <- struct{}{}:
	default:
	}
}

// sweepLate looks for late keys until ctx ends. A uid never comes again, so it
// needs no lease.
func (s *Service) sweepLate(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, wait := s.takeDue(time.Now())
		for _, l := range due {
			for _, uid := range l.uids {
				s.sweepLife(ctx, l.name, uid)
			}
		}
		if len(due) > 0 {
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-s.late.wake:
		case <-timer.C:
		}
	}
}

// takeDue are the lives to look at now, and how long there is nothing to look at.
func (s *Service) takeDue(now time.Time) (due []lateLife, wait time.Duration) {
	s.late.mu.Lock()
	defer s.late.mu.Unlock()
	wait = time.Hour
	kept := s.late.list[:0]
	for _, l := range s.late.list {
		if !now.Before(l.next) {
			due = append(due, l)
			if len(l.left) == 0 {
				continue
			}
			l.next, l.left = now.Add(l.left[0]), l.left[1:]
		}
		wait = min(wait, l.next.Sub(now))
		kept = append(kept, l)
	}
	s.late.list = kept
	return due, wait
}

// sweepLife deletes what has come under a uid since its life ended.
func (s *Service) sweepLife(ctx context.Context, name, uid string) {
	found := 0
	for _, prefix := range []string{registry.RuntimePrefix(name, uid), registry.DeploymentsPrefix(name, uid), registry.PlacementKey(name, uid)} {
		for {
			page, err := s.list(ctx, prefix, bucket.ListOptions{})
			if err != nil {
				return // the next look, or the next deletion of that name
			}
			keys := make([]string, len(page.Objects))
			for i, o := range page.Objects {
				keys[i] = o.Key
			}
			if err := s.deleteAll(ctx, keys); err != nil {
				return
			}
			if found += len(keys); page.Next == "" {
				break
			}
		}
	}
	if found > 0 {
		s.log.Warn("keys of an application that is gone were written late, and deleted", "event", "application.leftover",
			"application", name, "uid", uid, "keys", found)
	}
}
