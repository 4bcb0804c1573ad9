package deletion

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/mistake"
	"github.com/scafo/scafo/internal/registry"
)

const (
	// stopWithin is how long an application's processes may take to drain before
	// they are killed, and confirmWithin how long the nodes may take to say that
	// they are gone.
	stopWithin    = 15 * time.Second
	confirmWithin = stopWithin + 5*time.Second
	// markWithin is how long a request may take to begin a deletion.
	markWithin = 30 * time.Second
	// slotWithin is how long a deploy that is being published may take to end, and
	// slotLook how often that is looked at.
	slotWithin = 15 * time.Second
	slotLook   = 250 * time.Millisecond
	// deleters is how many keys one deletion deletes at once, allDeleters how many all
	// of them do, and deleteTries how often each is tried.
	deleters      = 16
	allDeleters   = 48
	deleteTries   = 6
	deletePause   = 50 * time.Millisecond
	deleteLongest = 2 * time.Second
	// rounds bounds how often the keys are listed until none is left: a process that
	// nobody reached may write more.
	rounds = 5
	// maxLives bounds the uids whose keys are looked for later on.
	maxLives = 256
)

var (
	// errGone ends a deletion whose application is gone already: somebody else has
	// finished it.
	errGone = errors.New("the application is gone")
	// errFenced ends a deletion that is another coordinator's now.
	errFenced = errors.New("another coordinator has taken over")
)

// mark begins the deletion of an application, or takes it over from a coordinator
// before. From the mark on nothing else changes the application.
//
// A request names no life, so it must not come to one that began after it: the lease
// is read afresh once the record was read, which finds out a process that stood still
// meanwhile, the life that was read first is the only one that is marked, and all of
// it has its time.
func (s *Service) mark(ctx context.Context, r Request, fence int64) (registry.Doc[scafo.Application], error) {
	begun, uid := false, ""
	ctx, cancel := context.WithTimeout(ctx, markWithin)
	defer cancel()
	d, err := registry.Update(ctx, s.c.Registry, registry.ApplicationKey(r.Application), func(d *registry.Doc[scafo.Application]) error {
		begun = false
		a := &d.Value
		if !d.Exists || a.Name != r.Application {
			return scafo.Errorf(scafo.CodeNotFound, "no application %s", r.Application)
		}
		if uid == "" {
			uid = a.UID
		}
		if a.UID != uid {
			return scafo.Errorf(scafo.CodeNotFound, "application %s was deleted, and there is another one now", r.Application)
		}
		if a.Deleting != nil {
			return take(a, fence)
		}
		if err := s.mayDelete(*a, r.Force); err != nil {
			return err
		}
		l, _, err := s.c.Lease.Current(ctx)
		if err != nil {
			return err
		}
		if l.Fence != fence || !s.holds(fence) || ctx.Err() != nil {
			return errFenced
		}
		a.Deleting = &scafo.Deleting{Fence: fence, At: s.c.Registry.Now(), By: r.Caller}
		begun = true
		return nil
	})
	if errors.Is(err, errFenced) {
		return d, errNotCoordinator(err)
	}
	if err == nil && begun {
		s.log.Info("application.deleting", "event", "application.deleting", "actor", r.Caller, "application", r.Application, "uid", d.Value.UID, "force", r.Force)
	}
	return d, err
}

// take puts a deletion that has begun under this fence.
func take(a *scafo.Application, fence int64) error {
	switch {
	case a.Deleting.Fence > fence:
		return errFenced
	case a.Deleting.Fence == fence:
		return registry.ErrKeep
	}
	mine := *a.Deleting
	mine.Fence = fence
	a.Deleting = &mine
	return nil
}

// mayDelete is what a deletion that is not forced asks of the application.
func (s *Service) mayDelete(a scafo.Application, force bool) error {
	switch {
	case force:
		return nil
	case a.Retired == nil:
		return scafo.Errorf(scafo.CodeNotRetired, "application %s is not retired: retire it first, or force", a.Name)
	}
	if until := a.Retired.At.Add(s.c.Grace); s.c.Registry.Now().Before(until) {
		return scafo.Errorf(scafo.CodeRetireGrace, "application %s was retired at %s and may be deleted from %s on, unless forced",
			a.Name, a.Retired.At.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))
	}
	return nil
}

func (s *Service) holds(fence int64) bool {
	now, ok := s.c.Lease.Held()
	return ok && now == fence
}

// run is one deletion that is carried out here. Its goroutine alone touches it, but
// for the listeners.
type run struct {
	s         *Service
	name, uid string
	fence     int64
	by        string
	doc       registry.Doc[scafo.Application] // as it was last seen
	lives     map[string]bool                 // the uids whose keys were found
	removed   int
	listeners []*Keys // guarded by s.mu
}

// carry takes every step, each of which may have been taken before.
func (r *run) carry(ctx context.Context) error {
	err := r.steps(ctx)
	switch {
	case err == nil || errors.Is(err, errGone):
		return nil
	case errors.Is(err, errFenced):
		return errNotCoordinator(err)
	case ctx.Err() != nil:
		return scafo.Wrap(err, scafo.CodeDraining, "this node is stopping; the deletion of %s goes on elsewhere", r.name)
	}
	r.s.log.Warn("a deletion is tried again", "event", "application.delete-failed", "application", r.name, "uid", r.uid, "err", err)
	return err
}

func (r *run) steps(ctx context.Context) error {
	if err := r.own(ctx); err != nil {
		return err
	}
	if err := r.s.c.Registry.Announce(ctx, registry.ApplicationKey(r.name)); err != nil {
		return err
	}
	if missing := r.s.c.Fleet.Quiet(ctx, r.name, r.uid, confirmWithin); len(missing) > 0 {
		r.s.log.Warn("nodes did not confirm that an application's processes are gone", "event", "application.unconfirmed",
			"actor", r.by, "application", r.name, "uid", r.uid, "nodes", missing)
	}
	if err := r.awaitSlot(ctx); err != nil {
		return err
	}
	hosts, deploys, err := r.s.c.Fleet.Remains(ctx, r.name, r.uid)
	if err != nil {
		return err
	}
	if err := r.objects(ctx); err != nil {
		return err
	}
	released, err := r.s.c.Claims.ReleaseClaims(ctx, r.name, r.uid, hosts...)
	if len(released) > 0 {
		r.emit(ctx, released...)
	}
	if err != nil {
		return err
	}
	var told []string
	for _, id := range deploys {
		told = append(told, registry.DeployKey(id)) // who follows it learns that it is gone
	}
	return r.end(ctx, told)
}

// own puts the deletion under this fence, and reads the record.
func (r *run) own(ctx context.Context) error {
	d, err := registry.Update(ctx, r.s.c.Registry, registry.ApplicationKey(r.name), func(d *registry.Doc[scafo.Application]) error {
		if !d.Exists || d.Value.UID != r.uid || d.Value.Deleting == nil {
			return errGone
		}
		if !r.s.holds(r.fence) {
			return errFenced
		}
		return take(&d.Value, r.fence)
	})
	r.doc = d
	return err
}

// verify looks whether the application is still in this deletion. Every key that was
// listed before the look belongs then to this life of the name, or to one before.
func (r *run) verify(ctx context.Context) error {
	if !r.s.holds(r.fence) && !mistake.Made(mistake.DeletionNotChecked) {
		return errFenced
	}
	d, err := registry.Reload(ctx, r.s.c.Registry, r.doc)
	if err != nil {
		return err
	}
	r.doc = d
	return r.still(d.Exists, d.Value)
}

func (r *run) still(exists bool, a scafo.Application) error {
	switch {
	case mistake.Made(mistake.DeletionNotChecked):
		return nil
	case !exists || a.UID != r.uid || a.Deleting == nil:
		return errGone
	case a.Deleting.Fence != r.fence:
		return errFenced
	}
	return nil
}

// awaitSlot waits for the end of a deploy that is being published. Its node has
// heard of the deletion and gives it up. One that does not is left behind: what it
// still writes carries this uid.
func (r *run) awaitSlot(ctx context.Context) error {
	begun := time.Now()
	for {
		if err := r.verify(ctx); err != nil {
			return err
		}
		if r.doc.Value.Publishing == nil {
			return nil
		}
		if time.Since(begun) >= slotWithin {
			r.s.log.Warn("a deploy did not end for a deletion", "event", "application.unconfirmed", "actor", r.by,
				"application", r.name, "uid", r.uid, "deploy", r.doc.Value.Publishing.Deploy)
			return nil
		}
		if err := sleep(ctx, slotLook); err != nil {
			return err
		}
	}
}

// prefixes are where the lives of a name keep what carries their uid, or an id that
// no other life has.
func prefixes(name string) []string {
	return []string{
		registry.RuntimesPrefix + name + "/", registry.DeploymentPrefix + name + "/",
		registry.PlacementPrefix + name + "/", registry.DeploysPrefix(name),
	}
}

// objects deletes what all lives of the name have left, until a listing finds
// nothing.
func (r *run) objects(ctx context.Context) error {
	for range rounds {
		found := 0
		for _, p := range prefixes(r.name) {
			n, err := r.clear(ctx, p)
			if err != nil {
				return err
			}
			found += n
		}
		if found == 0 {
			return nil
		}
	}
	r.s.log.Warn("something still writes what a deletion removes", "event", "application.leftover", "application", r.name, "uid", r.uid)
	return nil
}

// clear deletes what is under a prefix, page by page: each is listed, then the
// record is looked at, and only then is anything deleted.
func (r *run) clear(ctx context.Context, prefix string) (found int, err error) {
	o := bucket.ListOptions{}
	for {
		page, err := r.s.list(ctx, prefix, o)
		if err != nil {
			return found, err
		}
		if len(page.Objects) > 0 {
			if err := r.verify(ctx); err != nil {
				return found, err
			}
			keys := make([]string, len(page.Objects))
			for i, info := range page.Objects {
				keys[i] = info.Key
				r.noteLife(info.Key)
			}
			if err := r.s.deleteAll(ctx, keys); err != nil {
				return found, err
			}
			r.emit(ctx, keys...)
			found += len(keys)
		}
		if page.Next == "" {
			return found, nil
		}
		o.After = page.Next
	}
}

// noteLife remembers the uid in a key.
func (r *run) noteLife(key string) {
	for _, p := range prefixes(r.name)[:3] {
		rest, ok := strings.CutPrefix(key, p)
		if !ok {
			continue
		}
		uid, _, _ := strings.Cut(rest, "/")
		uid = strings.TrimSuffix(uid, ".json")
		if len(r.lives) < maxLives && validUID(uid) {
			r.lives[uid] = true
		}
	}
}

// validUID is whether a segment of a key is what the registry makes as a uid.
func validUID(s string) bool {
	return len(s) == 16 && strings.Trim(s, "0123456789abcdef") == ""
}

// emit tells who listens which keys are gone.
func (r *run) emit(ctx context.Context, keys ...string) {
	r.removed += len(keys)
	r.s.mu.Lock()
	listeners := slices.Clone(r.listeners)
	r.s.mu.Unlock()
	for _, k := range listeners {
		if k.give(ctx, keys) {
			return // one answer names a key
		}
	}
}

// end removes the trust policy and, last of all, the record.
func (r *run) end(ctx context.Context, told []string) error {
	reg := r.s.c.Registry
	trust := registry.TrustKey(r.name)
	// The policy was read before the look: it is one of this life.
	gone, err := registry.Remove[scafo.TrustPolicy](ctx, reg, trust, func(scafo.TrustPolicy) error { return r.verify(ctx) })
	if err != nil {
		return err
	}
	if gone {
		told = append(told, trust)
		r.emit(ctx, trust)
	}
	key := registry.ApplicationKey(r.name)
	gone, err = registry.Remove[scafo.Application](ctx, reg, key, func(a scafo.Application) error {
		if !r.s.holds(r.fence) && !mistake.Made(mistake.DeletionNotChecked) {
			return errFenced
		}
		return r.still(true, a)
	})
	if err != nil {
		return err
	}
	if !gone {
		return errGone
	}
	r.s.later(r.name, r.lives)
	told = append(told, key, registry.PlacementKey(r.name, r.uid))
	if err := reg.Announce(ctx, told...); err != nil {
		return err
	}
	r.emit(ctx, key)
	r.s.log.Info("application.deleted", "event", "application.deleted", "actor", r.by, "application", r.name, "uid", r.uid, "keys", r.removed)
	return nil
}

// list is one page; a store that is away is asked a few times.
func (s *Service) list(ctx context.Context, prefix string, o bucket.ListOptions) (bucket.Page, error) {
	var page bucket.Page
	err := s.insist(ctx, "listing "+prefix, func() (err error) {
		page, err = s.c.Registry.Bucket().List(ctx, prefix, o)
		return err
	})
	return page, err
}

// deleteAll deletes keys whose names nobody writes again.
func (s *Service) deleteAll(ctx context.Context, keys []string) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(deleters)
	for _, k := range keys {
		g.Go(func() error {
			select {
			case s.deleting <- struct{}{}:
				defer func() { <-s.deleting }()
			case <-gctx.Done():
				return gctx.Err()
			}
			return s.insist(gctx, "deleting "+k, func() error { return s.c.Registry.Bucket().Delete(gctx, k) })
		})
	}
	return g.Wait()
}

// insist tries what may be done twice.
func (s *Service) insist(ctx context.Context, what string, do func() error) error {
	wait := deletePause
	for try := 1; ; try++ {
		err := do()
		if err == nil {
			return nil
		}
		if try == deleteTries || ctx.Err() != nil || errors.Is(err, bucket.ErrDenied) || errors.Is(err, bucket.ErrInvalid) {
			return scafo.Wrap(err, scafo.CodeStoreUnavailable, "the bucket did not answer as it should: %s", what)
		}
		if err := sleep(ctx, wait); err != nil {
			return scafo.Wrap(err, scafo.CodeStoreUnavailable, "the bucket did not answer in time: %s", what)
		}
		wait = min(2*wait, deleteLongest)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
