package route

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
)

func ups(urls ...string) []scafo.Upstream {
	out := []scafo.Upstream{}
	for i, u := range urls {
		out = append(out, scafo.Upstream{Node: string(rune('a' + i)), URL: u})
	}
	return out
}

func render(t *testing.T, tr Traefik, doc scafo.FleetRouting) (string, []Problem) {
	t.Helper()
	body, problems, err := tr.Render(doc)
	if err != nil {
		t.Fatal(err)
	}
	return string(body), problems
}

// compact is JSON without the white space that makes a golden document readable.
func compact(t *testing.T, s string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(s)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTraefikWithoutRoutes(t *testing.T) {
	for name, doc := range map[string]scafo.FleetRouting{
		"empty":         {},
		"lists":         {Routes: []scafo.Route{}, Wildcards: []scafo.WildcardRoute{}, API: []scafo.APIHost{}, Unserved: []scafo.UnservedHost{}},
		"only bad ones": {Routes: []scafo.Route{{Host: "a`b", Application: "x", Upstreams: ups("http://10.0.0.1:1")}}},
	} {
		if got, _ := render(t, Traefik{CertResolver: "le", EntryPoints: []string{"web"}}, doc); got != "{}" {
			t.Errorf("%s: %s, want {}", name, got)
		}
	}
}

const shared = `
	"middlewares": {
		"scafo-headers": {"headers": {"customRequestHeaders": {"Forwarded": ""}}},
		"scafo-retry": {"retry": {"attempts": 3, "initialInterval": "20ms"}}
	},
	"serversTransports": {"scafo": {"forwardingTimeouts": {"dialTimeout": "2s"}}}`

func TestTraefikPlain(t *testing.T) {
	got, problems := render(t, Traefik{}, scafo.FleetRouting{
		Routes: []scafo.Route{
			{Host: "blog.apps.example", Application: "blog", Upstreams: ups("http://10.0.0.1:20001")},
			{Host: "shop.apps.example", Application: "shop", Upstreams: ups("http://10.0.0.1:20000", "http://10.0.0.2:20000")},
			{Host: "shop.example", Application: "shop", Upstreams: ups("http://10.0.0.1:20000", "http://10.0.0.2:20000")},
		},
		API:      []scafo.APIHost{{Host: "apps.example", Upstreams: ups("http://10.0.0.1:7420", "http://10.0.0.2:7420")}},
		Unserved: []scafo.UnservedHost{{Host: "down.apps.example", Application: "down", Reason: "starting"}},
	})
	chain := `"middlewares": ["scafo-headers", "scafo-retry"]`
	want := `{"http": {
		"routers": {
			"host-apps.example": {` + chain + `, "service": "api", "rule": "Host(` + "`apps.example`" + `)", "priority": 2000},
			"host-blog.apps.example": {` + chain + `, "service": "app-blog", "rule": "Host(` + "`blog.apps.example`" + `)", "priority": 2000},
			"host-down.apps.example": {` + chain + `, "service": "unserved", "rule": "Host(` + "`down.apps.example`" + `)", "priority": 2000},
			"host-shop.apps.example": {` + chain + `, "service": "app-shop", "rule": "Host(` + "`shop.apps.example`" + `)", "priority": 2000},
			"host-shop.example": {` + chain + `, "service": "app-shop", "rule": "Host(` + "`shop.example`" + `)", "priority": 2000}
		},
		"services": {
			"api": {"loadBalancer": {"servers": [{"url": "http://10.0.0.1:7420"}, {"url": "http://10.0.0.2:7420"}],
				"healthCheck": {"path": "/.well-known/scafo/health", "interval": "2s", "timeout": "1500ms"}, "serversTransport": "scafo"}},
			"app-blog": {"loadBalancer": {"servers": [{"url": "http://10.0.0.1:20001"}], "serversTransport": "scafo"}},
			"app-shop": {"loadBalancer": {"servers": [{"url": "http://10.0.0.1:20000"}, {"url": "http://10.0.0.2:20000"}],
				"healthCheck": {"path": "/.well-known/celld/health", "interval": "2s", "timeout": "1500ms"}, "serversTransport": "scafo"}},
			"unserved": {"loadBalancer": {"servers": []}}
		},` + shared + `}}`
	if got != compact(t, want) || len(problems) != 0 {
		t.Errorf("%v\ngot  %s\nwant %s", problems, got, compact(t, want))
	}
}

func TestTraefikWithCertificates(t *testing.T) {
	got, problems := render(t, Traefik{
		CertResolver: "le", EntryPoints: []string{"websecure"}, Middlewares: []string{"limit@file", "log@file"},
		WildcardDomains: []string{"apps.example", "*.Covered.example"},
	}, scafo.FleetRouting{
		Routes: []scafo.Route{
			{Host: "covered.example", Application: "c", Upstreams: ups("http://10.0.0.1:2")},
			{Host: "shop.apps.example", Application: "shop", Upstreams: ups("http://10.0.0.1:1")},
			{Host: "shop.example", Application: "shop", Upstreams: ups("http://10.0.0.1:1")},
		},
		Wildcards: []scafo.WildcardRoute{
			{Base: "covered.example", Application: "c", Upstreams: ups("http://10.0.0.1:2")},
			{Base: "shop.example", Application: "shop", Upstreams: ups("http://10.0.0.1:1")},
			{Base: "silent.example", Application: "silent", Upstreams: ups()},
		},
		Unserved: []scafo.UnservedHost{{Host: "down.example", Application: "down"}, {Host: "down.apps.example", Application: "down"}},
	})
	every := `"entryPoints": ["websecure"], "middlewares": ["limit@file", "log@file", "scafo-headers", "scafo-retry"]`
	host := func(h, service, tls string) string {
		return `"host-` + h + `": {` + every + `, "service": "` + service + `", "rule": "Host(` + "`" + h + "`" + `)", "priority": 2000, "tls": {` + tls + `}}`
	}
	below := func(h, service, tls string) string {
		return `"below-` + h + `": {` + every + `, "service": "` + service + `", "rule": "HostRegexp(` + "`^[^.]+\\\\." + strings.ReplaceAll(h, ".", `\\.`) + "$`" + `)", "priority": 1000, "tls": {` + tls + `}}`
	}
	const own, any = `"certResolver": "le"`, `"options": "default"`
	wild := func(d string) string { return `"certResolver": "le", "domains": [{"main": "*.` + d + `"}]` }
	want := `{"http": {"routers": {` + strings.Join([]string{
		below("covered.example", "app-c", wild("covered.example")),
		below("shop.example", "app-shop", any),
		below("silent.example", "unserved", any),
		host("covered.example", "app-c", own),
		host("down.apps.example", "unserved", wild("apps.example")),
		host("down.example", "unserved", any),
		host("shop.apps.example", "app-shop", wild("apps.example")),
		host("shop.example", "app-shop", own),
	}, ",") + `}, "services": {
		"app-c": {"loadBalancer": {"servers": [{"url": "http://10.0.0.1:2"}], "serversTransport": "scafo"}},
		"app-shop": {"loadBalancer": {"servers": [{"url": "http://10.0.0.1:1"}], "serversTransport": "scafo"}},
		"unserved": {"loadBalancer": {"servers": []}}
	},` + shared + `}}`
	if got != compact(t, want) || len(problems) != 0 {
		t.Errorf("%v\ngot  %s\nwant %s", problems, got, compact(t, want))
	}
}

// What is wrong with one claim among forty costs that one.
func TestTraefikOneBadHost(t *testing.T) {
	for _, bad := range []string{"", "a b.example", "x`) || Host(`evil.example", "UPPER.example", "*.example", "a..example", "-a.example", "a-.example", strings.Repeat("a", 64) + ".example", strings.Repeat("a.", 127) + "example", "é.example", "a.example:80", "a/b"} {
		doc := scafo.FleetRouting{}
		for i := range 40 {
			doc.Routes = append(doc.Routes, scafo.Route{Host: fmt.Sprintf("h%02d.example", i), Application: fmt.Sprintf("app%d", i), Upstreams: ups("http://10.0.0.1:1")})
		}
		good, _ := render(t, Traefik{}, doc)
		doc.Routes = append(doc.Routes, scafo.Route{Host: bad, Application: "bad", Upstreams: ups("http://10.0.0.1:1")})
		doc.Wildcards = append(doc.Wildcards, scafo.WildcardRoute{Base: bad, Application: "bad", Upstreams: ups("http://10.0.0.1:1")})
		got, problems := render(t, Traefik{}, doc)
		if got != good || len(problems) != 2 || problems[0].Application != "bad" {
			t.Errorf("%q: %v\n%s", bad, problems, got)
		}
	}
}

func TestTraefikBadUpstreams(t *testing.T) {
	got, problems := render(t, Traefik{}, scafo.FleetRouting{Routes: []scafo.Route{
		{Host: "half.example", Application: "half", Upstreams: ups("not a url", "http://10.0.0.1:1")},
		{Host: "none.example", Application: "none", Upstreams: ups("ftp://x", "http://")},
	}})
	for _, want := range []string{
		`"app-half":{"loadBalancer":{"servers":[{"url":"http://10.0.0.1:1"}],"serversTransport":"scafo"}}`,
		`"service":"unserved","rule":"Host(` + "`none.example`" + `)"`, `"unserved":{"loadBalancer":{"servers":[]}}`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %s", got, want)
		}
	}
	if len(problems) != 3 {
		t.Errorf("%v", problems)
	}
}

// emptyMap finds an empty object anywhere below.
func emptyMap(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			return true
		}
		for _, e := range v {
			if emptyMap(e) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, emptyMap)
	}
	return false
}

// Whatever the document: no empty map, every router's service and middlewares are
// there, exact hosts beat patterns, no pattern and no unserved host orders a
// certificate of its own, and neither time nor order changes a byte.
func TestTraefikProperties(t *testing.T) {
	hosts := rapid.SampledFrom([]string{"a.example", "b.example", "x.a.example", "deep.x.a.example", "localhost", "bad`host", "", "A.example"})
	upstreams := rapid.SliceOfN(rapid.Map(rapid.SampledFrom([]string{"http://10.0.0.1:1", "http://10.0.0.2:2", "nonsense"}),
		func(u string) scafo.Upstream { return scafo.Upstream{Node: "a", URL: u} }), 0, 3)
	apps := rapid.SampledFrom([]string{"one", "two", "three"})
	rapid.Check(t, func(t *rapid.T) {
		doc := scafo.FleetRouting{GeneratedAt: time.Unix(1, 0)}
		for _, h := range rapid.SliceOfNDistinct(hosts, 0, 6, rapid.ID).Draw(t, "hosts") {
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				doc.Routes = append(doc.Routes, scafo.Route{Host: h, Application: apps.Draw(t, "app"), Upstreams: upstreams.Draw(t, "ups")})
			case 1:
				doc.Wildcards = append(doc.Wildcards, scafo.WildcardRoute{Base: h, Application: apps.Draw(t, "app"), Upstreams: upstreams.Draw(t, "ups")})
			case 2:
				doc.API = append(doc.API, scafo.APIHost{Host: h, Upstreams: upstreams.Draw(t, "ups")})
			default:
				doc.Unserved = append(doc.Unserved, scafo.UnservedHost{Host: h})
			}
		}
		tr := Traefik{CertResolver: rapid.SampledFrom([]string{"", "le"}).Draw(t, "resolver"), WildcardDomains: rapid.SliceOf(hosts).Draw(t, "wildcards")}
		body, _, err := tr.Render(doc)
		if err != nil {
			t.Fatal(err)
		}
		if string(body) == "{}" {
			return
		}
		var tree any
		var c traefikConfig
		if json.Unmarshal(body, &tree) != nil || json.Unmarshal(body, &c) != nil || emptyMap(tree) {
			t.Fatalf("%s", body)
		}
		used := map[string]bool{}
		for name, r := range c.HTTP.Routers {
			used[r.Service] = true
			if _, ok := c.HTTP.Services[r.Service]; !ok {
				t.Fatalf("%s has no service %s", name, r.Service)
			}
			for _, m := range r.Middlewares {
				if _, ok := c.HTTP.Middlewares[m]; !ok {
					t.Fatalf("%s has no middleware %s", name, m)
				}
			}
			pattern := strings.HasPrefix(r.Rule, "HostRegexp(")
			if pattern && r.Priority >= exactPriority || !pattern && r.Priority != exactPriority {
				t.Fatalf("%s has priority %d", name, r.Priority)
			}
			if (r.TLS != nil) != (tr.CertResolver != "") {
				t.Fatalf("%s: TLS %+v", name, r.TLS)
			}
			if r.TLS != nil && r.TLS.CertResolver != "" && len(r.TLS.Domains) == 0 && (pattern || slices.ContainsFunc(doc.Unserved, func(u scafo.UnservedHost) bool { return name == "host-"+u.Host })) {
				t.Fatalf("%s orders a certificate", name)
			}
		}
		if len(used) != len(c.HTTP.Services) {
			t.Fatalf("services that nobody uses: %s", body)
		}
		doc.GeneratedAt = time.Unix(2, 0)
		slices.Reverse(doc.Routes)
		slices.Reverse(doc.Unserved)
		if again, _, _ := tr.Render(doc); len(doc.Routes) < 2 && !bytes.Equal(again, body) {
			t.Fatalf("%s\n%s", body, again)
		}
	})
}

func TestRenderingsAreMadeOnce(t *testing.T) {
	var p Publisher
	var reports int
	r := NewRenderings(func(prefer string) (scafo.FleetRouting, string, bool) {
		e := p.Get(prefer)
		if e == nil {
			return scafo.FleetRouting{}, "", false
		}
		return e.Doc, e.ETag, true
	}, Traefik{}, func([]Problem) { reports++ })
	if _, _, ready, err := r.Render(FormatTraefik, ""); ready || err != nil {
		t.Fatalf("before the first document: %v, %v", ready, err)
	}
	if _, _, _, err := r.Render("nginx", ""); err == nil {
		t.Error("an unknown format is rendered")
	}
	doc := scafo.FleetRouting{Routes: []scafo.Route{
		{Host: "x.example", Application: "x", Upstreams: []scafo.Upstream{{Node: "a", URL: "http://10.0.0.1:1"}, {Node: "b", URL: "http://10.0.0.2:1"}}},
		{Host: "bad`", Application: "x", Upstreams: ups("http://10.0.0.1:1")},
	}}
	at := time.Unix(100, 0)
	if _, err := p.Publish(doc, at); err != nil {
		t.Fatal(err)
	}
	get := func(prefer string) (string, string) {
		t.Helper()
		body, etag, ready, err := r.Render(FormatTraefik, prefer)
		if !ready || err != nil {
			t.Fatal(ready, err)
		}
		return string(body), etag
	}
	body, etag := get("")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if b, _, _, _ := r.Render(FormatTraefik, "zzz"); string(b) != body {
					t.Error("a node that serves nothing changes the order")
				}
			}
		})
	}
	wg.Wait()
	preferred, other := get("b")
	if !strings.Contains(preferred, `[{"url":"http://10.0.0.2:1"},{"url":"http://10.0.0.1:1"}]`) || other == etag {
		t.Errorf("with b preferred: %s", preferred)
	}
	if len(r.made) != 2 || reports != 1 {
		t.Errorf("%d renderings, %d reports", len(r.made), reports)
	}
	doc.Routes = doc.Routes[:1:1]
	doc.Routes[0].Upstreams = doc.Routes[0].Upstreams[:1]
	if _, err := p.Publish(doc, at.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, changed := get(""); changed == etag || len(r.made) != 1 {
		t.Errorf("after a change: %s, %d renderings", changed, len(r.made))
	}
}
