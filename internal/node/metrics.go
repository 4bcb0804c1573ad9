package node

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/metrics"
)

// scrapeWithin is how long a scrape that runs may take when the node ends.
const scrapeWithin = time.Second

// openMetrics serves the node's metrics where metrics.listen says, from the start
// on: a node that waits for its bucket has something to tell.
func (n *Node) openMetrics() error {
	if n.c.Metrics.Listen == "" {
		return nil
	}
	l, err := metrics.Listen(n.c.Metrics.Listen)
	if err != nil {
		return err
	}
	n.metrics = metrics.New()
	n.told = n.metrics.Serve(l, n.log)
	n.log.Info("metrics are served", "url", "http://"+l.Addr().String()+"/metrics")
	return nil
}

// watchMetrics adds what is asked of the node's parts at each scrape.
func (n *Node) watchMetrics() {
	n.metrics.Watch(metrics.Sources{
		Version: scafo.Version, Runtime: n.CelldVersion, Applications: n.c.Metrics.Applications,
		Requests: n.Store.Bucket.Counts, Fleet: n.loop.Gauges, Held: n.lease.Held, Last: n.lease.Last, Deploys: n.deploys.Active,
	})
}

// used is what this node has lately asked of the bucket.
func (n *Node) used() scafo.BucketUse {
	counts, since, starting := n.usage.Recent()
	use := scafo.BucketUse{
		Since: since.UTC().Truncate(time.Millisecond), Seconds: time.Since(since).Seconds(), Starting: starting,
		Requests: make([]scafo.BucketRequests, 0, len(counts)),
	}
	for k, c := range counts {
		use.Requests = append(use.Requests, scafo.BucketRequests{Op: string(k.Op), Purpose: k.Purpose, Count: c})
	}
	slices.SortFunc(use.Requests, func(a, b scafo.BucketRequests) int {
		return cmp.Or(strings.Compare(a.Purpose, b.Purpose), strings.Compare(a.Op, b.Op))
	})
	return use
}

func (n *Node) closeMetrics() {
	if n.told == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeWithin)
	defer cancel()
	n.told.Close(ctx)
	n.told = nil
}
