package conformance

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/token/tokentest"
)

// problems is about every route: what is no route, and bodies that are too large.
func (s *suite) problems(t *testing.T) {
	health := read[struct {
		OK            bool
		Version, Node string
	}](t, s.get(t, "/.well-known/scafo/health", nil))
	if !health.OK || health.Version == "" || health.Node == "" {
		t.Errorf("health %+v", health)
	}
	head := s.do(t, request{method: http.MethodHead, target: "/.well-known/scafo/health"})
	if head.want(t, 200); len(head.body) != 0 {
		t.Errorf("HEAD has a body: %s", head.body)
	}
	for _, path := range []string{"/", "/v1", "/v1/states", "/V1/state", "/v1/state/", "/v1//state", "/v1/x/../state", "/v1%2Fstate", "/.well-known/celld/health"} {
		for _, by := range []any{nil, s.admin} {
			a := s.get(t, path, by)
			a.refused(t, 404, "not-found")
			if l := a.header.Get("Location"); l != "" {
				t.Errorf("%s is redirected to %s", path, l)
			}
		}
	}
	for target, allow := range map[string]string{
		"/v1/state": "GET", "/v1/operators": "POST", "/v1/fleet/freeze": "DELETE", "/v1/applications/" + s.shop + "/block": "POST",
		"/v1/storage/list": "GET", "/v1/ingress/routes": "GET", "/.well-known/scafo/health": "GET",
	} {
		a := s.do(t, request{method: http.MethodPatch, target: target, by: s.admin})
		a.refused(t, 405, "method-not-allowed")
		if !strings.Contains(a.header.Get("Allow"), allow) {
			t.Errorf("%s: Allow %q lacks %s", target, a.header.Get("Allow"), allow)
		}
	}
	most := s.target.JSONBytes
	padded := func(n int) []byte {
		b := []byte(`{"labels":{},"pad":"`)
		return append(append(b, bytes.Repeat([]byte("x"), n-len(b)-2)...), `"}`...)
	}
	labels := "/v1/applications/" + s.padded + "/labels"
	for _, stream := range []bool{false, true} {
		s.do(t, request{method: http.MethodPost, target: labels, by: s.admin, body: padded(most), stream: stream}).want(t, 200)
		s.do(t, request{method: http.MethodPost, target: labels, by: s.admin, body: padded(most + 1), stream: stream}).refused(t, 413, "resource-limit")
	}
}

// surfaces are routes of each kind, all of which answer a bad token alike.
var surfaces = []struct{ method, target string }{
	{"GET", "/v1/state"},
	{"GET", "/v1/operators"},
	{"GET", "/v1/applications"},
	{"POST", "/v1/applications/none/deploys"},
	{"POST", "/v1/applications/none/block"},
	{"DELETE", "/v1/operators/none"},
	{"GET", "/v1/deploys/none.0123456789abcdef"},
	{"GET", "/v1/fleet/freeze"},
	{"GET", "/v1/storage/list"},
	{"PUT", "/v1/storage/objects/none"},
	{"GET", "/v1/ingress/routes"},
	{"GET", "/v1/ingress/routes/traefik"},
}

func (s *suite) authentication(t *testing.T) {
	t.Run("bad tokens", s.badTokens)
	t.Run("single use", s.singleUse)
	t.Run("lifetimes", s.lifetimes)
	// Each kind of token opens its own routes alone.
	s.get(t, "/v1/state", "ingress").refused(t, 401, "auth-invalid")
	s.get(t, "/v1/operators", "ingress").refused(t, 401, "auth-invalid")
	s.get(t, "/v1/storage/list", s.admin).refused(t, 401, "auth-invalid")
	s.get(t, "/v1/ingress/routes", s.tenant).refused(t, 401, "auth-invalid")
	s.get(t, "/v1/deploys/no-id", nil).refused(t, 401, "auth-invalid")
}

// badTokens breaks each rule of a token by itself. Whatever is wrong, the document is
// the same, byte for byte.
func (s *suite) badTokens(t *testing.T) {
	all := tokentest.All(s.tenant, s.admin, s.stranger, time.Now())
	if len(all) < 60 {
		t.Fatalf("%d cases", len(all))
	}
	first := s.get(t, "/v1/state", nil)
	first.refused(t, 401, "auth-invalid")
	for i := range all {
		// The limits of time are approached from the safe side: the node's clock may be a
		// little off, and tells whole seconds.
		now := time.Now()
		switch name := all[i].Name; {
		case strings.Contains(name, "ahead"):
			now = now.Add(5 * time.Second)
		case strings.Contains(name, "expired"):
			now = now.Add(-5 * time.Second)
		}
		on := surfaces[i%len(surfaces)]
		for _, at := range []struct{ method, target string }{surfaces[0], on} {
			bad := tokentest.All(s.tenant, s.admin, s.stranger, now)[i]
			a := s.do(t, request{method: at.method, target: at.target, authorization: bad.Authorization})
			if a.status != 401 || !bytes.Equal(a.body, first.body) || a.header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s: %s, want 401 and %s", bad.Name, a, first.body)
			}
		}
	}
	for _, on := range surfaces {
		if a := s.do(t, request{method: on.method, target: on.target}); !bytes.Equal(a.body, first.body) {
			t.Errorf("without a token: %s", a)
		}
	}
}

func (s *suite) bearer(by tokentest.Signer) []string {
	return []string{"Bearer " + tokentest.Good(by, time.Now(), random(16))}
}

func (s *suite) singleUse(t *testing.T) {
	// A read uses a token up, and so does a call that is refused for what it asks.
	for _, target := range []string{"/v1/state", "/v1/applications/" + s.vault} {
		token := s.bearer(s.tenant)
		if a := s.do(t, request{method: "GET", target: target, authorization: token}); a.status == 401 {
			t.Errorf("%s", a)
		}
		for range 2 {
			s.do(t, request{method: "GET", target: "/v1/state", authorization: token}).refused(t, 401, "auth-invalid")
		}
	}
	// Many at once, wherever they arrive: one is accepted.
	const many = 20
	token := s.bearer(s.admin)
	statuses := make(chan int, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.target.Nodes[i%len(s.target.Nodes)]+"/v1/state", nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", token[0])
			res, err := s.http.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			statuses <- res.StatusCode
		})
	}
	wg.Wait()
	close(statuses)
	accepted := 0
	for status := range statuses {
		if status == 200 {
			accepted++
		} else if status != 401 {
			t.Errorf("a token that came %d times at once: %d", many, status)
		}
	}
	if accepted != 1 {
		t.Errorf("one token was accepted %d times", accepted)
	}
}

// lifetimes are those that must be accepted. They leave the clocks four seconds.
func (s *suite) lifetimes(t *testing.T) {
	for name, at := range map[string]time.Duration{"of now": 0, "25 s ahead": 25 * time.Second, "expired 25 s ago": -85 * time.Second} {
		token := "Bearer " + tokentest.Good(s.admin, time.Now().Add(at), random(16))
		if a := s.do(t, request{method: "GET", target: "/v1/state", authorization: []string{token}}); a.status != 200 {
			t.Errorf("a token of 60 s, %s: %s (the node's clock says %s)", name, a, a.header.Get("Date"))
		}
	}
}
