package deploy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

// serving is a node that has deployed "shop" as v1, and the faults between it and the
// store.
func (w *world) serving(opts ...option) (*node, *fault.Store) {
	w.t.Helper()
	f := fault.New(w.store)
	n := w.start("a", append(opts, through(f))...).run()
	if st := n.deploy("shop", "v1"); st.State != scafo.DeployDeployed {
		w.t.Fatalf("%+v", st)
	}
	return n, f
}

// A node dies at any write by which it undoes a deploy that the fleet refused, and
// does not come back. Whoever frees what the deploy held leaves a record and a pointer
// that agree.
func TestADeathWhileADeployIsUndone(t *testing.T) {
	died := 0
	for skip := range 6 {
		for _, kind := range []fault.Kind{fault.CrashBefore, fault.CrashAfter} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				n, f := w.serving()
				n.fleet.settle = func(context.Context, scafo.Application, int64, string, func(string, []scafo.DeployNode)) error {
					f.Inject(fault.Rule{Match: func(c fault.Call) bool { return c.Op.IsWrite() }, Skip: skip, Times: 1, Kind: kind})
					return scafo.Errorf(scafo.CodePublishFailed, "node b: it is bad")
				}
				f.OnCrash(func() { n.cancel() })
				id := n.mustAccept("shop", project(t, "v2"))
				for range 200 {
					if f.Crashed() || !n.carries(id.String()) {
						break
					}
					time.Sleep(20 * time.Millisecond)
				}
				if f.Crashed() {
					died++
				} else {
					n.cancel()
				}
				if err := <-n.done; !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				// The coordinator finds nobody who carries it out.
				b := w.start("b").run()
				defer time.Sleep(time.Minute) // an announcement that was under way gives up
				defer b.stop()
				d, err := b.reg.UpdateDeploy(t.Context(), id, func(d *scafo.Deploy) error {
					d.DeployStatus = plan.Abandoned(*d)
					now := b.reg.Now()
					d.FinishedAt = &now
					return nil
				})
				if errors.Is(err, registry.ErrTerminal) {
					d = w.record(id)
				} else if err != nil {
					t.Fatal(err)
				}
				if err := b.Abandoned(t.Context(), d); err != nil {
					t.Fatal(err)
				}
				w.check(b)
			})
		}
	}
	if died < 6 {
		t.Errorf("it died %d times", died)
	}
}

// A node is killed as soon as its application names the new version, and the next life
// of it, which knows nothing of that, cannot publish: the deploy fails, and the
// application is what it was.
func TestAResumedDeployThatFailsIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		staging := t.TempDir()
		n, f := w.serving(stagedIn(staging))
		n.fleet.settle = func(ctx context.Context, _ scafo.Application, _ int64, _ string, _ func(string, []scafo.DeployNode)) error {
			<-ctx.Done()
			return ctx.Err()
		}
		id := n.mustAccept("shop", project(t, "v2"))
		for w.app("shop").Deployment != "v2" {
			time.Sleep(time.Millisecond)
		}
		f.SetDown(true) // before the deploy's record says so
		n.stop()
		if d := w.record(id); d.Deployment != "" {
			t.Fatalf("the record knows it: %+v", d)
		}
		n = w.start("a", stagedIn(staging))
		n.runtime.before = func(context.Context, string) error {
			return scafo.Errorf(scafo.CodePublishFailed, "Error: the bucket failed")
		}
		n.run()
		defer time.Sleep(time.Minute) // an announcement that was under way gives up
		defer n.stop()
		if st := n.await(id); st.State != scafo.DeployFailed || st.Code != scafo.CodePublishFailed {
			t.Errorf("%+v", st)
		}
		n.idle()
		if app := w.app("shop"); app.Deployment != "v1" || app.DeploymentSeq != 1 {
			t.Errorf("%+v", app)
		}
		w.check(n)
	})
}

// The bucket does not let a deploy that was refused be undone, for longer than that is
// tried. Whoever frees the application's slot then does it.
func TestADeployThatCouldNotBeUndoneIsUndoneLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n, f := w.serving()
		defer n.stop()
		var away *fault.Armed
		n.fleet.settle = func(context.Context, scafo.Application, int64, string, func(string, []scafo.DeployNode)) error {
			away = f.Inject(fault.Rule{Match: func(c fault.Call) bool { return c.Op.IsWrite() && c.Key == registry.ApplicationKey("shop") }, Kind: fault.Unavailable})
			return scafo.Errorf(scafo.CodePublishFailed, "node b: it is bad")
		}
		id := n.mustAccept("shop", project(t, "v2"))
		if st := n.await(id); st.State != scafo.DeployFailed || st.Code != scafo.CodePublishFailed {
			t.Fatalf("%+v", st)
		}
		n.idle()
		if app := w.app("shop"); app.Deployment != "v2" || app.Publishing == nil {
			t.Fatalf("it was undone: %+v", app)
		}
		away.Remove()
		if err := n.Abandoned(t.Context(), w.record(id)); err != nil {
			t.Fatal(err)
		}
		if app := w.app("shop"); app.Deployment != "v1" || app.DeploymentSeq != 1 {
			t.Errorf("%+v", app)
		}
		w.check(n)
	})
}

// A node dies while it records what it published, and its next life undoes the deploy.
// The write of the first one, which arrives after that, changes nothing.
func TestALateRecordOfADeployThatWasUndoneIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n, f := w.serving()
		defer n.stop()
		etag := func() string {
			o, err := w.store.Get(context.Background(), registry.ApplicationKey("shop"))
			if err != nil {
				t.Error(err)
				return ""
			}
			return o.ETag
		}
		var published, ended string // over which a first life's write goes, and what stands there as the record ends
		n.runtime.before = func(context.Context, string) error {
			published = etag()
			return scafo.Errorf(scafo.CodePublishFailed, "Error: it is bad")
		}
		f.Inject(fault.Rule{
			Match:  func(c fault.Call) bool { return c.Op.IsWrite() && strings.HasPrefix(c.Key, registry.DeployPrefix) },
			Before: func(context.Context, fault.Call) { ended = etag() },
		})
		if st := n.deploy("shop", "v2"); st.State != scafo.DeployFailed {
			t.Fatalf("%+v", st)
		}
		if published == "" || ended == published {
			t.Errorf("a write over %q would still take effect: %q", published, ended)
		}
		n.idle()
		w.check(n)
	})
}
