package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

func (s *suite) put(t *testing.T, key string, value []byte) answer {
	t.Helper()
	if value == nil {
		value = []byte{}
	}
	return s.do(t, request{method: http.MethodPut, target: "/v1/storage/objects/" + escape(key), by: "ingress", body: value})
}

// escape escapes each segment of a key.
func escape(key string) string {
	segments := strings.Split(key, "/")
	for i, seg := range segments {
		segments[i] = url.PathEscape(seg)
	}
	return strings.Join(segments, "/")
}

func (s *suite) object(t *testing.T, method, key string) answer {
	t.Helper()
	return s.do(t, request{method: method, target: "/v1/storage/objects/" + escape(key), by: "ingress"})
}

func (s *suite) list(t *testing.T, prefix, recursive string) answer {
	t.Helper()
	return s.get(t, "/v1/storage/list?"+url.Values{"prefix": {prefix}, "recursive": {recursive}}.Encode(), "ingress")
}

func (s *suite) stat(t *testing.T, key string) answer {
	t.Helper()
	return s.get(t, "/v1/storage/stat?"+url.Values{"key": {key}}.Encode(), "ingress")
}

func (s *suite) storage(t *testing.T) {
	t.Run("objects", s.objects)
	t.Run("prefixes", s.prefixes)
	t.Run("keys", s.keys)
	t.Run("locks", s.locks)
	t.Run("holders", s.holders)
}

func (s *suite) objects(t *testing.T) {
	key := s.prefix + "/objects/value"
	s.object(t, "GET", key).refused(t, 404, "not-found")
	s.object(t, "DELETE", key).refused(t, 404, "not-found")
	s.stat(t, key).refused(t, 404, "not-found")
	var every []byte
	for i := range 256 {
		every = append(every, byte(i))
	}
	for _, value := range [][]byte{every, {}, []byte("\r\n"), bytes.Repeat([]byte{0}, 100_000)} {
		s.put(t, key, value).want(t, 204)
		a := s.object(t, "GET", key).want(t, 200)
		if !bytes.Equal(a.body, value) || a.header.Get("Content-Type") != "application/octet-stream" {
			t.Errorf("%d bytes of %s, want %d", len(a.body), a.header.Get("Content-Type"), len(value))
		}
		st := read[struct {
			Key        string
			Size       int
			IsTerminal bool
		}](t, s.stat(t, key))
		if st.Key != key || st.Size != len(value) || !st.IsTerminal {
			t.Errorf("stat %+v", st)
		}
	}
	for version, status := range map[string]int{"": 200, "1": 200, "2": 400, "0": 400, "1.0": 400} {
		r := request{method: "GET", target: "/v1/storage/objects/" + escape(key), by: "ingress", header: map[string]string{"X-Scafo-Storage-Version": version}}
		s.do(t, r).want(t, status)
	}
	s.object(t, "DELETE", key).want(t, 204)
	s.object(t, "GET", key).refused(t, 404, "not-found")
	s.put(t, key, []byte("again")).want(t, 204)
	s.object(t, "DELETE", s.prefix).want(t, 204)
	s.object(t, "GET", key).refused(t, 404, "not-found")
}

func (s *suite) prefixes(t *testing.T) {
	root := s.prefix + "/prefixes"
	all := []string{"foo", "foo/a", "foo/a/b", "foo/c", "foobar/a", "foo.x"}
	for _, k := range all {
		s.put(t, root+"/"+k, []byte(k)).want(t, 204)
	}
	under := func(prefix, recursive string) []string {
		t.Helper()
		a := s.list(t, root+"/"+prefix, recursive)
		if a.status == 404 {
			return nil
		}
		keys := read[[]string](t, a)
		for i, k := range keys {
			keys[i] = strings.TrimPrefix(k, root+"/")
		}
		slices.Sort(keys)
		return keys
	}
	for _, c := range []struct{ prefix, recursive, want string }{
		{"foo", "", "foo/a foo/c"}, {"foo/", "", "foo/a foo/c"}, {"foo", "true", "foo/a foo/a/b foo/c"}, {"foo", "1", "foo/a foo/a/b foo/c"},
		{"foo", "yes", "foo/a foo/c"}, {"foo", "TRUE", "foo/a foo/c"}, {"foo/a", "true", "foo/a/b"}, {"foo/a/b", "true", ""}, {"fo", "true", ""}, {"foobar", "", "foobar/a"},
	} {
		if got := strings.Join(under(c.prefix, c.recursive), " "); got != c.want {
			t.Errorf("beneath %s, recursive %q: %s, want %s", c.prefix, c.recursive, got, c.want)
		}
	}
	if got := read[[]string](t, s.list(t, root, "")); len(got) != 3 {
		t.Errorf("children of the root: %v", got)
	}
	s.list(t, root+"/none", "true").refused(t, 404, "not-found")
	st := read[map[string]any](t, s.stat(t, root+"/foobar"))
	if st["isTerminal"] != false || st["size"] != 0.0 {
		t.Errorf("a key that others are beneath: %v", st)
	}
	s.object(t, "DELETE", root+"/foo").want(t, 204)
	if got := fmt.Sprint(read[[]string](t, s.list(t, root, "true"))); got != fmt.Sprintf("[%s/foo.x %s/foobar/a]", root, root) {
		t.Errorf("after foo and all beneath it are gone: %s", got)
	}
	s.object(t, "DELETE", root).want(t, 204)
}

func (s *suite) keys(t *testing.T) {
	root := s.prefix + "/keys"
	spelled := []string{"a b", "a+b", "a%2Fb", "100%", "~!@#$&'()*,;=:?[]{}|^`\"<>\\", "UPPER", ".hidden", "...", "a..b", "wildcard_.example.com.key", strings.Repeat("long", 50)}
	for _, k := range spelled {
		if strings.Contains(k, "/") {
			continue
		}
		s.put(t, root+"/"+k, []byte(k)).want(t, 204)
		if a := s.object(t, "GET", root+"/"+k).want(t, 200); string(a.body) != k {
			t.Errorf("%q holds %q", k, a.body)
		}
		if st := read[map[string]any](t, s.stat(t, root+"/"+k)); st["key"] != root+"/"+k {
			t.Errorf("%q is spelled back as %v", k, st["key"])
		}
	}
	got := read[[]string](t, s.list(t, root, "true"))
	for _, k := range spelled {
		if !slices.Contains(got, root+"/"+k) {
			t.Errorf("the list has no %q", k)
		}
	}
	if len(got) != len(spelled) {
		t.Errorf("%d keys, want %d", len(got), len(spelled))
	}
	s.object(t, "DELETE", root).want(t, 204)
	bad := []string{"", "/a", "a/", "a//b", ".", "..", "a/./b", "a/../b", "../a", "a/..", "%2e%2e/a", "a/%2E/b", "a%2Fb", "a%00b", "a%0Ab", "a%7Fb", "%C3%A9", "a%09"}
	for _, k := range bad {
		for _, on := range []struct{ method, target string }{
			{"GET", "/v1/storage/objects/"}, {"PUT", "/v1/storage/objects/"}, {"DELETE", "/v1/storage/objects/"}, {"POST", "/v1/storage/locks/"}, {"DELETE", "/v1/storage/locks/"},
		} {
			r := request{method: on.method, target: on.target + k, by: "ingress"}
			if on.method == "PUT" {
				r.body = []byte("x")
			}
			s.do(t, r).refused(t, 400, "invalid-input")
		}
	}
	for _, k := range []string{"", "/a", "a/", "a//b", "..", "a/../b", "a\x00b", "é"} {
		s.stat(t, k).refused(t, 400, "invalid-input")
	}
	for _, k := range []string{"/a", "a//", "..", "a/../b", "a\nb"} {
		s.list(t, k, "").refused(t, 400, "invalid-input")
	}
}

func (s *suite) lock(t *testing.T, method, name string, header map[string]string) answer {
	t.Helper()
	return s.do(t, request{method: method, target: "/v1/storage/locks/" + escape(name), by: "ingress", header: header})
}

func (s *suite) locks(t *testing.T) {
	name := s.prefix + "/locks/issue example.com"
	s.lock(t, "DELETE", name, nil).want(t, 204)
	s.lock(t, "POST", name, nil).want(t, 204)
	s.lock(t, "POST", name, nil).refused(t, 409, "cas-conflict")
	s.stat(t, name).refused(t, 404, "not-found") // locks are no objects
	for range 2 {
		s.lock(t, "DELETE", name, nil).want(t, 204)
	}
	const many = 10
	got := make([]int, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.target.Nodes[i%len(s.target.Nodes)]+"/v1/storage/locks/"+escape(name), nil)
			if err != nil {
				t.Error(err)
				return
			}
			s.authorize(req, request{by: "ingress"})
			res, err := s.http.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			got[i] = res.StatusCode
		})
	}
	wg.Wait()
	slices.Sort(got)
	if got[0] != 204 || got[1] != 409 || got[many-1] != 409 {
		t.Errorf("%d at once: %v", many, got)
	}
	s.lock(t, "DELETE", name, nil).want(t, 204)
}

// holders is the extension of the locks by who holds them.
func (s *suite) holders(t *testing.T) {
	name := s.prefix + "/locks/held"
	as := func(holder string) map[string]string { return map[string]string{"X-Scafo-Lock-Holder": holder} }
	s.lock(t, "POST", name, as("one")).want(t, 204)
	s.lock(t, "POST", name, as("one")).want(t, 204) // renewed
	s.lock(t, "POST", name, as("two")).refused(t, 409, "cas-conflict")
	s.lock(t, "POST", name, nil).refused(t, 409, "cas-conflict")
	// Nobody else frees it, nobody without a name either.
	s.lock(t, "DELETE", name, as("two")).want(t, 204)
	s.lock(t, "DELETE", name, nil).want(t, 204)
	s.lock(t, "POST", name, as("two")).refused(t, 409, "cas-conflict")
	s.lock(t, "DELETE", name, as("one")).want(t, 204)
	a := s.lock(t, "POST", name, map[string]string{"X-Scafo-Lock-Holder": "two", "X-Scafo-Lock-Seconds": "1"}).want(t, 204)
	if got := a.header.Get("X-Scafo-Lock-Seconds"); got != "1" {
		t.Errorf("granted %s seconds of the one asked for", got)
	}
	eventually(t, "a lock of one second is free again", func() error {
		if a := s.lock(t, "POST", name, as("three")); a.status != 204 {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	s.lock(t, "DELETE", name, as("two")).want(t, 204) // it is late, and not its own any more
	s.lock(t, "POST", name, as("four")).refused(t, 409, "cas-conflict")
	s.lock(t, "DELETE", name, as("three")).want(t, 204)
	for _, h := range []map[string]string{as("a b"), as(strings.Repeat("x", 129)), {"X-Scafo-Lock-Seconds": "0"}, {"X-Scafo-Lock-Seconds": "-1"}, {"X-Scafo-Lock-Seconds": "1.5"}} {
		s.lock(t, "POST", name, h).refused(t, 400, "invalid-input")
	}
}

type routingDocument struct {
	V      int
	Node   string
	Routes []struct {
		Host, Application string
		Upstreams         []struct{ Node, URL string }
	}
	API []struct{ Host string }
}

func (s *suite) routing(t *testing.T) {
	const target = "/v1/ingress/routes"
	s.set(t, s.shop, "unretire", s.admin, "").want(t, 200)
	for _, node := range s.target.Nodes {
		s.routed(t, node)
	}
	for _, at := range []string{target, target + "/traefik"} {
		node := s.target.Nodes[0]
		eventually(t, "304 of "+at, func() error { // the fleet may change in between
			a := s.do(t, request{method: "GET", target: at, by: "ingress", node: node}).want(t, 200)
			etag := a.header.Get("ETag")
			for _, header := range []string{etag, "W/" + etag, `"other", ` + etag, "*"} {
				if again := s.do(t, request{method: "GET", target: at, by: "ingress", node: node, header: map[string]string{"If-None-Match": header}}); again.status != 304 || len(again.body) != 0 || again.header.Get("ETag") != etag {
					return fmt.Errorf("If-None-Match %s: %s", header, again)
				}
			}
			s.do(t, request{method: "GET", target: at, by: "ingress", node: node, header: map[string]string{"If-None-Match": `"other"`}}).want(t, 200)
			return nil
		})
		for _, prefer := range []string{"self", "no-such-node", ""} {
			s.get(t, at+"?prefer="+prefer, "ingress").want(t, 200)
		}
		s.get(t, at, s.admin).refused(t, 401, "auth-invalid")
	}
	if p := s.get(t, target+"/nginx", "ingress").refused(t, 404, "not-found"); !strings.Contains(p.Detail, "traefik") {
		t.Errorf("the detail does not say what there is: %s", p.Detail)
	}
	a := s.get(t, target+"/traefik", "ingress")
	if strings.Contains(string(a.body), "generatedAt") || !strings.Contains(string(a.body), s.shop) {
		t.Errorf("%s", a)
	}
}

// routed waits until a node routes the application to a process that serves it.
func (s *suite) routed(t *testing.T, node string) {
	t.Helper()
	eventually(t, node+" routes "+s.shop, func() error {
		a := s.do(t, request{method: "GET", target: "/v1/ingress/routes?prefer=self", by: "ingress", node: node})
		d := read[routingDocument](t, a)
		var hosts []string
		found := false
		for _, r := range d.Routes {
			hosts = append(hosts, r.Host)
			found = found || r.Application == s.shop && strings.HasPrefix(r.Host, s.shop+".") && len(r.Upstreams) > 0
			if strings.Contains(r.Host, "*") || r.Host != strings.ToLower(r.Host) {
				t.Errorf("%s is no exact host", r.Host)
			}
			own := slices.ContainsFunc(r.Upstreams, func(u struct{ Node, URL string }) bool { return u.Node == d.Node })
			if own && r.Upstreams[0].Node != d.Node {
				t.Errorf("prefer=self: %s does not come first on %s", d.Node, r.Host)
			}
		}
		if !sorted(hosts) || len(slices.Compact(slices.Clone(hosts))) != len(hosts) || d.V != 1 || d.Node == "" {
			t.Errorf("%v, want each host once, sorted", hosts)
		}
		if !found {
			return fmt.Errorf("its routes are %v", hosts)
		}
		return nil
	})
}

type daemonState struct {
	Node, Lease, Reconcile json.RawMessage
	Coordinator            *struct {
		Node     string
		Fence    int
		Self     bool
		Unplaced *[]struct{ Application string }
	}
	Processes, Placements []struct{ Application string }
	Scoped                bool
}

func (s *suite) state(t *testing.T) {
	coordinators := map[string]bool{}
	var selves int
	for _, node := range s.target.Nodes {
		get := func(by any) daemonState {
			t.Helper()
			return read[daemonState](t, s.do(t, request{method: "GET", target: "/v1/state", by: by, node: node}))
		}
		whole := get(s.admin)
		if whole.Scoped || string(whole.Node) == "null" || whole.Coordinator == nil || whole.Reconcile == nil {
			t.Fatalf("%s: %+v", node, whole)
		}
		coordinators[whole.Coordinator.Node] = true
		if whole.Coordinator.Self {
			selves++
		}
		if whole.Coordinator.Self != (whole.Coordinator.Unplaced != nil) {
			t.Errorf("%s: unplaced comes from the coordinator, and from nobody else", node)
		}
		a := s.do(t, request{method: "GET", target: "/v1/state", by: s.tenant, node: node})
		narrow := read[daemonState](t, a)
		if !narrow.Scoped || strings.Contains(string(a.body), s.vault) {
			t.Errorf("a tenant sees %s", a)
		}
		for _, p := range slices.Concat(narrow.Processes, narrow.Placements) {
			if p.Application != s.shop && !strings.HasPrefix(p.Application, s.tenantPrefix+"-") {
				t.Errorf("a tenant sees %s", p.Application)
			}
		}
	}
	if len(coordinators) != 1 {
		t.Errorf("nodes disagree on who coordinates: %v", coordinators)
	}
}
