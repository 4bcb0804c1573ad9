package deploy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

// bubble runs a test in virtual time.
func bubble(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, newWorld(t))
		time.Sleep(time.Minute) // announcements outlive who asked for them
	})
}

func TestDeploy(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		id := n.mustAccept("shop", project(t, "v1"))
		st := n.await(id)
		if st.State != scafo.DeployDeployed || st.Deployment != "v1" || st.Code != "" || st.Detail != "" || st.ID != id.String() {
			t.Errorf("ended as %+v", st)
		}
		n.idle()
		app := w.app("shop")
		if app.Deployment != "v1" || app.DeploySeq != 1 || app.DeploymentSeq != 1 || app.CreatedBy != "op-a" || app.Replicas != (scafo.Replicas{Count: 1}) {
			t.Errorf("the application is %+v", app)
		}
		d := w.record(id)
		body := project(t, "v1")
		if d.Seq != 1 || d.UID != app.UID || d.Node != "a" || d.Caller != "op-a" || d.ArtifactSize != int64(len(body)) || len(d.ArtifactHash) != 64 {
			t.Errorf("the record is %+v", d)
		}
		dep, err := n.reg.Deployment(t.Context(), "shop", app.UID, "v1")
		if err != nil || dep.Deploy != id.String() || dep.CelldVersion != "celld 0.6.2" || dep.ArtifactHash != d.ArtifactHash || dep.By != "op-a" {
			t.Errorf("the deployment is %+v, %v", dep, err)
		}
		w.check(n)
		if st := n.deploy("shop", "v2"); st.Deployment != "v2" {
			t.Errorf("the second deploy ended as %+v", st)
		}
		if got := w.pointer("shop"); got != string(pointerOf("v2")) {
			t.Errorf("the pointer is %s", got)
		}
		w.check(n)
	})
}

// Each deploy is told once, when it has ended or was not taken in.
func TestWhatDeploysAreCounted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		type end struct {
			state scafo.DeployState
			code  scafo.Code
		}
		var ends []end
		var refused []scafo.Code
		n := w.start("a", func(c *Config) {
			c.Ended = func(s scafo.DeployStatus, took time.Duration) {
				ends = append(ends, end{s.State, s.Code})
				if took != 3*time.Second {
					t.Errorf("a deploy took %s", took)
				}
			}
			c.Refused = func(c scafo.Code) { refused = append(refused, c) }
		}).run()
		defer n.stop()
		n.runtime.before = func(_ context.Context, version string) error {
			time.Sleep(3 * time.Second)
			if n.Active() != 1 {
				t.Errorf("%d are active", n.Active())
			}
			if version == "v2" {
				return errSentence
			}
			return nil
		}
		n.deploy("shop", "v1")
		n.deploy("shop", "v2")
		if _, err := n.reg.UpdateApplication(t.Context(), "shop", func(a *scafo.Application) error {
			a.Blocked = &scafo.Stamp{By: "op"}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := n.accept("shop", project(t, "v3")); scafo.CodeOf(err) != scafo.CodeApplicationBlocked {
			t.Errorf("a blocked application: %v", err)
		}
		if want := []end{{scafo.DeployDeployed, ""}, {scafo.DeployFailed, scafo.CodePublishFailed}}; !slices.Equal(ends, want) {
			t.Errorf("told %v, want %v", ends, want)
		}
		if want := []scafo.Code{scafo.CodeApplicationBlocked}; !slices.Equal(refused, want) || n.Active() != 0 {
			t.Errorf("refused %v, want %v; %d active", refused, want, n.Active())
		}
	})
}

// No step of a deploy waits for a timer: in virtual time it takes none.
func TestDeployWaitsForNoTimer(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		begin := time.Now()
		for _, v := range []string{"v1", "v2", "v3"} {
			id := n.mustAccept("shop", project(t, v))
			for {
				// Without a timer pending in any step, this returns only when the deploy
				// is done: time stands still otherwise.
				synctest.Wait()
				if d := w.record(id); d.State.Terminal() {
					break
				}
				t.Fatalf("%s waits at %v for a timer: %+v", v, time.Since(begin), w.record(id).DeployStatus)
			}
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("three deploys took %v of virtual time", took)
		}
		w.check(n)
	})
}

// Who follows a deploy from its node to node hears of each change, the last one too.
func TestDeployIsHeardOf(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.start("a").run(), w.start("b").run()
		defer a.stop()
		defer b.stop()
		id := a.mustAccept("shop", project(t, "v1"))
		began := time.Now()
		for {
			changed := a.Changed(id)
			if b.Changed(id) != nil {
				t.Fatal("another node's deploy is heard of")
			}
			st, err := a.Status(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if st.State.Terminal() {
				break
			}
			if changed == nil {
				t.Fatalf("%+v, and nobody carries it out", st)
			}
			<-changed
		}
		if took := time.Since(began); took > reportPause {
			t.Errorf("the end was heard of after %v", took)
		}
		a.idle()
		if a.Changed(id) != nil {
			t.Error("a deploy that has ended is heard of")
		}
	})
}

func TestIntent(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		deploy := func(v string, m scafo.DeployMetadata) {
			t.Helper()
			st, err := n.accept("shop", project(t, v), func(r *Request) { r.Metadata = m })
			if err != nil {
				t.Fatal(err)
			}
			id, _ := scafo.ParseDeployID(st.ID)
			n.await(id)
			n.idle()
		}
		want := func(replicas string, selector map[string]string) {
			t.Helper()
			a := w.app("shop")
			if a.Replicas.String() != replicas || len(a.Selector) != len(selector) || a.Selector["region"] != selector["region"] {
				t.Errorf("the application wants %s of %v", a.Replicas, a.Selector)
			}
		}
		eu := map[string]string{"region": "eu"}
		deploy("v1", scafo.DeployMetadata{Replicas: &scafo.Replicas{Count: 3}, NodeSelector: eu})
		want("3", eu)
		deploy("v2", scafo.DeployMetadata{})
		want("3", eu)
		deploy("v3", scafo.DeployMetadata{Replicas: &scafo.Replicas{All: true}})
		want("all", eu)
		deploy("v4", scafo.DeployMetadata{NodeSelector: map[string]string{}})
		want("all", nil)
		w.check(n)
	})
}

// forbidden is a body that nobody may read.
type forbidden struct{ t *testing.T }

func (f forbidden) Read([]byte) (int, error) {
	f.t.Error("the body was read")
	return 0, io.EOF
}

func TestIntakeRefuses(t *testing.T) {
	freeze := func(w *world) {
		r := registry.New(w.store, registry.Options{})
		_, err := registry.Update(context.Background(), r, registry.FreezeKey, func(d *registry.Doc[scafo.Freeze]) error {
			d.Value = scafo.Freeze{FrozenAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), By: "op-admin", Reason: "a new release"}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	change := func(w *world, f func(*scafo.Application)) {
		r := registry.New(w.store, registry.Options{})
		if _, _, err := r.CreateApplication(context.Background(), "shop", "op", f); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		prepare func(*world)
		node    func(*node)
		opts    []option
		code    scafo.Code
		says    []string
		creates bool
	}{
		"frozen":        {prepare: freeze, code: scafo.CodeDeploysFrozen, says: []string{"op-admin", "a new release", "2026-01-02T03:04:05Z"}},
		"no runner":     {node: func(n *node) { n.c.Publisher = nil }, code: scafo.CodeCapabilityMissing, says: []string{"no deploy runner"}},
		"no stager":     {opts: []option{stagedIn("")}, code: scafo.CodeCapabilityMissing, says: []string{"stage"}},
		"frozen first":  {prepare: freeze, node: func(n *node) { n.c.Publisher = nil }, code: scafo.CodeDeploysFrozen},
		"blocked":       {prepare: func(w *world) { change(w, func(a *scafo.Application) { a.Blocked = &scafo.Stamp{By: "op"} }) }, code: scafo.CodeApplicationBlocked, creates: true},
		"being deleted": {prepare: func(w *world) { change(w, func(a *scafo.Application) { a.Deleting = &scafo.Deleting{} }) }, code: scafo.CodeApplicationDeleting, creates: true},
		"skew": {
			node: func(n *node) {
				n.fleet.versions = map[string]string{"a": "celld 0.5.0", "b": "celld 0.5.1", "c": "celld 0.6.1", "d": "celld 0.6.2", "e": "celld-workerd 0.1.0"}
			},
			code: scafo.CodeVersionSkew, says: []string{"b (celld 0.5.1), e (celld-workerd 0.1.0)", "celld 0.6.2", "0.6.1"}, creates: true,
		},
		"overloaded": {
			node: func(n *node) {
				for range cap(n.admitted) {
					n.admitted <- struct{}{}
				}
			},
			code: scafo.CodeDeployOverloaded, creates: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			n := w.start("a", c.opts...)
			if c.prepare != nil {
				c.prepare(w)
			}
			if c.node != nil {
				c.node(n)
			}
			// This node does not run: what is not refused would wait for that.
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := n.Accept(ctx, Request{Application: "shop", Caller: "op-a", Body: forbidden{t}})
			if scafo.CodeOf(err) != c.code {
				t.Fatalf("%v, want %s", err, c.code)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v does not say %q", err, s)
				}
			}
			if _, ok := w.store.Dump()[registry.ApplicationKey("shop")]; ok != c.creates {
				t.Errorf("the application exists: %v", ok)
			}
		})
	}
}

func TestIntakeBounds(t *testing.T) {
	body := project(t, "v1")
	size := int64(len(body))
	for name, c := range map[string]struct {
		body   []byte
		limit  func(*Limits)
		code   scafo.Code
		nobody bool
	}{
		"no body":                   {nobody: true, code: scafo.CodeInvalidInput},
		"an empty body":             {code: scafo.CodeInvalidInput},
		"exactly the bytes":         {body: body, limit: func(l *Limits) { l.ArtifactBytes = size }},
		"one byte more":             {body: body, limit: func(l *Limits) { l.ArtifactBytes = size - 1 }, code: scafo.CodeResourceLimit},
		"exactly the entries":       {body: body, limit: func(l *Limits) { l.ArchiveEntries = 3 }},
		"one entry more":            {body: body, limit: func(l *Limits) { l.ArchiveEntries = 2 }, code: scafo.CodeResourceLimit},
		"exactly the room":          {body: body, limit: func(l *Limits) { l.StagedBytes = size + 19 }},
		"one byte more than room":   {body: body, limit: func(l *Limits) { l.StagedBytes = size + 18 }, code: scafo.CodeDeployOverloaded},
		"no room for the body":      {body: body, limit: func(l *Limits) { l.StagedBytes = size - 1 }, code: scafo.CodeDeployOverloaded},
		"an artifact that says all": {body: body},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				n := w.start("a", limited(func(l *Limits) {
					if c.limit != nil {
						c.limit(l)
					}
				})).run()
				defer n.stop()
				st, err := n.accept("shop", c.body, func(r *Request) {
					if c.nobody {
						r.Body = nil
					}
				})
				if scafo.CodeOf(err) != c.code {
					t.Fatalf("%v, want %q", err, c.code)
				}
				if err == nil {
					id, _ := scafo.ParseDeployID(st.ID)
					if st := n.await(id); st.State != scafo.DeployDeployed {
						t.Errorf("ended as %+v", st)
					}
				}
				n.idle()
				w.check(n)
			})
		})
	}
}

// sizedBody says how long it will be.
type sizedBody struct {
	io.Reader
	size int64
}

func (b sizedBody) Size() int64 { return b.size }

func TestIntakeBelievesASizeThatIsTooLarge(t *testing.T) {
	w := newWorld(t)
	n := w.start("a").run()
	defer n.stop()
	_, err := n.Accept(t.Context(), Request{Application: "shop", Caller: "op", Body: sizedBody{forbidden{t}, testLimits.ArtifactBytes + 1}})
	if scafo.CodeOf(err) != scafo.CodeResourceLimit {
		t.Errorf("%v", err)
	}
	w.check(n)
}

// slowBody is a connection: its reads end at their deadline.
type slowBody struct{ deadline chan time.Time }

func (b slowBody) SetReadDeadline(t time.Time) error {
	select {
	case b.deadline <- t:
	default:
	}
	return nil
}

func (b slowBody) Read([]byte) (int, error) {
	time.Sleep(time.Until(<-b.deadline))
	return 0, context.DeadlineExceeded
}

func TestReceiveDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		begin := time.Now()
		_, err := n.Accept(t.Context(), Request{Application: "shop", Caller: "op", Body: slowBody{make(chan time.Time, 4)}})
		if scafo.CodeOf(err) != scafo.CodeDeployTimeout || time.Since(begin) != testLimits.Receive {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		w.check(n)
	})
}

// What is wrong with the content is the deploy's own failure, told by its record.
func TestContentFails(t *testing.T) {
	for name, c := range map[string]struct {
		body []byte
		says string
	}{
		"no configuration": {archiveOf(t, map[string]string{"src/index.ts": "x"}), "neither a wrangler.jsonc nor a wrangler.json"},
		"toml":             {archiveOf(t, map[string]string{"wrangler.toml": "x"}), "wrangler.toml"},
		"hostile":          {archiveOf(t, map[string]string{"../wrangler.json": "x"}), `"../wrangler.json"`},
		"no archive":       {bytes.Repeat([]byte("noise"), 1000), "no tar archive"},
		"truncated":        {project(t, "v1")[:700], "truncated"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				n := w.start("a").run()
				defer n.stop()
				st := n.await(n.mustAccept("shop", c.body))
				n.idle()
				if st.State != scafo.DeployFailed || st.Code != scafo.CodeInvalidInput || !strings.Contains(st.Detail, c.says) {
					t.Errorf("ended as %+v", st)
				}
				if len(n.runtime.ran) != 0 {
					t.Error("the deploy command ran")
				}
				w.check(n)
			})
		})
	}
}

var errSentence = scafo.Errorf(scafo.CodePublishFailed, "Uncaught ReferenceError: nope is not defined at index.js:3")

func TestPublishFails(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*runtime)
		code scafo.Code
		says string
	}{
		"before the pointer moved":        {func(r *runtime) { r.before = failsOn("v2", errSentence) }, scafo.CodePublishFailed, errSentence.Detail},
		"after the pointer moved":         {func(r *runtime) { r.after = failsOn("v2", errSentence) }, scafo.CodePublishFailed, errSentence.Detail},
		"with an error that nobody knows": {func(r *runtime) { r.after = failsOn("v2", errors.New("secret")) }, scafo.CodeInternal, "the log of node a"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				n := w.start("a").run()
				defer n.stop()
				c.set(n.runtime)
				n.deploy("shop", "v1")
				st := n.deploy("shop", "v2")
				if st.State != scafo.DeployFailed || st.Code != c.code || !strings.Contains(st.Detail, c.says) || strings.Contains(st.Detail, "secret") || st.Deployment != "" {
					t.Errorf("ended as %+v", st)
				}
				if got := w.pointer("shop"); got != string(pointerOf("v1")) {
					t.Errorf("the pointer is %s", got)
				}
				w.check(n)
				if st := n.deploy("shop", "v3"); st.State != scafo.DeployDeployed {
					t.Errorf("the next deploy ended as %+v", st)
				}
				w.check(n)
			})
		})
	}
}

func failsOn(version string, err error) func(context.Context, string) error {
	return func(_ context.Context, v string) error {
		if v == version {
			return err
		}
		return nil
	}
}

func refusing(version string) func(context.Context, scafo.Application, int64, string, func(string, []scafo.DeployNode)) error {
	return func(_ context.Context, _ scafo.Application, _ int64, v string, report func(step string, nodes []scafo.DeployNode)) error {
		if v == version {
			report("", []scafo.DeployNode{{Node: "b", Version: "v1", Detail: "Error: no such class"}})
			return scafo.Errorf(scafo.CodePublishFailed, "node b: Error: no such class")
		}
		return nil
	}
}

func TestNodesRefuse(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		n.fleet.settle = refusing("v2")
		n.deploy("shop", "v1")
		st := n.deploy("shop", "v2")
		if st.State != scafo.DeployFailed || st.Code != scafo.CodePublishFailed || st.Detail != "node b: Error: no such class" || len(st.Nodes) != 1 || st.Nodes[0].Node != "b" {
			t.Errorf("ended as %+v", st)
		}
		if got := w.pointer("shop"); got != string(pointerOf("v1")) {
			t.Errorf("the pointer is %s, not byte for byte what it was", got)
		}
		if a := w.app("shop"); a.Deployment != "v1" || a.DeploymentSeq != 1 || a.DeploySeq != 2 {
			t.Errorf("the application is %+v", a)
		}
		w.check(n)
		// The same content once more, now that nothing refuses it.
		n.fleet.settle = nil
		if st := n.deploy("shop", "v2"); st.State != scafo.DeployDeployed {
			t.Errorf("ended as %+v", st)
		}
		w.check(n)
	})
}

func TestFirstDeployIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		n.fleet.settle = refusing("v1")
		if st := n.deploy("shop", "v1"); st.State != scafo.DeployFailed {
			t.Errorf("ended as %+v", st)
		}
		if a := w.app("shop"); a.Deployment != "" || a.DeploymentSeq != 0 {
			t.Errorf("the application is %+v", a)
		}
		// The pointer stays: a DELETE of it that the store carries out late would take that
		// of the next deploy.
		if got := w.pointer("shop"); got != string(pointerOf("v1")) {
			t.Errorf("the pointer is %q", got)
		}
		w.check(n)
		n.fleet.settle = nil
		if st := n.deploy("shop", "v2"); st.State != scafo.DeployDeployed {
			t.Errorf("ended as %+v", st)
		}
		w.check(n)
	})
}

func TestRefusedRedeployOfTheSameContent(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		n.deploy("shop", "v1")
		n.fleet.settle = refusing("v1")
		n.deploy("shop", "v1")
		if a := w.app("shop"); a.Deployment != "v1" || a.DeploymentSeq != 1 {
			t.Errorf("the application is %+v", a)
		}
		w.check(n)
	})
}

// Whoever moves the pointer by hand in the meantime is not undone.
func TestPointerOfAnotherStays(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		n.deploy("shop", "v1")
		n.fleet.settle = func(ctx context.Context, app scafo.Application, _ int64, _ string, _ func(string, []scafo.DeployNode)) error {
			if _, err := w.store.Put(ctx, pointerKey(app.Name, app.UID), pointerOf("by-hand")); err != nil {
				t.Error(err)
			}
			return scafo.Errorf(scafo.CodePublishFailed, "no")
		}
		n.deploy("shop", "v2")
		if got := w.pointer("shop"); got != string(pointerOf("by-hand")) {
			t.Errorf("the pointer is %s", got)
		}
		if a := w.app("shop"); a.Deployment != "v1" {
			t.Errorf("the application is %+v", a)
		}
	})
}

func TestTaskDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		n.deploy("shop", "v1")
		n.fleet.settle = func(ctx context.Context, _ scafo.Application, _ int64, _ string, report func(step string, nodes []scafo.DeployNode)) error {
			report("", []scafo.DeployNode{{Node: "b", Version: "v1", Detail: "the process is starting"}, {Node: "a", Version: "v2"}})
			<-ctx.Done()
			return ctx.Err()
		}
		begin := time.Now()
		id := n.mustAccept("shop", project(t, "v2"))
		time.Sleep(2 * time.Second)
		st, err := n.Status(t.Context(), id)
		if err != nil || st.State != scafo.DeployUploading || st.Deployment != "v2" || st.Step != "waiting for b" || len(st.Nodes) != 2 {
			t.Errorf("meanwhile it is %+v, %v", st, err)
		}
		st = n.await(id)
		if st.State != scafo.DeployFailed || st.Code != scafo.CodeDeployTimeout || !strings.Contains(st.Detail, "300 seconds") || !strings.Contains(st.Detail, "b: the process is starting") {
			t.Errorf("ended as %+v", st)
		}
		if took := time.Since(begin).Round(time.Second); took != testLimits.Task {
			t.Errorf("it took %v", took)
		}
		n.idle()
		w.check(n)
	})
}

func TestQueue(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a", limited(func(l *Limits) { l.Concurrency, l.Queue = 1, 1 })).run()
		defer n.stop()
		letThem := n.holdPublishing()
		one := n.mustAccept("one", project(t, "v1"))
		synctest.Wait()
		two := n.mustAccept("two", project(t, "v1"))
		if _, err := n.accept("three", project(t, "v1")); scafo.CodeOf(err) != scafo.CodeDeployOverloaded {
			t.Errorf("the third of two: %v", err)
		}
		// The second one's turn does not come in time; the first one goes on.
		begin := time.Now()
		st := n.await(two)
		if st.Code != scafo.CodeDeployTimeout || !strings.Contains(st.Detail, "120 seconds") || time.Since(begin).Round(time.Second) != testLimits.Wait {
			t.Errorf("after %v it ended as %+v", time.Since(begin), st)
		}
		letThem()
		if st := n.await(one); st.State != scafo.DeployDeployed {
			t.Errorf("ended as %+v", st)
		}
		n.idle()
		w.check(n)
	})
}

// A deploy that is settling takes no runner from others.
func TestSettlingFreesTheRunner(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a", limited(func(l *Limits) { l.Concurrency, l.Queue = 1, 0 })).run()
		defer n.stop()
		hold := make(chan struct{})
		n.fleet.settle = func(ctx context.Context, app scafo.Application, _ int64, _ string, _ func(string, []scafo.DeployNode)) error {
			if app.Name == "slow" {
				<-hold
			}
			return nil
		}
		slow := n.mustAccept("slow", project(t, "v1"))
		synctest.Wait()
		if st := n.await(n.mustAccept("quick", project(t, "v1"))); st.State != scafo.DeployDeployed {
			t.Errorf("ended as %+v", st)
		}
		close(hold)
		n.await(slow)
		n.idle()
		w.check(n)
	})
}

// A status says what the verified token said and what arrived, from its first answer
// to its last and at every node; the metadata's own words are in none of it.
func TestStatusTellsTheOrigin(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		said := scafo.Provenance{Issuer: "https://issuer.example", Subject: "repo:acme/shop:ref:refs/heads/main", Repository: "acme/shop", Ref: "refs/heads/main", Commit: "c0ffee", Run: "42"}
		body := project(t, "v1")
		sum := sha256.Sum256(body)
		check := func(when string, st scafo.DeployStatus, want *scafo.Provenance) {
			t.Helper()
			if (st.OIDC == nil) != (want == nil) || want != nil && *st.OIDC != *want {
				t.Errorf("%s: the token said %+v", when, st.OIDC)
			}
			if st.ArtifactHash != hex.EncodeToString(sum[:]) || st.ArtifactSize != int64(len(body)) {
				t.Errorf("%s: the artifact is %s, %d bytes", when, st.ArtifactHash, st.ArtifactSize)
			}
			if b, err := json.Marshal(st); err != nil || strings.Contains(string(b), "forged") {
				t.Errorf("%s: %s %v", when, b, err)
			}
		}
		forged := func(r *Request) {
			r.Metadata.Source = &scafo.Source{Provider: "forged", Repo: "forged", Ref: "forged", Commit: "forged"}
		}
		for _, of := range []*scafo.Provenance{&said, nil} {
			st, err := n.accept("shop", body, forged, func(r *Request) { r.OIDC = of })
			if err != nil {
				t.Fatal(err)
			}
			check("accepted", st, of)
			id, _ := scafo.ParseDeployID(st.ID)
			check("ended", n.await(id), of)
			other := w.start("b").run()
			there, err := other.Status(t.Context(), id)
			other.stop()
			if err != nil {
				t.Fatal(err)
			}
			check("at another node", there, of)
			check("in the record", w.record(id).DeployStatus, of)
			check("given up", plan.Abandoned(w.record(id)), of)
			n.idle()
		}
	})
}
