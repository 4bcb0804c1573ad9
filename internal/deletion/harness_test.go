package deletion_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/deletion"
	"github.com/scafo/scafo/internal/registry"
)

const (
	grace  = time.Hour
	oldUID = "00000000000000aa" // of a life before
	other  = "00000000000000ff" // of an application that is not deleted
)

// fakeLease is the coordinator lease as one process sees it.
type fakeLease struct {
	mu     sync.Mutex
	fence  int64       // guarded by mu; 0: not held here
	others scafo.Lease // guarded by mu; as it is read, where it is not this one's
	held   bool        // guarded by mu; somebody holds it
	free   int64       // guarded by mu; the fence that an offer wins; 0: it wins nothing
	winner string      // guarded by mu; who is found to have won when an offer does not
	offers int         // guarded by mu
	err    error       // guarded by mu; of reading it
}

func holding(fence int64) *fakeLease { return &fakeLease{fence: fence} }

func (l *fakeLease) set(f func(l *fakeLease)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

func (l *fakeLease) Held() (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fence, l.fence > 0
}

func (l *fakeLease) Current(context.Context) (scafo.Lease, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fence > 0 && l.others.Fence <= l.fence {
		return scafo.Lease{Node: "a", Fence: l.fence}, true, l.err
	}
	return l.others, l.held, l.err
}

func (l *fakeLease) Last() (scafo.Lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.others, l.held
}

func (l *fakeLease) Offer(context.Context) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offers++
	if l.fence = l.free; l.fence > 0 {
		return true, nil
	}
	if l.winner != "" {
		l.others, l.held = scafo.Lease{Node: l.winner}, true
	}
	return false, nil
}

// fakeFleet is the nodes.
type fakeFleet struct {
	quiet    func(application, uid string) []string // nil: they confirm at once
	follower *registry.Follower
}

func (f *fakeFleet) Quiet(_ context.Context, application, uid string, _ time.Duration) []string {
	if f.quiet == nil {
		return nil
	}
	return f.quiet(application, uid)
}

func (f *fakeFleet) Remains(ctx context.Context, application, uid string) (hosts []string, deploys []scafo.DeployID, err error) {
	if _, err := f.follower.Refresh(ctx); err != nil {
		return nil, nil, err
	}
	for host, c := range f.follower.Snapshot().Claims {
		if c.UID == uid && c.State != scafo.ClaimReleased {
			hosts = append(hosts, host)
		}
	}
	return hosts, nil, nil
}

// party is one node with a deletion service.
type party struct {
	t     *testing.T
	s     *deletion.Service
	reg   *registry.Registry
	lease *fakeLease
	fleet *fakeFleet
	stop  func()
}

func newParty(t *testing.T, b bucket.Bucket, lease *fakeLease, change ...func(*deletion.Config)) *party {
	t.Helper()
	r := registry.New(b, registry.Options{})
	p := &party{t: t, reg: r, lease: lease, fleet: &fakeFleet{follower: registry.NewFollower(r)}}
	c := deletion.Config{Node: "a", Registry: r, Lease: lease, Fleet: p.fleet, Grace: grace}
	for _, f := range change {
		f(&c)
	}
	var err error
	if p.s, err = deletion.New(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.s.Run(ctx)
	}()
	p.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(p.stop)
	return p
}

// delete deletes an application and returns the keys, sorted.
func (p *party) delete(r deletion.Request) ([]string, error) {
	p.t.Helper()
	o, err := p.s.Delete(context.Background(), r)
	if err != nil {
		return nil, err
	}
	defer o.Keys.Close()
	return all(o.Keys)
}

func all(keys *deletion.Keys) ([]string, error) {
	var out []string
	for {
		page, err := keys.Next(context.Background())
		if errors.Is(err, io.EOF) {
			slices.Sort(out)
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, page...)
	}
}

func force(name string) deletion.Request {
	return deletion.Request{Application: name, Caller: "op", Force: true}
}

func put(t testing.TB, b bucket.Bucket, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if _, err := b.Put(context.Background(), k, []byte("data of "+k)); err != nil {
			t.Fatal(err)
		}
	}
}

// live makes a life of a name with everything that one may have, and returns it with
// its keys, sorted.
func live(t testing.TB, b bucket.Bucket, name, hex string) (scafo.Application, []string) {
	t.Helper()
	ctx := context.Background()
	r := registry.New(b, registry.Options{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	host := name + ".example.com"
	app, created, err := r.CreateApplication(ctx, name, "op", nil)
	must(err)
	if !created {
		t.Fatalf("%s lives already", name)
	}
	keys := []string{registry.ApplicationKey(name)}
	for i := range 3 {
		keys = append(keys, fmt.Sprintf("%sobjects/%s/%d", registry.RuntimePrefix(name, app.UID), hex, i))
	}
	keys = append(keys, registry.RuntimePrefix(name, app.UID)+"deploy/current.json")
	put(t, b, keys[1:]...)
	version := "v-" + hex
	must(r.RecordDeployment(ctx, scafo.Deployment{Application: name, UID: app.UID, Version: version, At: r.Now()}))
	keys = append(keys, registry.DeploymentKey(name, app.UID, version))
	id := scafo.DeployID{Application: name, Hex: hex}
	must(r.CreateDeploy(ctx, scafo.Deploy{DeployStatus: scafo.DeployStatus{ID: id.String(), Application: name, State: scafo.DeployDeployed, Deployment: version}, UID: app.UID, Seq: 1}))
	keys = append(keys, registry.DeployKey(id))
	_, err = r.PutPlacement(ctx, scafo.Placement{Application: name, UID: app.UID})
	must(err)
	keys = append(keys, registry.PlacementKey(name, app.UID))
	_, err = registry.Update(ctx, r, registry.TrustKey(name), func(d *registry.Doc[scafo.TrustPolicy]) error {
		d.Value.Application = name
		return nil
	})
	must(err)
	keys = append(keys, registry.TrustKey(name))
	_, err = registry.Update(ctx, r, registry.ClaimKey(host), func(d *registry.Doc[scafo.Claim]) error {
		d.Value = scafo.Claim{Header: d.Value.Header, Host: host, Application: name, UID: app.UID, State: scafo.ClaimHeld, At: r.Now()}
		return nil
	})
	must(err)
	keys = append(keys, registry.ClaimKey(host))
	app, err = r.UpdateApplication(ctx, name, func(a *scafo.Application) error {
		a.Deployment, a.DeploySeq, a.DeploymentSeq = version, 1, 1
		a.Domains = []scafo.Domain{{Host: host}}
		return nil
	})
	must(err)
	slices.Sort(keys)
	return app, keys
}

// belongs are the objects of one life: those that carry its uid or its deploys' id, in
// their key or their body.
func belongs(b *memory.Store, app scafo.Application, hex string) map[string]string {
	out := map[string]string{}
	for k, body := range b.Dump() {
		if k == registry.RevisionKey {
			continue
		}
		if strings.Contains(k, app.UID) || strings.Contains(string(body), app.UID) || strings.Contains(k, hex) || k == registry.TrustKey(app.Name) {
			out[k] = string(body)
		}
	}
	return out
}

// nothingOf checks that a name does not live and that nothing lies under it.
func nothingOf(t testing.TB, b *memory.Store, name string) {
	t.Helper()
	r := registry.New(b, registry.Options{})
	if a, err := r.Application(context.Background(), name); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Errorf("%s lives: %+v, %v", name, a, err)
	}
	for k, body := range b.Dump() {
		for _, prefix := range []string{
			registry.RuntimesPrefix + name + "/", registry.DeploymentPrefix + name + "/",
			registry.PlacementPrefix + name + "/", registry.DeploysPrefix(name),
		} {
			if strings.HasPrefix(k, prefix) {
				t.Errorf("%s is left", k)
			}
		}
		if k == registry.TrustKey(name) && !strings.Contains(string(body), "tombstone") {
			t.Errorf("%s is left: %s", k, body)
		}
		if strings.HasPrefix(k, registry.DomainPrefix) && strings.Contains(string(body), `"application":"`+name+`"`) && !strings.Contains(string(body), `"released"`) {
			t.Errorf("%s is still claimed: %s", k, body)
		}
	}
}

func refusal(err error) (scafo.Code, string) {
	var e *scafo.Error
	if errors.As(err, &e) {
		return e.Code, e.Title
	}
	return "", ""
}
