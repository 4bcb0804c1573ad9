package reconcile

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/deletion"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

// Forward makes deletes the network between the nodes of a world.
func (d *deletes) Forward(ctx context.Context, to scafo.Node, r deletion.Request) (*deletion.Answer, error) {
	if d.w.node(to.ID) == nil {
		return nil, errUnreachable
	}
	d.mu.Lock()
	s := d.of[to.ID]
	d.mu.Unlock()
	o, err := s.Delete(ctx, r)
	if err != nil {
		return nil, err
	}
	defer o.Keys.Close()
	for {
		if _, err := o.Keys.Next(ctx); err != nil {
			return &deletion.Answer{Status: 200, Body: io.NopCloser(strings.NewReader(""))}, nil
		}
	}
}

// lives is what a test knows of every life that there was.
type lives struct {
	mu   sync.Mutex
	keys map[string][]string // guarded by mu; those that were written, by uid
	name map[string]string   // guarded by mu; by uid
}

// Deploys, deletions, machines that die and come back, lost answers and forgotten
// runtimes, all at random. Whatever happens, an application that lives has every key
// that was written for it, a deletion that has begun comes to its end, and when
// everything was deleted nothing is left of any life that there ever was.
func TestWhateverHappensNoLifeReachesTheNext(t *testing.T) {
	seeds := chaosSeeds
	if n, err := strconv.Atoi(os.Getenv("SCAFO_CHAOS_SEEDS")); err == nil {
		seeds = n
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { deletionChaos(t, uint64(seed)) })
		})
	}
}

func deletionChaos(t *testing.T, seed uint64) {
	w := newWorld(t)
	defer w.end()
	d := newDeletes(w)
	d.forward = true
	rnd := rand.New(rand.NewPCG(seed, 2))
	all := []string{"a", "b", "c"}
	for _, id := range all {
		w.start(id, d.option)
	}
	k := &lives{keys: map[string][]string{}, name: map[string]string{}}
	for range 60 {
		k.mishap(w, d, rnd, all)
		time.Sleep(time.Duration(rnd.IntN(8000)) * time.Millisecond)
		k.intact(t, w, seed)
	}
	w.mu.Lock()
	clear(w.cut)
	w.mu.Unlock()
	for _, id := range all {
		if n := w.node(id); n == nil {
			w.start(id, d.option)
		} else {
			n.bucket.SetDown(false)
		}
	}
	w.until(4*time.Minute, fmt.Sprintf("seed %d: every deletion has ended", seed), func() bool {
		apps, err := w.reg.Applications(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range apps {
			if a.Deleting != nil {
				return !sleepy()
			}
		}
		return len(w.coordinators()) == 1 || !sleepy()
	})
	k.intact(t, w, seed)
	for _, name := range chaosNames() {
		k.deploy(w, name) // so that there is one to delete
		w.until(10*time.Minute, fmt.Sprintf("seed %d: %s is deleted", seed, name), func() bool {
			for _, id := range w.coordinators() {
				// A last slow answer may be in the way.
				if _, err := d.delete(id, name); err == nil || scafo.CodeOf(err) == scafo.CodeNotFound {
					return true
				}
			}
			return !sleepy()
		})
	}
	time.Sleep(2 * time.Minute)
	for uid := range k.keys {
		for key := range w.store.Dump() {
			if strings.Contains(key, uid) {
				t.Errorf("seed %d: %s is left", seed, key)
			}
		}
		if on := w.kept(uid); len(on) > 0 {
			t.Errorf("seed %d: %s is on %v", seed, uid, on)
		}
	}
	check.Bucket(t, w.store)
}

func chaosNames() []string { return []string{"shop", "shop-x", "blog"} }

// deploy makes a life of a name, or goes on with the one that there is.
func (k *lives) deploy(w *world, name string) {
	app, _, err := w.reg.CreateApplication(w.t.Context(), name, "test", nil)
	if err == nil {
		err = w.reg.RecordDeployment(w.t.Context(), scafo.Deployment{Application: name, UID: app.UID, Version: "v1", At: w.reg.Now()})
	}
	if err != nil {
		return // it is being deleted
	}
	k.write(w, name, app.UID)
	_, _ = w.reg.UpdateApplication(w.t.Context(), name, func(a *scafo.Application) error {
		if a.UID == app.UID {
			a.DeploySeq++
			a.Deployment = "v1"
		}
		return nil
	})
}

// write is a runtime, forgotten or not, that writes a key of its life.
func (k *lives) write(w *world, name, uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := fmt.Sprintf("%sobjects/%d", registry.RuntimePrefix(name, uid), len(k.keys[uid]))
	if _, err := w.store.Put(w.t.Context(), key, []byte("x")); err != nil {
		w.t.Fatal(err)
	}
	k.keys[uid], k.name[uid] = append(k.keys[uid], key), name
}

// intact checks that whatever lives has all of its keys.
func (k *lives) intact(t *testing.T, w *world, seed uint64) {
	t.Helper()
	apps, err := w.reg.Applications(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	there := w.store.Dump()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range apps {
		if a.Deleting != nil {
			continue
		}
		for _, key := range k.keys[a.UID] {
			if _, ok := there[key]; !ok {
				t.Fatalf("seed %d: %s lives and has lost %s", seed, a.Name, key)
			}
		}
	}
}

// mishap is one thing that happens.
func (k *lives) mishap(w *world, d *deletes, rnd *rand.Rand, all []string) {
	id := all[rnd.IntN(len(all))]
	n := w.node(id)
	name := chaosNames()[rnd.IntN(len(chaosNames()))]
	if n == nil {
		w.start(id, d.option)
		return
	}
	switch rnd.IntN(12) {
	case 0:
		d.kill(id)
	case 1:
		w.isolate(id, all[rnd.IntN(len(all))], rnd.IntN(2) == 0)
	case 2:
		n.bucket.SetDown(rnd.IntN(2) == 0)
	case 3:
		n.bucket.Inject(fault.Rule{Kind: fault.LostApplied, Times: 1 + rnd.IntN(3)})
	case 4:
		n.bucket.Inject(fault.Rule{Kind: fault.LostNotApplied, Times: 1 + rnd.IntN(3)})
	case 5:
		n.bucket.Inject(fault.Rule{Latency: time.Duration(rnd.IntN(90)) * time.Second, Times: 1 + rnd.IntN(3)})
	case 6:
		k.mu.Lock()
		uids := slices.Sorted(maps.Keys(k.keys))
		k.mu.Unlock()
		if len(uids) > 0 {
			uid := uids[rnd.IntN(len(uids))]
			k.write(w, k.name[uid], uid)
		}
	case 7, 8, 9:
		k.deploy(w, name)
	default:
		go func() { _, _ = d.delete(id, name) }()
	}
}
