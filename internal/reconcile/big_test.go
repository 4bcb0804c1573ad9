package reconcile

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

// BenchmarkPass is one pass of the coordinator of a hundred nodes with ten
// thousand applications when one application changed, against planning alone.
func BenchmarkPass(b *testing.B) {
	const nodes, apps = 100, 10000
	store := memory.New()
	reg := registry.New(store, registry.Options{Node: "node-00"})
	put := func(key string, err error) {
		if err != nil {
			b.Fatal(key, err)
		}
	}
	ready := map[string][]scafo.ProcessStatus{}
	for i := range apps {
		name, uid, node := fmt.Sprintf("app-%d", i), fmt.Sprintf("%016x", i), fmt.Sprintf("node-%02d", i%nodes)
		_, err := registry.Update(b.Context(), reg, registry.ApplicationKey(name), func(d *registry.Doc[scafo.Application]) error {
			d.Value = scafo.Application{Name: name, UID: uid, Replicas: scafo.Replicas{Count: 1}, Deployment: "v1", DeploySeq: 1}
			return nil
		})
		put(name, err)
		_, err = registry.Update(b.Context(), reg, registry.PlacementKey(name, uid), func(d *registry.Doc[scafo.Placement]) error {
			d.Value = scafo.Placement{Application: name, UID: uid, Nodes: []string{node}, Fence: 1, DeploySeq: 1}
			return nil
		})
		put(name, err)
		ready[node] = append(ready[node], scafo.ProcessStatus{
			Application: name, UID: uid, State: scafo.ProcessReady, Deployment: "v1", URL: "http://" + node + ".example:20000",
		})
	}
	for node, processes := range ready {
		_, err := registry.Update(b.Context(), reg, registry.NodeKey(node), func(d *registry.Doc[scafo.Node]) error {
			d.Value = scafo.Node{ID: node, Address: "http://" + node + ".example:7420", PublicKey: publicKey(node)}
			return nil
		})
		put(node, err)
		put(node, reg.WriteHeartbeat(b.Context(), scafo.Heartbeat{Node: node, Processes: processes}, false))
	}
	sup := newFakeSupervisor("node-00")
	for _, p := range ready["node-00"] {
		sup.procs[p.UID] = &p
	}
	l, err := New(Config{
		Node: "node-00", Store: RegistryStore(reg, registry.NewFollower(reg)), Lease: holding(1), Supervisor: sup, PlatformDomains: []string{"apps.example"},
	})
	put("loop", err)
	l.pass(context.Background())
	v := l.view
	if v == nil || len(v.snap.Applications) != apps {
		b.Fatal("the registry was not read")
	}
	in := plan.PlaceInput{Applications: v.snap.Applications, Placements: v.placements, Machines: v.machines}
	begin := time.Now()
	for range b.N {
		plan.Place(in)
	}
	bare := time.Since(begin)
	b.ResetTimer()
	begin = time.Now()
	for i := range b.N {
		b.StopTimer()
		_, err := registry.Update(b.Context(), reg, registry.ApplicationKey("app-5"), func(d *registry.Doc[scafo.Application]) error {
			d.Value.Deployment = fmt.Sprintf("v%d", i)
			return nil
		})
		put("app-5", err)
		l.Changed(registry.ApplicationKey("app-5"))
		b.StartTimer()
		l.pass(context.Background())
	}
	b.ReportMetric(float64(time.Since(begin))/float64(bare), "of-planning-alone")
}
