package reconcile

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/deletion"
	"github.com/scafo/scafo/internal/lease"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
	"github.com/scafo/scafo/internal/supervise"
)

// lateFleet is the loop of a node that is only being made.
type lateFleet struct {
	w  *world
	id string
}

func (f lateFleet) Quiet(ctx context.Context, application, uid string, within time.Duration) []string {
	if n := f.w.node(f.id); n != nil {
		return n.loop.Quiet(ctx, application, uid, within)
	}
	return nil
}

func (f lateFleet) Remains(ctx context.Context, application, uid string) ([]string, []scafo.DeployID, error) {
	if n := f.w.node(f.id); n != nil {
		return n.loop.Remains(ctx, application, uid)
	}
	return nil, nil, errors.New("the node is gone")
}

// deletes gives the nodes of a world a deletion service each.
type deletes struct {
	w    *world
	mu   sync.Mutex
	of   map[string]*deletion.Service // guarded by mu; by node
	stop map[string]func()            // guarded by mu
	// forward lets nodes hand requests on to each other.
	forward bool
}

func newDeletes(w *world) *deletes {
	return &deletes{w: w, of: map[string]*deletion.Service{}, stop: map[string]func(){}}
}

func (d *deletes) option(c *Config, _ *fakeSupervisor, _ *scafo.Node) {
	cfg := deletion.Config{
		Node: c.Node, Registry: c.Store.(*store).r, Lease: c.Lease.(*lease.Runner), Fleet: lateFleet{d.w, c.Node}, Log: c.Log,
	}
	if d.forward {
		cfg.Forwarder = d
	}
	s, err := deletion.New(cfg)
	if err != nil {
		d.w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Run(ctx)
	}()
	c.Deleting = s.Resume
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of[c.Node] = s
	d.stop[c.Node] = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	d.w.t.Cleanup(d.stop[c.Node])
}

// kill is kill -9 of the machine.
func (d *deletes) kill(id string) {
	d.mu.Lock()
	stop := d.stop[id]
	d.mu.Unlock()
	d.w.node(id).bucket.SetDown(true)
	stop()
	d.w.kill(id)
}

func (d *deletes) delete(id, name string) ([]string, error) {
	d.mu.Lock()
	s := d.of[id]
	d.mu.Unlock()
	o, err := s.Delete(d.w.t.Context(), deletion.Request{Application: name, Caller: "test", Force: true})
	if err != nil {
		return nil, err
	}
	if o.Answer != nil {
		return nil, o.Answer.Body.Close()
	}
	defer o.Keys.Close()
	var out []string
	for {
		page, err := o.Keys.Next(d.w.t.Context())
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, page...)
	}
}

// kept are the nodes that have a process or anything on disk for a uid.
func (w *world) kept(uid string) []string {
	var out []string
	for _, id := range w.ids() {
		if slices.Contains(w.node(id).sup.Kept(), uid) {
			out = append(out, id)
		}
	}
	return out
}

// fleetWithDeletes is nodes that serve two applications everywhere.
func fleetWithDeletes(t *testing.T, w *world, options ...startOption) *deletes {
	t.Helper()
	d := newDeletes(w)
	for _, id := range []string{"a", "b", "c"} {
		w.start(id, append(slices.Clone(options), d.option)...)
	}
	w.until(30*time.Second, "they know each other", func() bool {
		return w.node("a").knows() == 3 && w.node("b").knows() == 3 && len(w.coordinators()) == 1
	})
	for _, name := range []string{"shop", "other"} {
		w.deploy("", name, "v1")
		w.update(name, func(a *scafo.Application) { a.Replicas = scafo.Replicas{All: true} })
		app, err := w.reg.Application(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		err = w.reg.RecordDeployment(t.Context(), scafo.Deployment{Application: name, UID: app.UID, Version: "v1", At: w.reg.Now()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.Put(t.Context(), registry.RuntimePrefix(name, app.UID)+"objects/x", []byte("x")); err != nil {
			t.Fatal(err)
		}
		w.until(30*time.Second, name+" is served everywhere", func() bool { return len(w.serving(name)) == 3 })
	}
	time.Sleep(time.Minute)
	return d
}

// A deletion ends the application's processes on every node, and what they left on
// disk; other applications do not notice. The next application of the name is served
// like any other.
func TestADeletionEndsProcessesEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		d := fleetWithDeletes(t, w)
		app, err := w.reg.Application(t.Context(), "shop")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		keys, err := d.delete(w.coordinators()[0], "shop")
		if err != nil || !slices.Contains(keys, registry.PlacementKey("shop", app.UID)) {
			t.Fatalf("%v %v", keys, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
		if on := w.serving("shop"); len(on) != 0 {
			t.Errorf("served by %v when the answer came", on)
		}
		w.until(time.Second, "nothing is on any disk", func() bool { return len(w.kept(app.UID)) == 0 })
		if on := w.serving("other"); len(on) != 3 {
			t.Errorf("the other one is served by %v", on)
		}
		time.Sleep(2 * time.Hour)
		check.Bucket(t, w.store)
		for k := range w.store.Dump() {
			if strings.Contains(k, app.UID) {
				t.Errorf("%s is left", k)
			}
		}
		next := w.deploy("", "shop", "v2")
		w.until(30*time.Second, "the next one is served", func() bool { return len(w.serving("shop")) == 1 })
		for _, id := range w.ids() {
			for _, p := range w.node(id).sup.Statuses() {
				if p.Application == "shop" && p.UID != next.UID {
					t.Errorf("%s has %+v", id, p)
				}
			}
		}
	})
}

// The coordinator dies at any of its requests within a deletion: the next one finishes
// it without being asked.
func TestTheNextCoordinatorFinishesADeletion(t *testing.T) {
	for _, after := range []int{3, 4, 6, 8, 10, 12, 14} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer w.end()
			d := fleetWithDeletes(t, w)
			app, err := w.reg.Application(t.Context(), "shop")
			if err != nil {
				t.Fatal(err)
			}
			holder := w.coordinators()[0]
			died, seen := make(chan struct{}), 0
			var mu sync.Mutex
			w.node(holder).bucket.Inject(fault.Rule{Match: func(c fault.Call) bool {
				mu.Lock()
				defer mu.Unlock()
				if strings.Contains(c.Key, "shop") {
					seen++
				}
				if seen == after {
					seen++
					close(died)
				}
				return seen > after
			}, Kind: fault.Unavailable})
			go func() { _, _ = d.delete(holder, "shop") }()
			<-died
			d.kill(holder)
			w.until(2*time.Minute, "it is gone all the same", func() bool {
				_, err := w.reg.Application(t.Context(), "shop")
				return scafo.CodeOf(err) == scafo.CodeNotFound
			})
			w.until(time.Minute, "nothing is on any living disk", func() bool { return len(w.kept(app.UID)) == 0 })
			for k := range w.store.Dump() {
				if strings.Contains(k, app.UID) {
					t.Errorf("after %d requests: %s is left", after, k)
				}
			}
			time.Sleep(time.Hour)
			check.Bucket(t, w.store)
		})
	}
}

// A node that was away while an application was deleted ends, when it is back, what it
// still has of it: processes, and what lies on disk without one. Where it cannot read
// every application it ends nothing.
func TestANodeThatComesBackForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		d := fleetWithDeletes(t, w)
		app, err := w.reg.Application(t.Context(), "shop")
		if err != nil {
			t.Fatal(err)
		}
		gone := w.coordinators()[0]
		d.kill(gone)
		sup := w.aliveAgain(gone, app.UID)
		holder := ""
		w.until(time.Minute, "somebody coordinates", func() bool {
			if c := w.coordinators(); len(c) == 1 {
				holder = c[0]
			}
			return holder != ""
		})
		if _, err := d.delete(holder, "shop"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.Put(t.Context(), registry.ApplicationKey("future"), []byte(`{"v":2}`)); err != nil {
			t.Fatal(err)
		}
		back := w.start(gone, d.option, func(c *Config, _ *fakeSupervisor, _ *scafo.Node) { c.Supervisor = sup })
		w.until(10*time.Second, "it has read the bucket", func() bool { return back.loop.Snapshot() != nil })
		time.Sleep(time.Minute)
		if !slices.Contains(sup.Kept(), app.UID) || !slices.Contains(sup.Kept(), "00000000000000aa") {
			t.Errorf("ended though an application cannot be read: %v", sup.Kept())
		}
		if err := w.store.Delete(t.Context(), registry.ApplicationKey("future")); err != nil {
			t.Fatal(err)
		}
		back.loop.c.Store.Relist()
		back.loop.Kick()
		w.until(10*time.Second, "it has forgotten", func() bool {
			return !slices.Contains(sup.Kept(), app.UID) && !slices.Contains(sup.Kept(), "00000000000000aa")
		})
		w.until(10*time.Second, "it serves what lives", func() bool { return len(w.serving("other")) == 3 })
	})
}

// aliveAgain is the supervisor of a node whose processes outlived its daemon, and on
// whose disk something lies that nobody knows.
func (w *world) aliveAgain(id, uid string) *fakeSupervisor {
	sup := newFakeSupervisor(id)
	sup.Set([]supervise.Want{{Application: "shop", UID: uid, Version: "v1"}})
	sup.settings(func(s *fakeSupervisor) { s.disk["00000000000000aa"] = true })
	return sup
}

// runtimesOf is the runtimes that dead nodes left behind.
type runtimesOf struct {
	mu      sync.Mutex
	serves  map[string]string // guarded by mu; by internal address
	stopped []string          // guarded by mu
	deaf    bool              // guarded by mu; they do not end
}

func (r *runtimesOf) Serves(_ context.Context, internal string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.serves[internal]
	if !ok {
		return "", errors.New("connection refused")
	}
	return v, nil
}

func (r *runtimesOf) Shutdown(_ context.Context, internal string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = append(r.stopped, internal)
	if !r.deaf {
		delete(r.serves, internal)
	}
	return nil
}

func (r *runtimesOf) asked() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.stopped)
}

// The processes of a dead node are asked to end where they said that they are, on a
// block, a retirement and a deletion; whoever serves something else there by now is
// not, and silence confirms nothing.
func TestProcessesOfADeadNodeAreAskedToEnd(t *testing.T) {
	for _, c := range []struct {
		name      string
		serves    string // what is served there now
		deaf      bool
		asked     bool
		confirmed bool
	}{
		{"it ends", "v1", false, true, true},
		{"it does not end", "v1", true, true, false},
		{"another one is there", "v7", false, false, false},
		{"nobody is there", "", false, false, false},
	} {
		for _, way := range []string{"block", "retire", "delete"} {
			t.Run(c.name+"/"+way, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					defer w.end()
					r := &runtimesOf{serves: map[string]string{}, deaf: c.deaf}
					var said syncBuffer
					d := fleetWithDeletes(t, w, func(cfg *Config, s *fakeSupervisor, _ *scafo.Node) {
						cfg.Runtimes, cfg.Log = r, slog.New(slog.NewTextHandler(&said, nil))
						s.internal = true
					})
					dead := w.ids()[0]
					if dead == w.coordinators()[0] {
						dead = w.ids()[1]
					}
					d.kill(dead)
					time.Sleep(time.Minute)
					at := "http://" + dead + ".internal:1"
					if c.serves != "" {
						r.serves[at] = c.serves
					}
					switch way {
					case "block":
						w.update("shop", func(a *scafo.Application) { a.Blocked = &scafo.Stamp{By: "x"} })
					case "retire":
						w.update("shop", func(a *scafo.Application) { a.Retired = &scafo.Stamp{By: "x"} })
					case "delete":
						began := time.Now()
						if _, err := d.delete(w.coordinators()[0], "shop"); err != nil {
							t.Fatal(err)
						}
						if took := time.Since(began); took > 30*time.Second {
							t.Errorf("a deletion took %s for a node that is dead", took)
						}
					}
					time.Sleep(time.Minute)
					want := []string(nil)
					if c.asked {
						want = []string{at}
					}
					if got := r.asked(); !slices.Equal(got, want) {
						t.Errorf("asked %v, want %v", got, want)
					}
					event := "event=application.unconfirmed"
					if n := strings.Count(said.String(), event); n != 1 && !c.confirmed || n != 0 && c.confirmed {
						t.Errorf("%d events: %s", n, said.String())
					}
					if !c.confirmed && !strings.Contains(said.String(), "nodes=["+dead+"]") {
						t.Errorf("the event does not name %s: %s", dead, said.String())
					}
				})
			})
		}
	}
}

// syncBuffer is a log that several nodes write.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder // guarded by mu
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		r := &runtimesOf{serves: map[string]string{}}
		d := fleetWithDeletes(t, w, func(cfg *Config, s *fakeSupervisor, _ *scafo.Node) {
			cfg.Runtimes = r
			s.internal = true
		})
		app, err := w.reg.Application(t.Context(), "shop")
		if err != nil {
			t.Fatal(err)
		}
		ids := w.ids()
		quiet := func(within time.Duration) []string {
			return w.node(ids[0]).loop.Quiet(t.Context(), "shop", app.UID, within)
		}
		if missing := quiet(2 * time.Second); !slices.Equal(missing, ids) {
			t.Errorf("while it is served: %v", missing)
		}
		d.kill(ids[2])
		w.update("shop", func(a *scafo.Application) { a.Blocked = &scafo.Stamp{By: "x"} })
		began := time.Now()
		if missing := quiet(20 * time.Second); !slices.Equal(missing, ids[2:]) || time.Since(began) > 21*time.Second {
			t.Errorf("one died a moment ago: %v after %s", missing, time.Since(began))
		}
		if missing := w.node(ids[0]).loop.Quiet(t.Context(), "shop", "00000000000000aa", time.Second); missing != nil {
			t.Errorf("of a life that nobody runs: %v", missing)
		}
	})
}
