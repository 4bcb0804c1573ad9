package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

// furnish gives the application something of every kind.
func furnish(r *registry.Registry) error {
	a, err := r.Application(ctxBackground, "shop")
	if err != nil {
		return err
	}
	for _, k := range []string{"objects/x", "deploy/current.json"} {
		if _, err := r.Bucket().Put(ctxBackground, registry.RuntimePrefix("shop", a.UID)+k, []byte("x")); err != nil {
			return err
		}
	}
	if err := r.RecordDeployment(ctxBackground, scafo.Deployment{Application: "shop", UID: a.UID, Version: "v1", At: r.Now()}); err != nil {
		return err
	}
	_, err = r.PutPlacement(ctxBackground, scafo.Placement{Application: "shop", UID: a.UID})
	if err != nil {
		return err
	}
	_, err = registry.Update(ctxBackground, r, registry.TrustKey("shop"), func(d *registry.Doc[scafo.TrustPolicy]) error {
		d.Value.Application = "shop"
		return nil
	})
	return err
}

// gone checks that nothing of a name is left.
func gone(r *registry.Registry, name string) error {
	if a, err := r.Application(ctxBackground, name); scafo.CodeOf(err) != scafo.CodeNotFound {
		return fmt.Errorf("it is there: %+v %w", a, err)
	}
	for _, prefix := range []string{registry.RuntimesPrefix, registry.DeploymentPrefix, registry.DeployPrefix, registry.PlacementPrefix} {
		page, err := r.Bucket().List(ctxBackground, prefix+name+"/", bucketAll)
		if err != nil || len(page.Objects) > 0 {
			return fmt.Errorf("%v is left, %w", page.Objects, err)
		}
	}
	return nil
}

// fences only ever grow.
var fences atomic.Int64

// Every fault at every request of a deletion: what was acknowledged is so, and the same
// call again, to a coordinator that knows nothing of the first, comes to the end.
func TestFaultsAtEveryRequestOfADeletion(t *testing.T) {
	kinds := []fault.Kind{fault.Unavailable, fault.Throttled, fault.LostNotApplied, fault.LostApplied, fault.Refused, fault.CrashBefore, fault.CrashAfter}
	for _, kind := range kinds {
		for skip, more := 0, true; more && !t.Failed(); skip++ {
			synctest.Test(t, func(t *testing.T) { more = deletionFaultAt(t, kind, skip) })
		}
	}
}

func deletionFaultAt(t *testing.T, kind fault.Kind, skip int) (more bool) {
	b := memory.New()
	r := fleetOver(t, b)
	if err := furnish(r); err != nil {
		t.Fatal(err)
	}
	node := func(b bucket.Bucket) http.Handler {
		h, _ := deleting(t, b, "node-a", &oneLease{holder: "node-a", fence: fences.Add(1)}, &wire{})
		return h
	}
	store := fault.New(b)
	armed := store.Inject(fault.Rule{Kind: kind, Skip: skip, Times: 1})
	defer time.Sleep(time.Minute) // what may have happened is still being announced
	w := call(node(store), "DELETE", "/v1/applications/shop?force=true", "tenant", "")
	synctest.Wait()
	switch {
	case w.Code == http.StatusOK:
		if err := gone(r, "shop"); err != nil {
			t.Errorf("kind %d at request %d: acknowledged, and %v", kind, skip, err)
		}
	case armed.Hits() == 0 || w.Code != http.StatusServiceUnavailable:
		t.Errorf("kind %d at request %d: %d %s", kind, skip, w.Code, w.Body)
	}
	if w := call(node(b), "DELETE", "/v1/applications/shop?force=true", "tenant", ""); w.Code != http.StatusOK && w.Code != http.StatusNotFound {
		t.Errorf("kind %d at request %d: again: %d %s", kind, skip, w.Code, w.Body)
	}
	if err := gone(r, "shop"); err != nil {
		t.Errorf("kind %d at request %d: %v", kind, skip, err)
	}
	check.Bucket(t, b)
	return armed.Hits() > 0
}

// raceOfDeletions is race on nodes that share one lease; node-a has it.
func raceOfDeletions(t *testing.T, more func(t *testing.T, id string) func(*registry.Registry, *api.Deps), f func(c *contest)) {
	t.Helper()
	for round := range rounds {
		synctest.Test(t, func(t *testing.T) {
			c := &contest{t: t, store: memory.New(), random: rand.New(rand.NewPCG(uint64(round), 7))}
			c.registry = fleetOver(t, c.store)
			registerNodes(t, c.registry, "node-a", "node-b")
			if err := furnish(c.registry); err != nil {
				t.Fatal(err)
			}
			lease, w := &oneLease{holder: "node-a", fence: 1}, &wire{}
			for i, id := range []string{"node-a", "node-b"} {
				slow := fault.New(c.store)
				var mu sync.Mutex
				pauses := rand.New(rand.NewPCG(uint64(round), uint64(i+20)))
				pause := func(context.Context, fault.Call) {
					mu.Lock()
					d := time.Duration(pauses.IntN(20)) * time.Millisecond
					mu.Unlock()
					time.Sleep(d)
				}
				slow.Inject(fault.Rule{Before: pause, After: pause})
				var options []func(*registry.Registry, *api.Deps)
				if more != nil {
					options = append(options, more(t, id))
				}
				h, _ := deleting(t, slow, id, lease, w, options...)
				c.nodes = append(c.nodes, h)
			}
			f(c)
			time.Sleep(2 * time.Hour) // what comes late is looked for by then
			check.Bucket(t, c.store)
		})
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

var deleteShop = at{"DELETE", "/v1/applications/shop?force=1", "tenant", ""}

// keysOf are the keys that answers name.
func (c *contest) keysOf() []string {
	var out []string
	for _, body := range c.said {
		var said struct{ Deleted []string }
		if json.Unmarshal([]byte(body), &said) == nil {
			out = append(out, said.Deleted...)
		}
	}
	return out
}

func TestRaceOfTwoDeletions(t *testing.T) {
	raceOfDeletions(t, nil, func(c *contest) {
		got := c.send(deleteShop, deleteShop, deleteShop)
		c.wantStatuses(got, 200, 404)
		if count(got, 200) == 0 {
			c.t.Errorf("nobody deleted it: %v", got)
		}
		keys := c.keysOf()
		if n := len(slices.Compact(slices.Sorted(slices.Values(keys)))); n != len(keys) || n != 6 {
			c.t.Errorf("the answers name %d keys, %d different ones: %v", len(keys), n, keys)
		}
		if err := gone(c.registry, "shop"); err != nil {
			c.t.Error(err)
		}
	})
}

func TestRaceOfADeletionWithSetters(t *testing.T) {
	raceOfDeletions(t, nil, func(c *contest) {
		set := func(action, body string) at { return at{"POST", "/v1/applications/shop/" + action, "admin", body} }
		// By an admin: a tenant may not delete what was blocked a moment ago.
		byAdmin := at{deleteShop.method, deleteShop.path, "admin", ""}
		got := c.send(byAdmin, set("retire", ""), set("block", ""), set("replicas", `{"replicas":9}`), set("labels", `{"labels":{"a":"b"}}`), set("unretire", ""))
		c.wantStatuses(got, 200, 404, 409)
		if got[0] != 200 {
			c.t.Errorf("the deletion: %d %s", got[0], c.said[0])
		}
		if err := gone(c.registry, "shop"); err != nil {
			c.t.Error(err)
		}
		// What was set on the one that is gone is not on the next.
		next, created, err := c.registry.CreateApplication(c.t.Context(), "shop", "admin", nil)
		if err != nil || !created || next.Retired != nil || next.Blocked != nil || next.Labels != nil || next.Replicas.Count != 1 {
			c.t.Errorf("%+v %v %v", next, created, err)
		}
	})
}

// Claims and a deletion at once: whatever the claims are told, nothing is held for what is
// gone, and every host is free for another application.
func TestRaceOfADeletionWithAClaim(t *testing.T) {
	outcomes := map[int]int{}
	hosts := []string{"a.example", "b.example", "x.b.example?wildcard=1"}
	raceOfDeletions(t, nil, func(c *contest) {
		if _, _, err := c.registry.CreateApplication(c.t.Context(), "rival", "admin", nil); err != nil {
			c.t.Fatal(err)
		}
		var wg sync.WaitGroup
		statuses := make([]int, len(hosts))
		for i, host := range hosts {
			r := request(http.MethodPost, "/v1/applications/shop/domains/"+host, "admin", strings.NewReader(""))
			node, wait := c.nodes[c.random.IntN(len(c.nodes))], time.Duration(c.random.IntN(200))*time.Millisecond
			wg.Go(func() {
				time.Sleep(wait)
				statuses[i] = record(node, r).Code
			})
		}
		time.Sleep(time.Duration(c.random.IntN(200)) * time.Millisecond)
		got := c.send(deleteShop)
		wg.Wait()
		if got[0] != 200 {
			c.t.Errorf("the deletion: %v %s", got, c.said[0])
		}
		c.wantStatuses(statuses, 200, 404, 409)
		if err := gone(c.registry, "shop"); err != nil {
			c.t.Error(err)
		}
		for i, host := range hosts {
			outcomes[statuses[i]]++
			name, _, _ := strings.Cut(host, "?")
			d, err := registry.Load[scafo.Claim](c.t.Context(), c.registry, registry.ClaimKey(name))
			if err != nil || d.Exists && d.Value.State == scafo.ClaimHeld {
				c.t.Errorf("the claim is %+v, %v", d.Value, err)
			}
		}
		for _, host := range hosts {
			if got := c.send(at{"POST", "/v1/applications/rival/domains/" + host, "admin", ""}); got[0] != 200 {
				c.t.Errorf("%s is not free: %d %s", host, got[0], c.said[0])
			}
		}
	})
	if outcomes[200] == 0 || outcomes[404]+outcomes[409] == 0 {
		t.Errorf("the race has one side: %v", outcomes)
	}
}

// A deploy and a deletion at once: whichever comes first, what is there afterwards is
// one whole application, or none, and nothing is left of what is gone.
func TestRaceOfADeletionWithADeploy(t *testing.T) {
	body := artifact(t)
	outcomes := map[string]int{}
	raceOfDeletions(t, withDeploys, func(c *contest) {
		was := c.app()
		var wg sync.WaitGroup
		statuses := make([]int, 2)
		for i := range statuses {
			r := deployOf("shop", "tenant", body)
			node, wait := c.nodes[i], time.Duration(c.random.IntN(2000))*time.Millisecond
			wg.Go(func() {
				time.Sleep(wait)
				w := record(node, r)
				statuses[i] = w.Code
			})
		}
		time.Sleep(time.Duration(c.random.IntN(300)) * time.Millisecond)
		got := c.send(deleteShop)
		wg.Wait()
		c.wantStatuses(statuses, 202, 409)
		if got[0] != 200 {
			c.t.Errorf("the deletion: %d %s", got[0], c.said[0])
		}
		time.Sleep(2 * time.Minute)
		for k := range c.store.Dump() {
			if strings.Contains(k, was.UID) {
				c.t.Errorf("%s is left", k)
			}
		}
		a, err := c.registry.Application(c.t.Context(), "shop")
		switch {
		case scafo.CodeOf(err) == scafo.CodeNotFound:
			outcomes["gone"]++
		case err != nil || a.UID == was.UID || a.Deleting != nil || a.Publishing != nil || a.Deployment != "v2":
			c.t.Errorf("%+v %v", a, err)
		default:
			outcomes["a new one"]++
		}
	})
	if outcomes["gone"] < rounds/20 || outcomes["a new one"] < rounds/20 {
		t.Errorf("the race has one side: %v", outcomes)
	}
	t.Log(outcomes)
}
