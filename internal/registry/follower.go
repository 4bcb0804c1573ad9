package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/meter"
)

// Snapshot is the registry as a follower last read it. Nobody changes it, or
// anything that it points to.
type Snapshot struct {
	Counter      int64 // the announcements up to it are contained
	Fleet        scafo.Fleet
	Applications map[string]scafo.Application // by name
	Nodes        map[string]scafo.Node        // by id
	Heartbeats   map[string]scafo.Heartbeat   // by node; as of their last announcement or hint
	Placements   map[string]scafo.Placement   // by application, of its present life
	Claims       map[string]scafo.Claim       // by host
	// Deploys are those that were announced while this follower ran and have not
	// ended, by id.
	Deploys map[string]scafo.Deploy
	Freeze  *scafo.Freeze
	// Unreadable are the documents that are left alone, by key, with the reason:
	// those of a newer release, above all. What was known of them before stays.
	Unreadable map[string]string
}

// A follower lists everything once a day, each at a moment of its own, so that
// what was never announced (its writer died in between) is found all the same.
const (
	listEvery  = 24 * time.Hour
	listSpread = 8 * time.Hour
	// maxHints bounds the hinted keys that wait for the next Refresh. A hint may be
	// lost.
	maxHints = 4096
)

// Follower keeps a snapshot of the registry up to date: it reads the revision,
// and then the documents that were announced since. It lists only when it starts,
// when it fell behind what the revision keeps, once a day, and when it is told to.
type Follower struct {
	r        *Registry
	snapshot atomic.Pointer[Snapshot]

	hintMu sync.Mutex
	hints  map[string]struct{} // guarded by hintMu
	relist bool                // guarded by hintMu

	heard atomic.Pointer[func(keys []string)] // see OnAnnounced

	turn chan struct{} // holds one value while nobody refreshes; guards what follows

	revision Doc[scafo.Revision]
	dirty    map[string]struct{} // to be read; a key leaves it when it was
	listing  bool                // everything has to be listed
	listed   bool                // everything was, once
	listAt   time.Time           // when it is listed again
	bad      map[string]badDoc   // documents that are left alone, by key

	fleet        *table[scafo.Fleet, *scafo.Fleet]
	freeze       *table[scafo.Freeze, *scafo.Freeze]
	applications *table[scafo.Application, *scafo.Application]
	nodes        *table[scafo.Node, *scafo.Node]
	heartbeats   *table[scafo.Heartbeat, *scafo.Heartbeat]
	placements   *table[scafo.Placement, *scafo.Placement]
	claims       *table[scafo.Claim, *scafo.Claim]
	deploys      *table[scafo.Deploy, *scafo.Deploy]
}

type badDoc struct{ etag, why string }

// NewFollower makes a follower that has read nothing yet.
func NewFollower(r *Registry) *Follower {
	f := &Follower{
		r: r, hints: map[string]struct{}{}, turn: make(chan struct{}, 1),
		dirty: map[string]struct{}{}, listing: true, bad: map[string]badDoc{},
		fleet:        newTable(FleetKey, func(scafo.Fleet) string { return FleetKey }),
		freeze:       newTable(FreezeKey, func(scafo.Freeze) string { return FreezeKey }),
		applications: newTable(ApplicationPrefix, func(a scafo.Application) string { return ApplicationKey(a.Name) }),
		nodes:        newTable(NodePrefix, func(n scafo.Node) string { return NodeKey(n.ID) }),
		heartbeats:   newTable(HeartbeatPrefix, func(h scafo.Heartbeat) string { return HeartbeatKey(h.Node) }),
		placements:   newTable(PlacementPrefix, func(p scafo.Placement) string { return PlacementKey(p.Application, p.UID) }),
		claims:       newTable(DomainPrefix, func(c scafo.Claim) string { return ClaimKey(c.Host) }),
		deploys: newTable(DeployPrefix, func(d scafo.Deploy) string {
			id, _ := scafo.ParseDeployID(d.ID)
			return DeployKey(id)
		}),
	}
	f.deploys.keep = func(d scafo.Deploy) bool { return !d.State.Terminal() }
	f.turn <- struct{}{}
	f.snapshot.Store(&Snapshot{
		Applications: map[string]scafo.Application{}, Nodes: map[string]scafo.Node{}, Heartbeats: map[string]scafo.Heartbeat{},
		Placements: map[string]scafo.Placement{}, Claims: map[string]scafo.Claim{}, Deploys: map[string]scafo.Deploy{},
		Unreadable: map[string]string{},
	})
	return f
}

// followed are the tables; those that are listed come first.
func (f *Follower) followed() (all []followedTable, listed int) {
	return []followedTable{f.applications, f.nodes, f.heartbeats, f.placements, f.claims, f.fleet, f.freeze, f.deploys}, 5
}

func (f *Follower) tableOf(key string) followedTable {
	all, _ := f.followed()
	for _, t := range all {
		if t.holds(key) {
			return t
		}
	}
	return nil
}

// Snapshot is what was last read; it is never nil. It is empty until the first
// Refresh has read everything.
func (f *Follower) Snapshot() *Snapshot { return f.snapshot.Load() }

// OnAnnounced has fn told which documents changed, those that this follower does
// not keep too, as soon as it hears of them: at a hint, or when it reads the
// revision. No keys at all are any of them: the follower fell behind. fn must not
// block, and is called by several goroutines. A second call replaces the first
// one's.
func (f *Follower) OnAnnounced(fn func(keys []string)) { f.heard.Store(&fn) }

func (f *Follower) tell(keys []string) {
	if fn := f.heard.Load(); fn != nil {
		(*fn)(keys)
	}
}

// Hint names keys that changed, to be read at the next Refresh.
func (f *Follower) Hint(keys ...string) {
	if len(keys) > 0 {
		f.tell(keys)
	}
	f.hintMu.Lock()
	defer f.hintMu.Unlock()
	for _, k := range keys {
		if len(f.hints) < maxHints && wellFormed(k) && f.tableOf(k) != nil {
			f.hints[k] = struct{}{}
		}
	}
}

// Relist makes the next Refresh list everything.
func (f *Follower) Relist() {
	f.hintMu.Lock()
	defer f.hintMu.Unlock()
	f.relist = true
}

// Refresh reads what changed. When some of it cannot be read, the rest is in the
// snapshot all the same, the error says so, and the next Refresh reads it.
func (f *Follower) Refresh(ctx context.Context) (changed bool, err error) {
	select {
	case <-f.turn:
	case <-ctx.Done():
		return false, unavailable(ctx.Err(), "reading the registry")
	}
	defer func() { f.turn <- struct{}{} }()
	f.takeHints()
	if err := f.readRevision(meter.With(ctx, "revision")); err != nil {
		return false, err
	}
	ctx = meter.With(ctx, "follow")
	if f.listing || f.listed && !f.r.now().Before(f.listAt) {
		if err := f.list(ctx); err != nil {
			return false, err
		}
	}
	placements := f.placementsToRead()
	err = f.readDirty(ctx)
	if f.readContradicted(placements) && err == nil {
		err = f.readDirty(ctx)
	}
	if err != nil && !f.listed {
		return false, err // half of the registry is no picture of it
	}
	f.listed = true
	return f.publish(), err
}

func (f *Follower) takeHints() {
	f.hintMu.Lock()
	defer f.hintMu.Unlock()
	maps.Copy(f.dirty, f.hints)
	clear(f.hints)
	f.listing = f.listing || f.relist
	f.relist = false
}

func (f *Follower) readRevision(ctx context.Context) error {
	f.revision.Key = RevisionKey
	rev, err := Reload(ctx, f.r, f.revision)
	if err != nil {
		return err
	}
	if rev.ETag == f.revision.ETag {
		return nil
	}
	keys, ok := changedSince(rev.Value, f.revision.Value.Counter)
	switch {
	case !ok:
		f.listing = true
		f.tell(nil)
	case len(keys) > 0:
		f.tell(keys)
	}
	for _, k := range keys {
		if wellFormed(k) && f.tableOf(k) != nil {
			f.dirty[k] = struct{}{}
		}
	}
	f.revision = rev
	return nil
}

// list finds by name and ETag what has to be read, and forgets what is not there
// any more.
func (f *Follower) list(ctx context.Context) error {
	all, listed := f.followed()
	for _, t := range all[:listed] {
		infos, err := f.r.list(ctx, t.prefixOf())
		if err != nil {
			return err
		}
		there := make(map[string]struct{}, len(infos))
		for _, i := range infos {
			there[i.Key] = struct{}{}
			known := t.etag(i.Key)
			if b, ok := f.bad[i.Key]; ok {
				known = b.etag
			}
			if known == "" || known != i.ETag {
				f.dirty[i.Key] = struct{}{}
			}
		}
		for _, k := range t.keys() {
			if _, ok := there[k]; !ok {
				t.drop(k)
			}
		}
		for k := range f.bad {
			if _, ok := there[k]; !ok && t.holds(k) {
				delete(f.bad, k)
				t.touch()
			}
		}
	}
	f.dirty[FleetKey], f.dirty[FreezeKey] = struct{}{}, struct{}{}
	f.listing = false
	f.listAt = f.r.now().Add(listEvery - f.r.jitter(listSpread))
	return nil
}

// readDirty reads what is dirty, several at once.
func (f *Follower) readDirty(ctx context.Context) error {
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	reads := make(map[string]reader, len(f.dirty))
	for key := range f.dirty {
		reads[key] = f.tableOf(key).reader(key)
	}
	// In the order of keys, so that a simulation of the same seed is the same run.
	for _, key := range slices.Sorted(maps.Keys(reads)) {
		read := reads[key]
		g.Go(func() error {
			apply, err := read(gctx, f.r)
			mu.Lock()
			defer mu.Unlock()
			var bad *unreadableError
			switch {
			case errors.As(err, &bad):
				if f.bad[key].etag != bad.etag {
					f.r.leaveAlone(key, bad.err)
					f.tableOf(key).touch()
				}
				f.bad[key] = badDoc{etag: bad.etag, why: bad.err.Error()}
			case err != nil:
				return err
			default:
				delete(f.bad, key)
				apply()
			}
			delete(f.dirty, key)
			return nil
		})
	}
	return g.Wait()
}

// publish makes a new snapshot of what changed since the last one.
func (f *Follower) publish() bool {
	all, _ := f.followed()
	changed := false
	for _, t := range all {
		changed = changed || t.moved()
	}
	old := f.snapshot.Load()
	s := *old
	if len(f.dirty) == 0 {
		s.Counter = f.revision.Value.Counter
	}
	if !changed {
		if s.Counter != old.Counter {
			f.snapshot.Store(&s)
		}
		return false
	}
	f.fill(&s)
	for _, t := range all {
		t.settle()
	}
	f.snapshot.Store(&s)
	return true
}

// fill puts what moved into a snapshot, which has the maps of the last one.
func (f *Follower) fill(s *Snapshot) {
	if f.placements.moved() || f.applications.moved() {
		s.Applications = f.applications.by(func(a scafo.Application) string { return a.Name })
		s.Placements = f.placements.by(func(p scafo.Placement) string {
			if s.Applications[p.Application].UID != p.UID {
				return ""
			}
			return p.Application
		})
	}
	if f.nodes.moved() {
		s.Nodes = f.nodes.by(func(n scafo.Node) string { return n.ID })
	}
	if f.heartbeats.moved() {
		s.Heartbeats = f.heartbeats.by(func(h scafo.Heartbeat) string { return h.Node })
	}
	if f.claims.moved() {
		s.Claims = f.claims.by(func(c scafo.Claim) string { return c.Host })
	}
	if f.deploys.moved() {
		s.Deploys = f.deploys.by(func(d scafo.Deploy) string { return d.ID })
	}
	s.Fleet = f.fleet.docs[FleetKey].Value
	s.Freeze = nil
	if d := f.freeze.docs[FreezeKey]; d.Exists {
		s.Freeze = &d.Value
	}
	s.Unreadable = make(map[string]string, len(f.bad))
	for k, b := range f.bad {
		s.Unreadable[k] = b.why
	}
}

// followedTable is a table whatever its type.
type followedTable interface {
	prefixOf() string
	holds(key string) bool
	etag(key string) string
	keys() []string
	drop(key string)
	reader(key string) reader
	touch()
	moved() bool
	settle()
}

// table is the documents of one kind, tombstones too, so that they are not read
// again at each listing.
type table[T any, P Record[T]] struct {
	prefix  string
	keyOf   func(T) string
	keep    func(T) bool      // nil keeps all
	docs    map[string]Doc[T] // by key, without their bytes
	changed bool              // since the last snapshot
}

func newTable[T any, P Record[T]](prefix string, keyOf func(T) string) *table[T, P] {
	return &table[T, P]{prefix: prefix, keyOf: keyOf, docs: map[string]Doc[T]{}}
}

func (t *table[T, P]) prefixOf() string { return t.prefix }

func (t *table[T, P]) holds(key string) bool {
	n := len(t.prefix)
	if len(key) < n || key[:n] != t.prefix {
		return false
	}
	return len(key) == n || t.prefix[n-1] == '/'
}

func (t *table[T, P]) etag(key string) string { return t.docs[key].ETag }

func (t *table[T, P]) keys() []string {
	out := make([]string, 0, len(t.docs))
	for k := range t.docs {
		out = append(out, k)
	}
	return out
}

func (t *table[T, P]) drop(key string) {
	d, ok := t.docs[key]
	delete(t.docs, key)
	t.changed = t.changed || ok && d.Exists
}

func (t *table[T, P]) touch()      { t.changed = true }
func (t *table[T, P]) moved() bool { return t.changed }
func (t *table[T, P]) settle()     { t.changed = false }

// unreadableError is a document that is left alone, with the ETag that it has.
type unreadableError struct {
	etag string
	err  error
}

func (e *unreadableError) Error() string { return e.err.Error() }

// reader reads one document unless it is as it was; apply puts it into the table.
// The reader itself does not touch the table: several run at once.
type reader func(ctx context.Context, r *Registry) (apply func(), err error)

func (t *table[T, P]) reader(key string) reader {
	old, known := t.docs[key]
	return func(ctx context.Context, r *Registry) (apply func(), err error) {
		o, err := get(ctx, r, key, old.ETag)
		switch {
		case errors.Is(err, bucket.ErrNotModified):
			return func() {}, nil
		case errors.Is(err, bucket.ErrNotFound):
			return func() { t.drop(key) }, nil
		case err != nil:
			return nil, err
		}
		d, err := docOf[T, P](o)
		if err == nil && d.Exists && t.keyOf(d.Value) != key {
			err = unreadable(&CorruptError{Key: key, Err: fmt.Errorf("it belongs at %s", t.keyOf(d.Value))})
		}
		if err != nil {
			return nil, &unreadableError{etag: o.ETag, err: err}
		}
		if t.keep != nil && d.Exists && !t.keep(d.Value) {
			return func() { t.drop(key) }, nil
		}
		d.raw = nil
		return func() {
			t.docs[key] = d
			t.changed = t.changed || d.Exists || known && old.Exists
		}, nil
	}
}

// by is the documents that are there, under the names that name gives them; an
// empty name leaves one out.
func (t *table[T, P]) by(name func(T) string) map[string]T {
	out := make(map[string]T, len(t.docs))
	for _, d := range t.docs {
		if !d.Exists {
			continue
		}
		if n := name(d.Value); n != "" {
			out[n] = d.Value
		}
	}
	return out
}
