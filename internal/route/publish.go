package route

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	"github.com/scafo/scafo"
)

// Prefer is the document with the node's upstreams first on every route. The
// order is otherwise kept, and the document given is left as it is.
func Prefer(doc scafo.FleetRouting, node string) scafo.FleetRouting {
	doc.Routes = slices.Clone(doc.Routes)
	for i := range doc.Routes {
		doc.Routes[i].Upstreams = first(doc.Routes[i].Upstreams, node)
	}
	doc.Wildcards = slices.Clone(doc.Wildcards)
	for i := range doc.Wildcards {
		doc.Wildcards[i].Upstreams = first(doc.Wildcards[i].Upstreams, node)
	}
	doc.API = slices.Clone(doc.API)
	for i := range doc.API {
		doc.API[i].Upstreams = first(doc.API[i].Upstreams, node)
	}
	return doc
}

func first(ups []scafo.Upstream, node string) []scafo.Upstream {
	i := slices.IndexFunc(ups, func(u scafo.Upstream) bool { return u.Node == node })
	if i <= 0 {
		return ups
	}
	out := make([]scafo.Upstream, 0, len(ups))
	for _, u := range ups {
		if u.Node == node {
			out = append(out, u)
		}
	}
	for _, u := range ups {
		if u.Node != node {
			out = append(out, u)
		}
	}
	return out
}

// Encoded is a document with its bytes and the ETag of them.
type Encoded struct {
	Doc  scafo.FleetRouting
	Body []byte
	ETag string // quoted, as HTTP has it
}

// routeBytes is about what a route with two upstreams takes; it need not be exact.
const routeBytes = 192

func encode(doc scafo.FleetRouting) (*Encoded, error) {
	size := routeBytes * (len(doc.Routes) + len(doc.Wildcards) + len(doc.API) + len(doc.Unserved) + 1)
	body, err := appendDocument(make([]byte, 0, size), &doc)
	if err != nil {
		return nil, err
	}
	body = append(body, '\n')
	sum := sha256.Sum256(body)
	return &Encoded{Doc: doc, Body: body, ETag: `"` + hex.EncodeToString(sum[:16]) + `"`}, nil
}

// Publisher keeps the document in force. It encodes once for each change and each
// node that somebody prefers, whatever the number of polls. It is safe for
// concurrent use.
type Publisher struct {
	mu       sync.Mutex
	base     *Encoded            // guarded by mu; nil before the first Publish
	nodes    map[string]bool     // guarded by mu; nodes that have an upstream in it
	prefers  map[string]*Encoded // guarded by mu; by node; never more than nodes
	encodeds int                 // guarded by mu; how often a document was encoded
	changed  chan struct{}       // guarded by mu; closed by the next change; nil while nobody asked
}

// Publish puts the document in force. Its time is at when the content differs
// from the last one, and the last one's otherwise. It reports whether it differs.
func (p *Publisher) Publish(doc scafo.FleetRouting, at time.Time) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.base != nil && sameContent(p.base.Doc, doc) {
		return false, nil
	}
	doc.GeneratedAt = at.UTC()
	e, err := encode(doc)
	if err != nil {
		return false, err
	}
	p.encodeds++
	p.base, p.nodes, p.prefers = e, nodesOf(doc), map[string]*Encoded{}
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	return true, nil
}

// Changed is closed when another document is in force than at the time of the call.
func (p *Publisher) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// sameContent is whether the documents differ in their time alone.
func sameContent(a, b scafo.FleetRouting) bool {
	return a.V == b.V && a.Fleet == b.Fleet && a.Node == b.Node &&
		slices.EqualFunc(a.Routes, b.Routes, func(x, y scafo.Route) bool {
			return x.Host == y.Host && x.Application == y.Application && slices.Equal(x.Upstreams, y.Upstreams)
		}) &&
		slices.EqualFunc(a.Wildcards, b.Wildcards, func(x, y scafo.WildcardRoute) bool {
			return x.Base == y.Base && x.Application == y.Application && slices.Equal(x.Upstreams, y.Upstreams)
		}) &&
		slices.EqualFunc(a.API, b.API, func(x, y scafo.APIHost) bool {
			return x.Host == y.Host && slices.Equal(x.Upstreams, y.Upstreams)
		}) &&
		slices.Equal(a.Unserved, b.Unserved)
}

func nodesOf(doc scafo.FleetRouting) map[string]bool {
	nodes := map[string]bool{}
	last := ""
	add := func(ups []scafo.Upstream) {
		for _, u := range ups {
			if u.Node != last { // most of a small fleet's stand behind each other
				nodes[u.Node], last = true, u.Node
			}
		}
	}
	for _, r := range doc.Routes {
		add(r.Upstreams)
	}
	for _, r := range doc.Wildcards {
		add(r.Upstreams)
	}
	for _, r := range doc.API {
		add(r.Upstreams)
	}
	return nodes
}

// Get is the document in force, with that node's upstreams first; empty asks for
// the fleet's own order, and so does a node that serves nothing. It is nil before
// the first Publish. What it returns must not be changed.
func (p *Publisher) Get(prefer string) *Encoded {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.base == nil || !p.nodes[prefer] {
		return p.base
	}
	if e, ok := p.prefers[prefer]; ok {
		return e
	}
	e, err := encode(Prefer(p.base.Doc, prefer))
	if err != nil {
		return p.base // it was encoded before in another order
	}
	p.encodeds++
	p.prefers[prefer] = e
	return e
}
