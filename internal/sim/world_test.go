package sim

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
)

// world is a fleet, its store and its network. Everything in it follows from the
// seed.
type world struct {
	seed  uint64
	begin time.Time
	store *memory.Store
	trace *trace
	model *model
	users *users
	ids   []string // of the machines

	mu        sync.Mutex
	machines  map[string]*machine // fixed; what is in them is guarded by mu
	cut       map[[2]string]bool  // guarded by mu; which machines cannot reach each other
	everReady map[string]bool     // guarded by mu; addresses of processes that answered health
	violation string              // guarded by mu; the first one

	fence      int64     // guarded by mu; as tick last saw it held
	fenceSince time.Time // guarded by mu

	applying sync.Mutex // one write of the store with its checks at a time
}

func newWorld(seed uint64, dir string, nodes int) *world {
	w := &world{
		seed: seed, begin: time.Now(), store: memory.New(), trace: &trace{begin: time.Now()},
		machines: map[string]*machine{}, cut: map[[2]string]bool{}, everReady: map[string]bool{},
	}
	w.model = newModel(w)
	w.users = newUsers(w)
	d := newDice(seed, "machines")
	for i := range nodes {
		id := string(rune('a' + i))
		w.ids = append(w.ids, id)
		w.machines[id] = &machine{
			w: w, id: id, rate: 1 + (d.Float64()*2-1)*drift, skew: d.between(-wrong, wrong), disk: filepath.Join(dir, id),
			procs: map[string]*proc{}, kept: map[string]bool{}, calm: time.Now(),
		}
	}
	return w
}

const (
	// drift is how much faster or slower than true time a machine's clock runs. Two of
	// them may differ by twice that, which a holder's margin of a tenth of the TTL bears.
	drift = 0.04
	// wrong is how wrong a machine's time of day may be.
	wrong = 2 * time.Hour
)

// violate says that an invariant does not hold. The first time counts.
func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violateLocked(format, args...)
}

func (w *world) violateLocked(format string, args ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf(format, args...)
		w.trace.say("", "VIOLATION: %s", w.violation)
	}
}

func (w *world) violated() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.violation
}

func (w *world) weatherOf(m *machine) weather {
	w.mu.Lock()
	defer w.mu.Unlock()
	return m.weather
}

// change makes a write, and looks at what it did. l is nil for who is no daemon.
func (w *world) change(l *life, op, key string, body []byte, write func() (string, error)) (string, error) {
	w.applying.Lock()
	defer w.applying.Unlock()
	before := w.read(key)
	etag, err := write()
	who := "outside"
	if l != nil {
		who = l.name
	}
	if err != nil {
		w.trace.say(who, "%s %s: %s", op, key, outcome(err))
		return etag, err
	}
	w.trace.say(who, "%s %s %s", op, key, document{key, body})
	if before != nil || body != nil {
		w.model.changed(l, key, before, body)
	}
	return etag, nil
}

// read is an object's bytes, nil for none.
func (w *world) read(key string) []byte {
	o, err := w.store.Get(context.Background(), key)
	if err != nil {
		return nil
	}
	return o.Body
}

// lives are the daemons whose parts run.
func (w *world) lives() []*life {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*life
	for _, id := range w.ids {
		if l := w.machines[id].life; l != nil && l.up {
			out = append(out, l)
		}
	}
	return out
}

func (w *world) isLeaving(l *life) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.leaves
}

// tick looks at what no write shows.
func (w *world) tick() {
	lives := w.lives()
	var holders []string
	for _, l := range lives {
		if fence, held := l.lease.Held(); held {
			holders = append(holders, fmt.Sprintf("%s under %d", l.name, fence))
		}
	}
	if len(holders) > 1 {
		w.violate("several nodes may act: %v", holders)
	}
	for _, l := range lives {
		doc, _, ready := l.loop.Routing("")
		if !ready {
			continue
		}
		for _, r := range doc.Routes {
			for _, u := range r.Upstreams {
				w.mu.Lock()
				if !w.everReady[u.URL] {
					w.violateLocked("%s routes %s to %s, which never answered its health", l.name, r.Host, u.URL)
				}
				w.mu.Unlock()
			}
		}
	}
	w.straying()
	w.exiles(lives)
}

// exileWithin is how long a machine that was removed may be named by a placement while
// somebody coordinates to whom nothing happens: the news of it, and the passes that move
// what it had.
const exileWithin = time.Minute

// exiles looks whether anything is placed on machines that were removed.
func (w *world) exiles(lives []*life) {
	out := w.model.known()
	if len(out) == 0 || !w.coordinated(lives) {
		return
	}
	apps, placed, stray := w.model.plan()
	for _, uid := range slices.Sorted(maps.Keys(placed)) {
		app, there := apps[uid]
		for _, id := range placed[uid] {
			if since, gone := out[id]; gone && there && !stray[uid] && servable(app) && time.Since(since) > exileWithin {
				w.violate("%s is placed on %s, which was removed %s ago", app.Name, id, time.Since(since).Round(time.Second))
			}
		}
	}
}

// banished says what is left of the machines that were removed; empty when nothing is.
func (w *world) banished() string {
	out := w.model.known()
	for _, id := range slices.Sorted(maps.Keys(out)) {
		for _, l := range w.lives() {
			doc, _, _ := l.loop.Routing("")
			for _, r := range doc.Routes {
				for _, u := range r.Upstreams {
					if u.Node == id {
						return fmt.Sprintf("%s routes %s to %s, which was removed", l.name, r.Host, id)
					}
				}
			}
		}
		w.mu.Lock()
		for _, uid := range slices.Sorted(maps.Keys(w.machines[id].procs)) {
			if p := w.machines[id].procs[uid]; !p.forgotten {
				defer w.mu.Unlock()
				return fmt.Sprintf("%s of %s runs on %s, which was removed", uid, p.app, id)
			}
		}
		w.mu.Unlock()
	}
	return ""
}

// coordinated is whether a machine to which nothing happened for a while has held the
// lease for as long.
func (w *world) coordinated(lives []*life) bool {
	now := time.Now()
	for _, l := range lives {
		fence, held := l.lease.Held()
		if !held {
			continue
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.fence != fence {
			w.fence, w.fenceSince = fence, now
		}
		return now.Sub(w.fenceSince) > exileWithin && now.Sub(l.m.calm) > exileWithin
	}
	return false
}

// strayAtMost is how long a process may run where it is not placed, on a machine to
// which nothing happens meanwhile: the news of it, a replacement that becomes ready
// first, the time of the ingress, and its drain.
const strayAtMost = 75 * time.Second

// straying looks for processes that run for long where they are not placed.
func (w *world) straying() {
	apps, placed, stray := w.model.plan()
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, id := range w.ids {
		if m := w.machines[id]; m.life == nil || !m.life.up && !m.life.refused || m.weather != (weather{}) || now.Before(m.life.stopped) {
			m.calm = now
		}
	}
	for _, id := range w.ids {
		m := w.machines[id]
		for _, uid := range slices.Sorted(maps.Keys(m.procs)) {
			p := m.procs[uid]
			exiled := m.life != nil && m.life.refused && p.forgotten // nobody is left there who could end it
			if !p.alive() || stray[uid] || exiled || w.mayRun(id, apps[uid], placed[uid], now) {
				p.astray = time.Time{}
				continue
			}
			if p.astray.IsZero() {
				p.astray = now
			}
			since := p.astray
			if m.calm.After(since) {
				since = m.calm
			}
			if now.Sub(since) > strayAtMost {
				w.violateLocked("%s of %s runs on %s for %s without being placed there", uid, p.app, id, now.Sub(since).Round(time.Second))
			}
		}
	}
}

// mayRun is whether a process may run on that machine: it is placed there, or those
// machines where it is cannot take over from it. The caller holds mu.
func (w *world) mayRun(id string, app scafo.Application, placed []string, now time.Time) bool {
	if !servable(app) {
		return false
	}
	if slices.Contains(placed, id) || placed == nil {
		return true
	}
	for _, other := range placed {
		m := w.machines[other]
		if p := m.procs[app.UID]; p == nil || p.state != scafo.ProcessReady || now.Sub(m.calm) < strayAtMost {
			return true
		}
	}
	return false
}

// unrest says what is not as it should be once nothing happens any more; empty when
// all is.
func (w *world) unrest() string {
	lives := w.lives()
	if len(lives) != len(w.ids) {
		return fmt.Sprintf("%d of %d daemons run", len(lives), len(w.ids))
	}
	holders := 0
	for _, l := range lives {
		if w.isLeaving(l) {
			return l.name + " is about to stop"
		}
		if _, held := l.lease.Held(); held {
			holders++
		}
	}
	if holders != 1 {
		return fmt.Sprintf("%d nodes coordinate", holders)
	}
	if why := w.model.unrest(len(lives)); why != "" {
		return why
	}
	for _, app := range w.model.applications() {
		want := w.model.nodes(app)
		if w.model.strays(app) {
			continue
		}
		if strings.HasPrefix(app.Deployment, badVersion) {
			// It was recorded while nothing could take it, so that no runtime refused it in
			// time: it crashes wherever it is placed, and its status says so.
			continue
		}
		if app.Blocked != nil || app.Deleting != nil || app.Deployment == "" {
			want = nil
		}
		if why := w.runsOn(app, want); why != "" {
			return why
		}
		for _, l := range lives {
			doc, _, _ := l.loop.Routing("")
			var routed []string
			for _, r := range doc.Routes {
				if r.Host != app.Name+"."+platform {
					continue
				}
				for _, u := range r.Upstreams {
					routed = append(routed, u.Node)
				}
			}
			slices.Sort(routed)
			if !slices.Equal(routed, want) {
				return fmt.Sprintf("%s is placed on %v, and %s routes it to %v", app.Name, want, l.name, routed)
			}
		}
	}
	return w.leftovers()
}

// runsOn looks where an application runs, and what it serves there.
func (w *world) runsOn(app scafo.Application, want []string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var on []string
	for _, id := range w.ids {
		p := w.machines[id].procs[app.UID]
		if p == nil {
			continue
		}
		on = append(on, id)
		if p.state != scafo.ProcessReady || p.serves != app.Deployment {
			return fmt.Sprintf("%s is %s on %s, serves %q of %q", app.Name, p.state, id, p.serves, app.Deployment)
		}
	}
	if !slices.Equal(on, want) {
		return fmt.Sprintf("%s is placed on %v and runs on %v", app.Name, want, on)
	}
	return ""
}

// leftovers looks for processes of lives that are over.
func (w *world) leftovers() string {
	alive := map[string]bool{}
	for _, app := range w.model.applications() {
		alive[app.UID] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.ids {
		for uid := range w.machines[id].procs {
			if !alive[uid] {
				return fmt.Sprintf("%s still runs %s, whose application is gone", id, uid)
			}
		}
	}
	return ""
}

// found begins the fleet.
func (w *world) found() error {
	_, err := w.outside("founder").InitFleet(context.Background(), scafo.Operator{
		ID: "root", PublicKey: publicKey("root"), Role: scafo.RoleAdmin, Applications: scafo.Scope{"*"},
	})
	return err
}

// outside is a registry of somebody who is no node, by a way that never fails.
func (w *world) outside(who string) *registry.Registry {
	return registry.New(straight{w}, registry.Options{Rand: newDice(w.seed, "outside", who)})
}
