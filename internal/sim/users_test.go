package sim

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/deletion"
	"github.com/scafo/scafo/internal/deploy"
	"github.com/scafo/scafo/internal/registry"
)

// users are those who use the fleet, and what they were told: the ledger against
// which its documents are held.
type users struct {
	w    *world
	stop chan struct{} // closed when nobody begins anything new
	wg   sync.WaitGroup

	mu      sync.Mutex      // guards what follows
	deletes map[string]bool // by name: somebody asked to delete it
	claimed map[owned]bool  // claims that were answered with success, and not released since
	trusted map[string]bool // operators that were added, and not removed since
	frozen  bool            // a freeze was answered with success, and nobody lifted it since
	removed map[string]bool // nodes whose removal was answered with success, and that nobody admitted since
	deleted map[string]bool // by uid: the deletion was answered with success
}

// owned is a host of one life of an application.
type owned struct{ host, app string }

func newUsers(w *world) *users {
	return &users{
		w: w, stop: make(chan struct{}), deletes: map[string]bool{}, claimed: map[owned]bool{},
		trusted: map[string]bool{}, removed: map[string]bool{}, deleted: map[string]bool{},
	}
}

// What the model asks when something went away. All of them are called holding the
// model's mu.

func (u *users) askedToDelete(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.deletes[name]
}

func (u *users) lifted(*model) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.frozen {
		u.w.violate("the freeze is lifted, and nobody did")
	}
}

func (u *users) revoked(_ *model, id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.trusted[id] {
		u.w.violate("operator %s is not trusted any more, and nobody removed it", id)
	}
}

// admitted is told of a node that is in the fleet again.
func (u *users) admitted(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.removed[id] {
		u.w.violate("node %s is in the fleet again, and nobody admitted it", id)
	}
}

// released is told of a held claim that is not its application's any more.
func (u *users) released(m *model, was scafo.Claim) {
	app, ok := m.apps[was.Application]
	if !ok || app.UID != was.UID || app.Deleting != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.claimed[owned{was.Host, was.Application}] {
		u.w.violate("%s lost its host %s, and nobody released it", was.Application, was.Host)
	}
}

// unlisted is told of a host that an application does not list any more.
func (u *users) unlisted(_ *model, host string, app scafo.Application) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if app.Deleting == nil && u.claimed[owned{host, app.Name}] {
		u.w.violate("%s does not list its host %s any more, and nobody released it", app.Name, host)
	}
}

// gone is told of a life that is over: whatever it had is nobody's.
func (u *users) gone(uid string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.deleted[uid] = true
}

// hosts are those that the applications quarrel about.
var hosts = []string{"shop.example.com", "www.shop.example.com", "blog.example.org"}

const (
	// callAtMost is how long a user waits for an answer.
	callAtMost = 60 * time.Second
	// pollAtMost is how long one polls a deploy.
	pollAtMost = 90 * time.Second
)

// call is the context of one request to a daemon: it ends with the daemon.
func (l *life) call(most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	go func() {
		select {
		case <-l.dead:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// begin lets the users of these applications, and an operator, begin.
func (u *users) begin(apps []string) {
	for _, name := range apps {
		u.wg.Go(func() { u.live(newDice(u.w.seed, "user", name), func(d dice, l *life) { u.developer(d, l, name) }) })
	}
	u.wg.Go(func() { u.live(newDice(u.w.seed, "operator"), u.operator) })
}

// live does something every now and then, by whichever daemon answers.
func (u *users) live(d dice, act func(d dice, l *life)) {
	for {
		t := time.NewTimer(d.between(200*time.Millisecond, 12*time.Second))
		select {
		case <-u.stop:
			t.Stop()
			return
		case <-t.C:
		}
		lives := u.w.lives()
		i := d.Uint64()
		if len(lives) > 0 {
			act(d, lives[i%uint64(len(lives))])
		}
	}
}

// told notes what came of a call, and is whether it succeeded as far as its caller
// knows: an answer of a daemon that died meanwhile never came.
func (u *users) told(l *life, err error, what string, args ...any) bool {
	ok := err == nil && !l.isDead()
	answer := "yes"
	switch code := scafo.CodeOf(err); {
	case l.isDead(): // how its call ended, nobody knows
		answer = "no answer"
	case err != nil && code != "":
		answer = string(code)
	case err != nil:
		answer = "no answer"
	}
	u.w.trace.say("user", "%s by %s: %s", fmt.Sprintf(what, args...), l.name, answer)
	return ok
}

// developer is one who has one application.
func (u *users) developer(d dice, l *life, name string) {
	switch n := d.IntN(20); {
	case n < 8:
		u.deploy(d, l, name)
	case n < 10:
		u.delete(l, name)
	case n < 14:
		u.claim(l, name, pick(d, hosts), d.chance(0.4))
	case n < 16:
		u.release(l, name, pick(d, hosts))
	case n < 17:
		u.block(l, name)
	case n < 19:
		u.scale(l, name, pick(d, []scafo.Replicas{{Count: 1}, {Count: 2}, {All: true}}))
	default:
		u.write(d, name)
	}
}

func artifact(version string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range [][2]string{{"wrangler.jsonc", version}, {"src/index.ts", "export default {}"}} {
		if err := w.WriteHeader(&tar.Header{Name: f[0], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(f[1]))}); err != nil {
			panic(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func (u *users) deploy(d dice, l *life, name string) {
	version := fmt.Sprintf("v%d", d.IntN(1e6))
	if d.chance(0.15) {
		version = badVersion + version
	}
	ctx, cancel := l.call(callAtMost)
	status, err := l.deploys.Accept(ctx, deploy.Request{Application: name, Caller: "user", Body: bytes.NewReader(artifact(version))})
	cancel()
	if !u.told(l, err, "deploy %s of %s", version, name) {
		return
	}
	if !u.w.model.keeps(status.ID, name) {
		u.w.violate("deploy %s was answered, and has no record", status.ID)
	}
	id, _ := scafo.ParseDeployID(status.ID)
	for begun := time.Now(); time.Since(begun) < pollAtMost; {
		select {
		case <-u.stop:
			return
		case <-time.After(d.between(500*time.Millisecond, 3*time.Second)):
		}
		lives := u.w.lives()
		i := d.Uint64()
		if len(lives) == 0 {
			continue
		}
		at := lives[i%uint64(len(lives))]
		ctx, cancel := at.call(callAtMost)
		s, err := at.deploys.Status(ctx, id)
		cancel()
		if err == nil && !at.isDead() && s.State.Terminal() {
			u.w.trace.say("user", "deploy %s of %s ended: %s %s", version, name, s.State, s.Code)
			return
		}
	}
}

func (u *users) delete(l *life, name string) {
	u.mu.Lock()
	u.deletes[name] = true
	for o := range u.claimed {
		if o.app == name {
			delete(u.claimed, o)
		}
	}
	u.mu.Unlock()
	app, _ := u.w.model.named(name)
	ctx, cancel := l.call(2 * time.Minute)
	defer cancel()
	o, err := l.deletions.Delete(ctx, deletion.Request{Application: name, Caller: "user", Force: true})
	if err == nil {
		err = drainKeys(ctx, l, o)
	}
	if !u.told(l, err, "delete %s", name) || app.UID == "" {
		return
	}
	u.mu.Lock()
	over := u.deleted[app.UID]
	u.mu.Unlock()
	if !over {
		u.w.violate("the deletion of %s was answered, and its record of the uid %s stands", name, app.UID)
	}
}

func (u *users) claim(l *life, name, host string, wildcard bool) {
	ctx, cancel := l.call(callAtMost)
	defer cancel()
	app, _, err := l.reg.ClaimDomain(ctx, name, host, wildcard)
	if !u.told(l, err, "claim %s for %s", host, name) {
		return
	}
	// The developer of an application does one thing after another: nobody has
	// released it since, or deleted the application.
	if now, ok := u.w.model.life(app.UID); !ok || now.Deleting != nil {
		return
	}
	u.mu.Lock()
	u.claimed[owned{host, name}] = true
	u.mu.Unlock()
	if why := u.w.model.owns(owned{host, name}); why != "" {
		u.w.violate("the claim of %s for %s was answered, and %s", host, name, why)
	}
}

func (u *users) release(l *life, name, host string) {
	u.mu.Lock()
	delete(u.claimed, owned{host, name})
	u.mu.Unlock()
	ctx, cancel := l.call(callAtMost)
	defer cancel()
	_, _, err := l.reg.ReleaseDomain(ctx, name, host)
	u.told(l, err, "release %s of %s", host, name)
}

func (u *users) block(l *life, name string) {
	app, ok := u.w.model.named(name)
	if !ok {
		return
	}
	ctx, cancel := l.call(callAtMost)
	defer cancel()
	var err error
	if app.Blocked == nil {
		_, _, err = l.reg.BlockApplication(ctx, name, "user")
	} else {
		_, _, err = l.reg.UnblockApplication(ctx, name)
	}
	u.told(l, err, "block or unblock %s", name)
}

func (u *users) scale(l *life, name string, r scafo.Replicas) {
	ctx, cancel := l.call(callAtMost)
	defer cancel()
	_, _, err := l.reg.ScaleApplication(ctx, name, r)
	u.told(l, err, "scale %s to %s", name, r)
}

// write is a runtime of the application that writes an object, forgotten or not.
func (u *users) write(d dice, name string) {
	u.w.mu.Lock()
	var uids []string
	for _, id := range u.w.ids {
		for uid, p := range u.w.machines[id].procs {
			if p.app == name && p.alive() {
				uids = append(uids, uid)
			}
		}
	}
	u.w.mu.Unlock()
	slices.Sort(uids)
	n := d.Uint64()
	if len(uids) == 0 {
		return
	}
	key := fmt.Sprintf("%sobjects/%d", registry.RuntimePrefix(name, uids[n%uint64(len(uids))]), n)
	_, _ = straight{u.w}.Put(context.Background(), key, []byte("x")) //nolint:errcheck // it cannot fail
}

// operator is one who has the fleet.
func (u *users) operator(d dice, l *life) {
	ctx, cancel := l.call(callAtMost)
	defer cancel()
	id := pick(d, []string{"ann", "ben"})
	switch d.IntN(8) {
	case 6:
		u.remove(ctx, d, l)
	case 7:
		u.admit(ctx, pick(d, u.w.ids), l)
	case 0, 1:
		_, _, err := l.reg.AddOperator(ctx, scafo.Operator{ID: id, PublicKey: publicKey(id), Role: scafo.RoleOperator, Applications: scafo.Scope{"*"}})
		if u.told(l, err, "trust %s", id) {
			u.note(func() { u.trusted[id] = true })
			if !u.w.model.trusts(id) {
				u.w.violate("operator %s was added, and is not there", id)
			}
		}
	case 2:
		u.note(func() { delete(u.trusted, id) })
		removed, err := l.reg.RemoveOperator(ctx, id)
		if u.told(l, err, "remove %s", id) && removed && u.w.model.trusts(id) {
			u.w.violate("operator %s was removed, and is there", id)
		}
	case 3:
		_, _, err := l.reg.FreezeDeploys(ctx, "root", "")
		if u.told(l, err, "freeze") {
			u.note(func() { u.frozen = true })
			if !u.w.model.isFrozen() {
				u.w.violate("the freeze was answered, and is not there")
			}
		}
		u.lift(d, u.w.lives())
	default:
		u.drain(ctx, d, l)
	}
}

// lift ends a freeze, so that deploys go on.
func (u *users) lift(d dice, lives []*life) {
	time.Sleep(d.between(time.Second, 8*time.Second))
	u.note(func() { u.frozen = false })
	if len(lives) == 0 {
		return
	}
	l := lives[0]
	ctx, cancel := l.call(callAtMost)
	defer cancel()
	_, err := l.reg.LiftFreeze(ctx)
	u.told(l, err, "lift the freeze")
}

// drain drains a machine by its record, or takes that back.
func (u *users) drain(ctx context.Context, d dice, l *life) {
	id := pick(d, u.w.ids)
	var err error
	if d.chance(0.4) {
		_, _, err = l.reg.DrainNode(ctx, id, "root")
		u.told(l, err, "drain %s", id)
		return
	}
	_, _, err = l.reg.UndrainNode(ctx, id)
	u.told(l, err, "undrain %s", id)
}

// remove takes a machine out of the fleet, unless it is the last one.
func (u *users) remove(ctx context.Context, d dice, l *life) {
	id := pick(d, u.w.ids)
	if out := u.w.model.exiles(); len(out) >= len(u.w.ids)-1 {
		u.admit(ctx, slices.Min(slices.Collect(maps.Keys(out))), l)
		return
	}
	_, _, err := l.reg.RemoveNode(ctx, id, "root")
	if !u.told(l, err, "remove node %s", id) {
		return
	}
	u.note(func() { u.removed[id] = true })
	if _, out := u.w.model.exiles()[id]; !out {
		u.w.violate("node %s was removed, and is in the fleet", id)
	}
}

// admit lets a machine come back.
func (u *users) admit(ctx context.Context, id string, l *life) {
	u.note(func() { delete(u.removed, id) })
	_, _, err := l.reg.AdmitNode(ctx, id)
	u.told(l, err, "admit node %s", id)
}

func (u *users) note(f func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f()
}

// end has everybody stop, and puts straight what is nobody's fault: drains and a
// freeze that somebody began and did not get to end.
func (u *users) end() {
	close(u.stop)
	u.wg.Wait()
	u.note(func() { u.frozen = false })
	r := u.w.outside("end")
	if _, err := r.LiftFreeze(context.Background()); err != nil {
		u.w.violate("lift the freeze: %v", err)
	}
}

// readmit admits who was removed, and says whether anybody was.
func (u *users) readmit() bool {
	exiles := slices.Sorted(maps.Keys(u.w.model.exiles()))
	for _, id := range exiles {
		u.note(func() { delete(u.removed, id) })
		if _, _, err := u.w.outside("straighten").AdmitNode(context.Background(), id); err != nil {
			u.w.violate("admit %s: %v", id, err)
		}
	}
	return len(exiles) > 0
}

// straighten admits who was removed late and ends the drains that there are, and says
// whether there were any.
func (u *users) straighten() bool {
	admitted := u.readmit()
	drained := u.w.model.drains()
	for _, id := range drained {
		if _, _, err := u.w.outside("straighten").UndrainNode(context.Background(), id); err != nil {
			u.w.violate("undrain %s: %v", id, err)
		}
	}
	return len(drained) > 0 || admitted
}

// lost says which promise is broken at the end; empty when none is.
func (u *users) lost() string {
	m := u.w.model
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, o := range slices.SortedFunc(maps.Keys(u.claimed), func(a, b owned) int { return strings.Compare(a.host+a.app, b.host+b.app) }) {
		if why := m.owns(o); why != "" {
			return fmt.Sprintf("%s was given %s, and %s", o.app, o.host, why)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(u.trusted)) {
		if !m.trusts(id) {
			return fmt.Sprintf("operator %s was added, and is not there", id)
		}
	}
	return m.lostDeploys(u.deleted)
}

// What the users see of the model.

func (m *model) named(name string) (scafo.Application, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	app, ok := m.apps[name]
	return app, ok
}

func (m *model) trusts(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.operators[id]
}

// drains are the machines that are drained by their record.
func (m *model) drains() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.drained))
}

func (m *model) isFrozen() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.freeze
}

// owns says why a host is not an application's; empty when it is.
func (m *model) owns(o owned) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	app, ok := m.apps[o.app]
	if !ok {
		return "the application is gone"
	}
	if app.Deleting != nil {
		return ""
	}
	if c := m.claims[o.host]; c.State != scafo.ClaimHeld || !c.Of(app.Name, app.UID) {
		return fmt.Sprintf("its claim is %s, of %s", c.State, c.Application)
	}
	if !slices.ContainsFunc(app.Domains, func(d scafo.Domain) bool { return d.Host == o.host }) {
		return "the application does not list it"
	}
	return ""
}

// keeps is whether a deploy has its record. That of an application which is being
// deleted may be gone already.
func (m *model) keeps(id, name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.deploys[id]
	app, lives := m.apps[name]
	return ok || !lives || app.Deleting != nil
}

// lostDeploys looks for applications that are not what their last good deploy made
// them, and for what is left of those that are gone.
func (m *model) lostDeploys(gone map[string]bool) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	best := map[string]scafo.Deploy{}
	for _, id := range slices.Sorted(maps.Keys(m.deploys)) {
		d := m.deploys[id]
		// One that nobody saw through stays what the application is, if it got so far that
		// its version was recorded.
		late := d.Code == scafo.CodeDeployTimeout && d.Seq == m.apps[d.Application].DeploymentSeq
		if (d.State == scafo.DeployDeployed || late) && d.Seq > best[d.UID].Seq {
			best[d.UID] = d
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.apps)) {
		app := m.apps[name]
		// Where its node died between two writes, its record does not know its version.
		unknown := best[app.UID].Code == scafo.CodeDeployTimeout && best[app.UID].Deployment == ""
		if d := best[app.UID]; app.Deployment != d.Deployment && !unknown {
			return fmt.Sprintf("%s is %q, and its last good deploy, %s, made it %q", name, app.Deployment, d.ID, d.Deployment)
		}
		if at := m.w.pointer(name, app.UID); app.Deployment != "" && at != app.Deployment {
			return fmt.Sprintf("%s is %q, and its pointer names %q", name, app.Deployment, at)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(gone)) {
		for _, key := range slices.Sorted(maps.Keys(m.objects[uid])) {
			return fmt.Sprintf("%s is left of a life that is over", key)
		}
	}
	return ""
}

// straight is the store without a network: of who is no machine of the fleet.
type straight struct{ w *world }

var _ bucket.Bucket = straight{}

func (s straight) Get(ctx context.Context, key string) (*bucket.Object, error) {
	return s.w.store.Get(ctx, key)
}

func (s straight) GetIfChanged(ctx context.Context, key, etag string) (*bucket.Object, error) {
	return s.w.store.GetIfChanged(ctx, key, etag)
}

func (s straight) Create(ctx context.Context, key string, body []byte) (string, error) {
	return s.w.change(nil, "create", key, body, func() (string, error) { return s.w.store.Create(ctx, key, body) })
}

func (s straight) Replace(ctx context.Context, key, etag string, body []byte) (string, error) {
	return s.w.change(nil, "replace", key, body, func() (string, error) { return s.w.store.Replace(ctx, key, etag, body) })
}

func (s straight) Put(ctx context.Context, key string, body []byte) (string, error) {
	return s.w.change(nil, "put", key, body, func() (string, error) { return s.w.store.Put(ctx, key, body) })
}

func (s straight) Delete(ctx context.Context, key string) error {
	_, err := s.w.change(nil, "delete", key, nil, func() (string, error) { return "", s.w.store.Delete(ctx, key) })
	return err
}

func (s straight) List(ctx context.Context, prefix string, o bucket.ListOptions) (bucket.Page, error) {
	return s.w.store.List(ctx, prefix, o)
}
