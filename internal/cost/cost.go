// Package cost turns counts of bucket requests into money. Everything in it is a
// function of its arguments.
package cost

import (
	"strings"

	"github.com/scafo/scafo"
)

// Month is what a price of a month is counted for: thirty days, in seconds.
const Month = 30 * 24 * 3600.0

// Prices are the list prices of a store's requests, in dollars a million. Storage
// and traffic are not among them; neither is what a contract or a free allowance takes
// off.
type Prices struct {
	Name   string
	Writes float64 // puts and listings
	Reads  float64
	Source string
	AsOf   string // year and month in which the source said so
}

// S3 is Amazon's S3 Standard in us-east-1, and R2 Cloudflare's R2 Standard. Deletes
// are free in both, and R2's allowance of a million writes and ten million reads a
// month is not taken off.
var (
	S3 = Prices{Name: "S3", Writes: 5, Reads: 0.40, Source: "https://aws.amazon.com/s3/pricing/", AsOf: "2026-12"}
	R2 = Prices{Name: "R2", Writes: 4.50, Reads: 0.36, Source: "https://developers.cloudflare.com/r2/pricing/", AsOf: "2026-12"}
)

// Requests are counted by what they are paid as. Listings are paid as writes.
type Requests struct {
	Writes  float64 `json:"writes"`
	Reads   float64 `json:"reads"`
	Deletes float64 `json:"deletes"`
}

// Of sums counts of one node or of several.
func Of(counts []scafo.BucketRequests) Requests {
	var r Requests
	for _, c := range counts {
		switch n := float64(c.Count); c.Op {
		case "get":
			r.Reads += n
		case "delete":
			r.Deletes += n
		default: // a kind that a later release counts is none that costs nothing
			r.Writes += n
		}
	}
	return r
}

// Plus is the sum of both.
func (r Requests) Plus(o Requests) Requests {
	return Requests{r.Writes + o.Writes, r.Reads + o.Reads, r.Deletes + o.Deletes}
}

// Times is r, so many times.
func (r Requests) Times(n float64) Requests {
	return Requests{r.Writes * n, r.Reads * n, r.Deletes * n}
}

// Dollars is what the requests cost.
func (p Prices) Dollars(r Requests) float64 {
	return (r.Writes*p.Writes + r.Reads*p.Reads) / 1e6
}

// What one idle runtime process asks for in a second. celld's is published by the
// maker of a Kubernetes operator for it; that of celld-workerd was counted in front
// of the store, for a process that has Durable Objects or anything else in the bucket:
// one without any asks for nothing.
var (
	idleCelld   = Requests{Writes: 0.7, Reads: 0.4}
	idleWorkerd = Requests{Writes: 40.0 / 60, Reads: 40.0 / 60}
)

// Idle is what that many seconds of one runtime process cost at most while nobody
// asks it anything, by the version that it prints.
func Idle(celldVersion string, seconds float64) Requests {
	if strings.HasPrefix(celldVersion, "celld-workerd") {
		return idleWorkerd.Times(seconds)
	}
	return idleCelld.Times(seconds)
}
