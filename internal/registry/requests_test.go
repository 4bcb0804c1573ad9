package registry_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
)

// Bucket requests of each operation, without contention: reads, conditional
// writes, others. An announcement after the process's first one is one write.
func TestRequestsOfEachOperation(t *testing.T) {
	store := fault.New(memory.New())
	r := open(store)
	ctx := t.Context()
	id := scafo.DeployID{Application: "shop", Hex: "0123456789abcdef"}
	beat := scafo.Heartbeat{Node: "n1"}
	steps := []struct {
		name                 string
		do                   func() error
		gets, writes, others int
	}{
		// Founder and fleet, id, record, index; the revision is read the first time.
		{"init", func() error { _, err := r.InitFleet(ctx, admin("root")); return err }, 6, 5, 0},
		{"fleet", func() error { _, err := r.Fleet(ctx); return err }, 1, 0, 0},
		{"operator", func() error { _, err := r.Operator(ctx, "root"); return err }, 1, 0, 0},
		{"register", func() error { _, err := r.RegisterNode(ctx, node("n1")); return err }, 2, 3, 0},
		{"register again", func() error { _, err := r.RegisterNode(ctx, node("n1")); return err }, 2, 0, 0},
		{"drain", func() error { _, _, err := r.DrainNode(ctx, "n1", "op"); return err }, 1, 2, 0},
		{"undrain", func() error { _, _, err := r.UndrainNode(ctx, "n1"); return err }, 1, 2, 0},
		{"first heartbeat", func() error { return r.WriteHeartbeat(ctx, beat, true) }, 1, 2, 0},
		{"renewed heartbeat", func() error { return r.WriteHeartbeat(ctx, beat, false) }, 0, 1, 0},
		{"create", func() error { _, _, err := r.CreateApplication(ctx, "shop", "op", nil); return err }, 1, 2, 0},
		{"create again", func() error { _, _, err := r.CreateApplication(ctx, "shop", "op", nil); return err }, 1, 0, 0},
		{"update", func() error {
			_, err := r.UpdateApplication(ctx, "shop", func(a *scafo.Application) error { a.DeploySeq++; return nil })
			return err
		}, 1, 2, 0},
		{"keep", func() error {
			_, err := r.UpdateApplication(ctx, "shop", func(a *scafo.Application) error { return registry.ErrKeep })
			return err
		}, 1, 0, 0},
		{"create deploy", func() error {
			return r.CreateDeploy(ctx, scafo.Deploy{DeployStatus: scafo.DeployStatus{ID: id.String(), Application: "shop", State: scafo.DeployAccepted}})
		}, 0, 2, 0},
		{"move deploy", func() error {
			_, err := r.UpdateDeploy(ctx, id, func(d *scafo.Deploy) error { d.State = scafo.DeployFailed; return nil })
			return err
		}, 1, 2, 0},
		{"poll deploy", func() error { _, err := r.Deploy(ctx, id); return err }, 1, 0, 0},
		{"list deploys", func() error { _, err := r.Deploys(ctx, "shop"); return err }, 1, 0, 1},
		{"record deployment", func() error {
			return r.RecordDeployment(ctx, scafo.Deployment{Application: "shop", UID: "u", Version: "v"})
		}, 0, 2, 0},
		{"place", func() error {
			_, err := r.PutPlacement(ctx, scafo.Placement{Application: "shop", UID: "u"})
			return err
		}, 1, 2, 0},
		{"use a token", func() error { return r.UseToken(ctx, time.Now(), "kid", "jti") }, 0, 1, 0},
		{"sweep tokens", func() error { return r.SweepTokens(ctx, time.Now()) }, 1, 0, 1},
		{"freeze", func() error { _, err := r.Freeze(ctx); return err }, 1, 0, 0},
		{"remove", func() error {
			_, err := registry.Remove[scafo.Application](ctx, r, registry.ApplicationKey("shop"), nil)
			return err
		}, 1, 1, 0},
	}
	for _, s := range steps {
		store.Reset()
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		n := store.Counts()
		if n[fault.Get] != s.gets || n[fault.Create]+n[fault.Replace] != s.writes || n[fault.List]+n[fault.Put]+n[fault.Delete] != s.others {
			t.Errorf("%s: %v, want %d reads, %d writes, %d others", s.name, n, s.gets, s.writes, s.others)
		}
	}
}

// What a follower of ten thousand applications costs when nothing happens, and
// when one thing does.
func TestRequestsDoNotGrowWithTheFleet(t *testing.T) {
	b := memory.New()
	for i := range 2000 {
		name := fmt.Sprint("app", i)
		body := fmt.Sprintf(`{"v":1,"write":"w%d","name":%q,"uid":"0123456789abcdef","replicas":1}`, i, name)
		if _, err := b.Put(t.Context(), registry.ApplicationKey(name), []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	store := fault.New(b)
	f := registry.NewFollower(open(store))
	if _, err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := store.Counts(); n[fault.Get] != 2000+3 || n[fault.List] != 2+4 {
		t.Errorf("the first picture: %v", n)
	}
	store.Reset()
	if _, err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := store.Counts(); n[fault.Get] != 1 || n[fault.List] != 0 {
		t.Errorf("an idle pass: %v", n)
	}
	store.Reset()
	f.Relist()
	if _, err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := store.Counts(); n[fault.Get] != 3 || n[fault.List] != 2+4 {
		t.Errorf("a listing: %v", n)
	}
}
