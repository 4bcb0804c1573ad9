package reconcile

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

func TestAHintIsActedOnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 1, "a", "b")
		at := w.serving("app-0")[0]
		n := w.node(at)
		// Somebody who is no node changes the record, and tells nobody but this node.
		_, err := registry.Update(t.Context(), w.reg, registry.ApplicationKey("app-0"), func(d *registry.Doc[scafo.Application]) error {
			d.Value.Deployment = "v2"
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		answer, err := n.loop.Hint(t.Context(), "b", scafo.PeerHint{
			Keys:  []string{registry.ApplicationKey("app-0"), "_scafo/tokens/x", "nonsense"},
			Await: &scafo.PeerAwait{Application: "app-0", Version: "v2", TimeoutMS: 5000},
		})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 50*time.Millisecond {
			t.Errorf("it took %s", took)
		}
		if answer.Node != at || len(answer.Processes) != 1 || answer.Processes[0].Deployment != "v2" {
			t.Errorf("answer %+v", answer)
		}
	})
}

func TestAnAwaitEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 1, "a", "b")
		for _, c := range []struct {
			name  string
			await scafo.PeerAwait
			want  time.Duration
		}{
			{"a version that nobody deployed", scafo.PeerAwait{Application: "app-0", Version: "v9", TimeoutMS: 4000}, 4 * time.Second},
			{"longer than may be", scafo.PeerAwait{Application: "app-0", Version: "v9", TimeoutMS: 3600_000}, maxAwait},
			{"a negative time", scafo.PeerAwait{Application: "app-0", Version: "v9", TimeoutMS: -5}, 0},
			{"an application that there is not", scafo.PeerAwait{Application: "nothing", Version: "v9", TimeoutMS: 4000}, 0},
		} {
			begin := time.Now()
			if _, err := w.node(w.serving("app-0")[0]).loop.Hint(t.Context(), "b", scafo.PeerHint{Await: &c.await}); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if took := time.Since(begin); took != c.want {
				t.Errorf("%s: it took %s, not %s", c.name, took, c.want)
			}
		}
		// The other node has nothing to do with it, and says so at once.
		other := "a"
		if w.serving("app-0")[0] == "a" {
			other = "b"
		}
		begin := time.Now()
		a, err := w.node(other).loop.Hint(t.Context(), "x", scafo.PeerHint{Await: &scafo.PeerAwait{Application: "app-0", Version: "v9", DeploySeq: 1, TimeoutMS: 4000}})
		if err != nil || len(a.Processes) != 0 || time.Since(begin) != 0 {
			t.Errorf("%+v after %s: %v", a, time.Since(begin), err)
		}
	})
}

func TestAHintOfTooManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		n := w.start("a")
		if _, err := n.loop.Hint(t.Context(), "b", scafo.PeerHint{Keys: make([]string, MaxHintKeys)}); err != nil {
			t.Error(err)
		}
		if _, err := n.loop.Hint(t.Context(), "b", scafo.PeerHint{Keys: make([]string, MaxHintKeys+1)}); scafo.CodeOf(err) != scafo.CodeResourceLimit {
			t.Error(err)
		}
		if _, err := n.loop.Hint(t.Context(), "b", scafo.PeerHint{Await: &scafo.PeerAwait{Application: "../x"}}); scafo.CodeOf(err) != scafo.CodeInvalidSlug {
			t.Error(err)
		}
	})
}

func TestNodeAnswersAndCelldVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 1, "a", "b")
		at := w.serving("app-0")[0]
		other := "a"
		if at == "a" {
			other = "b"
		}
		n := w.node(other)
		if got := n.loop.CelldVersions(t.Context(), "app-0"); len(got) != 1 || got[at] != "celld 0.6.2" {
			t.Errorf("versions %v", got)
		}
		for id, want := range map[string]bool{"a": true, "b": true, "stranger": false} {
			if got := n.loop.NodeAnswers(t.Context(), id); got != want {
				t.Errorf("%s answers: %v", id, got)
			}
		}
		w.kill(at)
		w.until(30*time.Second, "a dead node does not answer", func() bool { return !n.loop.NodeAnswers(t.Context(), at) })
		if got := n.loop.CelldVersions(t.Context(), "app-0"); len(got) > 1 || got[at] != "" {
			t.Errorf("versions %v", got)
		}
	})
}
