package cost_test

import (
	"math"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/cost"
)

// The design's own sums: for ten nodes a heartbeat each 45 s is 2.88 dollars in a
// month of 30 days, the revision read each 10 s 1.04; an idle celld some 9.6 in a month
// of 730 hours.
func TestDollars(t *testing.T) {
	const nodes = 10
	for name, c := range map[string]struct {
		counts []scafo.BucketRequests
		s3, r2 float64
	}{
		"heartbeats": {[]scafo.BucketRequests{{Op: "replace", Count: cost.Month / 45 * nodes}}, 2.88, 2.592},
		"revisions":  {[]scafo.BucketRequests{{Op: "get", Count: cost.Month / 10 * nodes}}, 1.04, 0.933},
		"both":       {[]scafo.BucketRequests{{Op: "list", Purpose: "a", Count: 1e6}, {Op: "get", Purpose: "b", Count: 1e6}}, 5.40, 4.86},
		"deletes":    {[]scafo.BucketRequests{{Op: "delete", Count: 1e9}}, 0, 0},
		"later":      {[]scafo.BucketRequests{{Op: "copy", Count: 1e6}}, 5, 4.50},
		"nothing":    {nil, 0, 0},
	} {
		r := cost.Of(c.counts)
		if got := cost.S3.Dollars(r); math.Abs(got-c.s3) > 0.005 {
			t.Errorf("%s: %.4f dollars of S3, want %.2f", name, got, c.s3)
		}
		if got := cost.R2.Dollars(r); math.Abs(got-c.r2) > 0.005 {
			t.Errorf("%s: %.4f dollars of R2, want %.2f", name, got, c.r2)
		}
	}
}

func TestIdleRuntimes(t *testing.T) {
	const year = 365 * 24 * 3600
	for version, want := range map[string]float64{"celld 0.6.2": 9.62, "": 9.62, "celld-workerd 0.1.0 (workerd 1.2)": 9.46} {
		if got := cost.S3.Dollars(cost.Idle(version, year)) / 12; math.Abs(got-want) > 0.05 {
			t.Errorf("%q: %.3f dollars a month, want %.2f", version, got, want)
		}
	}
}

func TestSums(t *testing.T) {
	a := cost.Requests{Writes: 1, Reads: 2, Deletes: 3}
	if got := a.Plus(a.Times(2)); got != (cost.Requests{Writes: 3, Reads: 6, Deletes: 9}) {
		t.Errorf("%+v", got)
	}
}
