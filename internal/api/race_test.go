package api_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

// rounds is how often each race is run, each time with other pauses.
const rounds = 200

// contest is two nodes over one store that takes its time, a random one for each
// request.
type contest struct {
	t        *testing.T
	store    *memory.Store
	registry *registry.Registry // directly, for what no race is about
	nodes    []http.Handler
	slow     []*registry.Registry // as parts of the nodes that are no route use it
	stores   []slowStore          // what the nodes reach the store through
	random   *rand.Rand
	said     []string // the bodies of the last answers
}

// slowStore is a store with a pause at every request.
type slowStore struct {
	*fault.Store
	rule  fault.Rule
	armed *fault.Armed
}

// failing has requests fail at random, until stop.
func (s *slowStore) failing(seed uint64, probability float64, kinds ...fault.Kind) (stop func()) {
	s.armed.Remove() // the first rule decides
	stop = s.Random(seed, probability, fault.Rule{}, kinds...)
	s.armed = s.Inject(s.rule)
	return stop
}

// race runs one contest a round and checks the whole bucket after each.
func race(t *testing.T, f func(c *contest)) {
	t.Helper()
	for round := range rounds {
		synctest.Test(t, func(t *testing.T) {
			c := &contest{t: t, store: memory.New(), random: rand.New(rand.NewPCG(uint64(round), 1))}
			c.registry = fleetOver(t, c.store)
			for range 2 {
				slow := fault.New(c.store)
				var mu sync.Mutex
				pauses := rand.New(rand.NewPCG(uint64(round), uint64(len(c.nodes)+2)))
				pause := func(context.Context, fault.Call) {
					mu.Lock()
					d := time.Duration(pauses.IntN(20)) * time.Millisecond
					mu.Unlock()
					time.Sleep(d)
				}
				rule := fault.Rule{Before: pause, After: pause}
				c.stores = append(c.stores, slowStore{Store: slow, rule: rule, armed: slow.Inject(rule)})
				c.nodes = append(c.nodes, nodeOver(t, slow))
				c.slow = append(c.slow, registry.New(slow, registry.Options{}))
			}
			f(c)
			time.Sleep(time.Minute) // what is announced for nobody who waits
			check.Bucket(t, c.store)
		})
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

// at sends one call to one of the nodes, by chance.
type at struct{ method, path, by, body string }

// send makes all calls at once and returns their statuses.
func (c *contest) send(calls ...at) []int {
	out := make([]int, len(calls))
	c.said = make([]string, len(calls))
	var wg sync.WaitGroup
	for i, a := range calls {
		node := c.nodes[c.random.IntN(len(c.nodes))]
		r := request(a.method, a.path, a.by, strings.NewReader(a.body))
		wg.Go(func() {
			w := httptest.NewRecorder()
			node.ServeHTTP(w, r)
			out[i], c.said[i] = w.Code, w.Body.String()
		})
	}
	wg.Wait()
	return out
}

func count(statuses []int, code int) int {
	n := 0
	for _, s := range statuses {
		if s == code {
			n++
		}
	}
	return n
}

func (c *contest) wantStatuses(got []int, allowed ...int) {
	c.t.Helper()
	for _, s := range got {
		if !slices.Contains(allowed, s) {
			c.t.Errorf("statuses %v, want only %v", got, allowed)
			return
		}
	}
}

func (c *contest) admins() (ids []string) {
	c.t.Helper()
	all, err := c.registry.Operators(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, op := range all {
		if op.Role == scafo.RoleAdmin {
			ids = append(ids, op.ID)
		}
	}
	return ids
}

func (c *contest) app() scafo.Application {
	c.t.Helper()
	a, err := c.registry.Application(c.t.Context(), "shop")
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

func TestRaceOfTheLastTwoAdmins(t *testing.T) {
	race(t, func(c *contest) {
		got := c.send(at{"DELETE", "/v1/operators/second", "admin", ""}, at{"DELETE", "/v1/operators/admin", "second", ""})
		// The loser is told that it is about the last admin, or is gone already.
		c.wantStatuses(got, 200, 409, 401)
		if n := count(got, 200); n != 1 {
			c.t.Errorf("%d removals succeeded: %v", n, got)
		}
		if ids := c.admins(); len(ids) != 1 {
			c.t.Errorf("admins %v are left", ids)
		}
	})
}

// Admins who register and revoke each other at random, each several times.
func TestRaceOfRegistrationsAndRevocations(t *testing.T) {
	race(t, func(c *contest) {
		ids := []string{"admin", "second", "third"}
		body := func(id string) string { return grant(id, `"role":"admin"`, `"applications":["*"]`) }
		c.send(at{"POST", "/v1/operators", "admin", body("third")})
		for range 3 {
			var calls []at
			for range 5 {
				by, about := ids[c.random.IntN(3)], ids[c.random.IntN(3)]
				if c.random.IntN(2) == 0 {
					calls = append(calls, at{"DELETE", "/v1/operators/" + about, by, ""})
				} else {
					calls = append(calls, at{"POST", "/v1/operators", by, body(about)})
				}
			}
			c.wantStatuses(c.send(calls...), 200, 400, 401, 404, 409)
			left := c.admins()
			if len(left) == 0 {
				c.t.Fatalf("no admin is left after %+v", calls)
			}
			// What is left works, also where a node knew for a moment that it is not there.
			time.Sleep(auth.UnknownTTL)
			c.wantStatuses(c.send(at{"POST", "/v1/operators", left[0], body("third")}), 200)
			if !slices.Contains(c.admins(), "third") {
				c.t.Error("an acknowledged registration is lost")
			}
		}
	})
}

func TestRaceOfRotations(t *testing.T) {
	race(t, func(c *contest) {
		// Two rotations of one key, each as its owner repeats it.
		one, two := grant("tenant-1", `"supersedes":"tenant"`), grant("tenant-2", `"supersedes":"tenant"`)
		post := func(body string) at { return at{"POST", "/v1/operators", "tenant", body} }
		c.wantStatuses(c.send(post(one), post(two), post(one), post(two)), 200)
		remove := func(by string) at { return at{"DELETE", "/v1/operators/tenant", by, ""} }
		got := c.send(remove("tenant-1"), remove("tenant-2"))
		c.wantStatuses(got, 200, 404)
		if count(got, 200) == 0 {
			c.t.Errorf("%v", got)
		}
		if err := operators("admin", "former", "second", "tenant-1", "tenant-2")(c.registry); err != nil {
			c.t.Error(err)
		}
	})
}

func TestRaceOfSetters(t *testing.T) {
	race(t, func(c *contest) {
		set := func(action, body string) at { return at{"POST", "/v1/applications/shop/" + action, "admin", body} }
		c.wantStatuses(c.send(set("block", ""), set("retire", ""), set("labels", `{"labels":{"a":"b"}}`), set("selector", `{"selector":{"c":"d"}}`), set("replicas", `{"replicas":7}`)), 200)
		if a := c.app(); a.Blocked == nil || a.Retired == nil || a.Labels["a"] != "b" || a.Selector["c"] != "d" || a.Replicas.Count != 7 {
			c.t.Errorf("an acknowledged change is lost: %+v", a)
		}
		c.wantStatuses(c.send(set("replicas", `{"replicas":1}`), set("replicas", `{"replicas":2}`), set("unblock", ""), set("block", ""), set("unretire", "")), 200)
		if a := c.app(); a.Retired != nil || a.Replicas.Count != 1 && a.Replicas.Count != 2 || a.Labels["a"] != "b" {
			c.t.Errorf("%+v", a)
		}
	})
}

func TestRaceOfSettersWithTheEnd(t *testing.T) {
	race(t, func(c *contest) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := c.registry.UpdateApplication(context.Background(), "shop", func(a *scafo.Application) error {
				a.Deleting = &scafo.Deleting{Fence: 1}
				return nil
			})
			if err != nil {
				c.t.Error(err)
			}
		}()
		set := func(action, body string) at { return at{"POST", "/v1/applications/shop/" + action, "admin", body} }
		c.wantStatuses(c.send(set("retire", ""), set("replicas", `{"replicas":9}`)), 200, 409)
		<-done
		before := c.app()
		c.wantStatuses(c.send(set("block", ""), set("unretire", "")), 409)
		if after := c.app(); after.Write != before.Write || after.Deleting == nil {
			c.t.Errorf("changed while it was being deleted: %+v", after)
		}
	})
}

func TestRaceOfFreezes(t *testing.T) {
	race(t, func(c *contest) {
		freeze := func(by, reason string) at {
			return at{"POST", "/v1/fleet/freeze", by, fmt.Sprintf(`{"reason":%q}`, reason)}
		}
		lift := at{"DELETE", "/v1/fleet/freeze", "admin", ""}
		c.wantStatuses(c.send(freeze("admin", "one"), freeze("second", "two"), freeze("admin", "three")), 200)
		if n := strings.Count(strings.Join(c.said, ""), `"created":true`); n != 1 {
			c.t.Errorf("%d of them made the freeze: %v", n, c.said)
		}
		first, err := c.registry.Freeze(c.t.Context())
		if err != nil || first == nil {
			c.t.Fatal(first, err)
		}
		c.wantStatuses(c.send(freeze("second", "four")), 200)
		first.Header = scafo.Header{} // it is written anew, and stays what it is
		now, err := c.registry.Freeze(c.t.Context())
		if err != nil || now == nil {
			c.t.Fatal(now, err)
		}
		if now.Header = (scafo.Header{}); *now != *first {
			c.t.Errorf("%+v became %+v", first, now)
		}
		c.wantStatuses(c.send(lift, freeze("admin", "five"), lift), 200)
		c.wantStatuses(c.send(lift), 200)
		if now, err := c.registry.Freeze(c.t.Context()); err != nil || now != nil {
			c.t.Errorf("%+v %v", now, err)
		}
	})
}

// One token, twenty times at once, on two nodes: one of the calls is accepted, and does
// what it is for once.
func TestRaceOfOneToken(t *testing.T) {
	race(t, func(c *contest) {
		for _, call := range []at{{"GET", "/v1/applications/shop", "", ""}, {"POST", "/v1/applications/shop/retire", "", ""}} {
			authorization := bearer("admin")
			statuses := make([]int, 20)
			var wg sync.WaitGroup
			for i := range statuses {
				r := request(call.method, call.path, "", strings.NewReader(""))
				r.Header.Set("Authorization", authorization)
				node := c.nodes[c.random.IntN(len(c.nodes))]
				wg.Go(func() {
					w := httptest.NewRecorder()
					node.ServeHTTP(w, r)
					statuses[i] = w.Code
				})
			}
			wg.Wait()
			if count(statuses, 200) != 1 || count(statuses, 401) != len(statuses)-1 {
				c.t.Errorf("%s %s: %v", call.method, call.path, statuses)
			}
		}
		if a := c.app(); a.Retired == nil {
			c.t.Error("an acknowledged change is lost")
		}
	})
}
