package deploy

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

// Rapid redeploys through two nodes: one at a time publishes, and the last one
// that was accepted is what the application is.
func TestRapidRedeploys(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.start("a").run(), w.start("b").run()
		defer a.stop()
		defer b.stop()
		var mu sync.Mutex
		running := 0
		for _, n := range []*node{a, b} {
			n.runtime.before = func(context.Context, string) error {
				mu.Lock()
				running++
				if running > 1 {
					t.Error("two deploys of one application publish at the same time")
				}
				mu.Unlock()
				time.Sleep(700 * time.Millisecond)
				return nil
			}
			n.runtime.after = func(context.Context, string) error {
				mu.Lock()
				running--
				mu.Unlock()
				return nil
			}
		}
		var ids []scafo.DeployID
		for i, v := range []string{"v1", "v2", "v3", "v4", "v5"} {
			n := a
			if i%2 == 1 {
				n = b
			}
			ids = append(ids, n.mustAccept("shop", project(t, v)))
			time.Sleep(300 * time.Millisecond)
		}
		for i, id := range ids {
			st := a.await(id)
			superseded := st.State == scafo.DeployFailed && st.Code == scafo.CodeDeploySuperseded && st.Detail != ""
			if st.State != scafo.DeployDeployed && (!superseded || i == len(ids)-1) {
				t.Errorf("deploy %d ended as %+v", i+1, st)
			}
		}
		a.idle()
		b.idle()
		if app := w.app("shop"); app.Deployment != "v5" || app.DeploymentSeq != 5 {
			t.Errorf("the application is %+v", app)
		}
		w.check(a, b)
	})
}

// The order is that of acceptance, not of the first byte: who began to upload
// earlier and was accepted later wins.
func TestOrderIsOfAcceptance(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		n.deploy("shop", "v0")
		body := project(t, "slow")
		slow := &gate{rest: body, open: make(chan struct{})}
		type answer struct {
			st  scafo.DeployStatus
			err error
		}
		got := make(chan answer)
		go func() {
			st, err := n.Accept(context.Background(), Request{Application: "shop", Caller: "op", Body: slow})
			got <- answer{st, err}
		}()
		synctest.Wait()
		n.deploy("shop", "quick")
		close(slow.open)
		g := <-got
		if g.err != nil {
			t.Fatal(g.err)
		}
		id, _ := scafo.ParseDeployID(g.st.ID)
		n.await(id)
		n.idle()
		if app := w.app("shop"); app.Deployment != "slow" {
			t.Errorf("the application is %+v", app)
		}
		w.check(n)
	})
}

// gate is a body whose first byte comes when it is opened.
type gate struct {
	rest []byte
	open chan struct{}
}

func (g *gate) Read(p []byte) (int, error) {
	<-g.open
	if len(g.rest) == 0 {
		return 0, os.ErrClosed
	}
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	if len(g.rest) == 0 {
		return n, errEOF
	}
	return n, nil
}

// What happened between the turn and the publishing is seen.
func TestLooksAgainBeforePublishing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*scafo.Application)
		code   scafo.Code
	}{
		"blocked":        {func(a *scafo.Application) { a.Blocked = &scafo.Stamp{By: "op"} }, scafo.CodeApplicationBlocked},
		"being deleted":  {func(a *scafo.Application) { a.Deleting = &scafo.Deleting{Fence: 1} }, scafo.CodeApplicationDeleting},
		"another life":   {func(a *scafo.Application) { a.UID, a.Publishing = "other", nil }, scafo.CodeApplicationDeleting},
		"a later deploy": {func(a *scafo.Application) { a.DeploymentSeq = 99; a.Publishing = nil }, scafo.CodeDeploySuperseded},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				n := w.start("a", limited(func(l *Limits) { l.Concurrency = 1 })).run()
				defer n.stop()
				hold := make(chan struct{})
				n.runtime.before = func(context.Context, string) error { <-hold; return nil }
				other := n.mustAccept("other", project(t, "v1"))
				synctest.Wait()
				id := n.mustAccept("shop", project(t, "v1"))
				synctest.Wait() // it has its application, and waits for the runner
				_, err := registry.Update(context.Background(), n.reg, registry.ApplicationKey("shop"), func(d *registry.Doc[scafo.Application]) error {
					c.change(&d.Value)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				close(hold)
				if st := n.await(id); st.Code != c.code {
					t.Errorf("ended as %+v", st)
				}
				n.await(other)
				n.idle()
				for _, v := range n.runtime.ran[1:] {
					t.Errorf("%s was published", v)
				}
			})
		})
	}
}

// die ends a node's process at the worst moment: it is publishing, and has moved
// the pointer.
func (n *node) die(t *testing.T, app, version string) scafo.DeployID {
	t.Helper()
	moved := make(chan struct{})
	n.runtime.after = func(ctx context.Context, v string) error {
		if v == version {
			close(moved)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	id := n.mustAccept(app, project(t, version))
	<-moved
	n.stop()
	return id
}

// A deploy whose node died blocks no later one, and what it left is undone.
func TestDeadNode(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.start("a").run(), w.start("b").run()
		defer b.stop()
		a.deploy("shop", "v1")
		dead := a.die(t, "shop", "v2")
		b.fleet.answers = func(string) bool { return false }
		if got := w.pointer("shop"); got != string(pointerOf("v2")) {
			t.Fatalf("the pointer is %s", got)
		}
		// Not yet: it has moved within the window, and nobody is asked.
		time.Sleep(plan.AbandonedAfter - 5*time.Second)
		if st, err := b.Status(t.Context(), dead); err != nil || st.State != scafo.DeployUploading || b.fleet.asked != 0 {
			t.Errorf("within the window it is %+v, %v; %d were asked", st, err, b.fleet.asked)
		}
		// The next deploy is refused by the nodes, so that what is put back shows.
		b.fleet.settle = refusing("v3")
		id := b.mustAccept("shop", project(t, "v3"))
		time.Sleep(4 * time.Second)
		if st, _ := b.Status(t.Context(), id); st.State != scafo.DeployAccepted || !strings.Contains(st.Step, dead.String()) {
			t.Errorf("the next one is %+v", st)
		}
		st := b.await(id)
		if st.Code != scafo.CodePublishFailed {
			t.Errorf("the next one ended as %+v", st)
		}
		st = b.await(dead)
		if st.State != scafo.DeployFailed || st.Code != scafo.CodeDeployTimeout || st.Detail != plan.Abandoned(w.record(dead)).Detail || !strings.Contains(st.Detail, "node a") {
			t.Errorf("the dead one ended as %+v", st)
		}
		b.idle()
		if got := w.pointer("shop"); got != string(pointerOf("v1")) {
			t.Errorf("the pointer is %s", got)
		}
		if app := w.app("shop"); app.Deployment != "v1" {
			t.Errorf("the application is %+v", app)
		}
		w.check(b)
		b.fleet.settle = nil
		if st := b.deploy("shop", "v4"); st.State != scafo.DeployDeployed {
			t.Errorf("ended as %+v", st)
		}
		w.check(b)
	})
}

// A poll judges, and writes nothing.
func TestStatusJudges(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.start("a").run(), w.start("b").run()
		defer b.stop()
		dead := a.die(t, "shop", "v1")
		b.fleet.answers = func(node string) bool { return node != "a" }
		time.Sleep(plan.AbandonedAfter + time.Second)
		before := w.record(dead)
		st, err := b.Status(t.Context(), dead)
		if err != nil || st.State != scafo.DeployFailed || st.Code != scafo.CodeDeployTimeout || !strings.Contains(st.Detail, "node a") {
			t.Errorf("it is %+v, %v", st, err)
		}
		if after := w.record(dead); after.State != before.State || after.Write != before.Write {
			t.Error("a poll wrote")
		}
		// While the node answers, the deploy is only slow.
		b.fleet.answers = nil
		if st, err := b.Status(t.Context(), dead); err != nil || st.State != scafo.DeployUploading {
			t.Errorf("it is %+v, %v", st, err)
		}
		// What the reaper does, once the record says so.
		d, err := b.move(t.Context(), dead, func(d *scafo.Deploy) { b.terminal(d, plan.Abandoned(*d)) })
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Abandoned(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		w.check(b)
	})
}

func TestStatusOfNothing(t *testing.T) {
	w := newWorld(t)
	n := w.start("a")
	id, _ := scafo.ParseDeployID("shop.0123456789abcdef")
	if _, err := n.Status(t.Context(), id); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Errorf("%v", err)
	}
	// A record that lies under another application's name is none either.
	_, err := registry.Update(t.Context(), n.reg, registry.DeployKey(id), func(d *registry.Doc[scafo.Deploy]) error {
		d.Value = scafo.Deploy{DeployStatus: scafo.DeployStatus{ID: "blog.0123456789abcdef", Application: "blog", State: scafo.DeployDeployed}}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Status(t.Context(), id); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Errorf("%v", err)
	}
}

// A slow deploy does not look like a dead one.
func TestSlowDeployKeepsMoving(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.start("a").run(), w.start("b")
		defer a.stop()
		b.fleet.answers = func(string) bool { return false } // b does not reach a
		a.fleet.settle = func(ctx context.Context, _ scafo.Application, _ int64, _ string, _ func(string, []scafo.DeployNode)) error {
			time.Sleep(250 * time.Second)
			return nil
		}
		id := a.mustAccept("shop", project(t, "v1"))
		for range 240 {
			time.Sleep(time.Second)
			if st, err := b.Status(t.Context(), id); err != nil || st.State != scafo.DeployUploading {
				t.Fatalf("it is %+v, %v", st, err)
			}
		}
		if st := a.await(id); st.State != scafo.DeployDeployed {
			t.Errorf("ended as %+v", st)
		}
		a.idle()
		w.check(a)
	})
}

// A deploy that was judged while its node was cut off gives up when it comes back.
func TestJudgedWhileAlive(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.start("a").run(), w.start("b").run()
		defer a.stop()
		defer b.stop()
		a.deploy("shop", "v1")
		hold := make(chan struct{})
		a.runtime.after = func(ctx context.Context, v string) error {
			select {
			case <-hold:
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		id := a.mustAccept("shop", project(t, "v2"))
		synctest.Wait()
		d, err := b.move(t.Context(), id, func(d *scafo.Deploy) { b.terminal(d, plan.Abandoned(*d)) })
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Abandoned(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if st := b.deploy("shop", "v3"); st.State != scafo.DeployDeployed {
			t.Errorf("ended as %+v", st)
		}
		close(hold)
		a.idle()
		if st := a.await(id); st.Code != scafo.CodeDeployTimeout {
			t.Errorf("ended as %+v", st)
		}
		if app := w.app("shop"); app.Deployment != "v3" {
			t.Errorf("the application is %+v", app)
		}
		w.check(a, b)
	})
}

// A node that is executed anew goes on with what it had accepted.
func TestRestartResumes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		staging := filepath.Join(t.TempDir(), "staging")
		a := w.start("a", stagedIn(staging)).run()
		a.deploy("shop", "v1")
		id := a.die(t, "shop", "v2")
		queued := scafo.DeployID{}
		time.Sleep(10 * time.Second)
		a = w.start("a", stagedIn(staging))
		if st, err := a.Status(t.Context(), id); err != nil || st.State != scafo.DeployUploading {
			t.Errorf("before it has looked it is %+v, %v", st, err)
		}
		a.run()
		defer a.stop()
		if st := a.await(id); st.State != scafo.DeployDeployed || st.Deployment != "v2" {
			t.Errorf("ended as %+v", st)
		}
		_ = queued
		a.idle()
		w.check(a)
	})
}

// A deploy that others were told has failed does not come back.
func TestRestartTooLate(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		staging := filepath.Join(t.TempDir(), "staging")
		a := w.start("a", stagedIn(staging)).run()
		a.deploy("shop", "v1")
		id := a.die(t, "shop", "v2")
		time.Sleep(plan.AbandonedAfter + time.Second)
		a = w.start("a", stagedIn(staging)).run()
		defer a.stop()
		if st := a.await(id); st.State != scafo.DeployFailed || st.Code != scafo.CodeDeployTimeout {
			t.Errorf("ended as %+v", st)
		}
		a.idle()
		if got := w.pointer("shop"); got != string(pointerOf("v1")) {
			t.Errorf("the pointer is %s", got)
		}
		w.check(a)
	})
}

// What was staged is gone, in part or in whole: the deploy ends all the same.
func TestRestartWithoutTheArtifact(t *testing.T) {
	for name, lose := range map[string]func(staging, id string) error{
		"all of the staging directory": func(staging, _ string) error { return os.RemoveAll(staging) },
		"the deploy's mark":            func(staging, id string) error { return os.Remove(filepath.Join(staging, id, jobFile)) },
		"a torn mark": func(staging, id string) error {
			return os.WriteFile(filepath.Join(staging, id, jobFile), []byte(`{"id":`), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				staging := filepath.Join(t.TempDir(), "staging")
				a := w.start("a", stagedIn(staging)).run()
				a.deploy("shop", "v1")
				id := a.die(t, "shop", "v2")
				if err := lose(staging, id.String()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				a = w.start("a", stagedIn(staging)).run()
				defer a.stop()
				st := a.await(id)
				if st.State != scafo.DeployFailed || st.Code != scafo.CodeDeployTimeout || !strings.Contains(st.Detail, "restarted") {
					t.Errorf("ended as %+v", st)
				}
				a.idle()
				time.Sleep(time.Second) // the search for lost ones runs beside
				if got := w.pointer("shop"); got != string(pointerOf("v1")) {
					t.Errorf("the pointer is %s", got)
				}
				w.check(a)
				if st := a.deploy("shop", "v3"); st.State != scafo.DeployDeployed {
					t.Errorf("ended as %+v", st)
				}
				w.check(a)
			})
		})
	}
}

// The staging directory is the node's own: what does not belong there goes.
func TestStagingIsSwept(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		staging := filepath.Join(t.TempDir(), "staging")
		locked := filepath.Join(staging, "gone.0123456789abcdef", scratchDir, "locked")
		for _, p := range []string{filepath.Join(staging, "leftover", "x"), locked} {
			if err := os.MkdirAll(p, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(staging, "file"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(locked, 0); err != nil {
			t.Fatal(err)
		}
		n := w.start("a", stagedIn(staging)).run()
		defer n.stop()
		synctest.Wait()
		n.idle()
		w.check(n)
	})
}
