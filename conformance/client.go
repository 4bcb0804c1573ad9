package conformance

import (
	"archive/tar"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/openapitest"
	"github.com/scafo/scafo/internal/token/tokentest"
)

// request is one call.
type request struct {
	method, target string // the target is an escaped path and a query
	by             any    // a tokentest.Signer, "ingress", or nil for nobody
	authorization  []string
	header         map[string]string
	body           []byte // nil sends none
	stream         bool   // send the body without its length
	node           string // empty takes one by chance
}

// answer is what a call was answered.
type answer struct {
	request
	status int
	header http.Header
	body   []byte
}

// do makes a call and holds it to the OpenAPI document.
func (s *suite) do(t *testing.T, r request) answer {
	t.Helper()
	node := r.node
	if node == "" {
		node = s.target.Nodes[mrand.IntN(len(s.target.Nodes))]
	}
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
		if r.stream {
			body = io.MultiReader(body)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), r.method, strings.TrimRight(node, "/")+r.target, body)
	if err != nil {
		t.Fatal(err)
	}
	s.authorize(req, r)
	res, err := s.http.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, r.target, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, r.target, err)
	}
	a := answer{request: r, status: res.StatusCode, header: res.Header, body: b}
	s.hold(t, req, a)
	return a
}

func (s *suite) authorize(req *http.Request, r request) {
	switch by := r.by.(type) {
	case tokentest.Signer:
		req.Header.Set("Authorization", "Bearer "+tokentest.Good(by, time.Now(), random(16)))
	case string:
		req.Header.Set("Authorization", "Bearer "+s.target.IngressToken)
	}
	for _, v := range r.authorization {
		req.Header.Add("Authorization", v)
	}
	for name, v := range r.header {
		req.Header.Set(name, v)
	}
}

func (s *suite) hold(t *testing.T, req *http.Request, a answer) {
	t.Helper()
	x := &openapitest.Exchange{
		Method: a.method, Path: req.URL.EscapedPath(), Query: req.URL.RawQuery, Header: req.Header,
		Body: a.request.body, HasBody: len(a.request.body) > 0,
		Status: a.status, AnswerHeader: a.header, Answer: a.body,
	}
	if err := s.doc.Check(x); err != nil {
		t.Errorf("OpenAPI: %v", err)
	}
	if o, _ := s.doc.Find(x.Method, x.Path); o != nil && a.status < http.StatusBadRequest {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen[o.Method+" "+o.Path] = true
	}
}

func (s *suite) get(t *testing.T, target string, by any) answer {
	t.Helper()
	return s.do(t, request{method: http.MethodGet, target: target, by: by})
}

func (s *suite) post(t *testing.T, target string, by any, body string) answer {
	t.Helper()
	r := request{method: http.MethodPost, target: target, by: by}
	if body != "" {
		r.body, r.header = []byte(body), map[string]string{"Content-Type": "application/json"}
	}
	return s.do(t, r)
}

func (s *suite) delete(t *testing.T, target string, by any) answer {
	t.Helper()
	return s.do(t, request{method: http.MethodDelete, target: target, by: by})
}

func (a answer) String() string {
	return fmt.Sprintf("%s %s: %d %s", a.method, a.target, a.status, bytes.TrimSpace(a.body))
}

// want checks the status.
func (a answer) want(t *testing.T, status int) answer {
	t.Helper()
	if a.status != status {
		t.Errorf("%s, want %d", a, status)
	}
	return a
}

// refused checks that the answer is the problem document of a code.
func (a answer) refused(t *testing.T, status int, code string) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal(a.body, &p); err != nil || a.status != status || p.Status != status || p.Code != code ||
		a.header.Get("Content-Type") != "application/problem+json" || p.Type != "/reference/errors#"+code {
		t.Errorf("%s (%s), want %d %s", a, a.header.Get("Content-Type"), status, code)
	}
	return p
}

type problem struct {
	Type, Title, Detail, Code string
	Status                    int
}

// read decodes an answer that must be 200.
func read[T any](t *testing.T, a answer) T {
	t.Helper()
	var v T
	a.want(t, http.StatusOK)
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("%s: %v", a, err)
	}
	return v
}

// eventually waits for something that other nodes bring about.
func eventually(t *testing.T, what string, cond func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("never: %s: %v", what, err)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// signer makes a key. Nobody trusts it yet.
func (s *suite) signer(t *testing.T, name string) tokentest.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return tokentest.Signer{ID: s.prefix + "-" + name, Private: private}
}

func x(s tokentest.Signer) string {
	k, _ := s.Private.Public().(ed25519.PublicKey)
	return base64.RawURLEncoding.EncodeToString(k)
}

// grant is the body of a registration, with members beside id and key.
func grant(key tokentest.Signer, members ...string) string {
	all := append([]string{fmt.Sprintf(`"id":%q`, key.ID), fmt.Sprintf(`"publicKey":{"kty":"OKP","crv":"Ed25519","x":%q}`, x(key))}, members...)
	return "{" + strings.Join(all, ",") + "}"
}

func scope(entries ...string) string {
	b, _ := json.Marshal(entries) // strings: it cannot fail
	return `"applications":` + string(b)
}

// trust registers a key until the end of the run.
func (s *suite) trust(t *testing.T, key tokentest.Signer, role string, applications ...string) {
	t.Helper()
	s.post(t, "/v1/operators", s.admin, grant(key, fmt.Sprintf(`"role":%q`, role), scope(applications...))).want(t, http.StatusOK)
}

// archive is a tar of files.
func archive(files map[string]string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		// A bytes.Buffer takes everything.
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg})
		_, _ = w.Write([]byte(content))
	}
	_ = w.Close()
	return b.Bytes()
}

// worker is a project that answers with a word.
func worker(name, word string) []byte {
	return archive(map[string]string{
		"wrangler.jsonc": fmt.Sprintf(`{ "name": %q, "main": "index.js", "compatibility_date": "2026-01-01" }`, name),
		"index.js":       fmt.Sprintf("export default { fetch() { return new Response(%q) } }\n", word),
	})
}

// deploy sends an artifact with metadata that is canonical JSON already.
func (s *suite) deploy(t *testing.T, application string, by any, metadata string, artifact []byte) answer {
	t.Helper()
	return s.do(t, deployment(application, by, base64.RawURLEncoding.EncodeToString([]byte(metadata)), artifact))
}

func deployment(application string, by any, header string, artifact []byte) request {
	return request{
		method: http.MethodPost, target: "/v1/applications/" + url.PathEscape(application) + "/deploys", by: by, body: artifact,
		header: map[string]string{"Content-Type": "application/octet-stream", "x-scafo-deploy": header},
	}
}

// cleanUp takes away what has the prefix of this run, as well as it can.
func (s *suite) cleanUp(t *testing.T) {
	// Subtests are over, and so is their context; the run's own is too in a cleanup.
	call := func(method, target string) {
		req, err := http.NewRequest(method, strings.TrimRight(s.target.Nodes[0], "/")+target, nil)
		if err != nil {
			return
		}
		s.authorize(req, request{by: s.admin})
		res, err := s.http.Do(req)
		if err != nil {
			t.Logf("not taken away: %s: %v", target, err)
			return
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
	}
	for _, name := range s.applicationsMade() {
		call(http.MethodPost, "/v1/applications/"+name+"/retire")
		if !pending([]string{"DELETE /v1/applications/{name}"}) {
			call(http.MethodDelete, "/v1/applications/"+name+"?force=1")
		}
	}
	for _, id := range s.operatorsMade() {
		call(http.MethodDelete, "/v1/operators/"+id)
	}
}

// named reads a list whose members have names, of those that this run made.
func (s *suite) named(target, list, member string) (out []string) {
	req, err := http.NewRequest(http.MethodGet, strings.TrimRight(s.target.Nodes[0], "/")+target, nil)
	if err != nil {
		return nil
	}
	s.authorize(req, request{by: s.admin})
	res, err := s.http.Do(req)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	var doc map[string]json.RawMessage
	var members []map[string]any
	if json.NewDecoder(res.Body).Decode(&doc) != nil || json.Unmarshal(doc[list], &members) != nil {
		return nil
	}
	for _, m := range members {
		if name, _ := m[member].(string); strings.HasPrefix(name, s.prefix) {
			out = append(out, name)
		}
	}
	return out
}

func (s *suite) applicationsMade() []string {
	return s.named("/v1/applications", "applications", "name")
}
func (s *suite) operatorsMade() []string { return s.named("/v1/operators", "operators", "id") }

// filtered is whether only some of the sections run.
func filtered() bool {
	f := flag.Lookup("test.run")
	return f != nil && strings.Contains(f.Value.String(), "/")
}

func sorted(names []string) bool { return slices.IsSorted(names) }
