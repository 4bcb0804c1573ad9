package route

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
)

func serves(a scafo.Application) bool {
	return a.Deployment != "" && a.Blocked == nil && a.Retired == nil && a.Deleting == nil
}

// world builds inputs for the document.
type world struct{ in Input }

func newWorld(nodes ...string) *world {
	w := &world{in: Input{
		Fleet: "f1", Node: "a", Applications: map[string]scafo.Application{}, Placements: map[string]scafo.Placement{},
		Claims: map[string]scafo.Claim{}, PlatformDomains: []string{"apps.example"}, Serves: serves,
	}}
	for _, id := range nodes {
		w.in.Nodes = append(w.in.Nodes, Node{ID: id, API: "http://" + id + ":7420", Live: true})
	}
	return w
}

func (w *world) node(id string) *Node {
	i := slices.IndexFunc(w.in.Nodes, func(n Node) bool { return n.ID == id })
	return &w.in.Nodes[i]
}

// app adds an application that is placed and ready on the nodes.
func (w *world) app(name string, nodes ...string) {
	w.in.Applications[name] = scafo.Application{Name: name, UID: "u-" + name, Deployment: "v2"}
	w.in.Placements[name] = scafo.Placement{Application: name, UID: "u-" + name, Nodes: nodes}
	for _, id := range nodes {
		w.process(name, id, scafo.ProcessReady, "v2")
	}
}

func (w *world) process(name, node string, state scafo.ProcessState, version string) {
	n := w.node(node)
	n.Processes = append(n.Processes, scafo.ProcessStatus{Application: name, UID: "u-" + name, State: state, Deployment: version, URL: "http://" + node + ":20000"})
}

func (w *world) change(name string, f func(*scafo.Application)) {
	a := w.in.Applications[name]
	f(&a)
	w.in.Applications[name] = a
}

// claim gives the application a host, in the claim and in its own list.
func (w *world) claim(name, host string, wildcard bool) {
	w.in.Claims[host] = scafo.Claim{Host: host, Application: name, UID: "u-" + name, Wildcard: wildcard, State: scafo.ClaimHeld}
	w.change(name, func(a *scafo.Application) {
		a.Domains = append(a.Domains, scafo.Domain{Host: host, Wildcard: wildcard})
	})
}

// lines writes a document down, a line for each entry.
func lines(doc scafo.FleetRouting) []string {
	var out []string
	ups := func(list []scafo.Upstream) string {
		var s []string
		for _, u := range list {
			s = append(s, u.Node)
		}
		return strings.Join(s, ",")
	}
	for _, r := range doc.Routes {
		out = append(out, fmt.Sprintf("%s -> %s@%s", r.Host, r.Application, ups(r.Upstreams)))
	}
	for _, r := range doc.Wildcards {
		out = append(out, fmt.Sprintf("*.%s -> %s@%s", r.Base, r.Application, ups(r.Upstreams)))
	}
	for _, r := range doc.API {
		out = append(out, fmt.Sprintf("%s -> api@%s", r.Host, ups(r.Upstreams)))
	}
	for _, r := range doc.Unserved {
		out = append(out, fmt.Sprintf("%s unserved: %s, %s", r.Host, r.Application, r.Reason))
	}
	return out
}

func TestBuild(t *testing.T) {
	stamp := &scafo.Stamp{}
	for _, c := range []struct {
		name     string
		make     func(w *world)
		want     []string
		problems int
	}{
		{name: "nothing", make: func(*world) {}},
		{name: "a platform host", make: func(w *world) { w.app("shop", "b", "a") }, want: []string{"shop.apps.example -> shop@b,a"}},
		{name: "two platform domains", make: func(w *world) {
			w.in.PlatformDomains = []string{"localhost", "apps.example", "localhost"}
			w.app("shop", "a")
		}, want: []string{"shop.apps.example -> shop@a", "shop.localhost -> shop@a"}},
		{name: "blocked, retired, deleting, never deployed", make: func(w *world) {
			for _, n := range []string{"p", "q", "r", "s"} {
				w.app(n, "a")
				w.claim(n, n+".example", true)
			}
			w.change("p", func(a *scafo.Application) { a.Blocked = stamp })
			w.change("q", func(a *scafo.Application) { a.Retired = stamp })
			w.change("r", func(a *scafo.Application) { a.Deleting = &scafo.Deleting{} })
			w.change("s", func(a *scafo.Application) { a.Deployment = "" })
		}},
		{name: "starting", make: func(w *world) {
			w.app("shop")
			w.in.Placements["shop"] = scafo.Placement{UID: "u-shop", Nodes: []string{"a"}}
			w.process("shop", "a", scafo.ProcessStarting, "")
		}, want: []string{"shop.apps.example unserved: shop, starting"}},
		{name: "crash-looping", make: func(w *world) {
			w.app("shop")
			w.in.Placements["shop"] = scafo.Placement{UID: "u-shop", Nodes: []string{"a"}}
			w.process("shop", "a", scafo.ProcessBackoff, "")
			w.claim("shop", "shop.example", false)
		}, want: []string{"shop.apps.example unserved: shop, crash-looping", "shop.example unserved: shop, crash-looping"}},
		{name: "it lost its lease", make: func(w *world) {
			w.app("shop")
			w.in.Placements["shop"] = scafo.Placement{UID: "u-shop", Nodes: []string{"a"}}
			w.process("shop", "a", scafo.ProcessBackoff, "")
			w.node("a").Processes[0].LastExit = &scafo.Exit{Code: 3}
		}, want: []string{"shop.apps.example unserved: shop, it starts once the lease of its last process is over"}},
		{name: "unplaced", make: func(w *world) {
			w.app("shop")
			w.in.Placements["shop"] = scafo.Placement{UID: "u-shop", Reason: "no node has the labels x=y"}
		}, want: []string{"shop.apps.example unserved: shop, unplaced: no node has the labels x=y"}},
		{name: "not placed yet", make: func(w *world) {
			w.app("shop")
			delete(w.in.Placements, "shop")
		}, want: []string{"shop.apps.example unserved: shop, it is about to be placed"}},
		{name: "draining processes are no upstreams", make: func(w *world) {
			w.app("shop", "a")
			w.node("a").Processes[0].State = scafo.ProcessDraining
		}, want: []string{"shop.apps.example unserved: shop, starting"}},
		{name: "a process of a former life", make: func(w *world) {
			w.app("shop", "a")
			w.node("a").Processes[0].UID = "old"
		}, want: []string{"shop.apps.example unserved: shop, starting"}},
		{name: "who lags leaves as soon as one is current", make: func(w *world) {
			w.app("shop", "a", "b", "c")
			w.node("a").Processes[0].Deployment = "v1"
			w.node("c").Processes[0].Deployment = "v1"
		}, want: []string{"shop.apps.example -> shop@b"}},
		{name: "all lag", make: func(w *world) {
			w.app("shop", "a", "b")
			w.node("a").Processes[0].Deployment = "v1"
			w.node("b").Processes[0].Deployment = "v1"
		}, want: []string{"shop.apps.example -> shop@a,b"}},
		{name: "gone, and another lives", make: func(w *world) {
			w.app("shop", "a", "b")
			w.node("a").Live = false
		}, want: []string{"shop.apps.example -> shop@b"}},
		{name: "gone, and the living one lags", make: func(w *world) {
			w.app("shop", "a", "b")
			w.node("a").Live = false
			w.node("b").Processes[0].Deployment = "v1"
		}, want: []string{"shop.apps.example -> shop@b"}},
		{name: "gone, and no other is ready", make: func(w *world) {
			w.app("shop", "a")
			w.node("a").Live = false
			w.in.Placements["shop"] = scafo.Placement{UID: "u-shop", Nodes: []string{"b"}}
		}, want: []string{"shop.apps.example -> shop@a"}},
		{name: "what was moved away comes last", make: func(w *world) {
			w.app("shop", "a", "c")
			w.in.Placements["shop"] = scafo.Placement{UID: "u-shop", Nodes: []string{"c", "b"}}
		}, want: []string{"shop.apps.example -> shop@c,a"}},
		{name: "a claimed host", make: func(w *world) {
			w.app("shop", "a")
			w.claim("shop", "shop.example", false)
		}, want: []string{"shop.apps.example -> shop@a", "shop.example -> shop@a"}},
		{name: "a claim that the application does not list", make: func(w *world) {
			w.app("shop", "a")
			w.in.Claims["shop.example"] = scafo.Claim{Host: "shop.example", Application: "shop", UID: "u-shop", State: scafo.ClaimHeld}
		}, want: []string{"shop.apps.example -> shop@a"}},
		{name: "a host in the list without its claim", make: func(w *world) {
			w.app("shop", "a")
			w.claim("shop", "shop.example", false)
			delete(w.in.Claims, "shop.example")
		}, want: []string{"shop.apps.example -> shop@a"}},
		{name: "a claim that is pending, released, of a former life, of another", make: func(w *world) {
			w.app("shop", "a")
			for i, f := range []func(*scafo.Claim){
				func(c *scafo.Claim) { c.State = scafo.ClaimPending },
				func(c *scafo.Claim) { c.State = scafo.ClaimReleased },
				func(c *scafo.Claim) { c.UID = "old" },
				func(c *scafo.Claim) { c.Application = "other" },
			} {
				host := fmt.Sprintf("h%d.example", i)
				w.claim("shop", host, false)
				c := w.in.Claims[host]
				f(&c)
				w.in.Claims[host] = c
			}
		}, want: []string{"shop.apps.example -> shop@a"}},
		{name: "a claim with its subdomains", make: func(w *world) {
			w.app("shop", "a")
			w.app("shop-staging", "b")
			w.app("shopping", "b")
			w.claim("shop", "shop.example", true)
		}, want: []string{
			"shop-staging.apps.example -> shop-staging@b", "shop.apps.example -> shop@a", "shop.example -> shop@a",
			"shopping.apps.example -> shopping@b", "staging.shop.example -> shop-staging@b", "*.shop.example -> shop@a",
		}},
		{name: "subdomains that only the claim, or only the list, names", make: func(w *world) {
			w.app("shop", "a")
			w.app("shop-x", "a")
			w.claim("shop", "one.example", true)
			w.claim("shop", "two.example", true)
			c := w.in.Claims["one.example"]
			c.Wildcard = false
			w.in.Claims["one.example"] = c
			w.change("shop", func(a *scafo.Application) { a.Domains[1].Wildcard = false })
		}, want: []string{"one.example -> shop@a", "shop-x.apps.example -> shop-x@a", "shop.apps.example -> shop@a", "two.example -> shop@a"}},
		{name: "an environment that does not serve leaves its host to the holder", make: func(w *world) {
			w.app("shop", "a")
			w.app("shop-x")
			w.claim("shop", "shop.example", true)
		}, want: []string{"shop.apps.example -> shop@a", "shop.example -> shop@a", "*.shop.example -> shop@a", "shop-x.apps.example unserved: shop-x, unplaced"}},
		{name: "the holder does not serve", make: func(w *world) {
			w.app("shop")
			w.app("shop-x", "b")
			w.app("shop-y")
			w.claim("shop", "shop.example", true)
		}, want: []string{
			"shop-x.apps.example -> shop-x@b", "x.shop.example -> shop-x@b", "*.shop.example -> shop@",
			"shop-y.apps.example unserved: shop-y, unplaced", "shop.apps.example unserved: shop, unplaced",
			"shop.example unserved: shop, unplaced", "y.shop.example unserved: shop-y, unplaced",
		}},
		{name: "an explicit claim beats the environment", make: func(w *world) {
			w.app("shop", "a")
			w.app("shop-x", "b")
			w.claim("shop", "shop.example", true)
			w.claim("shop", "x.shop.example", false)
		}, want: []string{
			"shop-x.apps.example -> shop-x@b", "shop.apps.example -> shop@a", "shop.example -> shop@a",
			"x.shop.example -> shop@a", "*.shop.example -> shop@a",
		}},
		{name: "no label is left for the environment", make: func(w *world) {
			w.app("shop", "a")
			w.app("shop--x", "a")
			w.claim("shop", "shop.example", true)
		}, want: []string{"shop--x.apps.example -> shop--x@a", "shop.apps.example -> shop@a", "shop.example -> shop@a", "*.shop.example -> shop@a"}},
		{name: "the API", make: func(w *world) {
			w.in.APIPublic = true
			w.node("b").Draining = true
			w.node("c").Live = false
		}, want: []string{"apps.example -> api@a"}},
		{name: "an application named as a platform domain is", make: func(w *world) {
			w.in.APIPublic = true
			w.in.PlatformDomains = []string{"example", "apps.example"}
			w.app("apps", "a")
		}, want: []string{"apps.apps.example -> apps@a", "apps.example -> api@a,b,c", "example -> api@a,b,c"}, problems: 1},
		{name: "a claim under a platform domain", make: func(w *world) {
			w.app("shop", "a")
			w.claim("shop", "apps.example", false)
			w.claim("shop", "other.apps.example", false)
		}, want: []string{"shop.apps.example -> shop@a"}, problems: 2},
		{name: "a malformed host costs itself alone", make: func(w *world) {
			w.app("shop", "a")
			w.claim("shop", "*.evil`)||Host(`x.example", false)
			w.claim("shop", "shop.example", false)
		}, want: []string{"shop.apps.example -> shop@a", "shop.example -> shop@a"}, problems: 1},
		{name: "an upstream that is no URL", make: func(w *world) {
			w.app("shop", "a", "b")
			w.node("a").Processes[0].URL = "javascript:alert(1)"
		}, want: []string{"shop.apps.example -> shop@b"}, problems: 1},
		{name: "a host that would be too long", make: func(w *world) {
			w.in.PlatformDomains = []string{strings.Repeat("abcdefgh.", 24) + "example"}
			w.app(strings.Repeat("n", 60), "a")
		}, problems: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld("a", "b", "c")
			c.make(w)
			doc, problems := Build(w.in)
			if got := lines(doc); !slices.Equal(got, c.want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
			}
			if len(problems) != c.problems {
				t.Errorf("problems %+v", problems)
			}
			if doc.V != 1 || doc.Fleet != "f1" || doc.Node != "a" {
				t.Errorf("head %+v", doc)
			}
		})
	}
}

// random draws a world of applications, claims and nodes in any condition.
func random(t *rapid.T) Input {
	w := newWorld("a", "b", "c")
	w.in.APIPublic = rapid.Bool().Draw(t, "public")
	w.in.PlatformDomains = rapid.SampledFrom([][]string{{}, {"apps.example"}, {"localhost"}, {"example", "apps.example"}}).Draw(t, "platform")
	names := []string{"shop", "shop-x", "shop-y", "shop-x-y", "apps", "other", "shop--z"}
	hosts := []string{"shop.example", "x.shop.example", "deep.x.shop.example", "other.org", "apps.example", "y.other.org"}
	for _, n := range names {
		if rapid.Bool().Draw(t, "exists") {
			w.app(n, rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 3, func(s string) string { return s }).Draw(t, "nodes")...)
			if rapid.Float64Range(0, 1).Draw(t, "blocked") < 0.2 {
				w.change(n, func(a *scafo.Application) { a.Blocked = &scafo.Stamp{} })
			}
		}
	}
	for _, h := range hosts {
		n := rapid.SampledFrom(names).Draw(t, "holder")
		if _, ok := w.in.Applications[n]; ok && rapid.Bool().Draw(t, "claimed") {
			w.claim(n, h, rapid.Bool().Draw(t, "wildcard"))
		}
	}
	for i := range w.in.Nodes {
		w.in.Nodes[i].Live = rapid.Float64Range(0, 1).Draw(t, "live") < 0.8
		for j := range w.in.Nodes[i].Processes {
			p := &w.in.Nodes[i].Processes[j]
			p.State = rapid.SampledFrom([]scafo.ProcessState{"ready", "ready", "starting", "backoff", "draining"}).Draw(t, "state")
			p.Deployment = rapid.SampledFrom([]string{"v1", "v2"}).Draw(t, "version")
		}
	}
	return w.in
}

func TestBuildProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := random(t)
		doc, _ := Build(in)
		exact := map[string]bool{}
		add := func(host string) {
			if exact[host] {
				t.Fatalf("%s twice in %v", host, lines(doc))
			}
			if strings.Contains(host, "*") {
				t.Fatalf("an exact host with a wildcard: %s", host)
			}
			exact[host] = true
		}
		for _, r := range doc.Routes {
			add(r.Host)
			checkUpstreams(t, in, r.Application, r.Upstreams)
			if len(r.Upstreams) == 0 {
				t.Fatalf("a route without upstreams: %+v", r)
			}
		}
		for _, r := range doc.Unserved {
			add(r.Host)
			if r.Reason == "" {
				t.Fatalf("unserved without a reason: %+v", r)
			}
		}
		for _, r := range doc.API {
			add(r.Host)
		}
		for _, r := range doc.Wildcards {
			checkUpstreams(t, in, r.Application, r.Upstreams)
		}
		if !slices.IsSortedFunc(doc.Routes, func(a, b scafo.Route) int { return strings.Compare(a.Host, b.Host) }) ||
			!slices.IsSortedFunc(doc.Unserved, func(a, b scafo.UnservedHost) int { return strings.Compare(a.Host, b.Host) }) ||
			!slices.IsSortedFunc(doc.Wildcards, func(a, b scafo.WildcardRoute) int { return strings.Compare(a.Base, b.Base) }) {
			t.Fatalf("out of order: %v", lines(doc))
		}
		// The order in which things are given is no input.
		slices.Reverse(in.Nodes)
		slices.Reverse(in.PlatformDomains)
		for n, a := range in.Applications {
			slices.Reverse(a.Domains)
			in.Applications[n] = a
		}
		if again, _ := Build(in); !reflect.DeepEqual(again, doc) {
			t.Fatalf("another order: %v\nwas: %v", lines(again), lines(doc))
		}
	})
}

// checkUpstreams holds the upstreams to the rules: ready processes of this
// application's life, all current as soon as one is, none of a node that is gone
// while another is ready.
func checkUpstreams(t *rapid.T, in Input, name string, ups []scafo.Upstream) {
	app := in.Applications[name]
	if !serves(app) {
		t.Fatalf("%s is not to be served", name)
	}
	version, live := map[string]string{}, map[string]bool{}
	anyLive, anyCurrent := false, false
	for _, n := range in.Nodes {
		live[n.ID] = n.Live
		for _, p := range n.Processes {
			if p.UID == app.UID && p.State == scafo.ProcessReady {
				version[n.ID] = p.Deployment
				anyLive = anyLive || n.Live
			}
		}
	}
	for id, v := range version {
		anyCurrent = anyCurrent || v == app.Deployment && (live[id] || !anyLive)
	}
	for _, u := range ups {
		v, ready := version[u.Node]
		if !ready {
			t.Fatalf("%s is not ready on %s", name, u.Node)
		}
		if anyLive && !live[u.Node] {
			t.Fatalf("%s: %s is gone, and another lives", name, u.Node)
		}
		if anyCurrent && v != app.Deployment {
			t.Fatalf("%s: %s lags, and another is current", name, u.Node)
		}
	}
	if len(version) > 0 && len(ups) == 0 {
		t.Fatalf("%s is ready on %v, and routed nowhere", name, version)
	}
}

func TestPrefer(t *testing.T) {
	w := newWorld("a", "b", "c")
	w.in.APIPublic = true
	w.app("shop", "a", "b", "c")
	w.app("zoo", "a")
	w.claim("shop", "shop.example", true)
	doc, _ := Build(w.in)
	before := lines(doc)
	got := lines(Prefer(doc, "c"))
	want := []string{"shop.apps.example -> shop@c,a,b", "shop.example -> shop@c,a,b", "zoo.apps.example -> zoo@a", "*.shop.example -> shop@c,a,b", "apps.example -> api@c,a,b"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	if !slices.Equal(lines(doc), before) {
		t.Error("the document itself changed")
	}
	if !slices.Equal(lines(Prefer(doc, "nobody")), before) {
		t.Error("a node that serves nothing is preferred to an effect")
	}
}

func TestPublisher(t *testing.T) {
	w := newWorld("a", "b")
	w.app("shop", "a", "b")
	var p Publisher
	if p.Get("") != nil {
		t.Fatal("a document before the first one")
	}
	t1 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	doc, _ := Build(w.in)
	if changed, err := p.Publish(doc, t1); !changed || err != nil {
		t.Fatal(changed, err)
	}
	first := p.Get("")
	var read scafo.FleetRouting
	if err := json.Unmarshal(first.Body, &read); err != nil || !read.GeneratedAt.Equal(t1) || !strings.HasPrefix(first.ETag, `"`) {
		t.Fatalf("%s %v %s", first.Body, err, first.ETag)
	}
	for _, field := range []string{`"v":1`, `"fleet":"f1"`, `"generatedAt":"2026-01-02T03:04:05Z"`, `"node":"a"`, `"wildcards":[]`, `"api":[]`, `"unserved":[]`} {
		if !strings.Contains(string(first.Body), field) {
			t.Errorf("no %s in %s", field, first.Body)
		}
	}
	// The same content, later: the same bytes, and nothing is encoded.
	doc, _ = Build(w.in)
	if changed, err := p.Publish(doc, t1.Add(time.Hour)); changed || err != nil {
		t.Fatal(changed, err)
	}
	if p.Get("") != first || p.Get("nobody") != first || p.encodeds != 1 {
		t.Errorf("it was encoded %d times", p.encodeds)
	}
	// One more encoding for a node that is preferred, however often.
	for range 10 {
		if e := p.Get("b"); e.Doc.Routes[0].Upstreams[0].Node != "b" || e.ETag == first.ETag {
			t.Fatalf("%+v", e)
		}
	}
	if p.encodeds != 2 {
		t.Errorf("it was encoded %d times", p.encodeds)
	}
	w.app("zoo", "a")
	doc, _ = Build(w.in)
	if changed, _ := p.Publish(doc, t1.Add(2*time.Hour)); !changed {
		t.Fatal("a change is none")
	}
	if e := p.Get(""); e.ETag == first.ETag || !e.Doc.GeneratedAt.Equal(t1.Add(2*time.Hour)) {
		t.Errorf("%+v", e)
	}
}

// Who waits hears of every change.
func TestPublisherChanged(t *testing.T) {
	closed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	w := newWorld("a")
	var p Publisher
	publish := func() {
		doc, _ := Build(w.in)
		if _, err := p.Publish(doc, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	first := p.Changed()
	publish()
	second := p.Changed()
	if !closed(first) || closed(second) {
		t.Error("the first document is a change, once")
	}
	publish() // the same content
	if closed(second) || p.Changed() != second {
		t.Error("the same content is no change")
	}
	w.app("shop", "a")
	publish()
	if !closed(second) {
		t.Error("a change was not told")
	}
}

// BenchmarkBuild compares building and encoding 10,000 applications with encoding
// the same values alone.
func BenchmarkBuild(b *testing.B) {
	w := newWorld("a", "b", "c")
	for i := range 10000 {
		w.app(fmt.Sprintf("app-%d", i), "a", "b")
	}
	doc, _ := Build(w.in)
	begin := time.Now()
	for range b.N {
		if _, err := json.Marshal(doc); err != nil {
			b.Fatal(err)
		}
	}
	bare := time.Since(begin)
	b.ResetTimer()
	begin = time.Now()
	for range b.N {
		var p Publisher
		doc, _ := Build(w.in)
		if _, err := p.Publish(doc, time.Now()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(time.Since(begin))/float64(bare), "of-encoding-alone")
}
