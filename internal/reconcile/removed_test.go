package reconcile

import (
	"testing"
	"testing/synctest"
	"time"
)

// A removed node hears of it and ends, the coordinator too; the others take over all
// that it had, and it is admitted again.
func TestARemovedNode(t *testing.T) {
	for _, coordinates := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer w.end()
			settled(t, w, 6, "a", "b", "c")
			goes := w.coordinators()[0]
			if !coordinates {
				for _, id := range w.ids() {
					if id != w.coordinators()[0] {
						goes = id
					}
				}
			}
			n := w.node(goes)
			select {
			case <-n.loop.Removed():
				t.Fatal("removed before it was")
			default:
			}
			if _, changed, err := w.reg.RemoveNode(t.Context(), goes, "op"); err != nil || !changed {
				t.Fatal(changed, err)
			}
			begin := time.Now()
			select {
			case <-n.loop.Removed():
			case <-time.After(time.Minute):
				t.Fatal("it never hears of it")
			}
			// It hears of it with the next look at the bucket.
			if took := time.Since(begin); took > 16*time.Second {
				t.Errorf("it heard of it after %s", took)
			}
			if err := n.loop.Drain(t.Context()); err != nil {
				t.Error(err)
			}
			if left := n.sup.Statuses(); len(left) > 0 {
				t.Errorf("it still runs %+v", left)
			}
			w.kill(goes)
			var stay []string
			for _, id := range []string{"a", "b", "c"} {
				if id != goes {
					stay = append(stay, id)
				}
			}
			w.until(time.Minute, "another one coordinates", func() bool { return len(w.coordinators()) == 1 })
			whole(t, w, 6, stay...)
			if _, _, err := w.reg.AdmitNode(t.Context(), goes); err != nil {
				t.Fatal(err)
			}
			w.start(goes)
			w.until(3*time.Minute, "it takes its share again", func() bool { return len(w.node(goes).sup.Statuses()) == 2 })
		})
	}
}

// A removed node that cannot hear of it, and that the others reach, counts for nothing.
func TestARemovedNodeThatDoesNotHear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 6, "a", "b", "c")
		goes := "a"
		if w.coordinators()[0] == goes {
			goes = "b"
		}
		n := w.node(goes)
		n.bucket.SetDown(true)
		time.Sleep(time.Minute) // it answers the others, and so it lives
		whole(t, w, 6, w.ids()...)
		if len(n.sup.Statuses()) != 2 {
			t.Fatalf("it has lost what it runs\n%s", w.dump())
		}
		routed := 0
		for _, nodes := range w.node("c").routes() {
			if nodes[0] == goes {
				routed++
			}
		}
		if routed != 2 {
			t.Fatalf("it has lost its routes\n%s", w.dump())
		}
		if _, _, err := w.reg.RemoveNode(t.Context(), goes, "op"); err != nil {
			t.Fatal(err)
		}
		coordinator := w.node(w.coordinators()[0])
		w.until(30*time.Second, "the coordinator hears of it", func() bool {
			return coordinator.loop.Snapshot().Nodes[goes].Removed != nil
		})
		// At once: nobody waits until it counts as gone.
		w.until(5*time.Second, "the others serve everything, and route nothing to it", func() bool {
			for _, id := range w.ids() {
				if id == goes {
					continue
				}
				routes := w.node(id).routes()
				if len(routes) != 6 {
					return false
				}
				for _, nodes := range routes {
					if len(nodes) != 1 || nodes[0] == goes {
						return false
					}
				}
			}
			return true
		})
		n.bucket.SetDown(false)
		select {
		case <-n.loop.Removed():
		case <-time.After(time.Minute):
			t.Fatal("it never hears of it")
		}
	})
}
