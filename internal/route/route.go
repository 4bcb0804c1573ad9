// Package route makes the routing document: which host is answered by which
// processes. It is a function of what it is made from; nothing here reads a clock
// or does I/O, and the same content is the same bytes.
package route

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/scafo/scafo"
)

// Node is a node as routing sees it.
type Node struct {
	ID string
	// API is the base URL of its API; empty where that is not known.
	API string
	// Live is whether the node counts as alive, Draining whether it goes.
	Live     bool
	Draining bool
	// Processes are its processes that may be routed to: what it runs for no reason
	// any more is left out by the caller.
	Processes []scafo.ProcessStatus
}

// Input is what the document is made from.
type Input struct {
	Fleet string
	// Node is the answering node.
	Node         string
	Applications map[string]scafo.Application
	Placements   map[string]scafo.Placement
	Claims       map[string]scafo.Claim // by host
	Nodes        []Node
	// PlatformDomains are valid hosts or single labels.
	PlatformDomains []string
	APIPublic       bool
	// Serves is whether the fleet is to serve the application.
	Serves func(scafo.Application) bool
}

// Problem is one host or upstream that was left out of the document, and why.
type Problem struct {
	Application string
	Host        string
	Detail      string
}

// Build makes the document, without its time. What is wrong with one host costs
// that host alone, and is reported.
func Build(in Input) (scafo.FleetRouting, []Problem) {
	n := len(in.Applications)
	b := &builder{in: in, taken: make(map[string]bool, n), serving: make(map[string][]scafo.Upstream, n)}
	b.doc = scafo.FleetRouting{
		V: scafo.FormatVersion, Fleet: in.Fleet, Node: in.Node,
		Routes: []scafo.Route{}, Wildcards: []scafo.WildcardRoute{},
		API: []scafo.APIHost{}, Unserved: []scafo.UnservedHost{},
	}
	b.platforms = slices.Compact(slices.Sorted(slices.Values(in.PlatformDomains)))
	b.names = slices.Sorted(maps.Keys(in.Applications))
	b.names = slices.DeleteFunc(b.names, func(name string) bool { return !in.Serves(in.Applications[name]) })
	b.upstreams()
	b.api()
	b.platformHosts()
	b.claimed()
	b.subdomains()
	slices.SortFunc(b.doc.Routes, func(x, y scafo.Route) int { return strings.Compare(x.Host, y.Host) })
	slices.SortFunc(b.doc.Wildcards, func(x, y scafo.WildcardRoute) int { return strings.Compare(x.Base, y.Base) })
	slices.SortFunc(b.doc.Unserved, func(x, y scafo.UnservedHost) int { return strings.Compare(x.Host, y.Host) })
	return b.doc, b.problems
}

type builder struct {
	in        Input
	platforms []string
	names     []string // of the applications to be served, in order
	doc       scafo.FleetRouting
	problems  []Problem
	taken     map[string]bool // exact hosts that the document already names
	serving   map[string][]scafo.Upstream
	bases     []base
}

// base is a host that its application claims with its subdomains.
type base struct {
	host        string
	application string
}

func (b *builder) problem(app, host, format string, args ...any) {
	b.problems = append(b.problems, Problem{Application: app, Host: host, Detail: fmt.Sprintf(format, args...)})
}

// candidate is one process that could answer.
type candidate struct {
	up      scafo.Upstream
	live    bool
	current bool // it serves the application's recorded deployment
	place   int  // the node's place in the placement; behind all of them when it has none
}

// found are the candidates of one application.
type found struct {
	app   scafo.Application
	nodes []string // of its placement
	all   []candidate
}

// upstreams finds the processes of each application. Those that serve the current
// version come alone as soon as there is one; a node that counts as gone is asked
// only while no living one can be. They are in the order of the placement, what
// is moved away last.
func (b *builder) upstreams() {
	apps := make([]found, len(b.names))
	byUID := make(map[string]int, len(b.names))
	for i, name := range b.names {
		apps[i].app = b.in.Applications[name]
		byUID[apps[i].app.UID] = i
		if pl := b.in.Placements[name]; pl.UID == apps[i].app.UID {
			apps[i].nodes = pl.Nodes
		}
	}
	for _, n := range b.in.Nodes {
		for i := range n.Processes {
			p := &n.Processes[i]
			if p.State != scafo.ProcessReady || p.URL == "" {
				continue
			}
			at, ok := byUID[p.UID]
			if !ok || apps[at].app.Name != p.Application {
				continue
			}
			f := &apps[at]
			if err := checkURL(p.URL); err != nil {
				b.problem(p.Application, "", "node %s names an upstream that is none: %v", n.ID, err)
				continue
			}
			place := slices.Index(f.nodes, n.ID)
			if place < 0 {
				place = len(f.nodes)
			}
			f.all = append(f.all, candidate{
				up: scafo.Upstream{Node: n.ID, URL: p.URL}, live: n.Live,
				current: p.Deployment == f.app.Deployment, place: place,
			})
		}
	}
	for i, name := range b.names {
		if ups := choose(apps[i].all); len(ups) > 0 {
			b.serving[name] = ups
		}
	}
}

func choose(all []candidate) []scafo.Upstream {
	prefer := func(good func(candidate) bool) {
		if slices.ContainsFunc(all, good) {
			all = slices.DeleteFunc(all, func(c candidate) bool { return !good(c) })
		}
	}
	prefer(func(c candidate) bool { return c.live })
	prefer(func(c candidate) bool { return c.current })
	slices.SortFunc(all, func(x, y candidate) int {
		if x.place != y.place {
			return x.place - y.place
		}
		if c := strings.Compare(x.up.Node, y.up.Node); c != 0 {
			return c
		}
		return strings.Compare(x.up.URL, y.up.URL)
	})
	ups := make([]scafo.Upstream, 0, len(all))
	for _, c := range all {
		ups = append(ups, c.up)
	}
	return slices.Compact(ups)
}

// checkURL refuses what is no HTTP URL of a host. The plain form that nodes write
// is seen without a parser, since a document may have many thousands.
func checkURL(s string) error {
	if plainURL(s) {
		return nil
	}
	u, err := url.Parse(s)
	if err != nil {
		return err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return fmt.Errorf("%q is not an HTTP URL", s)
	}
	return nil
}

// plainURL is whether s is http://, a host of letters, digits, dots and hyphens,
// and a port.
func plainURL(s string) bool {
	rest, ok := strings.CutPrefix(s, "http://")
	host, port, found := strings.Cut(rest, ":")
	if !ok || !found || host == "" || port == "" || len(port) > 5 || strings.Trim(port, "0123456789") != "" {
		return false
	}
	for i := range len(host) {
		c := host[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// api names the bare platform domains, where they are public.
func (b *builder) api() {
	if !b.in.APIPublic {
		return
	}
	ups := []scafo.Upstream{}
	for _, n := range b.in.Nodes {
		if n.Live && !n.Draining && checkURL(n.API) == nil {
			ups = append(ups, scafo.Upstream{Node: n.ID, URL: n.API})
		}
	}
	slices.SortFunc(ups, func(x, y scafo.Upstream) int { return strings.Compare(x.Node, y.Node) })
	for _, d := range b.platforms {
		b.taken[d] = true
		b.doc.API = append(b.doc.API, scafo.APIHost{Host: d, Upstreams: ups})
	}
}

// name names an exact host: as a route while its application serves, as unserved
// otherwise.
func (b *builder) name(host, app string) {
	if b.taken[host] {
		b.problem(app, host, "the host is already answered by something else")
		return
	}
	b.taken[host] = true
	if ups := b.serving[app]; ups != nil {
		b.doc.Routes = append(b.doc.Routes, scafo.Route{Host: host, Application: app, Upstreams: ups})
		return
	}
	b.doc.Unserved = append(b.doc.Unserved, scafo.UnservedHost{Host: host, Application: app, Reason: b.reason(app)})
}

// platformHosts names each application under each platform domain.
func (b *builder) platformHosts() {
	for _, name := range b.names {
		for _, d := range b.platforms {
			if host := name + "." + d; len(host) <= scafo.MaxHostLength {
				b.name(host, name)
			} else {
				b.problem(name, host, "the host is longer than %d characters", scafo.MaxHostLength)
			}
		}
	}
}

// claimed names the hosts that applications hold. A route needs the claim, held
// for this life of the application, and the application's own list.
func (b *builder) claimed() {
	for _, name := range b.names {
		app := b.in.Applications[name]
		domains := slices.Clone(app.Domains)
		slices.SortFunc(domains, func(x, y scafo.Domain) int { return strings.Compare(x.Host, y.Host) })
		for _, d := range slices.CompactFunc(domains, func(x, y scafo.Domain) bool { return x.Host == y.Host }) {
			claim, ok := b.in.Claims[d.Host]
			if !ok || claim.State != scafo.ClaimHeld || claim.Application != name || claim.UID != app.UID || claim.Host != d.Host {
				continue
			}
			if host, err := scafo.ParseHost(d.Host); err != nil || host != d.Host {
				b.problem(name, d.Host, "it is no host that can be claimed")
				continue
			}
			if p := b.under(d.Host); p != "" {
				b.problem(name, d.Host, "it is under the platform domain %s, where hosts follow from names", p)
				continue
			}
			b.name(d.Host, name)
			if claim.Wildcard && d.Wildcard {
				b.bases = append(b.bases, base{host: d.Host, application: name})
			}
		}
	}
}

// under is the platform domain that the host equals or is under; empty for none.
func (b *builder) under(host string) string {
	for _, p := range b.platforms {
		if host == p || strings.HasSuffix(host, "."+p) {
			return p
		}
	}
	return ""
}

// subdomains names what is under the bases: <env>.<base> wherever the application
// <holder>-<env> serves, unless somebody claimed that host; the holder answers the
// rest. A base whose holder serves nothing keeps its entry, without upstreams, so
// that an ingress can tell it from a host that nobody knows.
func (b *builder) subdomains() {
	for _, base := range b.bases {
		ups := b.serving[base.application]
		if ups == nil {
			ups = []scafo.Upstream{}
		}
		b.doc.Wildcards = append(b.doc.Wildcards, scafo.WildcardRoute{Base: base.host, Application: base.application, Upstreams: ups})
		prefix := base.application + "-"
		first, _ := slices.BinarySearch(b.names, prefix)
		for _, name := range b.names[first:] {
			env, ok := strings.CutPrefix(name, prefix)
			if !ok {
				break
			}
			host := env + "." + base.host
			if b.taken[host] || b.explicit(host) || b.serving[name] == nil && len(ups) > 0 {
				continue
			}
			if h, err := scafo.ParseHost(host); err != nil || h != host {
				continue // shop--x has no <env> that is a label
			}
			b.name(host, name)
		}
	}
}

// explicit is whether the host is claimed by itself.
func (b *builder) explicit(host string) bool {
	c, ok := b.in.Claims[host]
	return ok && c.State == scafo.ClaimHeld
}

// reason says why nobody serves the application at the moment.
func (b *builder) reason(name string) string {
	app := b.in.Applications[name]
	pl, ok := b.in.Placements[name]
	if !ok || pl.UID != app.UID {
		return "it is about to be placed"
	}
	if len(pl.Nodes) == 0 {
		if pl.Reason == "" {
			return "unplaced"
		}
		return "unplaced: " + pl.Reason
	}
	crashing, live := false, false
	for _, n := range b.in.Nodes {
		if !slices.Contains(pl.Nodes, n.ID) || !n.Live {
			continue
		}
		live = true
		for _, p := range n.Processes {
			if p.UID == app.UID && p.State == scafo.ProcessBackoff {
				crashing = true
			}
		}
	}
	switch {
	case crashing:
		return "crash-looping"
	case !live:
		return "its node is gone"
	}
	return "starting"
}
