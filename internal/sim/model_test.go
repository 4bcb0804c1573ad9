package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// model is the store as an observer sees it who misses nothing: it is told of every
// write in the order in which the store applied them, and says when one breaks an
// invariant.
type model struct {
	w *world

	mu         sync.Mutex                   // guards what follows
	lease      scafo.Lease                  // as it stands
	acquired   map[int64]string             // by fence: the process that took it
	apps       map[string]scafo.Application // by name; those that there are
	lives      map[string]string            // by uid: its name, for ever
	placements map[string]scafo.Placement   // by key
	claims     map[string]scafo.Claim       // by host
	deploys    map[string]scafo.Deploy      // by id
	stray      map[string]bool              // by key: what arrived after its sender had given up, and was not written since
	unsaid     map[string]*life             // by key: who wrote it, while that was not announced
	operators  map[string]bool
	freeze     bool
	drained    map[string]bool            // by machine
	removed    map[string]time.Time       // by machine: since when it is out of the fleet
	objects    map[string]map[string]bool // by uid: what its runtimes wrote, and is there
}

func newModel(w *world) *model {
	return &model{
		w: w, acquired: map[int64]string{}, apps: map[string]scafo.Application{}, lives: map[string]string{},
		placements: map[string]scafo.Placement{}, claims: map[string]scafo.Claim{}, deploys: map[string]scafo.Deploy{},
		stray: map[string]bool{}, unsaid: map[string]*life{}, drained: map[string]bool{}, removed: map[string]time.Time{}, operators: map[string]bool{}, objects: map[string]map[string]bool{},
	}
}

// document reads one; there is false for nothing and for a tombstone.
func read[T any](body []byte) (v T, there bool) {
	var gone struct {
		Tombstone bool `json:"tombstone"`
	}
	if body == nil || json.Unmarshal(body, &gone) != nil || gone.Tombstone || json.Unmarshal(body, &v) != nil {
		return v, false
	}
	return v, true
}

// followed are the records whose news the nodes have to hear.
var followed = []string{registry.ApplicationPrefix, registry.PlacementPrefix, registry.NodePrefix}

// changed looks at one write. l is the daemon that sent it, and nil for nobody's.
func (m *model) changed(l *life, key string, before, after []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.stray, key)
	delete(m.unsaid, key)
	if l != nil && slices.ContainsFunc(followed, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
		m.unsaid[key] = l
	}
	switch {
	case key == registry.RevisionKey:
		now, _ := read[scafo.Revision](after)
		for _, c := range now.Changed {
			if c.Counter == now.Counter {
				delete(m.unsaid, c.Key)
			}
		}
	case key == registry.CoordinatorKey:
		m.leaseChanged(after)
	case strings.HasPrefix(key, registry.NodePrefix):
		if n, there := read[scafo.Node](after); there {
			m.nodeChanged(n)
		}
	case key == registry.FreezeKey:
		_, m.freeze = read[scafo.Freeze](after)
		if !m.freeze && before != nil {
			m.w.users.lifted(m)
		}
	case strings.HasPrefix(key, registry.PlacementPrefix):
		m.placementChanged(l, key, after)
	case strings.HasPrefix(key, registry.ApplicationPrefix):
		m.applicationChanged(key, after)
	case strings.HasPrefix(key, registry.DomainPrefix):
		m.claimChanged(before, after)
	case strings.HasPrefix(key, registry.DeployPrefix):
		m.deployChanged(before, after)
	case strings.HasPrefix(key, registry.OperatorPrefix):
		m.operatorChanged(key, after)
	case strings.HasPrefix(key, registry.RuntimesPrefix):
		m.objectChanged(key, after)
	}
}

func (m *model) nodeChanged(now scafo.Node) {
	delete(m.drained, now.ID)
	if now.Drain != nil {
		m.drained[now.ID] = true
	}
	_, out := m.removed[now.ID]
	switch {
	case now.Removed != nil && !out:
		m.removed[now.ID] = time.Now()
	case now.Removed == nil && out:
		delete(m.removed, now.ID)
		m.w.users.admitted(now.ID)
	}
}

func (m *model) leaseChanged(after []byte) {
	now, there := read[scafo.Lease](after)
	was := m.lease
	switch {
	case !there:
		m.w.violate("the lease's record is gone, and its fence with it")
		return
	case now.Fence < was.Fence:
		m.w.violate("the fence went back from %d to %d", was.Fence, now.Fence)
	case now.Seq <= was.Seq:
		m.w.violate("the lease was written without its seq growing: %d after %d", now.Seq, was.Seq)
	}
	if now.Node != "" {
		if owner, taken := m.acquired[now.Fence]; taken && owner != now.Process {
			m.w.violate("two processes hold the lease under fence %d", now.Fence)
		}
		m.acquired[now.Fence] = now.Process
	}
	m.lease = now
}

func (m *model) placementChanged(l *life, key string, after []byte) {
	now, there := read[scafo.Placement](after)
	was, stood := m.placements[key]
	if !there {
		delete(m.placements, key)
		if app, ok := m.apps[was.Application]; stood && ok && app.UID == was.UID && app.Deleting == nil {
			m.w.violate("the placement of %s was deleted, which lives", was.Application)
		}
		return
	}
	if stood && now.Fence < was.Fence {
		m.w.violate("the placement of %s went back from fence %d to %d", now.Application, was.Fence, now.Fence)
	}
	if l != nil && m.acquired[now.Fence] != l.process {
		m.w.violate("%s placed %s under fence %d, which it never held", l.name, now.Application, now.Fence)
	}
	m.placements[key] = now
}

func (m *model) applicationChanged(key string, after []byte) {
	name, _ := registry.KeyID(registry.ApplicationPrefix, key)
	now, there := read[scafo.Application](after)
	was, stood := m.apps[name]
	if !there {
		delete(m.apps, name)
		if stood && was.Deleting == nil {
			m.w.violate("application %s is gone, and nobody deleted it", name)
		}
		if stood {
			m.w.users.gone(was.UID)
		}
		return
	}
	m.apps[name] = now
	if !stood {
		if _, used := m.lives[now.UID]; used {
			m.w.violate("application %s begins a life with the uid %s, which had one", name, now.UID)
		}
		m.lives[now.UID] = name
		return
	}
	switch {
	case now.UID != was.UID:
		m.w.violate("application %s has another uid, and was never gone", name)
	case now.DeploySeq < was.DeploySeq:
		m.w.violate("the deploySeq of %s went back from %d to %d", name, was.DeploySeq, now.DeploySeq)
	case was.Deleting != nil && now.Deleting == nil:
		m.w.violate("the deletion of %s was taken back", name)
	case was.Deleting == nil && now.Deleting != nil && !m.w.users.askedToDelete(name):
		m.w.violate("%s is being deleted, and nobody asked", name)
	}
	for _, d := range was.Domains {
		if !slices.ContainsFunc(now.Domains, func(e scafo.Domain) bool { return e.Host == d.Host }) {
			m.w.users.unlisted(m, d.Host, now)
		}
	}
}

func (m *model) claimChanged(before, after []byte) {
	now, there := read[scafo.Claim](after)
	if !there {
		m.w.violate("a claim was deleted: %s", before)
		return
	}
	m.claims[now.Host] = now
	was, stood := read[scafo.Claim](before)
	if stood && was.State == scafo.ClaimHeld && (now.State != scafo.ClaimHeld || !now.Of(was.Application, was.UID)) {
		m.w.users.released(m, was)
	}
	if now.State != scafo.ClaimHeld {
		return
	}
	for _, other := range m.claims {
		if other.State == scafo.ClaimHeld && m.overlap(now, other) {
			m.w.violate("two applications own one host: %s of %s (%s) and %s of %s (%s)",
				now.Host, now.Application, now.UID, other.Host, other.Application, other.UID)
		}
	}
}

// overlap is whether two held claims answer one host. What a claim is only about to
// cover it does not own, and a life that is over owns nothing.
func (m *model) overlap(a, b scafo.Claim) bool {
	a.PendingWildcard, b.PendingWildcard = false, false
	return a.Conflicts(b) && m.apps[a.Application].UID == a.UID && m.apps[b.Application].UID == b.UID
}

func (m *model) deployChanged(before, after []byte) {
	now, there := read[scafo.Deploy](after)
	was, stood := read[scafo.Deploy](before)
	if !there {
		delete(m.deploys, was.ID)
		if app, ok := m.apps[was.Application]; stood && ok && app.UID == was.UID && app.Deleting == nil {
			m.w.violate("deploy %s was deleted, whose application lives", was.ID)
		}
		return
	}
	m.deploys[now.ID] = now
	if stood && was.State.Terminal() && (now.State != was.State || now.Deployment != was.Deployment) {
		m.w.violate("deploy %s had ended as %s %s, and is %s %s", now.ID, was.State, was.Deployment, now.State, now.Deployment)
	}
}

func (m *model) operatorChanged(key string, after []byte) {
	id, _ := registry.KeyID(registry.OperatorPrefix, key)
	_, there := read[scafo.Operator](after)
	if m.operators[id] && !there {
		m.w.users.revoked(m, id)
	}
	m.operators[id] = there
}

// pointerKey is the one object of a runtime that a failed deploy may remove.
const pointerKey = "/deploy/current.json"

func (m *model) objectChanged(key string, after []byte) {
	parts := strings.Split(key, "/")
	name, uid := parts[1], parts[2]
	if m.objects[uid] == nil {
		m.objects[uid] = map[string]bool{}
	}
	if after != nil {
		// What a forgotten process writes into a life that is over, the next deletion of
		// the name finds, if the node does not live that deleted it.
		if m.apps[name].UID == uid {
			m.objects[uid][key] = true
		}
		return
	}
	delete(m.objects[uid], key)
	if app, ok := m.apps[name]; ok && app.UID == uid && app.Deleting == nil && !strings.HasSuffix(key, pointerKey) {
		m.w.violate("%s was deleted, and its application lives", key)
	}
}

// astray notes that a write arrived whose sender has given up. Whoever asked for it was
// told that it failed, and nobody announced it: nodes find it when they next list, or
// when it is announced for something else.
func (m *model) astray(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stray[key] = true
}

// strays is whether the application's record, or its placement, is one of them, or was
// written by a daemon that died before it could announce it.
func (m *model) strays(app scafo.Application) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.straysLocked(app)
}

func (m *model) straysLocked(app scafo.Application) bool {
	for _, key := range []string{registry.ApplicationKey(app.Name), registry.PlacementKey(app.Name, app.UID)} {
		if l := m.unsaid[key]; m.stray[key] || l != nil && l.isDead() {
			return true
		}
	}
	return false
}

// exiles are the machines that are out of the fleet, with since when.
func (m *model) exiles() map[string]time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.removed)
}

// known are those exiles of which the fleet was told.
func (m *model) known() map[string]time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := maps.Clone(m.removed)
	maps.DeleteFunc(out, func(id string, _ time.Time) bool {
		_, unsaid := m.unsaid[registry.NodeKey(id)]
		return unsaid || m.stray[registry.NodeKey(id)]
	})
	return out
}

// applications are those that there are, by name.
func (m *model) applications() []scafo.Application {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []scafo.Application
	for _, name := range slices.Sorted(maps.Keys(m.apps)) {
		out = append(out, m.apps[name])
	}
	return out
}

// plan is what there is, where it is placed, and which of it is a stray, by uid.
func (m *model) plan() (apps map[string]scafo.Application, placed map[string][]string, stray map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	apps, placed, stray = map[string]scafo.Application{}, map[string][]string{}, map[string]bool{}
	for _, app := range m.apps {
		apps[app.UID] = app
		stray[app.UID] = m.straysLocked(app)
	}
	for _, p := range m.placements {
		placed[p.UID] = p.Nodes
	}
	return apps, placed, stray
}

// nodes are those on which an application is placed, in order.
func (m *model) nodes(app scafo.Application) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(slices.Values(m.placements[registry.PlacementKey(app.Name, app.UID)].Nodes))
}

func deployKey(id string) string {
	parsed, _ := scafo.ParseDeployID(id)
	return registry.DeployKey(parsed)
}

// servable is whether the fleet should serve the application.
func servable(app scafo.Application) bool {
	return app.Deployment != "" && app.Blocked == nil && app.Deleting == nil && app.Retired == nil
}

// life is the application of that uid, if it is its name's.
func (m *model) life(uid string) (scafo.Application, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	app, ok := m.apps[m.lives[uid]]
	return app, ok && app.UID == uid
}

// unrest says what of the documents is not as it should be when all is quiet, but for
// strays.
func (m *model) unrest(nodes int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.apps)) {
		app := m.apps[name]
		if m.straysLocked(app) {
			continue
		}
		if app.Deleting != nil {
			return name + " is still being deleted"
		}
		if app.Publishing != nil {
			return fmt.Sprintf("%s is still held by deploy %s", name, app.Publishing.Deploy)
		}
		if !servable(app) {
			continue
		}
		want := app.Replicas.Count
		if app.Replicas.All {
			want = nodes
		}
		p := m.placements[registry.PlacementKey(name, app.UID)]
		if len(p.Nodes) != min(max(want, 1), nodes) {
			return fmt.Sprintf("%s wants %s of %d nodes and is placed on %v", name, app.Replicas, nodes, p.Nodes)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.deploys)) {
		// What nobody announced, the coordinator finds when it lists the deploys.
		if d := m.deploys[id]; !d.State.Terminal() && !m.stray[deployKey(id)] && m.apps[d.Application].UID == d.UID {
			return fmt.Sprintf("deploy %s is still %s: %s", id, d.State, d.Step)
		}
	}
	return ""
}
