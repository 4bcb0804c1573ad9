package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/reconcile"
)

// Sources are what is asked for at each scrape. Nothing of it reads the bucket.
type Sources struct {
	Version, Runtime string
	// Requests are the bucket's, by purpose and kind.
	Requests func() meter.Counts
	// Fleet is the loop's Gauges.
	Fleet func() (reconcile.Gauges, bool)
	// Held is the fence, while this process may act under it; Last the lease as it
	// was last read, and whether anybody holds it.
	Held func() (fence int64, ok bool)
	Last func() (scafo.Lease, bool)
	// Deploys is how many are carried out now.
	Deploys func() int
	// Applications has the processes counted for each application as well.
	Applications bool
}

// Watch adds what is asked for at each scrape. It is called once.
func (m *Metrics) Watch(s Sources) {
	if m != nil {
		m.registry.MustRegister(watcher{s})
	}
}

type watcher struct{ s Sources }

var described = func() map[string]*prometheus.Desc {
	out := map[string]*prometheus.Desc{}
	for _, d := range definitions {
		out[d.Name] = prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
	}
	return out
}()

// watched are the metrics of a watcher.
var watched = []Definition{
	buildInfo, leaseHeld, leaseKnown, leaseFence, nodes, applications, placements, unplaced, unreadable, processes,
	deploysActive, bucketRequests, applicationProcesses, applicationRestarts,
}

// Describe implements prometheus.Collector.
func (w watcher) Describe(out chan<- *prometheus.Desc) {
	for _, d := range watched {
		if !d.Applications || w.s.Applications {
			out <- described[d.Name]
		}
	}
}

// Collect implements prometheus.Collector.
func (w watcher) Collect(out chan<- prometheus.Metric) {
	say := func(d Definition, value float64, labels ...string) {
		t := prometheus.GaugeValue
		if d.Type == Counter {
			t = prometheus.CounterValue
		}
		c, err := prometheus.NewConstMetric(described[d.Name], t, value, labels...)
		if err != nil { // a runtime's version that is no UTF-8, say
			c = prometheus.NewInvalidMetric(described[d.Name], err)
		}
		out <- c
	}
	say(buildInfo, 1, w.s.Version, w.s.Runtime)
	say(deploysActive, float64(w.s.Deploys()))
	for k, n := range w.s.Requests() {
		say(bucketRequests, float64(n), string(k.Op), k.Purpose)
	}
	_, held := w.s.Held()
	last, known := w.s.Last()
	say(leaseHeld, truth(held))
	say(leaseKnown, truth(held || known))
	say(leaseFence, float64(last.Fence))
	g, ok := w.s.Fleet()
	w.processes(say, g.Processes)
	if !ok {
		return // the bucket was not read yet: zero would be a claim
	}
	for _, k := range reconcile.ApplicationKinds {
		say(applications, float64(g.Applications[k]), k)
	}
	for _, k := range reconcile.NodeKinds {
		say(nodes, float64(g.Nodes[k]), k)
	}
	say(placements, float64(g.Placed))
	say(unreadable, float64(g.Unreadable))
	if g.Coordinate {
		say(unplaced, float64(g.Unplaced))
	}
}

// states are those of a process.
var states = []scafo.ProcessState{
	scafo.ProcessStarting, scafo.ProcessReady, scafo.ProcessDraining, scafo.ProcessBackoff, scafo.ProcessStopped,
}

func (w watcher) processes(say func(Definition, float64, ...string), list []scafo.ProcessStatus) {
	type of struct {
		application string
		state       scafo.ProcessState
	}
	all, each, restarts := map[scafo.ProcessState]int{}, map[of]int{}, map[string]int{}
	for _, p := range list {
		all[p.State]++
		each[of{p.Application, p.State}]++
		restarts[p.Application] += p.Restarts
	}
	for _, s := range states {
		say(processes, float64(all[s]), string(s))
	}
	if !w.s.Applications {
		return
	}
	for k, n := range each {
		say(applicationProcesses, float64(n), k.application, string(k.state))
	}
	for name, n := range restarts {
		say(applicationRestarts, float64(n), name)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
