// Package route makes the routing document: which host is answered by which
// processes. It is a function of what it is made from; nothing here reads a clock
// or does I/O, and the same content is the same bytes.
package route

import (
	"encoding/binary"
	"fmt"
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
	b := &builder{in: in, taken: map[string]bool{}, crashing: map[string]bool{}, live: map[string]bool{}}
	b.doc = scafo.FleetRouting{
		V: scafo.FormatVersion, Fleet: in.Fleet, Node: in.Node,
		Routes: []scafo.Route{}, Wildcards: []scafo.WildcardRoute{},
		API: []scafo.APIHost{}, Unserved: []scafo.UnservedHost{},
	}
	b.platforms = slices.Compact(slices.Sorted(slices.Values(in.PlatformDomains)))
	b.applications()
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
	apps      []served // in the order of names
	doc       scafo.FleetRouting
	problems  []Problem
	// taken are the exact hosts that are named already, but for those under the
	// platform domains, which cannot meet: they follow from names.
	taken    map[string]bool
	bases    []base
	crashing map[string]bool // uids of the processes of living nodes that wait for their next start
	live     map[string]bool // nodes
}

// served is an application that the fleet is to serve.
type served struct {
	name, uid, version string
	nodes              []string // of its placement
	domains            []scafo.Domain
	ups                []scafo.Upstream
}

// base is a host that its application claims with its subdomains.
type base struct {
	host string
	app  *served
}

func (b *builder) problem(app, host, format string, args ...any) {
	b.problems = append(b.problems, Problem{Application: app, Host: host, Detail: fmt.Sprintf(format, args...)})
}

func (b *builder) applications() {
	all := make([]served, 0, len(b.in.Applications))
	for name, app := range b.in.Applications {
		if b.in.Serves(app) {
			all = append(all, served{name: name, uid: app.UID, version: app.Deployment, domains: app.Domains})
		}
	}
	inOrder(all)
	b.apps = all
	for i := range b.apps {
		app := &b.apps[i]
		if pl, ok := b.in.Placements[app.name]; ok && pl.UID == app.uid {
			app.nodes = pl.Nodes
		}
	}
}

// place is where an application stands before its turn among the names is known. It is
// what is sorted, since it is small and has no pointers.
type place struct {
	// begins are the first bytes behind what all names have in common, as a number.
	begins uint64
	at     int
}

// byBeginning sorts by the names' beginnings, byte by byte from the last one: as often
// as they differ, whatever the number of names. What begins alike stays in its order.
func byBeginning(order []place) []place {
	spare := make([]place, len(order))
	for shift := 0; shift < 64 && len(order) > 0; shift += 8 {
		var next [257]int // where the next of each byte goes, counted one ahead
		for i := range order {
			next[int(byte(order[i].begins>>shift))+1]++
		}
		if next[int(byte(order[0].begins>>shift))+1] == len(order) {
			continue
		}
		for i := 1; i < len(next); i++ {
			next[i] += next[i-1]
		}
		for _, p := range order {
			at := &next[byte(p.begins>>shift)]
			spare[*at] = p
			*at++
		}
		order, spare = spare, order
	}
	return order
}

// inOrder puts the applications into the order of their names, which differ.
func inOrder(all []served) {
	common := 0
	if len(all) > 0 {
		common = len(all[0].name)
	}
	for i := range all {
		n := 0
		for n < common && n < len(all[i].name) && all[i].name[n] == all[0].name[n] {
			n++
		}
		common = n
	}
	order := make([]place, len(all))
	for i := range all {
		var first [8]byte
		copy(first[:], all[i].name[common:])
		order[i] = place{begins: binary.BigEndian.Uint64(first[:]), at: i}
	}
	order = byBeginning(order)
	for alike := order; len(alike) > 1; {
		n := 1
		for n < len(alike) && alike[n].begins == alike[0].begins {
			n++
		}
		if n > 1 {
			slices.SortFunc(alike[:n], func(x, y place) int { return strings.Compare(all[x.at].name, all[y.at].name) })
		}
		alike = alike[n:]
	}
	// Each into its place, by the cycles of that order.
	for i := range order {
		at := i
		for order[at].at != i {
			from := order[at].at
			all[at], all[from] = all[from], all[at]
			order[at].at, at = at, from
		}
		order[at].at = at
	}
}

// find is where the application is among those that are served, -1 for nowhere. It
// looks behind hint first: whoever lists processes does it in the order of names.
func (b *builder) find(name string, hint int) int {
	const near = 4
	for i := hint; i < min(hint+near, len(b.apps)); i++ {
		if b.apps[i].name == name {
			return i
		}
	}
	i, ok := slices.BinarySearchFunc(b.apps, name, func(s served, name string) int { return strings.Compare(s.name, name) })
	if !ok {
		return -1
	}
	return i
}

// candidate is one process that could answer.
type candidate struct {
	app     int32 // in the builder's order
	place   int32 // of its node in the placement; behind all of them when it has none
	node    int32 // in the input
	process int32 // of the node
	live    bool
	current bool // it serves the application's recorded deployment
}

// upstream is where the candidate answers.
func (b *builder) upstream(c candidate) scafo.Upstream {
	n := &b.in.Nodes[c.node]
	return scafo.Upstream{Node: n.ID, URL: n.Processes[c.process].URL}
}

// compare orders the candidates of one application.
func (b *builder) compare(x, y candidate) int {
	if x.place != y.place {
		return int(x.place - y.place)
	}
	at, other := b.upstream(x), b.upstream(y)
	if c := strings.Compare(at.Node, other.Node); c != 0 {
		return c
	}
	return strings.Compare(at.URL, other.URL)
}

// upstreams finds the processes of each application. Those that serve the current
// version come alone as soon as there is one; a node that counts as gone is asked
// only while no living one can be. They are in the order of the placement, what
// is moved away last.
func (b *builder) upstreams() {
	all := b.candidates()
	arena := make([]scafo.Upstream, 0, len(all)) // one piece of memory for all of them
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].app == all[0].app {
			n++
		}
		first := len(arena)
		for _, c := range choose(all[:n]) {
			up := b.upstream(c)
			if len(arena) == first || arena[len(arena)-1] != up {
				arena = append(arena, up)
			}
		}
		b.apps[all[0].app].ups = arena[first:len(arena):len(arena)]
		all = all[n:]
	}
}

// candidates are the processes that answer, by application.
func (b *builder) candidates() []candidate {
	total := 0
	for i := range b.in.Nodes {
		total += len(b.in.Nodes[i].Processes)
	}
	all := make([]candidate, 0, total)
	for node := range b.in.Nodes {
		n := &b.in.Nodes[node]
		b.live[n.ID] = n.Live
		hint := 0
		for i := range n.Processes {
			p := &n.Processes[i]
			if p.State == scafo.ProcessBackoff && n.Live {
				b.crashing[p.UID] = !p.WaitsForLease() || b.crashing[p.UID]
			}
			if p.State != scafo.ProcessReady || p.URL == "" {
				continue
			}
			at := b.find(p.Application, hint)
			if at < 0 || b.apps[at].uid != p.UID {
				continue
			}
			hint = at + 1
			if err := checkURL(p.URL); err != nil {
				b.problem(p.Application, "", "node %s names an upstream that is none: %v", n.ID, err)
				continue
			}
			app := &b.apps[at]
			place := slices.Index(app.nodes, n.ID)
			if place < 0 {
				place = len(app.nodes)
			}
			all = append(all, candidate{
				app: int32(at), place: int32(place), node: int32(node), process: int32(i), //nolint:gosec // far fewer than that
				live: n.Live, current: p.Deployment == app.version,
			})
		}
	}
	return b.grouped(all)
}

// grouped puts the candidates of each application beside each other, in order.
func (b *builder) grouped(all []candidate) []candidate {
	ends := make([]int, len(b.apps)+1)
	for i := range all {
		ends[all[i].app+1]++
	}
	for i := range b.apps {
		ends[i+1] += ends[i]
	}
	out := make([]candidate, len(all))
	next := slices.Clone(ends)
	for i := range all {
		at := &next[all[i].app]
		out[*at] = all[i]
		*at++
	}
	for i := range b.apps {
		if group := out[ends[i]:ends[i+1]]; len(group) > 1 {
			slices.SortFunc(group, b.compare)
		}
	}
	return out
}

// choose is which of an application's candidates are routed to.
func choose(all []candidate) []candidate {
	if len(all) == 1 {
		return all
	}
	prefer := func(good func(candidate) bool) {
		if slices.ContainsFunc(all, good) {
			all = slices.DeleteFunc(all, func(c candidate) bool { return !good(c) })
		}
	}
	prefer(func(c candidate) bool { return c.live })
	prefer(func(c candidate) bool { return c.current })
	return all
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
	if !ok || !found || host == "" || port == "" || len(port) > 5 {
		return false
	}
	for i := range len(port) {
		if port[i] < '0' || port[i] > '9' {
			return false
		}
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
func (b *builder) name(host string, app *served) {
	if app.ups != nil {
		b.doc.Routes = append(b.doc.Routes, scafo.Route{Host: host, Application: app.name, Upstreams: app.ups})
		return
	}
	b.doc.Unserved = append(b.doc.Unserved, scafo.UnservedHost{Host: host, Application: app.name, Reason: b.reason(app)})
}

// claim is name for hosts that two applications could both come by.
func (b *builder) claim(host string, app *served) {
	if b.taken[host] {
		b.problem(app.name, host, "the host is already answered by something else")
		return
	}
	b.taken[host] = true
	b.name(host, app)
}

// platformHosts names each application under each platform domain.
func (b *builder) platformHosts() {
	b.doc.Routes = make([]scafo.Route, 0, len(b.apps)*max(len(b.platforms), 1))
	hosts := b.platformNames()
	for i := range b.apps {
		app := &b.apps[i]
		for _, d := range b.platforms {
			n := len(app.name) + len(".") + len(d)
			host := hosts[:n]
			hosts = hosts[n:]
			switch {
			case len(host) > scafo.MaxHostLength:
				b.problem(app.name, host, "the host is longer than %d characters", scafo.MaxHostLength)
			case b.taken[host]:
				b.problem(app.name, host, "the host is already answered by something else")
			default:
				b.name(host, app)
			}
		}
	}
}

// platformNames is each application's host under each platform domain, one behind
// the other: one piece of memory for all of them.
func (b *builder) platformNames() string {
	size := 0
	for i := range b.apps {
		for _, d := range b.platforms {
			size += len(b.apps[i].name) + len(".") + len(d)
		}
	}
	var all strings.Builder
	all.Grow(size)
	for i := range b.apps {
		for _, d := range b.platforms {
			all.WriteString(b.apps[i].name)
			all.WriteByte('.')
			all.WriteString(d)
		}
	}
	return all.String()
}

// claimed names the hosts that applications hold. A route needs the claim, held
// for this life of the application, and the application's own list.
func (b *builder) claimed() {
	for i := range b.apps {
		app := &b.apps[i]
		if len(app.domains) == 0 {
			continue
		}
		domains := slices.Clone(app.domains)
		slices.SortFunc(domains, func(x, y scafo.Domain) int { return strings.Compare(x.Host, y.Host) })
		for _, d := range slices.CompactFunc(domains, func(x, y scafo.Domain) bool { return x.Host == y.Host }) {
			claim, ok := b.in.Claims[d.Host]
			if !ok || claim.State != scafo.ClaimHeld || claim.Application != app.name || claim.UID != app.uid || claim.Host != d.Host {
				continue
			}
			if host, err := scafo.ParseHost(d.Host); err != nil || host != d.Host {
				b.problem(app.name, d.Host, "it is no host that can be claimed")
				continue
			}
			if p := b.under(d.Host); p != "" {
				b.problem(app.name, d.Host, "it is under the platform domain %s, where hosts follow from names", p)
				continue
			}
			b.claim(d.Host, app)
			if claim.Wildcard && d.Wildcard {
				b.bases = append(b.bases, base{host: d.Host, app: app})
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
		ups := base.app.ups
		if ups == nil {
			ups = []scafo.Upstream{}
		}
		b.doc.Wildcards = append(b.doc.Wildcards, scafo.WildcardRoute{Base: base.host, Application: base.app.name, Upstreams: ups})
		prefix := base.app.name + "-"
		first, _ := slices.BinarySearchFunc(b.apps, prefix, func(s served, p string) int { return strings.Compare(s.name, p) })
		for i := first; i < len(b.apps); i++ {
			env, ok := strings.CutPrefix(b.apps[i].name, prefix)
			if !ok {
				break
			}
			host := env + "." + base.host
			if b.taken[host] || b.explicit(host) || b.under(host) != "" || b.apps[i].ups == nil && len(ups) > 0 {
				continue
			}
			if h, err := scafo.ParseHost(host); err != nil || h != host {
				continue // shop--x has no <env> that is a label
			}
			b.claim(host, &b.apps[i])
		}
	}
}

// explicit is whether the host is claimed by itself.
func (b *builder) explicit(host string) bool {
	c, ok := b.in.Claims[host]
	return ok && c.State == scafo.ClaimHeld
}

// reason says why nobody serves the application at the moment.
func (b *builder) reason(app *served) string {
	pl, ok := b.in.Placements[app.name]
	if !ok || pl.UID != app.uid {
		return "it is about to be placed"
	}
	if len(pl.Nodes) == 0 {
		if pl.Reason == "" {
			return "unplaced"
		}
		return "unplaced: " + pl.Reason
	}
	crashing, waits := b.crashing[app.uid]
	switch {
	case crashing:
		return "crash-looping"
	case waits:
		return "it starts once the lease of its last process is over"
	case !slices.ContainsFunc(pl.Nodes, func(id string) bool { return b.live[id] }):
		return "its node is gone"
	}
	return "starting"
}
