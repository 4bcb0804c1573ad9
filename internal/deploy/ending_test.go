package deploy

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// marked begins the deletion of an application, as the coordinator does.
func (w *world) marked(n *node, name string) scafo.Application {
	w.t.Helper()
	d, err := registry.Update(context.Background(), n.reg, registry.ApplicationKey(name), func(d *registry.Doc[scafo.Application]) error {
		d.Value.Deleting = &scafo.Deleting{Fence: 1, By: "op"}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return d.Value
}

// A deploy of an application that is being deleted is given up at once, wherever it is:
// its command is killed, it ends failed, and the application's slot is free. Others go
// on.
func TestDeploysEndWithTheirApplication(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a", limited(func(l *Limits) { l.Concurrency = 3 })).run()
		defer n.stop()
		n.runtime.before = func(ctx context.Context, _ string) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(2 * time.Minute):
				return nil
			}
		}
		first := n.mustAccept("shop", project(t, "v1"))
		synctest.Wait() // it has the slot, and the second waits for it
		second := n.mustAccept("shop", project(t, "v2"))
		other := n.mustAccept("other", project(t, "v1"))
		synctest.Wait()
		began := time.Now()
		app := w.marked(n, "shop")
		for range 3 {
			n.End(app)
		}
		for _, id := range []scafo.DeployID{first, second} {
			if st := n.await(id); st.State != scafo.DeployFailed || st.Code != scafo.CodeApplicationDeleting {
				t.Errorf("ended as %+v", st)
			}
		}
		n.await(first)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
		synctest.Wait()
		if a := w.app("shop"); a.Publishing != nil || a.Deployment != "" {
			t.Errorf("the application is %+v", a)
		}
		if st := n.await(other); st.State != scafo.DeployDeployed {
			t.Errorf("another application's deploy ended as %+v", st)
		}
		n.End(scafo.Application{Name: "other", UID: "another life"})
		n.idle()
	})
}

// A deploy whose record went with its application ends, though nobody told its node.
func TestADeployWithoutARecordEnds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		killed := make(chan struct{})
		n.runtime.before = func(ctx context.Context, _ string) error {
			<-ctx.Done()
			close(killed)
			return ctx.Err()
		}
		id := n.mustAccept("shop", project(t, "v1"))
		synctest.Wait()
		if err := w.store.Delete(t.Context(), registry.DeployKey(id)); err != nil {
			t.Fatal(err)
		}
		select {
		case <-killed:
		case <-time.After(keepAlive + 5*time.Second):
			t.Error("it goes on")
		}
		n.idle()
		if len(w.deploys()) != 0 {
			t.Error("its record is back")
		}
	})
}
