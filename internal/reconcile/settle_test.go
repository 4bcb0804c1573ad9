package reconcile

import (
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
)

// seenLease is the lease as one node sees it.
type seenLease struct {
	Lease
	mine  bool
	last  scafo.Lease
	valid bool
}

func (s seenLease) Held() (int64, bool)       { return s.last.Fence, s.mine }
func (s seenLease) Last() (scafo.Lease, bool) { return s.last, s.valid }

// Who deploys just after a daemon was killed is told why it takes long: nobody may
// decide before the dead one's lease is over.
func TestADeploySaysThatNobodyCoordinates(t *testing.T) {
	placing := plan.Verdict{Step: plan.StepPlacement}
	for name, c := range map[string]struct {
		lease   seenLease
		verdict plan.Verdict
		want    string
	}{
		"this process coordinates":     {seenLease{mine: true, last: scafo.Lease{Node: "a"}, valid: true}, placing, ""},
		"another node coordinates":     {seenLease{last: scafo.Lease{Node: "b"}, valid: true}, placing, ""},
		"this node's killed process":   {seenLease{last: scafo.Lease{Node: "a"}, valid: true}, placing, stepUncoordinated},
		"nobody":                       {seenLease{last: scafo.Lease{Node: "b"}}, placing, stepUncoordinated},
		"nobody, and placed":           {seenLease{}, plan.Verdict{Step: "ready on a"}, ""},
		"nobody, and it failed anyway": {seenLease{}, plan.Verdict{Outcome: plan.Failed, Step: plan.StepPlacement}, ""},
	} {
		l := &Loop{c: Config{Node: "a", Lease: c.lease}}
		if got := l.uncoordinated(c.verdict); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
