package api_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry/check"
)

// raceDomains is a race among applications, after which every claim is either held
// and listed or released.
func raceDomains(t *testing.T, f func(c *contest)) {
	t.Helper()
	race(t, func(c *contest) {
		for _, name := range []string{"rival", "third"} {
			if _, _, err := c.registry.CreateApplication(c.t.Context(), name, "admin", nil); err != nil {
				c.t.Fatal(err)
			}
		}
		f(c)
		check.Settled(c.t, c.store)
	})
}

func claim(name, host string) at {
	return at{"POST", "/v1/applications/" + name + "/domains/" + host, "admin", ""}
}

func release(name, host string) at {
	return at{"DELETE", "/v1/applications/" + name + "/domains/" + host, "admin", ""}
}

// holds is whether an application lists a host; that what is listed is held is checked
// after every race.
func (c *contest) holds(name, host string) bool {
	c.t.Helper()
	a, err := c.registry.Application(c.t.Context(), name)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, d := range a.Domains {
		if d.Host == host {
			return true
		}
	}
	return false
}

// within is a random time: a claim has a dozen requests before the ones that matter.
func (c *contest) within(d time.Duration) time.Duration {
	return time.Duration(c.random.Int64N(int64(d)))
}

// acknowledged says that a claim stands if, and only if, it was answered 200.
func (c *contest) acknowledged(status int, name, host string) {
	c.t.Helper()
	if won := c.holds(name, host); won != (status == 200) {
		c.t.Errorf("%s of %s was answered %d, and it is held: %v", name, host, status, won)
	}
}

func TestRaceOfClaimsOfOneHost(t *testing.T) {
	raceDomains(t, func(c *contest) {
		got := c.send(claim("shop", "a.example"), claim("rival", "a.example"), claim("third", "a.example?wildcard=1"))
		c.wantStatuses(got, 200, 409)
		if n := count(got, 200); n != 1 {
			c.t.Errorf("%d claims of one host won: %v", n, got)
		}
		for i, name := range []string{"shop", "rival", "third"} {
			c.acknowledged(got[i], name, "a.example")
		}
	})
}

// Both may lose; they never both win.
func TestRaceOfParentAndChild(t *testing.T) {
	won := [3]int{}
	raceDomains(t, func(c *contest) {
		got := c.send(claim("shop", "a.example?wildcard=1"), claim("rival", "x.a.example"))
		c.wantStatuses(got, 200, 409)
		n := count(got, 200)
		won[n]++
		if n == 2 {
			c.t.Errorf("both won: %v", got)
		}
		c.acknowledged(got[0], "shop", "a.example")
		c.acknowledged(got[1], "rival", "x.a.example")
		if n == 0 {
			// Nothing of either is left: each may have it now.
			c.wantStatuses(c.send(claim("third", "a.example?wildcard=1")), 200)
		}
	})
	t.Logf("both lost in %d rounds of %d", won[0], rounds)
	if won[1] == 0 {
		t.Error("nobody ever won")
	}
}

// The holder of a host asks for its subdomains while others claim some of them: what
// it holds it keeps all the while.
func TestRaceOfSubdomains(t *testing.T) {
	raceDomains(t, func(c *contest) {
		c.wantStatuses(c.send(claim("shop", "a.example")), 200)
		got := c.send(claim("shop", "a.example?wildcard=1"), claim("rival", "x.a.example"), claim("third", "y.a.example?wildcard=1"))
		c.wantStatuses(got, 200, 409)
		if got[0] == 200 && count(got, 200) > 1 {
			c.t.Errorf("the subdomains, and some of them, were both won: %v", got)
		}
		if !c.holds("shop", "a.example") {
			c.t.Error("a claim was lost while it was to be widened")
		}
		c.acknowledged(got[1], "rival", "x.a.example")
		c.acknowledged(got[2], "third", "y.a.example")
	})
}

// The same owner asks through two nodes, with and without the subdomains.
func TestRaceOfOneOwner(t *testing.T) {
	raceDomains(t, func(c *contest) {
		c.wantStatuses(c.send(claim("shop", "a.example"), claim("shop", "a.example?wildcard=1"), claim("shop", "a.example"), claim("shop", "x.a.example")), 200)
		for _, err := range []error{holdsDomain("a.example", true)(c.registry), holdsDomain("x.a.example", false)(c.registry)} {
			if err != nil {
				c.t.Error(err)
			}
		}
	})
}

// A claim and a release of one host meet in two documents: they end in one order or
// the other, in both of them.
func TestRaceOfClaimAndRelease(t *testing.T) {
	ended := map[bool]int{}
	raceDomains(t, func(c *contest) {
		first := c.random.IntN(2) == 0
		if first {
			c.wantStatuses(c.send(claim("shop", "a.example")), 200)
		}
		got := c.send(claim("shop", "a.example"), release("shop", "a.example"), claim("shop", "a.example?wildcard=1"), release("shop", "a.example"))
		c.wantStatuses([]int{got[0], got[2]}, 200)
		c.wantStatuses([]int{got[1], got[3]}, 200, 404)
		held := c.holds("shop", "a.example")
		ended[held]++
		// A release that found nothing came before every claim: then all of them stand.
		if got[1] == 404 && got[3] == 404 && !held {
			c.t.Errorf("acknowledged claims are gone, and nobody released them: %v", got)
		}
		c.wantStatuses(c.send(release("rival", "a.example")), 404)
	})
	if ended[true] == 0 || ended[false] == 0 {
		t.Errorf("the races ended %v", ended)
	}
}

// The host goes from one application to another.
func TestRaceOfReleaseAndRival(t *testing.T) {
	raceDomains(t, func(c *contest) {
		c.wantStatuses(c.send(claim("shop", "a.example?wildcard=1")), 200)
		got := c.send(release("shop", "a.example"), claim("rival", "a.example"), claim("third", "x.a.example"))
		c.wantStatuses(got[:1], 200)
		c.wantStatuses(got[1:], 200, 409)
		c.acknowledged(got[1], "rival", "a.example")
		c.acknowledged(got[2], "third", "x.a.example")
	})
}

func TestRaceOfClaimsAndSetters(t *testing.T) {
	raceDomains(t, func(c *contest) {
		got := c.send(
			claim("shop", "a.example?wildcard=1"), claim("shop", "b.example"),
			at{"POST", "/v1/applications/shop/block", "admin", ""},
			at{"POST", "/v1/applications/shop/replicas", "admin", `{"replicas":7}`},
			release("rival", "a.example"),
		)
		c.wantStatuses(got[:2], 200, 409) // refused where the block came first
		c.wantStatuses(got[2:4], 200)
		c.acknowledged(got[0], "shop", "a.example")
		c.acknowledged(got[1], "shop", "b.example")
		if a := c.app(); a.Blocked == nil || a.Replicas.Count != 7 {
			c.t.Errorf("an acknowledged change is lost: %+v", a)
		}
		// Releasing stays open, claiming does not.
		c.wantStatuses(c.send(claim("shop", "c.example")), 409)
		for i, host := range []string{"a.example", "b.example"} {
			if got[i] == 200 {
				c.wantStatuses(c.send(release("shop", host)), 200)
			}
		}
	})
}

func TestRaceOfTheLastPlace(t *testing.T) {
	raceDomains(t, func(c *contest) {
		a := c.app()
		for i := range scafo.MaxDomains - 1 {
			host := fmt.Sprintf("h%d.example", i)
			if err := putClaim(c.registry, scafo.Claim{Host: host, Application: "shop", UID: a.UID, State: scafo.ClaimHeld}); err != nil {
				c.t.Fatal(err)
			}
			a.Domains = append(a.Domains, scafo.Domain{Host: host})
		}
		if err := setUp(func(now *scafo.Application) { now.Domains = a.Domains })(c.registry); err != nil {
			c.t.Fatal(err)
		}
		got := c.send(claim("shop", "a.example"), claim("shop", "b.example"), claim("shop", "c.example"))
		c.wantStatuses(got, 200, 400)
		if n := count(got, 200); n != 1 {
			c.t.Errorf("%d claims took one place: %v", n, got)
		}
		for i, host := range []string{"a.example", "b.example", "c.example"} {
			c.acknowledged(got[i], "shop", host)
		}
	})
}

// The coordinator takes back what nobody lists while the owner repeats its claim.
func TestRaceOfClaimAndCoordinator(t *testing.T) {
	raceDomains(t, func(c *contest) {
		states := []scafo.ClaimState{scafo.ClaimHeld, scafo.ClaimHeld, scafo.ClaimPending}
		if err := halfDone(c.registry, states[c.random.IntN(3)], false); err != nil {
			c.t.Fatal(err)
		}
		seen, err := claimOf(c.registry, "shop.example")
		if err != nil {
			c.t.Fatal(err)
		}
		done, late := make(chan struct{}), c.within(150*time.Millisecond)
		go func() {
			defer close(done)
			time.Sleep(late)
			if _, _, err := c.slow[1].SettleClaim(context.Background(), "shop.example", seen.Write); err != nil {
				c.t.Error(err)
			}
		}()
		got := c.send(claim("shop", "shop.example"))
		<-done
		c.wantStatuses(got, 200)
		if err := holdsDomain("shop.example", false)(c.registry); err != nil {
			c.t.Error(err)
		}
	})
}

// An entry without a claim is taken out while the owner claims it anew.
func TestRaceOfClaimAndListing(t *testing.T) {
	raceDomains(t, func(c *contest) {
		a := c.app()
		if err := setUp(func(a *scafo.Application) { a.Domains = []scafo.Domain{{Host: "shop.example"}} })(c.registry); err != nil {
			c.t.Fatal(err)
		}
		done, late := make(chan struct{}), c.within(150*time.Millisecond)
		go func() {
			defer close(done)
			time.Sleep(late)
			if _, err := c.slow[1].SettleListing(context.Background(), "shop", a.UID, "shop.example"); err != nil {
				c.t.Error(err)
			}
		}()
		got := c.send(claim("shop", "shop.example"), claim("shop", "shop.example"))
		<-done
		c.wantStatuses(got, 200)
		if err := holdsDomain("shop.example", false)(c.registry); err != nil {
			c.t.Error(err)
		}
	})
}

// A deletion that begins releases what it knows of, and nothing is claimed after.
func TestRaceOfClaimsWithTheEnd(t *testing.T) {
	raceDomains(t, func(c *contest) {
		c.wantStatuses(c.send(claim("shop", "b.example")), 200)
		uid := c.app().UID
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := c.slow[0].UpdateApplication(context.Background(), "shop", func(a *scafo.Application) error {
				a.Deleting = &scafo.Deleting{Fence: 1, At: c.registry.Now(), By: "admin"}
				return nil
			})
			if err != nil {
				c.t.Error(err)
			}
			if _, err := c.slow[0].ReleaseClaims(context.Background(), "shop", uid); err != nil {
				c.t.Error(err)
			}
		}()
		c.wantStatuses(c.send(claim("shop", "a.example"), claim("shop", "x.b.example?wildcard=1")), 200, 409)
		<-done
		// Every host is free for others, at once.
		c.wantStatuses(c.send(claim("rival", "a.example"), claim("rival", "b.example?wildcard=1"), claim("rival", "x.b.example")), 200)
	})
}

// mixed are calls of all kinds about a few hosts that get in each other's way.
func (c *contest) mixed(n int) (calls []at) {
	hosts := []string{"a.example", "x.a.example", "y.x.a.example", "y.a.example"}
	for range n {
		name, host := []string{"shop", "rival", "third"}[c.random.IntN(3)], hosts[c.random.IntN(len(hosts))]
		switch c.random.IntN(5) {
		case 0, 1:
			calls = append(calls, claim(name, host))
		case 2:
			calls = append(calls, claim(name, host+"?wildcard=1"))
		default:
			calls = append(calls, release(name, host))
		}
	}
	return calls
}

func TestRaceOfEverythingAboutDomains(t *testing.T) {
	won := 0
	raceDomains(t, func(c *contest) {
		for range 3 {
			got := c.send(c.mixed(8)...)
			c.wantStatuses(got, 200, 404, 409)
			won += count(got, 200)
			check.Bucket(c.t, c.store)
			check.Settled(c.t, c.store)
		}
	})
	if won < rounds {
		t.Errorf("only %d calls succeeded", won)
	}
}

// The same over a store that loses requests and answers: whatever failed, nothing that
// the registry forbids comes of it, and the coordinator ends what is left.
func TestRaceOfDomainsOverABadStore(t *testing.T) {
	failed := 0
	raceDomains(t, func(c *contest) {
		var stop []func()
		for i := range c.stores {
			stop = append(stop, c.stores[i].failing(c.random.Uint64(), 0.05, fault.Unavailable, fault.LostApplied, fault.LostNotApplied, fault.Refused))
		}
		for range 2 {
			got := c.send(c.mixed(6)...)
			c.wantStatuses(got, 200, 404, 409, 503)
			failed += count(got, 503)
		}
		for _, f := range stop {
			f()
		}
		time.Sleep(time.Minute)
		c.settle()
	})
	if failed == 0 {
		t.Error("no call failed")
	}
}

// settle is what the coordinator does with what stood for ten minutes.
func (c *contest) settle() {
	c.t.Helper()
	var watch plan.ClaimWatch
	// An entry whose claim is taken back is wrong only from then on: it is seen in the
	// next pass, and has its own ten minutes.
	for _, after := range []time.Duration{0, plan.ClaimStaleAfter, 2 * plan.ClaimStaleAfter, 3 * plan.ClaimStaleAfter} {
		claims, apps := map[string]scafo.Claim{}, map[string]scafo.Application{}
		for _, host := range []string{"a.example", "x.a.example", "y.x.a.example", "y.a.example"} {
			v, err := claimOf(c.registry, host)
			if err != nil {
				c.t.Fatal(err)
			}
			if v.Host != "" {
				claims[host] = v
			}
		}
		all, err := c.registry.Applications(c.t.Context())
		if err != nil {
			c.t.Fatal(err)
		}
		for _, a := range all {
			apps[a.Name] = a
		}
		now := c.registry.Now().Add(after)
		for _, d := range watch.Due(now, claims, apps) {
			if _, _, err := c.registry.SettleClaim(c.t.Context(), d.Seen.Host, d.Seen.Write); err != nil {
				c.t.Error(err)
			}
		}
		for _, d := range watch.DueListings(now, claims, apps) {
			if _, err := c.registry.SettleListing(c.t.Context(), d.Application, d.UID, d.Host); err != nil {
				c.t.Error(err)
			}
		}
	}
}
