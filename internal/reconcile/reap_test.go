package reconcile

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

// accept records a deploy as the node's intake does.
func (w *world) accept(via, app, hex string, state scafo.DeployState) scafo.DeployID {
	w.t.Helper()
	id := scafo.DeployID{Application: app, Hex: hex}
	err := w.node(via).reg.CreateDeploy(w.t.Context(), scafo.Deploy{
		DeployStatus: scafo.DeployStatus{ID: id.String(), Application: app, State: state}, Node: via, AcceptedAt: time.Now(), MovedAt: time.Now(),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

func (w *world) deployRecord(id scafo.DeployID) (scafo.Deploy, bool) {
	d, err := w.reg.Deploy(w.t.Context(), id)
	if scafo.CodeOf(err) == scafo.CodeNotFound {
		return scafo.Deploy{}, false
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return d.Value, true
}

// followed notes what the deploys' own cleaning up was asked for.
type followed struct {
	mu  sync.Mutex
	ids []string // guarded by mu
}

func (f *followed) option(c *Config, _ *fakeSupervisor, _ *scafo.Node) {
	c.Abandoned = func(_ context.Context, d scafo.Deploy) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ids = append(f.ids, d.ID+" "+string(d.State))
		return nil
	}
}

func (f *followed) all() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.ids, ", ")
}

func TestDeploysOfADeadNodeAreReaped(t *testing.T) {
	for _, when := range []string{"announced while the coordinator watched", "before it watched"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.end()
				var f followed
				w.start("a", f.option)
				w.until(10*time.Second, "a coordinates", func() bool { return len(w.coordinators()) == 1 })
				w.start("b", f.option)
				time.Sleep(20 * time.Second)
				w.deploy("a", "shop", "v1")
				if when == "before it watched" {
					w.kill("a")
				}
				open := w.accept("b", "shop", "00000000000000aa", scafo.DeployUploading)
				done := w.accept("b", "shop", "00000000000000bb", scafo.DeployDeployed)
				died := time.Now()
				w.kill("b")
				if when == "before it watched" {
					w.start("a", f.option)
				}
				time.Sleep(time.Until(died.Add(88 * time.Second)))
				if d, _ := w.deployRecord(open); d.State != scafo.DeployUploading {
					t.Fatalf("judged before its 90 seconds: %+v", d)
				}
				within := 30 * time.Second
				if when == "before it watched" {
					within = time.Minute // the peer was never reached: 100 s
				}
				w.until(within, "the deploy is given up", func() bool {
					d, _ := w.deployRecord(open)
					return d.State == scafo.DeployFailed
				})
				d, _ := w.deployRecord(open)
				if want := plan.Abandoned(scafo.Deploy{DeployStatus: scafo.DeployStatus{ID: open.String(), Application: "shop"}, Node: "b"}); d.Code != scafo.CodeDeployTimeout || d.Detail != want.Detail || d.FinishedAt == nil {
					t.Errorf("record %+v", d)
				}
				time.Sleep(time.Minute)
				if got := f.all(); got != open.String()+" failed" {
					t.Errorf("cleaned up after: %s", got)
				}
				if d, _ := w.deployRecord(done); d.State != scafo.DeployDeployed {
					t.Errorf("a terminal deploy was touched: %+v", d)
				}
			})
		})
	}
}

func TestDeploysOfALivingNodeAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 1, "a", "b")
		open := w.accept("b", "app-0", "00000000000000aa", scafo.DeployAccepted)
		time.Sleep(10 * time.Minute)
		if d, _ := w.deployRecord(open); d.State != scafo.DeployAccepted {
			t.Errorf("record %+v", d)
		}
	})
}

func TestTerminalDeploysGoAfterSevenDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 1, "a")
		w.ago.Store(int64(7*24*time.Hour - 90*time.Minute))
		old := w.accept("a", "app-0", "00000000000000aa", scafo.DeployFailed)
		w.ago.Store(int64(24 * time.Hour))
		young := w.accept("a", "app-0", "00000000000000bb", scafo.DeployDeployed)
		w.ago.Store(0)
		time.Sleep(89 * time.Minute)
		if _, ok := w.deployRecord(old); !ok {
			t.Fatal("deleted before seven days")
		}
		time.Sleep(time.Hour + 2*time.Minute)
		if _, ok := w.deployRecord(old); ok {
			t.Error("still there after seven days and an hour")
		}
		if _, ok := w.deployRecord(young); !ok {
			t.Error("a young one was deleted")
		}
	})
}

func TestASlotOfADeployThatEndedIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		var f followed
		w.start("a", f.option)
		w.until(10*time.Second, "a coordinates", func() bool { return len(w.coordinators()) == 1 })
		w.deploy("a", "shop", "v1")
		id := w.accept("a", "shop", "00000000000000aa", scafo.DeployFailed)
		w.update("shop", func(a *scafo.Application) { a.Publishing = &scafo.Publishing{Deploy: id.String(), Seq: 1} })
		time.Sleep(119 * time.Second)
		if got := f.all(); got != "" {
			t.Fatalf("cleaned up at once: %s", got)
		}
		w.until(30*time.Second, "its slot is looked after", func() bool { return f.all() == id.String()+" failed" })
	})
}

func TestClaimsThatNobodyListsAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 1, "a")
		app := w.node("a").loop.Snapshot().Applications["app-0"]
		w.update("app-0", func(a *scafo.Application) { a.Domains = []scafo.Domain{{Host: "listed.example"}} })
		for _, c := range []scafo.Claim{
			{Host: "listed.example", State: scafo.ClaimHeld}, {Host: "pending.example", State: scafo.ClaimPending}, {Host: "unlisted.example", State: scafo.ClaimHeld},
		} {
			c.Application, c.UID, c.At = app.Name, app.UID, time.Now()
			_, err := registry.Update(t.Context(), w.reg, registry.ClaimKey(c.Host), func(d *registry.Doc[scafo.Claim]) error {
				d.Value = c
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.reg.Announce(t.Context(), registry.ClaimKey(c.Host)); err != nil {
				t.Fatal(err)
			}
		}
		states := func() string {
			var s []string
			for _, h := range []string{"listed.example", "pending.example", "unlisted.example"} {
				d, err := registry.Load[scafo.Claim](t.Context(), w.reg, registry.ClaimKey(h))
				if err != nil {
					t.Fatal(err)
				}
				s = append(s, string(d.Value.State))
			}
			return strings.Join(s, " ")
		}
		time.Sleep(9*time.Minute + 50*time.Second)
		if got := states(); got != "held pending held" {
			t.Fatalf("before ten minutes: %s", got)
		}
		w.until(time.Minute, "what nobody lists is released", func() bool { return states() == "held released released" })
	})
}

func TestTokensAreSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		settled(t, w, 0, "a")
		for i := range 3 {
			if err := w.reg.UseToken(t.Context(), time.Now().Add(time.Minute), "op", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		tokens := func() int {
			n := 0
			for k := range w.store.Dump() {
				if strings.HasPrefix(k, registry.TokenPrefix) {
					n++
				}
			}
			return n
		}
		time.Sleep(5 * time.Minute)
		if tokens() != 3 {
			t.Errorf("%d tokens are left after five minutes", tokens())
		}
		time.Sleep(20 * time.Minute)
		if tokens() != 0 {
			t.Errorf("%d tokens are left after 25 minutes", tokens())
		}
	})
}
