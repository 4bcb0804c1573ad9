package deploy

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/costtest"
	"github.com/scafo/scafo/internal/registry"
)

var errEOF = io.EOF

// calls is how many bucket calls the second deploy of an application makes, its
// settling left out.
func (w *world) calls(t *testing.T) int {
	t.Helper()
	f := fault.New(w.store)
	n := w.start("a", through(f)).run()
	defer n.stop()
	n.deploy("shop", "v1")
	f.Reset()
	st := n.mustAccept("shop", project(t, "v2"))
	n.idle()
	if d := w.record(st); d.State != scafo.DeployDeployed {
		t.Fatalf("%+v", d.DeployStatus)
	}
	return len(f.Calls())
}

// Every single call of a deploy meets every fault once. Whatever happens, the
// deploy ends, and the application is what its record says.
func TestEachCallFails(t *testing.T) {
	var calls int
	bubble(t, func(t *testing.T, w *world) { calls = w.calls(t) })
	if calls < 15 || calls > 60 {
		t.Fatalf("a deploy makes %d calls", calls)
	}
	for _, kind := range []fault.Kind{fault.Unavailable, fault.Throttled, fault.LostNotApplied, fault.LostApplied, fault.Refused} {
		for call := range calls {
			t.Run(fmt.Sprintf("%d at %d", kind, call+1), func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					f := fault.New(w.store)
					n := w.start("a", through(f)).run()
					defer n.stop()
					n.deploy("shop", "v1")
					f.Inject(fault.Rule{Skip: call, Times: 1, Kind: kind})
					st, err := n.accept("shop", project(t, "v2"))
					if err == nil {
						id, _ := scafo.ParseDeployID(st.ID)
						st = n.await(id)
						if st.State == scafo.DeployFailed && st.Code == scafo.CodeInternal {
							t.Errorf("ended as %+v", st)
						}
					} else if scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
						t.Errorf("refused with %v", err)
					}
					n.idle()
					w.check(n)
					if st := n.deploy("shop", "v3"); st.State != scafo.DeployDeployed {
						t.Errorf("the next one ended as %+v", st)
					}
					w.check(n)
				})
			})
		}
	}
}

// The process ends at every single call of a deploy, before it and after it, and
// is started anew at once. The deploy ends, deployed if it can be; nothing is held.
func TestCrashAtEachCall(t *testing.T) {
	var calls int
	bubble(t, func(t *testing.T, w *world) { calls = w.calls(t) })
	for _, kind := range []fault.Kind{fault.CrashBefore, fault.CrashAfter} {
		for call := range calls {
			t.Run(fmt.Sprintf("%d at %d", kind, call+1), func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					staging := filepath.Join(t.TempDir(), "staging")
					f := fault.New(w.store)
					n := w.start("a", through(f), stagedIn(staging)).run()
					n.deploy("shop", "v1")
					f.Inject(fault.Rule{Skip: call, Times: 1, Kind: kind})
					crashed := make(chan struct{})
					f.OnCrash(func() { n.cancel(); close(crashed) })
					ctx, cancel := context.WithCancel(context.Background())
					accepted := make(chan error, 1)
					go func() {
						_, err := n.Accept(ctx, Request{Application: "shop", Caller: "op", Body: bodyOf(project(t, "v2"))})
						accepted <- err
					}()
					select {
					case <-crashed:
					case <-time.After(time.Hour):
						n.cancel() // announcements were merged: there was no such call
					}
					cancel()
					<-accepted
					<-n.done
					time.Sleep(5 * time.Second)
					n = w.start("a", stagedIn(staging)).run()
					defer n.stop()
					n.idle()
					for _, id := range w.deploys() {
						n.await(id)
					}
					n.idle()
					if st := n.deploy("shop", "v3"); st.State != scafo.DeployDeployed {
						t.Errorf("the next one ended as %+v", st)
					}
					w.check(n)
				})
			})
		}
	}
}

// The bucket goes away while a deploy is under way, and comes back.
func TestOutage(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		f := fault.New(w.store)
		n := w.start("a", through(f)).run()
		defer n.stop()
		n.deploy("shop", "v1")
		n.runtime.after = downOn(f, "v2")
		id := n.mustAccept("shop", project(t, "v2"))
		time.Sleep(20 * time.Second)
		if _, err := n.accept("shop", project(t, "v3")); scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
			t.Errorf("meanwhile: %v", err)
		}
		f.SetDown(false)
		st := n.await(id)
		if st.State != scafo.DeployFailed || st.Code != scafo.CodeStoreUnavailable {
			t.Errorf("ended as %+v", st)
		}
		n.idle()
		w.check(n)
		if st := n.deploy("shop", "v4"); st.State != scafo.DeployDeployed {
			t.Errorf("ended as %+v", st)
		}
		w.check(n)
	})
}

// A bucket that stays away for longer than a failed deploy tries to undo what it
// did: the next one does it.
func TestLongOutage(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		f := fault.New(w.store)
		n := w.start("a", through(f)).run()
		defer n.stop()
		n.deploy("shop", "v1")
		n.runtime.after = downOn(f, "v2")
		id := n.mustAccept("shop", project(t, "v2"))
		time.Sleep(10 * time.Minute)
		f.SetDown(false)
		if st := n.await(id); st.State != scafo.DeployFailed {
			t.Errorf("ended as %+v", st)
		}
		n.idle()
		n.fleet.settle = refusing("v3")
		n.deploy("shop", "v3")
		if got := w.pointer("shop"); got != string(pointerOf("v1")) {
			t.Errorf("the pointer is %s", got)
		}
		w.check(n)
	})
}

// downOn takes the bucket away once a version is published.
func downOn(f *fault.Store, version string) func(context.Context, string) error {
	return func(_ context.Context, v string) error {
		if v == version {
			f.SetDown(true)
		}
		return nil
	}
}

// What a deploy costs, in the order in which it is paid: the runtime's own two
// calls among it, the nodes' left out. Polls cost one read each.
func TestRequests(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		f := fault.New(w.store)
		n := w.start("a", through(f)).run()
		defer n.stop()
		first := n.mustAccept("shop", project(t, "v1"))
		n.idle()
		uid := w.app("shop").UID
		f.Reset()
		second := n.mustAccept("shop", project(t, "v2"))
		n.idle()
		app, rev, pointer := registry.ApplicationKey("shop"), registry.RevisionKey, pointerKey("shop", uid)
		record, deployment := registry.DeployKey(second), registry.DeploymentKey("shop", uid, "v2")
		want := []string{
			// Intake.
			"get " + registry.FreezeKey, "get " + app, "replace " + app, "create " + record,
			// Publishing.
			"replace " + app, "get " + pointer, "replace " + record,
			"get " + pointer, "replace " + pointer, // the runtime
			"create " + deployment, "replace " + app,
			// The nodes adopt it. The end.
			"replace " + record, "replace " + app,
		}
		var got []string
		told := 0
		for _, c := range f.Calls() {
			if c.Key == rev { // announced in the background, merged
				told++
				continue
			}
			got = append(got, string(c.Op)+" "+c.Key)
		}
		if !slices.Equal(got, want) || told < 1 || told > 3 {
			t.Errorf("told %d times; got  %s\nwant %s", told, strings.Join(got, ", "), strings.Join(want, ", "))
		}
		// Behind the 202: a read, and the writes that the runtime does not make.
		costtest.Rows(t)["what follows the 202, less what the runtime and the nodes do"].Check(t, "publishing",
			costtest.Times{"for each second in which something is announced": told - 1}, 1, len(want)-4-1-2+told-1, 0)
		f.Reset()
		if _, err := n.Status(t.Context(), first); err != nil || len(f.Calls()) != 1 {
			t.Errorf("a poll made %v, %v", f.Calls(), err)
		}
	})
}
