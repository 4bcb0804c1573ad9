package reconcile

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/lease"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/supervise"
)

// world is a fleet over one bucket in memory, in virtual time. Its parts are the
// real ones but for the processes and the network.
type world struct {
	t     *testing.T
	store *memory.Store
	reg   *registry.Registry // of somebody who is no node

	ago atomic.Int64 // how long ago the store says that it is

	mu    sync.Mutex
	nodes map[string]*testNode // guarded by mu; the running ones
	down  bool                 // a node that starts finds the bucket away
	cut   map[[2]string]bool   // guarded by mu; who cannot reach whom
}

type testNode struct {
	id     string
	loop   *Loop
	lease  *lease.Runner
	reg    *registry.Registry
	sup    *fakeSupervisor
	bucket *fault.Store
	meter  *meter.Bucket // what the node asks of the bucket
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func publicKey(id string) scafo.PublicKey {
	seed := sha256.Sum256([]byte(id))
	public := ed25519.NewKeyFromSeed(seed[:]).Public().(ed25519.PublicKey)
	return scafo.PublicKey{Kty: "OKP", Crv: "Ed25519", X: base64.RawURLEncoding.EncodeToString(public)}
}

type bubbleClock struct{ start time.Time }

func (c bubbleClock) Now() time.Duration { return time.Since(c.start) + time.Hour }

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, nodes: map[string]*testNode{}, cut: map[[2]string]bool{}}
	store := memory.New(memory.WithClock(func() time.Time { return time.Now().Add(-time.Duration(w.ago.Load())) }))
	w.store, w.reg = store, registry.New(store, registry.Options{Node: "outside"})
	t.Cleanup(w.end)
	return w
}

// end kills what runs, so that no goroutine is left in the bubble.
func (w *world) end() {
	ids := w.ids()
	for _, id := range ids {
		w.kill(id)
	}
	if len(ids) > 0 {
		time.Sleep(time.Minute) // an announcement that was under way gives up
	}
}

func (w *world) ids() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []string
	for id := range w.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (w *world) node(id string) *testNode {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[id]
}

// reach is the node, when from can reach it.
func (w *world) reach(from, to string) *testNode {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut[[2]string{from, to}] {
		return nil
	}
	return w.nodes[to]
}

func (w *world) isolate(a, b string, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[[2]string{a, b}], w.cut[[2]string{b, a}] = cut, cut
}

type startOption func(*Config, *fakeSupervisor, *scafo.Node)

// start starts a node, registers it, and returns it. Its supervisor may be that
// of an earlier life, whose processes then go on.
func (w *world) start(id string, options ...startOption) *testNode {
	w.t.Helper()
	n := &testNode{id: id, bucket: fault.New(w.store)}
	n.meter = meter.New(n.bucket)
	n.reg = registry.New(n.meter, registry.Options{Node: id})
	n.sup = newFakeSupervisor(id)
	record := scafo.Node{ID: id, Address: "http://" + id + ".example:7420", Version: scafo.Version, PublicKey: publicKey(id)}
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("SCAFO_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", id)
	}
	n.lease = lease.New(n.reg, lease.Config{Node: id, Clock: bubbleClock{time.Now()}, Log: log})
	c := Config{
		Node: id, BootID: "boot", CelldVersion: "celld 0.6.2",
		Store: RegistryStore(n.reg, registry.NewFollower(n.reg)), Lease: n.lease, Supervisor: n.sup,
		Peers: &fakePeers{w: w, from: id}, PlatformDomains: []string{"apps.example"}, Log: log,
		Times: Times{DrainReplace: 30 * time.Second, DrainRoute: 8 * time.Second},
	}
	for _, o := range options {
		o(&c, n.sup, &record)
	}
	if s, ok := c.Supervisor.(*fakeSupervisor); ok {
		n.sup = s
	}
	if _, err := n.reg.RegisterNode(w.t.Context(), record); err != nil {
		w.t.Fatal(err)
	}
	var err error
	if n.loop, err = New(c); err != nil {
		w.t.Fatal(err)
	}
	n.bucket.SetDown(w.down)
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	n.wg.Go(func() { _ = n.lease.Run(ctx) })
	n.wg.Go(func() { _ = n.loop.Run(ctx) })
	w.mu.Lock()
	w.nodes[id] = n
	w.mu.Unlock()
	return n
}

// kill is kill -9 of the whole machine: nothing is said, nothing is given back.
func (w *world) kill(id string) {
	w.mu.Lock()
	n := w.nodes[id]
	delete(w.nodes, id)
	w.mu.Unlock()
	if n == nil {
		return
	}
	n.bucket.SetDown(true)
	n.cancel()
	n.wg.Wait()
	n.sup.die()
}

// deploy records a version of the application, as a deploy on that node does.
func (w *world) deploy(via, name, version string) scafo.Application {
	w.t.Helper()
	reg := w.reg
	if n := w.node(via); n != nil {
		reg = n.reg
	}
	if _, _, err := reg.CreateApplication(w.t.Context(), name, "test", nil); err != nil {
		w.t.Fatal(err)
	}
	app, err := reg.UpdateApplication(w.t.Context(), name, func(a *scafo.Application) error {
		a.DeploySeq++
		a.Deployment = version
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return app
}

func (w *world) update(name string, change func(*scafo.Application)) {
	w.t.Helper()
	if _, err := w.reg.UpdateApplication(w.t.Context(), name, func(a *scafo.Application) error { change(a); return nil }); err != nil {
		w.t.Fatal(err)
	}
}

// routes maps each host of the node's routing document to its upstreams' nodes.
func (n *testNode) routes() map[string][]string {
	doc, _, ready := n.loop.Routing("")
	if !ready {
		return nil
	}
	out := map[string][]string{}
	for _, r := range doc.Routes {
		for _, u := range r.Upstreams {
			out[r.Host] = append(out[r.Host], u.Node)
		}
	}
	return out
}

// until waits for a condition, at most that long, and returns how long it took.
func (w *world) until(within time.Duration, what string, ok func() bool) time.Duration {
	w.t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > within {
			w.t.Fatalf("after %s still not: %s\n%s", within, what, w.dump())
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(begin)
}

func (w *world) dump() string {
	var b strings.Builder
	for _, id := range w.ids() {
		n := w.node(id)
		fence, held := n.lease.Held()
		fmt.Fprintf(&b, "%s held=%v fence=%d routes=%v processes:", id, held, fence, n.routes())
		for _, p := range n.sup.Statuses() {
			fmt.Fprintf(&b, " %s=%s(%s)", p.Application, p.State, p.Deployment)
		}
		fmt.Fprintf(&b, " status=%+v\n", n.loop.Status())
	}
	return b.String()
}

// knows is how many heartbeats the node has read.
func (n *testNode) knows() int {
	if s := n.loop.Snapshot(); s != nil {
		return len(s.Heartbeats)
	}
	return 0
}

// serving are the nodes on which the application's process is ready.
func (w *world) serving(name string) []string {
	var out []string
	for _, id := range w.ids() {
		for _, p := range w.node(id).sup.Statuses() {
			if p.Application == name && p.State == scafo.ProcessReady {
				out = append(out, id)
			}
		}
	}
	return out
}

func (w *world) coordinators() []string {
	var out []string
	for _, id := range w.ids() {
		if _, held := w.node(id).lease.Held(); held {
			out = append(out, id)
		}
	}
	return out
}

// fakePeers is the network.
type fakePeers struct {
	w    *world
	from string
}

var errUnreachable = fmt.Errorf("connection timed out")

func (p *fakePeers) Health(ctx context.Context, node scafo.Node) (string, error) {
	to := p.w.reach(p.from, node.ID)
	if to == nil {
		<-ctx.Done() // a dead machine refuses nothing
		return "", errUnreachable
	}
	to.loop.Asked(p.from)
	return to.id, nil
}

func (p *fakePeers) Hint(ctx context.Context, node scafo.Node, h scafo.PeerHint) (scafo.PeerAnswer, error) {
	to := p.w.reach(p.from, node.ID)
	if to == nil {
		<-ctx.Done()
		return scafo.PeerAnswer{}, errUnreachable
	}
	return to.loop.Hint(ctx, p.from, h)
}

// fakeSupervisor is processes that start, reload and stop in virtual time.
type fakeSupervisor struct {
	node    string
	changes chan struct{}

	mu       sync.Mutex
	starts   time.Duration                   // how long a start takes
	reloads  time.Duration                   // how long a reload takes
	stops    time.Duration                   // how long a process drains; 0: it is gone at once
	started  int                             // how many processes were started
	refuse   map[string]string               // by version: what the runtime says to it
	crash    map[string]string               // by version: what it says before it exits 1
	procs    map[string]*scafo.ProcessStatus // by uid
	internal bool                            // processes tell their internal listener and a pid; port 1 is shop's
	disk     map[string]bool                 // the uids that left something on disk
	hidden   map[string]bool                 // the uids whose process an earlier daemon left and this one does not know of
	gen      map[string]int                  // by uid: of the latest start or reload
	again    map[string]supervise.Want       // by uid: what is started once it is gone
	sets     int
	dead     bool
	ports    int
}

func newFakeSupervisor(node string) *fakeSupervisor {
	return &fakeSupervisor{
		node: node, changes: make(chan struct{}, 1), starts: 200 * time.Millisecond, reloads: 20 * time.Millisecond,
		refuse: map[string]string{}, crash: map[string]string{}, procs: map[string]*scafo.ProcessStatus{}, gen: map[string]int{}, again: map[string]supervise.Want{}, hidden: map[string]bool{}, disk: map[string]bool{}, ports: 20000,
	}
}

func (s *fakeSupervisor) Changes() <-chan struct{} { return s.changes }

func (s *fakeSupervisor) Statuses() []scafo.ProcessStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []scafo.ProcessStatus{}
	for _, p := range s.procs {
		if !s.hidden[p.UID] {
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b scafo.ProcessStatus) int { return strings.Compare(a.Application+a.UID, b.Application+b.UID) })
	return out
}

func (s *fakeSupervisor) Set(wants []supervise.Want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sets++
	named := map[string]bool{}
	for _, w := range wants {
		named[w.UID] = true
		delete(s.hidden, w.UID) // its start finds it
		p, ok := s.procs[w.UID]
		switch {
		case !ok:
			s.started++
			s.ports++
			s.disk[w.UID] = true
			p = &scafo.ProcessStatus{
				Application: w.Application, UID: w.UID, State: scafo.ProcessStarting, CelldVersion: "celld 0.6.2",
				URL: fmt.Sprintf("http://%s.example:%d", s.node, s.ports), Wanted: w.Version,
			}
			if s.internal {
				p.PID, p.Internal = s.ports, fmt.Sprintf("http://%s.internal:%d", s.node, s.ports-20000)
			}
			s.procs[w.UID] = p
			s.later(w.UID, s.starts, func(p *scafo.ProcessStatus) {
				if line, bad := s.crash[p.Wanted]; bad {
					p.State, p.LastExit, p.LastLines = scafo.ProcessBackoff, &scafo.Exit{Code: 1}, []string{"starting", line}
					p.Restarts++
					return
				}
				p.State, p.Deployment = scafo.ProcessReady, p.Wanted
			})
		case p.State == scafo.ProcessDraining: // it goes all the same, and another one comes then
			s.again[w.UID] = w
		case p.Wanted != w.Version:
			p.Wanted = w.Version
			s.later(w.UID, s.reloads, func(p *scafo.ProcessStatus) {
				if line, bad := s.refuse[p.Wanted]; bad {
					p.Refused = &scafo.Refusal{Version: p.Wanted, Detail: line}
					return
				}
				p.State, p.Deployment, p.Refused = scafo.ProcessReady, p.Wanted, nil
			})
		}
	}
	for uid, p := range s.procs {
		switch {
		case named[uid] || s.hidden[uid]:
		case s.stops == 0:
			delete(s.procs, uid)
			s.gen[uid]++
		default:
			delete(s.again, uid)
			s.drain(p)
		}
	}
	signal(s.changes)
}

// drain has a process go, and start anew when it is wanted by then. The caller holds
// mu.
func (s *fakeSupervisor) drain(p *scafo.ProcessStatus) {
	if p.State == scafo.ProcessDraining {
		return
	}
	p.State = scafo.ProcessDraining
	s.later(p.UID, s.stops, func(p *scafo.ProcessStatus) {
		delete(s.procs, p.UID)
		if w, ok := s.again[p.UID]; ok {
			delete(s.again, p.UID)
			go s.Set(append(s.wants(), w))
		}
	})
}

// wants are what runs and stays. The caller holds mu.
func (s *fakeSupervisor) wants() []supervise.Want {
	var out []supervise.Want
	for _, p := range s.procs {
		if p.State != scafo.ProcessDraining {
			out = append(out, supervise.Want{Application: p.Application, UID: p.UID, Version: p.Wanted})
		}
	}
	return out
}

// later changes the process after a while, unless something else happened to it.
func (s *fakeSupervisor) later(uid string, d time.Duration, f func(*scafo.ProcessStatus)) {
	s.gen[uid]++
	gen := s.gen[uid]
	time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p, ok := s.procs[uid]; ok && s.gen[uid] == gen && !s.dead {
			f(p)
			signal(s.changes)
		}
	})
}

func (s *fakeSupervisor) Kept() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Collect(maps.Keys(s.disk))
	for uid := range s.procs {
		if !s.disk[uid] {
			out = append(out, uid)
		}
	}
	return out
}

func (s *fakeSupervisor) Stop(_ context.Context, uid string, _ time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.procs, uid)
	s.gen[uid]++
	signal(s.changes)
	return nil
}

func (s *fakeSupervisor) Forget(uid string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.procs[uid] != nil {
		return fmt.Errorf("%s runs", uid)
	}
	delete(s.disk, uid)
	return nil
}

func (s *fakeSupervisor) StopAll(context.Context) error {
	s.Set(nil)
	return nil
}

func (s *fakeSupervisor) die() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
	clear(s.procs)
}

func (s *fakeSupervisor) settings(f func(s *fakeSupervisor)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}
