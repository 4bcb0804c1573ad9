package registry_test

import (
	"errors"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/registry"
)

// revision is what the fleet was told so far.
func revision(t *testing.T, r *registry.Registry) scafo.Revision {
	t.Helper()
	d, err := registry.Load[scafo.Revision](t.Context(), r, registry.RevisionKey)
	if err != nil {
		t.Fatal(err)
	}
	return d.Value
}

func TestNodesJoinAndLeave(t *testing.T) {
	r, _ := fleet(t)
	ctx := t.Context()
	for _, id := range []string{"n2", "n1"} {
		if _, err := r.RegisterNode(ctx, node(id)); err != nil {
			t.Fatal(err)
		}
	}
	before := revision(t, r).Counter
	steps := []struct {
		name             string
		do               func() (scafo.Node, bool, error)
		changed          bool
		drained, removed bool
		refused          scafo.Code
	}{
		{"undrain one that does not drain", func() (scafo.Node, bool, error) { return r.UndrainNode(ctx, "n1") }, false, false, false, ""},
		{"admit one that is there", func() (scafo.Node, bool, error) { return r.AdmitNode(ctx, "n1") }, false, false, false, ""},
		{"drain", func() (scafo.Node, bool, error) { return r.DrainNode(ctx, "n1", "root") }, true, true, false, ""},
		{"drain again", func() (scafo.Node, bool, error) { return r.DrainNode(ctx, "n1", "other") }, false, true, false, ""},
		{"undrain", func() (scafo.Node, bool, error) { return r.UndrainNode(ctx, "n1") }, true, false, false, ""},
		{"drain to remove", func() (scafo.Node, bool, error) { return r.DrainNode(ctx, "n1", "root") }, true, true, false, ""},
		{"remove", func() (scafo.Node, bool, error) { return r.RemoveNode(ctx, "n1", "root") }, true, true, true, ""},
		{"remove again", func() (scafo.Node, bool, error) { return r.RemoveNode(ctx, "n1", "other") }, false, true, true, ""},
		{"undrain a removed one", func() (scafo.Node, bool, error) { return r.UndrainNode(ctx, "n1") }, false, true, true, scafo.CodeReferenceHeld},
		{"drain a removed one", func() (scafo.Node, bool, error) { return r.DrainNode(ctx, "n1", "root") }, false, true, true, scafo.CodeReferenceHeld},
		{"admit", func() (scafo.Node, bool, error) { return r.AdmitNode(ctx, "n1") }, true, false, false, ""},
		{"drain a stranger", func() (scafo.Node, bool, error) { return r.DrainNode(ctx, "n9", "root") }, false, false, false, scafo.CodeNotFound},
		{"remove a stranger", func() (scafo.Node, bool, error) { return r.RemoveNode(ctx, "n9", "root") }, false, false, false, scafo.CodeNotFound},
		{"admit a stranger", func() (scafo.Node, bool, error) { return r.AdmitNode(ctx, "n9") }, false, false, false, scafo.CodeNotFound},
		{"no id", func() (scafo.Node, bool, error) { return r.DrainNode(ctx, "../n1", "root") }, false, false, false, scafo.CodeInvalidInput},
	}
	for _, s := range steps {
		_, changed, err := s.do()
		if changed != s.changed || scafo.CodeOf(err) != s.refused {
			t.Errorf("%s: changed %v, %v", s.name, changed, err)
		}
		n, err := r.Node(ctx, "n1")
		if err != nil {
			t.Fatal(err)
		}
		if (n.Drain != nil) != s.drained || (n.Removed != nil) != s.removed || n.Drain != nil && n.Drain.By != "root" || n.Removed != nil && n.Removed.By != "root" {
			t.Errorf("%s: %+v", s.name, n)
		}
		if s.removed {
			if _, err := r.RegisterNode(ctx, node("n1")); !errors.Is(err, registry.ErrRemoved) {
				t.Errorf("%s: it came back by itself: %v", s.name, err)
			}
		}
		after := revision(t, r)
		if told := after.Counter > before && after.Changed[len(after.Changed)-1].Key == registry.NodeKey("n1"); told != (s.refused == "") {
			t.Errorf("%s: announced %v", s.name, told)
		}
		before = after.Counter
	}
	if _, err := r.RegisterNode(ctx, node("n1")); err != nil {
		t.Errorf("admitted, and refused: %v", err)
	}
}

func TestNodesAndHeartbeats(t *testing.T) {
	r, _ := fleet(t)
	ctx := t.Context()
	for _, id := range []string{"n2", "n1"} {
		if _, err := r.RegisterNode(ctx, node(id)); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := r.WriteHeartbeat(ctx, scafo.Heartbeat{Node: "n2", At: at}, false); err != nil {
		t.Fatal(err)
	}
	nodes, err := r.Nodes(ctx)
	if err != nil || len(nodes) != 2 || nodes[0].ID != "n1" || nodes[1].ID != "n2" {
		t.Errorf("%+v, %v", nodes, err)
	}
	beats, err := r.Heartbeats(ctx)
	if err != nil || len(beats) != 1 || !beats["n2"].At.Equal(at) {
		t.Errorf("%+v, %v", beats, err)
	}
	if _, known, err := r.Heartbeat(ctx, "n1"); known || err != nil {
		t.Errorf("%v, %v", known, err)
	}
	if h, known, err := r.Heartbeat(ctx, "n2"); !known || err != nil || !h.At.Equal(at) {
		t.Errorf("%+v, %v, %v", h, known, err)
	}
}

// An admission whose sender gave up is still under way when somebody removes the node
// again: it must not bring it back after the answer.
func TestALateAdmissionDoesNotUndoALaterRemoval(t *testing.T) {
	r, b := fleet(t)
	if _, err := r.RegisterNode(t.Context(), node("n1")); err != nil {
		t.Fatal(err)
	}
	first, changed, err := r.RemoveNode(t.Context(), "n1", "root")
	if err != nil || !changed {
		t.Fatal(changed, err)
	}
	seen, err := b.Get(t.Context(), registry.NodeKey("n1")) // as the admission read it
	if err != nil {
		t.Fatal(err)
	}
	again, changed, err := r.RemoveNode(t.Context(), "n1", "ann")
	if err != nil || changed || again.Removed.By != first.Removed.By || !again.Removed.At.Equal(first.Removed.At) {
		t.Fatalf("%+v became %+v, %v, %v", first.Removed, again.Removed, changed, err)
	}
	if _, err := b.Replace(t.Context(), registry.NodeKey("n1"), seen.ETag, seen.Body); !errors.Is(err, bucket.ErrRefused) {
		t.Errorf("the late admission: %v", err)
	}
}
