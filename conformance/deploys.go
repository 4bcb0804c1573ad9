package conformance

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

type deployStatus struct {
	ID, Application, State, Deployment, Code, Detail string
}

func (d deployStatus) terminal() bool { return d.State == "deployed" || d.State == "failed" }

// follow polls a deploy, wherever it is asked for, until it is over.
func (s *suite) follow(t *testing.T, id string, by any) deployStatus {
	t.Helper()
	var d deployStatus
	eventually(t, "the end of the deploy "+id, func() error {
		d = read[deployStatus](t, s.get(t, "/v1/deploys/"+id, by))
		if !d.terminal() {
			return fmt.Errorf("it is %s", d.State)
		}
		return nil
	})
	return d
}

// accepted reads the answer to a deploy.
func accepted(t *testing.T, a answer) deployStatus {
	t.Helper()
	a.want(t, http.StatusAccepted)
	a.status = http.StatusOK
	d := read[deployStatus](t, a)
	if a.header.Get("Location") != "/v1/deploys/"+d.ID {
		t.Errorf("Location %q of %s", a.header.Get("Location"), a)
	}
	return d
}

func (s *suite) deploys(t *testing.T) {
	t.Run("order", s.intakeOrder)
	t.Run("header", s.deployHeader)
	t.Run("continue", s.expectContinue)
	t.Run("status", s.deployOutcome)
	t.Run("intent", s.placementIntent)
}

func (s *suite) intakeOrder(t *testing.T) {
	artifact := worker(s.shop, "x")
	do := func(name string, by any, header string, body []byte) answer {
		t.Helper()
		return s.do(t, deployment(name, by, header, body))
	}
	// Who calls, then the name, then the scope, then the header.
	do("Not-A-Name", nil, "?", artifact).refused(t, 401, "auth-invalid")
	do("Not-A-Name", s.tenant, "?", artifact).refused(t, 400, "invalid-slug")
	do(s.vault, s.tenant, "?", artifact).refused(t, 403, "auth-scope")
	do(s.shop, s.tenant, "?", artifact).refused(t, 400, "invalid-input")
	do(s.tenantPrefix+"-none", s.tenant, "e30", nil).refused(t, 400, "invalid-input")
	s.get(t, "/v1/applications/"+s.tenantPrefix+"-none", s.admin).refused(t, 404, "not-found")
}

// badHeaders are values of the deploy header that are refused.
func badHeaders() map[string]string {
	raw := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	out := map[string]string{
		"empty": "", "padded": "e30=", "a space": "e3 0", "not base64url": "e3+/", "a tail that is not canonical": "e31", "impossible length": "e30AA",
		"too long": raw(`{"a":"` + strings.Repeat("x", 6200) + `"}`),
	}
	for name, doc := range map[string]string{
		"not JSON": "{", "no object": "[]", "null": "null", "a string": `"x"`, "a byte-order mark": "\ufeff{}", "not UTF-8": "{\"a\":\"\xff\"}",
		"spaces": `{ }`, "a line break": "{}\n", "unsorted": `{"b":1,"a":1}`, "duplicates": `{"a":1,"a":1}`, "an escape too many": `{"\u0061":1}`,
		"an escaped slash": `{"a":"\/"}`, "a number with a fraction": `{"replicas":1.0}`, "an exponent": `{"replicas":1e0}`, "minus zero": `{"a":-0}`,
		"replicas of 0": `{"replicas":0}`, "a negative one": `{"replicas":-1}`, "half a replica": `{"replicas":1.5}`, "replicas as a string": `{"replicas":"2"}`,
		"selector of numbers": `{"nodeSelector":{"a":1}}`, "selector of null": `{"nodeSelector":{"a":null}}`, "selector as a string": `{"nodeSelector":"a"}`,
		"application": `{"application":"x"}`, "application null": `{"application":null}`, "oidc": `{"oidc":{}}`, "oidcSub": `{"source":{"commit":"c","oidcSub":"x","provider":"p","ref":"r","repo":"o"}}`,
		"source null": `{"source":null}`, "source a list": `{"source":[]}`, "source lacks one": `{"source":{"commit":"c","provider":"p","ref":"r"}}`,
		"source has an empty one": `{"source":{"commit":"","provider":"p","ref":"r","repo":"o"}}`, "source in another case": `{"source":{"Commit":"c","provider":"p","ref":"r","repo":"o"}}`,
	} {
		out[name] = raw(doc)
	}
	return out
}

func (s *suite) deployHeader(t *testing.T) {
	name := s.tenantPrefix + "-header"
	for what, header := range badHeaders() {
		r := deployment(name, s.tenant, header, []byte("x"))
		if p := s.do(t, r).refused(t, 400, "invalid-input"); p.Title != "Malformed request" {
			t.Errorf("%s: title %q", what, p.Title)
		}
	}
	r := deployment(name, s.tenant, "", []byte("x"))
	delete(r.header, "x-scafo-deploy")
	s.do(t, r).refused(t, 400, "invalid-input")
	s.get(t, "/v1/applications/"+name, s.admin).refused(t, 404, "not-found")
	// Anything else that the document carries is ignored.
	good := `{"__proto__":{"a":1},"nodeSelector":null,"other":[1,"é",null],"replicas":null,"source":{"commit":"c","more":1,"provider":"p","ref":"r","repo":"o"}}`
	accepted(t, s.deploy(t, name, s.tenant, good, archive(map[string]string{"README": "x"})))
}

// expectContinue makes sure that a refused deploy uploads nothing, and an accepted
// one does.
func (s *suite) expectContinue(t *testing.T) {
	send := func(by any, size int64) (status int, sent int64) {
		t.Helper()
		var n atomic.Int64
		body := io.TeeReader(bytes.NewReader(make([]byte, 1<<20)), counter{&n})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.target.Nodes[0]+"/v1/applications/"+s.tenantPrefix+"-expect/deploys", body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = size
		req.Header.Set("Expect", "100-continue")
		s.authorize(req, deployment("", by, "e30", nil))
		res, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode, n.Load()
	}
	if status, sent := send(nil, 1<<20); status != 401 || sent != 0 {
		t.Errorf("nobody: %d, %d bytes sent", status, sent)
	}
	if status, sent := send(s.stranger, 1<<20); status != 401 || sent != 0 {
		t.Errorf("a stranger: %d, %d bytes sent", status, sent)
	}
	// No node is set up for a terabyte.
	if status, sent := send(s.tenant, 1<<40); status != 413 || sent != 0 {
		t.Errorf("a terabyte: %d, %d bytes sent", status, sent)
	}
	if status, sent := send(s.tenant, 1<<20); status != 202 || sent != 1<<20 {
		t.Errorf("a megabyte: %d, %d bytes sent", status, sent)
	}
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

func (s *suite) deployOutcome(t *testing.T) {
	d := accepted(t, s.deploy(t, s.shop, s.tenant, "{}", worker(s.shop, "hello")))
	if d.Application != s.shop || !strings.HasPrefix(d.ID, s.shop+".") {
		t.Errorf("%+v", d)
	}
	if d = s.follow(t, d.ID, s.tenant); d.State != "deployed" || d.Deployment == "" || d.Code != "" {
		t.Fatalf("%+v", d)
	}
	for _, node := range s.target.Nodes {
		a := s.do(t, request{method: "GET", target: "/v1/deploys/" + d.ID, by: s.admin, node: node})
		if got := read[deployStatus](t, a); got != d {
			t.Errorf("%s says %+v, and it is %+v", node, got, d)
		}
		etag := a.header.Get("ETag")
		a = s.do(t, request{method: "GET", target: "/v1/deploys/" + d.ID, by: s.admin, node: node, header: map[string]string{"If-None-Match": etag}})
		a.want(t, 304)
	}
	if got := s.record(t, s.shop); got.Deployment != d.Deployment {
		t.Errorf("the record says %q, the deploy %q", got.Deployment, d.Deployment)
	}
	// What is found out after the 202 is in the deploy's own record.
	for name, artifact := range map[string][]byte{
		"no configuration": archive(map[string]string{"README": "x"}),
		"no archive":       []byte(strings.Repeat("not an archive ", 100)),
		"climbs":           archive(map[string]string{"../wrangler.jsonc": "{}"}),
	} {
		f := s.follow(t, accepted(t, s.deploy(t, s.vault, s.admin, "{}", artifact)).ID, s.admin)
		if f.State != "failed" || f.Code != "invalid-input" || f.Detail == "" || f.Deployment != "" {
			t.Errorf("%s: %+v", name, f)
		}
		s.get(t, "/v1/deploys/"+f.ID, s.tenant).refused(t, 403, "auth-scope")
	}
	for _, id := range []string{"none", s.shop, s.shop + ".", s.shop + ".0123", s.shop + ".0123456789ABCDEF", "Shop.0123456789abcdef", s.shop + ".0123456789abcdef"} {
		s.get(t, "/v1/deploys/"+id, s.tenant).refused(t, 404, "not-found")
	}
	s.get(t, "/v1/deploys/"+s.vault+".0123456789abcdef", s.tenant).refused(t, 403, "auth-scope")
}

// placementIntent is what a deploy says of replicas and nodes, and what it leaves as
// it was.
func (s *suite) placementIntent(t *testing.T) {
	name := s.prefix + "-intent"
	nothing := archive(map[string]string{"README": "x"})
	say := func(metadata string) application {
		t.Helper()
		accepted(t, s.deploy(t, name, s.admin, metadata, nothing))
		return s.record(t, name)
	}
	if a := say("{}"); a.Replicas != 1.0 || len(a.Selector) != 0 || a.UID == "" {
		t.Errorf("the first deploy makes %+v", a)
	}
	if a := say(`{"nodeSelector":{"region":"eu"},"replicas":"all"}`); a.Replicas != "all" || a.Selector["region"] != "eu" {
		t.Errorf("%+v", a)
	}
	for _, metadata := range []string{"{}", `{"nodeSelector":null,"replicas":null}`} {
		if a := say(metadata); a.Replicas != "all" || a.Selector["region"] != "eu" {
			t.Errorf("%s: %+v", metadata, a)
		}
	}
	if a := say(`{"nodeSelector":{},"replicas":2}`); a.Replicas != 2.0 || len(a.Selector) != 0 {
		t.Errorf("%+v", a)
	}
}
