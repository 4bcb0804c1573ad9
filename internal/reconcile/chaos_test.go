package reconcile

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/registry"
)

// chaosSeeds is how many runs there are; SCAFO_CHAOS_SEEDS asks for more.
const chaosSeeds = 12

// TestWhateverHappensTheFleetComesToRest lets machines die and come back, cuts
// them off from each other and from the bucket, loses answers, drains, deploys and
// blocks, all at random; placements may never go back to an older fence meanwhile,
// and some time after the last fault every application is served exactly where it
// is placed, and routed on every node.
func TestWhateverHappensTheFleetComesToRest(t *testing.T) {
	seeds := chaosSeeds
	if n, err := strconv.Atoi(os.Getenv("SCAFO_CHAOS_SEEDS")); err == nil {
		seeds = n
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { chaos(t, uint64(seed)) })
		})
	}
}

func chaos(t *testing.T, seed uint64) {
	w := newWorld(t)
	defer w.end()
	rnd := rand.New(rand.NewPCG(seed, 1))
	all := []string{"a", "b", "c", "d"}
	for _, id := range all {
		w.start(id)
	}
	apps := 8
	for i := range apps {
		w.deploy("", fmt.Sprintf("app-%d", i), "v1")
	}
	w.update("app-0", func(a *scafo.Application) { a.Replicas = scafo.Replicas{Count: 2} })
	w.update("app-1", func(a *scafo.Application) { a.Replicas = scafo.Replicas{All: true} })
	fences := map[string]int64{}
	watch := func() {
		for key, body := range w.store.Dump() {
			var p scafo.Placement
			if !strings.HasPrefix(key, registry.PlacementPrefix) || json.Unmarshal(body, &p) != nil {
				continue
			}
			if p.Fence < fences[key] {
				t.Fatalf("seed %d: %s went back from fence %d to %d", seed, key, fences[key], p.Fence)
			}
			fences[key] = p.Fence
		}
	}
	for range 40 {
		w.mishap(rnd, all, apps)
		for range rnd.IntN(20) {
			time.Sleep(time.Second)
			watch()
		}
	}
	// The last fault ends.
	w.mu.Lock()
	clear(w.cut)
	w.mu.Unlock()
	for _, id := range all {
		if n := w.node(id); n == nil {
			w.start(id)
		} else {
			n.bucket.SetDown(false)
		}
	}
	w.until(4*time.Minute, fmt.Sprintf("seed %d comes to rest", seed), func() bool { return w.unrest(apps) == "" || !sleepy() })
	time.Sleep(2 * time.Minute)
	if why := w.unrest(apps); why != "" {
		t.Fatalf("seed %d: %s\n%s", seed, why, w.dump())
	}
	watch()
}

func sleepy() bool { time.Sleep(time.Second); return true }

// mishap is one thing that happens to the fleet.
func (w *world) mishap(rnd *rand.Rand, all []string, apps int) {
	id := all[rnd.IntN(len(all))]
	n := w.node(id)
	name := fmt.Sprintf("app-%d", rnd.IntN(apps))
	switch what := rnd.IntN(9); {
	case n == nil:
		w.start(id)
	case what == 0:
		w.kill(id)
	case what == 1:
		w.isolate(id, all[rnd.IntN(len(all))], rnd.IntN(2) == 0)
	case what == 2:
		n.bucket.SetDown(rnd.IntN(2) == 0)
	case what == 3:
		n.bucket.Inject(fault.Rule{Kind: fault.LostApplied, Times: 1 + rnd.IntN(3)})
	case what == 4:
		n.bucket.Inject(fault.Rule{Kind: fault.LostNotApplied, Times: 1 + rnd.IntN(3)})
	case what == 5:
		n.bucket.Inject(fault.Rule{Latency: time.Duration(rnd.IntN(6)) * time.Second, Times: 1 + rnd.IntN(3)})
	case what == 6:
		w.deploy("", name, fmt.Sprintf("v%d", rnd.IntN(1000)))
	case what == 7:
		w.update(name, func(a *scafo.Application) {
			if a.Blocked == nil {
				a.Blocked = &scafo.Stamp{By: "op"}
			} else {
				a.Blocked = nil
			}
		})
	default:
		ctx, cancel := contextFor(w.t, 20*time.Second)
		_ = n.loop.Drain(ctx) //nolint:errcheck // it may be cut off from everything
		cancel()
		w.kill(id)
	}
}

// unrest says what is not as it should be; empty when all is.
func (w *world) unrest(apps int) string {
	if c := w.coordinators(); len(c) != 1 {
		return fmt.Sprintf("coordinators: %v", c)
	}
	for i := range apps {
		name := fmt.Sprintf("app-%d", i)
		app, err := w.reg.Application(w.t.Context(), name)
		if err != nil {
			w.t.Fatal(err)
		}
		p, _ := w.placement(app)
		want := slices.Sorted(slices.Values(p.Nodes))
		if app.Blocked == nil && len(want) != map[string]int{"app-0": 2, "app-1": 4}[name] && len(want) != 1 {
			return fmt.Sprintf("%s is placed on %v", name, want)
		}
		if app.Blocked != nil {
			want = nil
		}
		var running []string
		for _, id := range w.ids() {
			for _, s := range w.node(id).sup.Statuses() {
				if s.Application != name {
					continue
				}
				running = append(running, id)
				if s.State != scafo.ProcessReady || s.Deployment != app.Deployment {
					return fmt.Sprintf("%s is %s on %s, serves %q of %q", name, s.State, id, s.Deployment, app.Deployment)
				}
			}
		}
		if !slices.Equal(running, want) {
			return fmt.Sprintf("%s is placed on %v and runs on %v", name, want, running)
		}
		for _, id := range w.ids() {
			routed := slices.Sorted(slices.Values(w.node(id).routes()[name+".apps.example"]))
			if !slices.Equal(routed, want) {
				return fmt.Sprintf("%s runs on %v, and %s routes it to %v", name, want, id, routed)
			}
		}
	}
	return ""
}
