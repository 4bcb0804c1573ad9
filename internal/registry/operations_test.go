package registry_test

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

// key is the public key of a seed.
func key(seed string) scafo.PublicKey {
	public := ed25519.NewKeyFromSeed([]byte((seed + strings.Repeat("x", ed25519.SeedSize))[:ed25519.SeedSize])).Public().(ed25519.PublicKey)
	return scafo.PublicKey{Kty: "OKP", Crv: "Ed25519", X: base64.RawURLEncoding.EncodeToString(public)}
}

func admin(id string) scafo.Operator {
	return scafo.Operator{ID: id, PublicKey: key(id), Role: scafo.RoleAdmin, Applications: scafo.Scope{"*"}}
}

func tenant(id string) scafo.Operator {
	return scafo.Operator{ID: id, PublicKey: key(id), Role: scafo.RoleOperator, Applications: scafo.Scope{"shop", "shop-*"}}
}

func node(id string) scafo.Node {
	return scafo.Node{ID: id, PublicKey: key(id), Address: "http://10.0.0.1:7420", Version: scafo.Version, Labels: map[string]string{"region": "eu"}}
}

func open(b bucket.Bucket) *registry.Registry { return registry.New(b, registry.Options{}) }

// fleet is a bucket with a fleet in it, checked when the test ends.
func fleet(t *testing.T) (*registry.Registry, *memory.Store) {
	t.Helper()
	b := memory.New()
	r := open(b)
	if _, err := r.InitFleet(t.Context(), admin("root")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check.Bucket(t, b) })
	return r, b
}

func remove(r *registry.Registry, id string) error {
	removed, err := r.RemoveOperator(context.Background(), id)
	if err == nil && !removed {
		return errors.New("not removed, and no error")
	}
	return err
}

func wantCode(t *testing.T, err error, want scafo.Code) {
	t.Helper()
	if got := scafo.CodeOf(err); got != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestInitFleet(t *testing.T) {
	b := memory.New()
	r := open(b)
	if _, err := r.Fleet(t.Context()); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Fatalf("an empty bucket: %v", err)
	}
	f, err := r.InitFleet(t.Context(), admin("root"))
	if err != nil || f.ID == "" {
		t.Fatalf("%+v, %v", f, err)
	}
	if op, err := r.Operator(t.Context(), "root"); err != nil || op.Role != scafo.RoleAdmin || op.PublicKey != key("root") {
		t.Fatalf("%+v, %v", op, err)
	}
	for _, again := range []scafo.Operator{admin("root"), admin("other")} {
		_, err := r.InitFleet(t.Context(), again)
		wantCode(t, err, scafo.CodeReferenceHeld)
	}
	if _, err := r.Operator(t.Context(), "other"); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Errorf("the refused founder is trusted: %v", err)
	}
	if now, err := r.Fleet(t.Context()); err != nil || now.ID != f.ID {
		t.Errorf("%+v, %v", now, err)
	}
	check.Bucket(t, b)
	for _, bad := range []scafo.Operator{tenant("t"), {}, {ID: "UPPER", PublicKey: key("k"), Role: scafo.RoleAdmin, Applications: scafo.Scope{"*"}}} {
		_, err := open(memory.New()).InitFleet(t.Context(), bad)
		wantCode(t, err, scafo.CodeInvalidInput)
	}
}

// Two who make a fleet at once: one does, and the other's key opens nothing.
func TestInitFleetTwiceAtOnce(t *testing.T) {
	for range 20 {
		b := memory.New()
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Go(func() { _, errs[i] = open(b).InitFleet(context.Background(), admin(fmt.Sprint("op", i))) })
		}
		wg.Wait()
		won := 0
		for i, err := range errs {
			if err == nil {
				won++
				continue
			}
			wantCode(t, err, scafo.CodeReferenceHeld)
			if _, err := open(b).Operator(t.Context(), fmt.Sprint("op", i)); scafo.CodeOf(err) != scafo.CodeNotFound {
				t.Errorf("a founder who lost is trusted: %v", err)
			}
		}
		if won != 1 {
			t.Fatalf("%d fleets", won)
		}
		check.Bucket(t, b)
	}
}

// Every operation, ended at every one of its requests, before and after it took
// place: the same call again succeeds, and everything is in order then.
func TestCrashesBetweenRequests(t *testing.T) {
	ctx := context.Background()
	none := func(*registry.Registry) error { return nil }
	ops := map[string]struct {
		prepare, do func(r *registry.Registry) error
	}{
		"init": {nil, func(r *registry.Registry) error {
			_, err := r.InitFleet(ctx, admin("root"))
			if scafo.CodeOf(err) == scafo.CodeReferenceHeld {
				_, err = r.Operator(ctx, "root") // the first try had come that far
			}
			return err
		}},
		"add an operator": {none, func(r *registry.Registry) error { _, _, err := r.AddOperator(ctx, tenant("t")); return err }},
		"remove an operator": {
			func(r *registry.Registry) error { _, _, err := r.AddOperator(ctx, tenant("t")); return err },
			func(r *registry.Registry) error {
				err := remove(r, "t")
				if scafo.CodeOf(err) == scafo.CodeNotFound {
					return nil // the first try had come that far
				}
				return err
			},
		},
		"register a node": {none, func(r *registry.Registry) error { _, err := r.RegisterNode(ctx, node("n1")); return err }},
		"drain a node": {
			func(r *registry.Registry) error { _, err := r.RegisterNode(ctx, node("n1")); return err },
			func(r *registry.Registry) error { _, _, err := r.DrainNode(ctx, "n1", "op"); return err },
		},
		"create an application": {none, func(r *registry.Registry) error {
			_, _, err := r.CreateApplication(ctx, "shop", "op", nil)
			return err
		}},
		"record a deployment": {none, func(r *registry.Registry) error {
			return r.RecordDeployment(ctx, scafo.Deployment{Application: "shop", UID: "0123456789abcdef", Version: "v1"})
		}},
		"use a token": {none, func(r *registry.Registry) error {
			err := r.UseToken(ctx, time.Unix(1e9, 0), "kid", "jti")
			if errors.Is(err, bucket.ErrRefused) {
				return nil // the first try had come that far
			}
			return err
		}},
	}
	for name, op := range ops {
		for _, kind := range []fault.Kind{fault.CrashBefore, fault.CrashAfter} {
			t.Run(fmt.Sprintf("%s/%d", name, kind), func(t *testing.T) {
				for skip, more := 0, true; more; skip++ {
					synctest.Test(t, func(t *testing.T) { more = crashAt(t, kind, skip, op.prepare, op.do) })
				}
			})
		}
	}
}

// crashAt ends an operation at one of its requests, and does it again. It is false
// when the operation has fewer requests.
func crashAt(t *testing.T, kind fault.Kind, skip int, prepare, do func(r *registry.Registry) error) bool {
	b := memory.New(memory.ContentETags())
	if prepare != nil {
		if _, err := open(b).InitFleet(t.Context(), admin("root")); err != nil {
			t.Fatal(err)
		}
		if err := prepare(open(b)); err != nil {
			t.Fatal(err)
		}
	}
	store := fault.New(b)
	store.Inject(fault.Rule{Kind: kind, Skip: skip, Times: 1})
	defer time.Sleep(time.Minute) // what may have happened is still being announced
	err := do(open(store))
	if !store.Crashed() {
		if err != nil || skip == 0 {
			t.Errorf("after %d requests: %v", skip, err)
		}
		return false
	}
	if err := do(open(b)); err != nil {
		t.Fatalf("ended at request %d: again: %v", skip, err)
	}
	check.Bucket(t, b)
	return !t.Failed()
}

func TestOperators(t *testing.T) {
	r, _ := fleet(t)
	ctx := t.Context()
	op, created, err := r.AddOperator(ctx, tenant("ci"))
	if err != nil || !created || op.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v, %v", op, created, err)
	}
	if again, created, err := r.AddOperator(ctx, tenant("ci")); err != nil || created || again.Write != op.Write {
		t.Errorf("the identical record: %+v, %v, %v", again, created, err)
	}
	for name, change := range map[string]func(*scafo.Operator){
		"another key":     func(o *scafo.Operator) { o.PublicKey = key("other") },
		"another role":    func(o *scafo.Operator) { o.Role = scafo.RoleAdmin },
		"another scope":   func(o *scafo.Operator) { o.Applications = scafo.Scope{"shop"} },
		"another lineage": func(o *scafo.Operator) { o.Supersedes = "root" },
	} {
		o := tenant("ci")
		change(&o)
		_, _, err := r.AddOperator(ctx, o)
		if scafo.CodeOf(err) != scafo.CodeReferenceHeld {
			t.Errorf("%s: %v", name, err)
		}
	}
	if all, err := r.Operators(ctx); err != nil || len(all) != 2 || all[0].ID != "ci" || all[1].ID != "root" {
		t.Errorf("%+v, %v", all, err)
	}
	wantCode(t, remove(r, "root"), scafo.CodeReferenceHeld) // the last admin
	wantCode(t, remove(r, "nobody"), scafo.CodeNotFound)
	if err := remove(r, "ci"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, remove(r, "ci"), scafo.CodeNotFound)
	wantCode(t, remove(r, "root"), scafo.CodeReferenceHeld) // the last key
	// An id stays claimed for good, by its key.
	if _, err := r.RegisterNode(ctx, node("ci")); scafo.CodeOf(err) != scafo.CodeReferenceHeld {
		t.Errorf("a node with an operator's id: %v", err)
	}
	o := tenant("ci")
	o.PublicKey = key("other")
	if _, _, err := r.AddOperator(ctx, o); scafo.CodeOf(err) != scafo.CodeReferenceHeld {
		t.Errorf("another key under a removed id: %v", err)
	}
	if _, created, err := r.AddOperator(ctx, tenant("ci")); err != nil || !created {
		t.Errorf("the same key again: %v, %v", created, err)
	}
}

// Everybody removes somebody at once: one admin stays, whatever the order.
func TestRemovalsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		r := open(b)
		if _, err := r.InitFleet(t.Context(), admin("a0")); err != nil {
			t.Fatal(err)
		}
		for i := 1; i < 5; i++ {
			if _, _, err := r.AddOperator(t.Context(), admin(fmt.Sprint("a", i))); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		errs := make([]error, 5)
		for i := range errs {
			store := fault.New(b)
			store.Inject(fault.Rule{Latency: 10 * time.Millisecond})
			wg.Go(func() { errs[i] = remove(open(store), fmt.Sprint("a", i)) })
		}
		wg.Wait()
		refused := 0
		for _, err := range errs {
			if err != nil {
				wantCode(t, err, scafo.CodeReferenceHeld)
				refused++
			}
		}
		all, err := r.Operators(t.Context())
		if err != nil || len(all) != 1 || refused != 1 {
			t.Errorf("%d keys are left, %d removals refused, %v", len(all), refused, err)
		}
		check.Bucket(t, b)
	})
}

func TestRegisterNode(t *testing.T) {
	r, b := fleet(t)
	ctx := t.Context()
	n, err := r.RegisterNode(ctx, node("n1"))
	if err != nil || n.RegisteredAt.IsZero() {
		t.Fatalf("%+v, %v", n, err)
	}
	if again, err := r.RegisterNode(ctx, node("n1")); err != nil || again.Write != n.Write {
		t.Errorf("nothing new was written: %v, %v", again, err)
	}
	drained := scafo.Stamp{At: time.Unix(1e9, 0).UTC(), By: "root"}
	if _, err := registry.Update(ctx, r, registry.NodeKey("n1"), func(d *registry.Doc[scafo.Node]) error {
		d.Value.Drain = &drained
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	moved := node("n1")
	moved.Address = "http://10.0.0.2:7420"
	got, err := r.RegisterNode(ctx, moved)
	if err != nil || got.Address != moved.Address || got.Drain == nil || *got.Drain != drained || !got.RegisteredAt.Equal(n.RegisteredAt) {
		t.Errorf("what the fleet decided is gone: %+v, %v", got, err)
	}
	other := node("n1")
	other.PublicKey = key("thief")
	_, err = r.RegisterNode(ctx, other)
	wantCode(t, err, scafo.CodeReferenceHeld)
	_, err = r.RegisterNode(ctx, node("root"))
	wantCode(t, err, scafo.CodeReferenceHeld)
	_, err = r.RegisterNode(ctx, node("Not-An-Id"))
	wantCode(t, err, scafo.CodeInvalidInput)
	_, _, err = r.AddOperator(ctx, admin("n1"))
	wantCode(t, err, scafo.CodeReferenceHeld)
	if _, err := registry.Update(ctx, r, registry.NodeKey("n1"), func(d *registry.Doc[scafo.Node]) error {
		d.Value.Removed = &drained
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	_, err = r.RegisterNode(ctx, node("n1")) // it does not come back by itself
	wantCode(t, err, scafo.CodeReferenceHeld)
	_ = b
}

func TestApplications(t *testing.T) {
	r, _ := fleet(t)
	ctx := t.Context()
	app, created, err := r.CreateApplication(ctx, "shop", "root", nil)
	if err != nil || !created || len(app.UID) != 16 || app.Replicas != (scafo.Replicas{Count: 1}) || app.CreatedBy != "root" {
		t.Fatalf("%+v, %v, %v", app, created, err)
	}
	again, created, err := r.CreateApplication(ctx, "shop", "other", func(*scafo.Application) { t.Error("init of one that exists") })
	if err != nil || created || again.UID != app.UID || again.CreatedBy != "root" {
		t.Errorf("%+v, %v, %v", again, created, err)
	}
	for _, bad := range []string{"", "Shop", "-x", "a.b", "a/b", strings.Repeat("a", 64)} {
		_, _, err := r.CreateApplication(ctx, bad, "root", nil)
		wantCode(t, err, scafo.CodeInvalidSlug)
		_, err = r.Application(ctx, bad)
		wantCode(t, err, scafo.CodeInvalidSlug)
	}
	got, err := r.UpdateApplication(ctx, "shop", func(a *scafo.Application) error {
		a.Name, a.UID, a.DeploySeq = "stolen", "stolen", a.DeploySeq+1
		return nil
	})
	if err != nil || got.Name != "shop" || got.UID != app.UID || got.DeploySeq != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = r.UpdateApplication(ctx, "nobody", func(*scafo.Application) error { return nil })
	wantCode(t, err, scafo.CodeNotFound)
	veto := scafo.Errorf(scafo.CodeApplicationBlocked, "no")
	_, err = r.UpdateApplication(ctx, "shop", func(*scafo.Application) error { return veto })
	wantCode(t, err, scafo.CodeApplicationBlocked)
	kept, err := r.UpdateApplication(ctx, "shop", func(a *scafo.Application) error { a.DeploySeq = 99; return registry.ErrKeep })
	if err != nil || kept.Write != got.Write || kept.DeploySeq != 1 {
		t.Errorf("a change that keeps: %+v, %v", kept, err)
	}
	if _, err := r.UpdateApplication(ctx, "shop", func(a *scafo.Application) error {
		a.Deleting = &scafo.Deleting{Fence: 1}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	_, err = r.UpdateApplication(ctx, "shop", func(*scafo.Application) error { return nil })
	wantCode(t, err, scafo.CodeApplicationDeleting)
	_, _, err = r.CreateApplication(ctx, "shop", "root", nil)
	wantCode(t, err, scafo.CodeApplicationDeleting)
}

// Many first deploys at once make one life of a name.
func TestCreateApplicationAtOnce(t *testing.T) {
	_, b := fleet(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	uids, made := map[string]bool{}, 0
	for i := range 16 {
		wg.Go(func() {
			store := fault.New(b)
			if i%2 == 0 {
				store.Next(fault.Create, registry.ApplicationKey("shop"), fault.LostApplied)
			}
			app, created, err := open(store).CreateApplication(context.Background(), "shop", fmt.Sprint("op", i), nil)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			uids[app.UID] = true
			if created {
				made++
			}
		})
	}
	wg.Wait()
	if len(uids) != 1 || made != 1 {
		t.Errorf("%d lives, %d made", len(uids), made)
	}
}

func TestDeploys(t *testing.T) {
	r, b := fleet(t)
	ctx := t.Context()
	app, _, err := r.CreateApplication(ctx, "shop", "root", func(a *scafo.Application) { a.DeploySeq = 3 })
	if err != nil {
		t.Fatal(err)
	}
	var ids []scafo.DeployID
	for i := range 3 {
		id := scafo.DeployID{Application: "shop", Hex: fmt.Sprintf("%016x", 1<<60>>i)}
		d := scafo.Deploy{
			DeployStatus: scafo.DeployStatus{ID: id.String(), Application: "shop", State: scafo.DeployAccepted},
			UID:          app.UID, Seq: int64(i + 1), Node: "n1", AcceptedAt: time.Unix(int64(1e9+i), 0).UTC(),
		}
		if err := r.CreateDeploy(ctx, d); err != nil {
			t.Fatal(err)
		}
		wantCode(t, r.CreateDeploy(ctx, d), scafo.CodeCASConflict)
		ids = append(ids, id)
	}
	all, err := r.Deploys(ctx, "shop")
	if err != nil || len(all) != 3 || all[0].Seq != 3 || all[2].Seq != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	end := func(d *scafo.Deploy) error {
		d.State, d.Deployment = scafo.DeployDeployed, "v1"
		return nil
	}
	if d, err := r.UpdateDeploy(ctx, ids[0], end); err != nil || d.State != scafo.DeployDeployed {
		t.Errorf("%+v, %v", d, err)
	}
	// What has ended does not move any more.
	d, err := r.UpdateDeploy(ctx, ids[0], func(d *scafo.Deploy) error { t.Error("asked"); return nil })
	if !errors.Is(err, registry.ErrTerminal) || d.Deployment != "v1" {
		t.Errorf("%+v, %v", d, err)
	}
	nobody := scafo.DeployID{Application: "shop", Hex: "ffffffffffffffff"}
	_, err = r.UpdateDeploy(ctx, nobody, end)
	wantCode(t, err, scafo.CodeNotFound)
	_, err = r.Deploy(ctx, nobody)
	wantCode(t, err, scafo.CodeNotFound)
	if doc, err := r.Deploy(ctx, ids[1]); err != nil || doc.Value.Seq != 2 {
		t.Errorf("%+v, %v", doc, err)
	} else if age, ok := doc.Age(); !ok || age > time.Minute {
		t.Errorf("its age by the store is %v, %v", age, ok)
	}
	// A record whose application half disagrees with its id is none.
	liar := scafo.DeployID{Application: "other", Hex: ids[1].Hex}
	o, err := b.Get(ctx, registry.DeployKey(ids[1]))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, registry.DeployKey(liar), o.Body); err != nil {
		t.Fatal(err)
	}
	_, err = r.Deploy(ctx, liar)
	wantCode(t, err, scafo.CodeNotFound)
	_ = b.Delete(ctx, registry.DeployKey(liar))
	wantCode(t, r.DeleteDeploy(ctx, ids[1]), scafo.CodeCASConflict)
	if err := r.DeleteDeploy(ctx, ids[0]); err != nil {
		t.Error(err)
	}
	wantCode(t, r.DeleteDeploy(ctx, ids[0]), scafo.CodeNotFound)
}

func TestFirstProvenanceStays(t *testing.T) {
	r, _ := fleet(t)
	ctx := t.Context()
	d := scafo.Deployment{Application: "shop", UID: "0123456789abcdef", Version: "3f9c", Deploy: "shop.1", By: "ci"}
	if err := r.RecordDeployment(ctx, d); err != nil {
		t.Fatal(err)
	}
	d.Deploy, d.By = "shop.2", "somebody"
	if err := r.RecordDeployment(ctx, d); err != nil {
		t.Fatal(err)
	}
	got, err := r.Deployment(ctx, "shop", d.UID, "3f9c")
	if err != nil || got.Deploy != "shop.1" || got.By != "ci" {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", ".", "..", "a/b", "../x", strings.Repeat("a", 129), "a b", "ü"} {
		d.Version = bad
		wantCode(t, r.RecordDeployment(ctx, d), scafo.CodePublishFailed)
		_, err := r.Deployment(ctx, "shop", d.UID, bad)
		wantCode(t, err, scafo.CodeNotFound)
	}
	d.Version = strings.Repeat("a", 128)
	if err := r.RecordDeployment(ctx, d); err != nil {
		t.Error(err)
	}
}

func TestPlacementsAreFenced(t *testing.T) {
	r, _ := fleet(t)
	ctx := t.Context()
	p := scafo.Placement{Application: "shop", UID: "0123456789abcdef", Fence: 5, DeploySeq: 1}
	put, err := r.PutPlacement(ctx, p)
	if err != nil || put.Nodes == nil || put.DecidedAt.IsZero() {
		t.Fatalf("%+v, %v", put, err)
	}
	if again, err := r.PutPlacement(ctx, p); err != nil || again.Write != put.Write {
		t.Errorf("the same decision was written again: %v", err)
	}
	p.Fence = 4
	stood, err := r.PutPlacement(ctx, p)
	if !errors.Is(err, registry.ErrFenced) || stood.Fence != 5 {
		t.Errorf("a lower fence: %+v, %v", stood, err)
	}
	p.Fence = 6
	if got, err := r.PutPlacement(ctx, p); err != nil || got.Fence != 6 {
		t.Errorf("a higher fence: %+v, %v", got, err)
	}
}
