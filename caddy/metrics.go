package caddy

import (
	"errors"
	"io/fs"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What is counted goes to Caddy's own registry, which it makes anew with each
// configuration: these counters begin anew then, as Caddy's do. What the pollers
// count outlives it, as they do. No label is made from what visitors or users choose.

// counters are what the routing and the permission of one configuration count.
type counters struct {
	unknown, unserved, noDocument prometheus.Counter // requests that the gate refused
	failed, refused               prometheus.Counter // tries that another upstream followed
	allowed, renewal, denied      prometheus.Counter // names that the permission was asked for
}

// newCounters makes the counters of one configuration, in its registry.
func newCounters(registry prometheus.Registerer) (*counters, error) {
	var errs []error
	vec := func(name, label, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		errs = append(errs, registry.Register(v))
		return v
	}
	requests := vec("scafo_ingress_refused_total", "reason",
		"Requests that no process was asked for: unknown (404, no fleet knows the host), unserved (503, nobody serves it now) or no_document (503, a fleet was not heard yet).")
	tries := vec("scafo_ingress_retries_total", "reason",
		"Tries of a request that another try followed: failed (no connection) or refused (the process was about to end).")
	names := vec("scafo_tls_permissions_total", "answer",
		"Names that a certificate was wanted for: allowed, renewal (nobody serves the host now, and it keeps what it has) or denied.")
	return &counters{
		unknown: requests.WithLabelValues("unknown"), unserved: requests.WithLabelValues("unserved"), noDocument: requests.WithLabelValues("no_document"),
		failed: tries.WithLabelValues("failed"), refused: tries.WithLabelValues("refused"),
		allowed: names.WithLabelValues("allowed"), renewal: names.WithLabelValues("renewal"), denied: names.WithLabelValues("denied"),
	}, errors.Join(errs...)
}

var (
	hostsMetric = prometheus.NewDesc("scafo_ingress_hosts",
		"Entries of the fleet's current document, by kind: route, wildcard, api or unserved.", []string{"fleet", "kind"}, nil)
	leftOutMetric = prometheus.NewDesc("scafo_ingress_left_out",
		"Entries and upstreams of the fleet's current document that are malformed and were left out.", []string{"fleet"}, nil)
	heardMetric = prometheus.NewDesc("scafo_ingress_document_confirmed_timestamp_seconds",
		"When a node last gave or confirmed the fleet's document, in Unix time; 0 before it did.", []string{"fleet"}, nil)
	pollsMetric = prometheus.NewDesc("scafo_ingress_polls_total",
		"Answers of nodes that were asked for the fleet's document, by result: changed, unchanged or failed.", []string{"fleet", "result"}, nil)
)

// documents tells of the documents that an app follows.
type documents struct{ pollers []*poller }

// Describe implements prometheus.Collector.
func (documents) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{hostsMetric, leftOutMetric, heardMetric, pollsMetric} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (d documents) Collect(to chan<- prometheus.Metric) {
	for _, p := range d.pollers {
		say := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(desc, kind, value, append([]string{p.fleet.Name}, labels...)...)
		}
		kinds, leftOut := map[string]int{}, 0
		if t := p.table.Load(); t != nil {
			kinds, leftOut = t.kinds(), t.leftOut
		}
		for _, kind := range []string{"route", "wildcard", "api", "unserved"} {
			say(hostsMetric, prometheus.GaugeValue, float64(kinds[kind]), kind)
		}
		say(leftOutMetric, prometheus.GaugeValue, float64(leftOut))
		heard := 0.0
		if at := p.heard.Load(); at != 0 {
			heard = float64(at) / float64(time.Second)
		}
		say(heardMetric, prometheus.GaugeValue, heard)
		say(pollsMetric, prometheus.CounterValue, float64(p.changed.Load()), "changed")
		say(pollsMetric, prometheus.CounterValue, float64(p.unchanged.Load()), "unchanged")
		say(pollsMetric, prometheus.CounterValue, float64(p.failed.Load()), "failed")
	}
}

// kinds counts the entries of a document.
func (t *table) kinds() map[string]int {
	kinds := map[string]int{"wildcard": len(t.wildcards)}
	for _, e := range t.exact {
		switch {
		case e.unserved != "":
			kinds["unserved"]++
		case e.api:
			kinds["api"]++
		default:
			kinds["route"]++
		}
	}
	return kinds
}

// storageBuckets are the bounds of the storage's histogram, in seconds: from a node
// beside it to the patience of a write.
var storageBuckets = []float64{.002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// storageCounters are what a storage counts.
type storageCounters struct {
	seconds *prometheus.HistogramVec
	held    prometheus.Gauge
	lost    prometheus.Counter
}

func newStorageCounters() *storageCounters {
	return &storageCounters{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "scafo_storage_duration_seconds", Buckets: storageBuckets,
			Help: "How long an operation of the certificate storage took, all of its tries together, by operation (store, load, delete, stat, list, lock, unlock) and result: ok, missing (no such key), held (another has the lock) or failed.",
		}, []string{"operation", "result"}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{Name: "scafo_storage_locks_held", Help: "Locks that this process has."}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{Name: "scafo_storage_locks_lost_total", Help: "Locks that ended before they were given back: another ingress may have done the same work."}),
	}
}

// register puts them into the registry of a configuration. Several storages of one
// configuration count together.
func (c *storageCounters) register(registry prometheus.Registerer) error {
	return errors.Join(registered(registry, &c.seconds), registered(registry, &c.held), registered(registry, &c.lost))
}

// registered registers a collector, or takes the one that is there.
func registered[C prometheus.Collector](registry prometheus.Registerer, c *C) error {
	err := registry.Register(*c)
	var there prometheus.AlreadyRegisteredError
	if !errors.As(err, &there) {
		return err
	}
	if found, ok := there.ExistingCollector.(C); ok {
		*c = found
		return nil
	}
	return err
}

// took notes how an operation ended.
func (c *storageCounters) took(operation string, began time.Time, err error) {
	result := "ok"
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist):
		result = "missing"
	case isConflict(err):
		result = "held"
	default:
		result = "failed"
	}
	c.seconds.WithLabelValues(operation, result).Observe(time.Since(began).Seconds())
}
