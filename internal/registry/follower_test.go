package registry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
)

// reader is a follower over a store whose requests are counted.
type testFollower struct {
	*Follower
	t     *testing.T
	store *fault.Store
}

func follow(t *testing.T, b bucket.Bucket) *testFollower {
	store := fault.New(b)
	return &testFollower{NewFollower(New(store, Options{})), t, store}
}

func (f *testFollower) refresh(wantChanged bool) {
	f.t.Helper()
	changed, err := f.Refresh(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	if changed != wantChanged {
		f.t.Fatalf("changed %v, want %v", changed, wantChanged)
	}
}

// costs checks the requests since the last call.
func (f *testFollower) costs(gets, lists int) {
	f.t.Helper()
	n := f.store.Counts()
	f.store.Reset()
	if n[fault.Get] != gets || n[fault.List] != lists || n[fault.Create]+n[fault.Replace]+n[fault.Put]+n[fault.Delete] != 0 {
		f.t.Errorf("requests %v, want %d reads and %d listings", n, gets, lists)
	}
}

func create(t *testing.T, r *Registry, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, _, err := r.CreateApplication(t.Context(), n, "op", nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFollower(t *testing.T) {
	b := memory.New()
	r := New(b, Options{})
	create(t, r, "a", "b", "c")
	f := follow(t, b)
	if s := f.Snapshot(); s == nil || s.Applications == nil || len(s.Applications) != 0 {
		t.Fatalf("before anything was read: %+v", s)
	}
	f.refresh(true)
	if s := f.Snapshot(); len(s.Applications) != 3 || s.Counter != 3 {
		t.Fatalf("%+v", s)
	}
	f.costs(1+3+2, 5) // the revision, three applications, fleet and freeze; a listing of each kind

	// Nothing happened: one read, however much there is.
	f.refresh(false)
	f.costs(1, 0)

	// A change is the revision and the document.
	if _, err := r.UpdateApplication(t.Context(), "b", func(a *scafo.Application) error {
		a.Replicas = scafo.Replicas{All: true}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	before := f.Snapshot()
	f.refresh(true)
	f.costs(2, 0)
	if s := f.Snapshot(); !s.Applications["b"].Replicas.All || s.Counter != 4 {
		t.Errorf("%+v", s)
	}
	if before.Applications["b"].Replicas.All {
		t.Error("an earlier snapshot changed")
	}

	// A removal.
	if _, err := Remove[scafo.Application](t.Context(), r, ApplicationKey("c"), nil); err != nil {
		t.Fatal(err)
	}
	if err := r.Announce(t.Context(), ApplicationKey("c")); err != nil {
		t.Fatal(err)
	}
	f.refresh(true)
	f.costs(2, 0)
	if s := f.Snapshot(); len(s.Applications) != 2 {
		t.Errorf("%v", s.Applications)
	}

	// What it does not follow costs the revision alone.
	if err := r.Announce(t.Context(), TrustKey("a"), OperatorKey("op"), DeploymentKey("a", "u", "v"), "_scafo/../../etc/passwd.json"); err != nil {
		t.Fatal(err)
	}
	f.refresh(false)
	f.costs(1, 0)
}

func TestFollowerHints(t *testing.T) {
	b := memory.New()
	r := New(b, Options{})
	create(t, r, "a", "b")
	f := follow(t, b)
	f.refresh(true)
	f.store.Reset()
	// Not announced, as a heartbeat's renewal is not.
	if err := r.WriteHeartbeat(t.Context(), scafo.Heartbeat{Node: "n1", BootID: "boot"}, false); err != nil {
		t.Fatal(err)
	}
	f.refresh(false)
	f.costs(1, 0)
	f.Hint(HeartbeatKey("n1"), ApplicationKey("a"), "_scafo/applications//.json", "_scafo/operators/x.json", "nonsense")
	f.refresh(true)
	f.costs(3, 0) // the revision, the heartbeat, and the application, which is as it was
	if f.Snapshot().Heartbeats["n1"].BootID != "boot" {
		t.Error("the hinted heartbeat was not read")
	}
	f.refresh(false)
	f.costs(1, 0)
	for i := range maxHints + 10 {
		f.Hint(NodeKey(fmt.Sprint("n", i)))
	}
	if len(f.hints) != maxHints {
		t.Errorf("%d hints wait", len(f.hints))
	}
}

func TestFollowerThatFellBehindLists(t *testing.T) {
	b := memory.New()
	r := New(b, Options{})
	create(t, r, "a")
	f := follow(t, b)
	f.refresh(true)
	f.store.Reset()
	create(t, r, "b")
	var keys []string
	for i := range scafo.MaxChanges {
		keys = append(keys, fmt.Sprint("other", i))
	}
	if err := r.Announce(t.Context(), keys...); err != nil {
		t.Fatal(err)
	}
	f.refresh(true)
	f.costs(1+1+2, 5) // only what is new is read
	if len(f.Snapshot().Applications) != 2 {
		t.Errorf("%v", f.Snapshot().Applications)
	}
	// The bucket was set back to an earlier day.
	b2 := memory.New()
	create(t, New(b2, Options{}), "z")
	f.r.b = fault.New(b2)
	f.refresh(true)
	if s := f.Snapshot(); len(s.Applications) != 1 || s.Applications["z"].Name != "z" {
		t.Errorf("%v", s.Applications)
	}
}

func TestFollowerListsOnDemandAndDaily(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		r := New(b, Options{})
		create(t, r, "a", "b")
		f := follow(t, b)
		f.refresh(true)
		f.store.Reset()
		// Somebody wrote without announcing it, and died.
		put(t, b, ApplicationKey("c"), `{"v":1,"write":"w","name":"c","uid":"u","replicas":1}`)
		if err := b.Delete(t.Context(), ApplicationKey("a")); err != nil {
			t.Fatal(err)
		}
		f.refresh(false)
		f.costs(1, 0)
		f.Relist()
		f.refresh(true)
		f.costs(1+1+2, 5)
		if s := f.Snapshot(); len(s.Applications) != 2 || s.Applications["c"].UID != "u" {
			t.Errorf("%v", s.Applications)
		}
		put(t, b, ApplicationKey("d"), `{"v":1,"write":"w2","name":"d","uid":"u","replicas":1}`)
		lists := 0
		for range 10 * 24 {
			time.Sleep(time.Hour)
			if _, err := f.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			lists = f.store.Counts()[fault.List]
		}
		if lists < 8*5 || lists > 15*5 {
			t.Errorf("%d listings of five kinds in ten days", lists)
		}
		if len(f.Snapshot().Applications) != 3 {
			t.Errorf("%v", f.Snapshot().Applications)
		}
	})
}

// The moments at which followers list are spread.
func TestFollowerListsAtAMomentOfItsOwn(t *testing.T) {
	b := memory.New()
	seen := map[time.Time]bool{}
	now := time.Now()
	for range 20 {
		f := NewFollower(New(b, Options{Now: func() time.Time { return now }}))
		if _, err := f.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := f.listAt.Sub(now); d < listEvery-listSpread || d > listEvery {
			t.Errorf("lists again after %v", d)
		}
		seen[f.listAt] = true
	}
	if len(seen) < 20 {
		t.Errorf("%d moments of 20", len(seen))
	}
}

func TestFollowerLeavesAloneWhatItCannotRead(t *testing.T) {
	b := memory.New()
	r := New(b, Options{})
	create(t, r, "a", "b", "c")
	put(t, b, ApplicationKey("newer"), `{"v":2,"write":"w","name":"newer","uid":"u"}`)
	put(t, b, ApplicationKey("liar"), `{"v":1,"write":"w","name":"somebody-else","uid":"u","replicas":1}`)
	f := follow(t, b)
	f.refresh(true)
	s := f.Snapshot()
	if len(s.Applications) != 3 || len(s.Unreadable) != 2 {
		t.Fatalf("%v, unreadable %v", s.Applications, s.Unreadable)
	}
	if why := s.Unreadable[ApplicationKey("newer")]; !strings.Contains(why, "format 2") || !strings.Contains(why, ApplicationKey("newer")) {
		t.Errorf("%q", why)
	}
	// What was known before stays: a document of a newer release is no removal.
	put(t, b, ApplicationKey("a"), `{"v":2,"write":"w","name":"a"}`)
	if err := r.Announce(t.Context(), ApplicationKey("a")); err != nil {
		t.Fatal(err)
	}
	f.refresh(true)
	if s := f.Snapshot(); s.Applications["a"].Name != "a" || s.Unreadable[ApplicationKey("a")] == "" {
		t.Errorf("%v, unreadable %v", s.Applications["a"], s.Unreadable)
	}
	// A listing does not read them again, and a repair is seen.
	f.store.Reset()
	f.Relist()
	f.refresh(false)
	f.costs(1+2, 5)
	put(t, b, ApplicationKey("liar"), `{"v":1,"write":"w","name":"liar","uid":"u","replicas":1}`)
	if err := b.Delete(t.Context(), ApplicationKey("newer")); err != nil {
		t.Fatal(err)
	}
	f.Relist()
	f.refresh(true)
	if s := f.Snapshot(); len(s.Applications) != 4 || len(s.Unreadable) != 1 {
		t.Errorf("%v, unreadable %v", s.Applications, s.Unreadable)
	}
}

func TestFollowerWhileTheBucketIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		r := New(b, Options{})
		create(t, r, "a", "b")
		f := follow(t, b)
		// The first picture is whole, or none.
		one := f.store.Inject(fault.Rule{Op: fault.Get, Key: ApplicationKey("b"), Kind: fault.Unavailable})
		if _, err := f.Refresh(t.Context()); scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
			t.Fatalf("%v", err)
		}
		if len(f.Snapshot().Applications) != 0 {
			t.Error("half of the registry was taken for the whole")
		}
		one.Remove()
		f.refresh(true)
		// Later ones show what could be read, and the rest follows.
		for _, n := range []string{"a", "b"} {
			if _, err := r.UpdateApplication(t.Context(), n, func(a *scafo.Application) error {
				a.DeploySeq = 7
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		one = f.store.Inject(fault.Rule{Op: fault.Get, Key: ApplicationKey("b"), Kind: fault.Unavailable})
		for range 20 { // the order of reads is any
			if _, err := f.Refresh(t.Context()); err == nil {
				t.Fatal("no error")
			}
		}
		s := f.Snapshot()
		if s.Applications["a"].DeploySeq != 7 || s.Applications["b"].DeploySeq != 0 || s.Counter != 2 {
			t.Errorf("%+v", s)
		}
		one.Remove()
		f.refresh(true)
		if s := f.Snapshot(); s.Applications["b"].DeploySeq != 7 || s.Counter != 4 {
			t.Errorf("%+v", s)
		}
		// All of it away: what is known stays.
		f.store.Inject(fault.Rule{Kind: fault.Unavailable})
		if _, err := f.Refresh(t.Context()); scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
			t.Errorf("%v", err)
		}
		if len(f.Snapshot().Applications) != 2 {
			t.Error("what was known is gone")
		}
	})
}

func TestFollowerKinds(t *testing.T) {
	b := memory.New()
	r := New(b, Options{})
	create(t, r, "shop")
	app, err := r.Application(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	f := follow(t, b)
	f.refresh(true)
	write := func(key string, err error) {
		t.Helper()
		if err == nil {
			err = r.Announce(t.Context(), key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, uid := range []string{app.UID, "0000000000000000"} {
		_, err = r.PutPlacement(t.Context(), scafo.Placement{Application: "shop", UID: uid, Nodes: []string{uid}})
		write(PlacementKey("shop", uid), err)
	}
	_, err = Update(t.Context(), r, ClaimKey("shop.example.com"), func(d *Doc[scafo.Claim]) error {
		d.Value = scafo.Claim{Host: "shop.example.com", State: scafo.ClaimHeld}
		return nil
	})
	write(ClaimKey("shop.example.com"), err)
	_, err = Update(t.Context(), r, FreezeKey, func(d *Doc[scafo.Freeze]) error {
		d.Value.Reason = "moving"
		return nil
	})
	write(FreezeKey, err)
	_, err = Update(t.Context(), r, NodeKey("n1"), func(d *Doc[scafo.Node]) error {
		d.Value.ID = "n1"
		return nil
	})
	write(NodeKey("n1"), err)
	id := scafo.DeployID{Application: "shop", Hex: "0123456789abcdef"}
	if err := r.CreateDeploy(t.Context(), scafo.Deploy{DeployStatus: scafo.DeployStatus{ID: id.String(), Application: "shop", State: scafo.DeployAccepted}, UID: app.UID, Seq: 1}); err != nil {
		t.Fatal(err)
	}
	f.refresh(true)
	s := f.Snapshot()
	if p := s.Placements["shop"]; p.UID != app.UID || len(s.Placements) != 1 {
		t.Errorf("placements %v", s.Placements)
	}
	if s.Claims["shop.example.com"].State != scafo.ClaimHeld || s.Freeze == nil || s.Freeze.Reason != "moving" || s.Nodes["n1"].ID != "n1" {
		t.Errorf("%+v", s)
	}
	if s.Deploys[id.String()].Seq != 1 {
		t.Errorf("deploys %v", s.Deploys)
	}
	if _, err := r.UpdateDeploy(t.Context(), id, func(d *scafo.Deploy) error {
		d.State, d.Code = scafo.DeployFailed, scafo.CodePublishFailed
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	_, err = Remove[scafo.Freeze](t.Context(), r, FreezeKey, nil)
	write(FreezeKey, err)
	f.refresh(true)
	if s := f.Snapshot(); len(s.Deploys) != 0 || s.Freeze != nil {
		t.Errorf("deploys %v, freeze %v", s.Deploys, s.Freeze)
	}
}

// Writers and followers at random, with faults: at the end every follower has
// exactly what is in the bucket.
func TestFollowersAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(memory.ContentETags())
		var wg sync.WaitGroup
		for w := range 4 {
			store := fault.New(b)
			store.Inject(fault.Rule{Op: fault.Replace, Kind: fault.LostApplied, Skip: 3 + w, Times: 2})
			store.Inject(fault.Rule{Latency: 5 * time.Millisecond})
			r := New(store, Options{})
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			wg.Go(func() {
				ctx := context.Background()
				for range 60 {
					name := fmt.Sprint("app", rnd.IntN(20))
					var err error
					switch rnd.IntN(3) {
					case 0:
						_, _, err = r.CreateApplication(ctx, name, "op", nil)
					case 1:
						_, err = r.UpdateApplication(ctx, name, func(a *scafo.Application) error { a.DeploySeq++; return nil })
						if scafo.CodeOf(err) == scafo.CodeNotFound {
							err = nil
						}
					case 2:
						if _, err = Remove[scafo.Application](ctx, r, ApplicationKey(name), nil); err == nil {
							err = r.Announce(ctx, ApplicationKey(name))
						}
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		done := make(chan struct{})
		f := NewFollower(New(b, Options{}))
		go func() { wg.Wait(); close(done) }()
		for running := true; running; {
			select {
			case <-done:
				running = false
			case <-time.After(100 * time.Millisecond):
			}
			if _, err := f.Refresh(t.Context()); err != nil {
				t.Error(err)
			}
		}
		apps, err := New(b, Options{}).Applications(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]scafo.Application{}
		for _, a := range apps {
			want[a.Name] = a
		}
		if got := f.Snapshot().Applications; !reflect.DeepEqual(got, want) {
			t.Errorf("the follower has\n%v\nthe bucket\n%v", got, want)
		}
	})
}
