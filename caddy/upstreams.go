package caddy

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

func init() {
	caddy.RegisterModule(Upstreams{})
}

// avoidFor is how long an upstream that failed is tried last.
const avoidFor = 5 * time.Second

// Upstreams hands the proxy the processes that the gate found for the host. An
// upstream that failed goes to the end for a while; it is never left out, since it
// may be the only one.
type Upstreams struct {
	keepOrder bool
	counted   *counters
	failed    *sync.Map // dial address to the time.Time until which it is avoided
}

// CaddyModule returns the module's information.
func (Upstreams) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.reverse_proxy.upstreams.scafo", New: func() caddy.Module { return new(Upstreams) }}
}

// Provision finds out whether the documents' order means something.
func (u *Upstreams) Provision(ctx caddy.Context) error {
	u.failed = new(sync.Map)
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	u.counted = app.counted
	for _, f := range app.Fleets {
		u.keepOrder = u.keepOrder || f.Prefer != ""
	}
	return nil
}

// GetUpstreams is called before each try of a request. It returns fresh values
// each time, since the proxy writes into them.
func (u *Upstreams) GetUpstreams(r *http.Request) ([]*reverseproxy.Upstream, error) {
	a, ok := caddyhttp.GetVar(r.Context(), routeVar).(*attempt)
	if !ok {
		// No gate in front: an empty list, since an error would fall back to static
		// upstreams.
		return nil, nil
	}
	now := time.Now()
	if n := len(a.tried); n > 0 {
		last := a.tried[n-1]
		u.failed.Store(last, now.Add(avoidFor))
		if slices.Contains(a.refused, last) {
			u.counted.refused.Inc()
		} else {
			u.counted.failed.Inc()
		}
	}
	dials := a.order(u.order(a.entry.dials, now))
	if len(dials) > 0 {
		a.tried = append(a.tried, dials[0])
	}
	out := make([]*reverseproxy.Upstream, len(dials))
	for i, d := range dials {
		out[i] = &reverseproxy.Upstream{Dial: d}
	}
	return out, nil
}

// order puts those that the request has not come to yet before the others, so that
// it comes to each of them although all have failed lately.
func (a *attempt) order(dials []string) []string {
	if len(a.tried) == 0 {
		return dials
	}
	tries := func(dial string) (n int) {
		for _, t := range a.tried {
			if t == dial {
				n++
			}
		}
		return n
	}
	dials = slices.Clone(dials)
	slices.SortStableFunc(dials, func(x, y string) int { return tries(x) - tries(y) })
	return dials
}

func (u *Upstreams) order(dials []string, now time.Time) []string {
	if len(dials) < 2 {
		return dials
	}
	start := 0
	if !u.keepOrder {
		start = rand.IntN(len(dials))
	}
	good := make([]string, 0, len(dials))
	var bad []string
	for i := range dials {
		d := dials[(start+i)%len(dials)]
		if until, ok := u.failed.Load(d); ok {
			if now.Before(until.(time.Time)) {
				bad = append(bad, d)
				continue
			}
			u.failed.CompareAndDelete(d, until)
		}
		good = append(good, d)
	}
	return append(good, bad...)
}

var (
	_ caddy.Provisioner           = (*Upstreams)(nil)
	_ reverseproxy.UpstreamSource = (*Upstreams)(nil)
)
