package reconcile

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/cost"
	"github.com/scafo/scafo/internal/costtest"
	"github.com/scafo/scafo/internal/registry"
)

// idle counts a node's requests in ten minutes in which nothing happens.
func idle(t *testing.T, apps int) (passes int64, counts meter.Counts, last int64) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		n := w.start("a")
		for i := range apps {
			w.deploy("", fmt.Sprintf("app-%d", i), "v1")
		}
		w.until(time.Minute, "all are routed", func() bool { return len(n.routes()) == apps })
		time.Sleep(time.Minute)
		before, began := n.meter.Counts(), n.loop.Status().Passes
		time.Sleep(10 * time.Minute)
		counts, passes = n.meter.Counts().Since(before), n.loop.Status().Passes-began
		last = n.loop.Status().Requests
		rested := n.meter.Counts()
		if _, err := n.loop.State(t.Context()); err != nil {
			t.Error(err)
		}
		asked := n.meter.Counts().Since(rested)
		costtest.Rows(t)["GET /v1/state"].Check(t, "state", nil, int(asked.Total(meter.Get)), int(asked.Total()-asked.Total(meter.Get)), 0)
	})
	return passes, counts, last
}

func TestWhatIdleCosts(t *testing.T) {
	var first meter.Counts
	for _, apps := range []int{1, 100} {
		passes, counts, last := idle(t, apps)
		t.Logf("%d applications: %d passes, %v", apps, passes, counts)
		// An idle pass is one conditional read of the revision, each ten seconds.
		if last != 1 {
			t.Errorf("%d applications: an idle pass made %d requests", apps, last)
		}
		if got := counts.For("revision").Total(meter.Get); got != 60 || counts.For("revision").Total() != 60 {
			t.Errorf("%d applications: the revision was asked for %d times in ten minutes", apps, got)
		}
		// A heartbeat each 45 seconds is one request.
		if got := counts.For("heartbeat").Total(); got < 13 || got > 14 {
			t.Errorf("%d applications: %d requests for heartbeats", apps, got)
		}
		// The lease is renewed each five seconds.
		if got := counts.For("lease").Total(); got < 119 || got > 121 {
			t.Errorf("%d applications: %d requests for the lease", apps, got)
		}
		// The sweep of used tokens is a listing each ten minutes.
		if rest := counts.Total() - counts.For("revision").Total() - counts.For("heartbeat").Total() - counts.For("lease").Total(); rest > 2 {
			t.Errorf("%d applications: %d other requests: %v", apps, rest, counts)
		}
		if first == nil {
			first = counts
		} else if first.Total() != counts.Total() {
			t.Errorf("%d applications cost %d requests, one costs %d", apps, counts.Total(), first.Total())
		}
	}
}

// What the design lets scafo's own requests cost, in dollars a month at S3's list
// price, for ten nodes with a thousand idle applications.
const budget = 8

// spent is what nodes asked of the bucket since earlier copies, as it is paid.
func spent(nodes []*testNode, earlier []meter.Counts) cost.Requests {
	var list []scafo.BucketRequests
	for i, n := range nodes {
		for k, c := range n.meter.Counts().Since(earlier[i]) {
			list = append(list, scafo.BucketRequests{Op: string(k.Op), Purpose: k.Purpose, Count: c})
		}
	}
	return cost.Of(list)
}

func countsOf(nodes []*testNode) []meter.Counts {
	var out []meter.Counts
	for _, n := range nodes {
		out = append(out, n.meter.Counts())
	}
	return out
}

// crashLoop makes the application's processes on the node come up, lose their lease
// and come up again, each ten seconds, which is as fast as a loop can be for long.
func (n *testNode) crashLoop(t *testing.T, name string, stop <-chan struct{}) {
	set := func(f func(p *scafo.ProcessStatus)) {
		n.sup.settings(func(s *fakeSupervisor) {
			for uid, p := range s.procs {
				if p.Application == name {
					next := *p
					f(&next)
					s.procs[uid] = &next
				}
			}
			signal(s.changes)
		})
	}
	go func() {
		for {
			for _, step := range []func(p *scafo.ProcessStatus){
				func(p *scafo.ProcessStatus) {
					p.State, p.Deployment, p.LastExit = scafo.ProcessBackoff, "", &scafo.Exit{Code: 3, At: time.Now()}
					p.Restarts++
				},
				func(p *scafo.ProcessStatus) { p.State = scafo.ProcessStarting },
				func(p *scafo.ProcessStatus) { p.State, p.Deployment = scafo.ProcessReady, p.Wanted },
			} {
				set(step)
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Second / 3):
				}
			}
		}
	}()
}

// tenNodes is a fleet at rest that serves so many applications, and one on each node.
func tenNodes(w *world, apps int) (nodes []*testNode) {
	for i := range apps { // before there is anybody to tell
		name := fmt.Sprintf("app-%d", i)
		_, err := registry.Update(w.t.Context(), w.reg, registry.ApplicationKey(name), func(d *registry.Doc[scafo.Application]) error {
			d.Value = scafo.Application{Name: name, UID: fmt.Sprintf("%016x", i), Replicas: scafo.Replicas{Count: 1}, Deployment: "v1", DeploySeq: 1}
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	w.deploy("", "everywhere", "v1")
	w.update("everywhere", func(a *scafo.Application) { a.Replicas = scafo.Replicas{All: true} })
	for i := range 10 {
		nodes = append(nodes, w.start(fmt.Sprintf("n%d", i)))
	}
	w.until(10*time.Minute, "all are routed", func() bool { return len(nodes[0].routes()) == apps+1 && len(w.serving("everywhere")) == 10 })
	time.Sleep(2 * time.Minute)
	return nodes
}

// dollarsOf is what a month of the next twenty minutes costs at S3's list price.
func dollarsOf(nodes []*testNode) float64 {
	const d = 20 * time.Minute
	before := countsOf(nodes)
	time.Sleep(d)
	return cost.S3.Dollars(spent(nodes, before).Times(cost.Month / d.Seconds()))
}

// Ten nodes with a thousand idle applications stay within the budget.
func TestTheBudgetOfAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		nodes := tenNodes(w, 1000)
		// Once a day each node reads everything afresh; that is not in the twenty minutes.
		before := countsOf(nodes)
		nodes[3].loop.c.Store.Relist()
		nodes[3].loop.Kick()
		time.Sleep(time.Second)
		daily := cost.S3.Dollars(spent(nodes, before).Times(10 * cost.Month / (24 * 3600)))
		idle := daily + dollarsOf(nodes)
		t.Logf("%.2f dollars a month, %.2f of them for the daily reading", idle, daily)
		if idle > budget {
			t.Errorf("ten nodes with a thousand idle applications cost %.2f dollars a month, and the budget is %d", idle, budget)
		}
		if idle < 6.5 || daily == 0 {
			t.Errorf("%.2f dollars a month, %.3f for the daily reading, is less than heartbeats (2.88), lease (2.59) and revision (1.04) cost: something is not counted", idle, daily)
		}
	})
}

// An application that crash-loops, on one node or on all of them, cannot multiply
// what the fleet costs; once it does not any more, the fleet hears of it.
func TestACrashLoopCannotMultiplyTheCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		nodes := tenNodes(w, 20)
		idle := dollarsOf(nodes)
		stop := make(chan struct{})
		end := sync.OnceFunc(func() { close(stop) })
		defer end()
		looping := w.node(w.serving("app-7")[0])
		looping.crashLoop(t, "app-7", stop)
		time.Sleep(10 * time.Minute) // what may be told at once is used up
		one := dollarsOf(nodes)
		for _, n := range nodes {
			n.crashLoop(t, "everywhere", stop)
		}
		time.Sleep(10 * time.Minute)
		all := dollarsOf(nodes)
		t.Logf("idle %.2f dollars a month; one process loops %.2f; processes on every node loop %.2f", idle, one, all)
		if one > 1.05*idle || all > 1.40*idle {
			t.Errorf("idle %.2f dollars a month; one process loops %.2f; processes on every node loop %.2f", idle, one, all)
		}
		end()
		time.Sleep(time.Second)
		for _, n := range nodes {
			n.sup.settings(func(s *fakeSupervisor) {
				for uid, p := range s.procs {
					next := *p
					next.State, next.Deployment = scafo.ProcessReady, p.Wanted
					s.procs[uid] = &next
				}
				signal(s.changes)
			})
		}
		took := w.until(2*crashSettled, "every node routes them again", func() bool {
			for _, n := range nodes {
				r := n.routes()
				if len(r["everywhere.apps.example"]) != 10 || len(r["app-7.apps.example"]) != 1 {
					return false
				}
			}
			return true
		})
		if took > crashSettled+5*time.Second {
			t.Errorf("the fleet heard after %s that the loops have ended", took)
		}
	})
}

// What crashed now and then is told at once, and so is every other change, whatever
// loops; only when much was told of crashes does the next one wait.
func TestWhichNewsWait(t *testing.T) {
	exit := &scafo.Exit{Code: 1}
	loops := func(state scafo.ProcessState) scafo.ProcessStatus {
		return scafo.ProcessStatus{UID: "u", State: state, Wanted: "v1", LastExit: exit}
	}
	say := func(list ...scafo.ProcessStatus) beatContent { return beatContent{known: true, processes: list} }
	now := time.Now()
	var a crashNewsAllowance
	down, up := say(loops(scafo.ProcessBackoff)), say(loops(scafo.ProcessReady))
	a.look(now, down)
	for i := range crashNews {
		if at, crashes := a.from(now, up, down); !crashes || !at.Equal(now) {
			t.Fatalf("news %d: at %s, of crashes: %v", i, at.Sub(now), crashes)
		}
		a.take()
	}
	now = now.Add(time.Second)
	a.look(now, up)
	if at, _ := a.from(now, up, down); !at.Equal(now.Add(crashSettled)) {
		t.Errorf("it waits %s to be believed, want %s", at.Sub(now), crashSettled)
	}
	other := scafo.ProcessStatus{UID: "w", State: scafo.ProcessReady}
	deployed, refusing, draining := loops(scafo.ProcessReady), loops(scafo.ProcessReady), up
	deployed.Wanted, draining.draining = "v2", true
	refusing.Refused = &scafo.Refusal{Version: "v2"}
	for name, c := range map[string]beatContent{
		"another process": say(loops(scafo.ProcessReady), other), "another version": say(deployed),
		"a refusal": say(refusing), "a drain": draining, "none left": say(),
	} {
		if at, crashes := a.from(now, c, down); crashes || !at.Equal(now) {
			t.Errorf("%s waits %s", name, at.Sub(now))
		}
	}
	// It is saved up again.
	for range crashNews - 1 {
		now = now.Add(crashNewsEvery)
		a.look(now, down)
	}
	if a.saved != crashNews-1 {
		t.Errorf("%d are saved up, want %d", a.saved, crashNews-1)
	}
	now = now.Add(100 * crashNewsEvery)
	if a.look(now, down); a.saved != crashNews {
		t.Errorf("%d are saved up, want %d", a.saved, crashNews)
	}
}
