package client_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/problem"
	"github.com/scafo/scafo/internal/token"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// node is a server that remembers the tokens it was shown.
type node struct {
	*httptest.Server
	mu     sync.Mutex
	tokens []string
	calls  int
}

func newNode(t *testing.T, h http.HandlerFunc) *node {
	t.Helper()
	n := &node{}
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		n.calls++
		n.tokens = append(n.tokens, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		n.mu.Unlock()
		h(w, r)
	}))
	t.Cleanup(n.Close)
	return n
}

func (n *node) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls
}

func refuse(code scafo.Code) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		problem.Write(w, r, slog.New(slog.DiscardHandler), scafo.Errorf(code, "because"))
	}
}

func say(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// dead is a URL at which nothing listens.
func dead(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func newClient(t *testing.T, urls ...string) *client.Client {
	t.Helper()
	k, err := keyfile.New("op-1")
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{
		URLs:       urls,
		Credential: client.CredentialFunc(func(context.Context) (string, error) { return k.Token(time.Now()) }),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestEveryRequestHasItsOwnToken(t *testing.T) {
	n := newNode(t, say(200, `{"applications":[]}`))
	c := newClient(t, n.URL)
	for range 3 {
		if _, err := c.Applications(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for _, tok := range n.tokens {
		parsed, err := token.Parse(tok)
		if err != nil || seen[parsed.ID] {
			t.Errorf("token %q: %v", tok, err)
			continue
		}
		seen[parsed.ID] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d tokens", len(seen))
	}
}

func TestReadsFailOver(t *testing.T) {
	good := newNode(t, say(200, `{"node":null,"processes":[]}`))
	draining := newNode(t, refuse(scafo.CodeDraining))
	html := newNode(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502); fmt.Fprint(w, "<html>") })
	c := newClient(t, dead(t), draining.URL, html.URL, good.URL)
	for range 3 {
		if _, err := c.State(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// The node that answered is asked first the next time.
	if draining.count() != 1 || html.count() != 1 || good.count() != 3 {
		t.Errorf("calls: %d, %d, %d", draining.count(), html.count(), good.count())
	}
}

func TestRefusalsDoNotFailOver(t *testing.T) {
	for _, code := range []scafo.Code{scafo.CodeAuthInvalid, scafo.CodeAuthScope, scafo.CodeNotFound, scafo.CodeInvalidInput, scafo.CodeInternal, scafo.CodeDeployOverloaded} {
		bad, other := newNode(t, refuse(code)), newNode(t, say(200, `{}`))
		_, err := newClient(t, bad.URL, other.URL).State(t.Context())
		if scafo.CodeOf(err) != code || other.count() != 0 {
			t.Errorf("%s: %v, and %d calls of another node", code, err, other.count())
		}
	}
}

func TestWhatANodeSaidIsBetterThanSilence(t *testing.T) {
	n := newNode(t, refuse(scafo.CodeStoreUnavailable))
	_, err := newClient(t, n.URL, dead(t)).State(t.Context())
	if scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
		t.Error(err)
	}
	_, err = newClient(t, dead(t), dead(t)).State(t.Context())
	var u *client.Unreachable
	if !errors.As(err, &u) || !strings.Contains(err.Error(), u.URL) {
		t.Error(err)
	}
}

func TestChangesFailOverOnlyUnseen(t *testing.T) {
	hint := scafo.PeerHint{Keys: []string{"k"}}
	good := newNode(t, say(200, `{"node":"b","processes":[]}`))
	if a, err := newClient(t, dead(t), good.URL).Hint(t.Context(), hint); err != nil || a.Node != "b" {
		t.Errorf("nobody saw it, and it went nowhere else: %v", err)
	}
	for name, h := range map[string]http.HandlerFunc{
		"refused":  refuse(scafo.CodeDraining),
		"cut off":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"internal": refuse(scafo.CodeInternal),
	} {
		seen, other := newNode(t, h), newNode(t, say(200, `{}`))
		if _, err := newClient(t, seen.URL, other.URL).Hint(t.Context(), hint); err == nil || other.count() != 0 || seen.count() != 1 {
			t.Errorf("%s: %v, %d and %d calls", name, err, seen.count(), other.count())
		}
	}
}

func TestProblems(t *testing.T) {
	n := newNode(t, func(w http.ResponseWriter, r *http.Request) {
		problem.Write(w, r, slog.New(slog.DiscardHandler), &scafo.Error{Code: scafo.CodeDeployOverloaded, Title: "T", Detail: "D"})
	})
	_, err := newClient(t, n.URL).State(t.Context())
	var e *scafo.Error
	if !errors.As(err, &e) || e.Code != scafo.CodeDeployOverloaded || e.Title != "T" || e.Detail != "D" {
		t.Fatalf("%#v", err)
	}
	a, ok := client.AnswerOf(err)
	if !ok || a.Status != 429 || a.RetryAfter != time.Second {
		t.Errorf("%+v", a)
	}
	n = newNode(t, refuse(scafo.CodeInternal))
	_, err = newClient(t, n.URL).State(t.Context())
	if a, ok := client.AnswerOf(err); !ok || len(a.Reference) != 16 || !strings.Contains(err.Error(), a.Reference) {
		t.Error(err)
	}
}

func TestAnswersThatAreNoNodes(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"a page": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403); fmt.Fprint(w, "<html>") },
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		},
		"a broken problem": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", problem.ContentType)
			w.WriteHeader(400)
		},
		"no JSON":         say(200, "<html>"),
		"half a document": say(200, `{"node":`),
		"nothing":         func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		n := newNode(t, h)
		if _, err := newClient(t, n.URL).State(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		} else if n.count() > 2 {
			t.Errorf("%s: %d calls", name, n.count())
		}
	}
}

func TestClocksThatDiffer(t *testing.T) {
	for ahead, hint := range map[time.Duration]bool{0: false, 10 * time.Minute: true, -10 * time.Minute: true} {
		n := newNode(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
			refuse(scafo.CodeAuthInvalid)(w, r)
		})
		_, err := newClient(t, n.URL).State(t.Context())
		if got := strings.Contains(err.Error(), "clock"); got != hint {
			t.Errorf("%v ahead: %v", ahead, err)
		}
	}
}

func TestNew(t *testing.T) {
	for _, u := range []string{"", "127.0.0.1:7420", "ftp://x", "http://", "http://u:p@x", "http://x?y", "http://x#y", "http://x y"} {
		if _, err := client.New(client.Config{URLs: []string{u}}); err == nil {
			t.Errorf("%q is a node URL", u)
		}
	}
	if _, err := client.New(client.Config{}); err == nil {
		t.Error("a client of nobody")
	}
	n := newNode(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/fleet/v1/state" {
			t.Errorf("path %s", r.URL.Path)
		}
		say(200, "{}")(w, r)
	})
	if _, err := newClient(t, n.URL+"/fleet/").State(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNamesAreEscaped(t *testing.T) {
	n := newNode(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.EscapedPath(); got != "/v1/applications/..%2Fx%3Fy" {
			t.Errorf("path %s", got)
		}
		say(200, `{"application":{"name":"x","replicas":1}}`)(w, r)
	})
	if _, err := newClient(t, n.URL).Application(t.Context(), "../x?y"); err != nil {
		t.Error(err)
	}
}

func TestDeploy(t *testing.T) {
	artifact := make([]byte, 3<<20)
	_, _ = rand.Read(artifact)
	var got []byte
	n := newNode(t, func(w http.ResponseWriter, r *http.Request) {
		m, err := scafo.ParseDeployHeader(r.Header.Get(scafo.DeployHeader))
		if err != nil || m.Replicas == nil || m.Replicas.Count != 2 {
			t.Errorf("%+v %v", m, err)
		}
		if r.ContentLength != int64(len(artifact)) || r.Header.Get("Content-Type") != "application/octet-stream" || r.URL.Path != "/v1/applications/shop/deploys" {
			t.Errorf("%s: length %d, type %s", r.URL.Path, r.ContentLength, r.Header.Get("Content-Type"))
		}
		got, _ = io.ReadAll(r.Body)
		say(202, `{"id":"shop.0123456789abcdef","application":"shop","state":"accepted"}`)(w, r)
	})
	var last int64
	calls := 0
	c := newClient(t, dead(t), n.URL) // the first one never sees it
	s, err := c.Deploy(t.Context(), "shop", scafo.DeployMetadata{Replicas: &scafo.Replicas{Count: 2}}, client.Upload{
		Body: bytes.NewReader(artifact), Size: int64(len(artifact)),
		Progress: func(sent, total int64) {
			if sent < last || total != int64(len(artifact)) {
				t.Errorf("%d after %d, of %d", sent, last, total)
			}
			last = sent
			calls++
		},
	})
	if err != nil || s.ID != "shop.0123456789abcdef" || s.State != scafo.DeployAccepted {
		t.Fatal(s, err)
	}
	if !bytes.Equal(got, artifact) || last != int64(len(artifact)) || calls < 3 {
		t.Errorf("%d bytes arrived, %d were told of in %d calls", len(got), last, calls)
	}
}

func TestRefusedDeploySendsNothing(t *testing.T) {
	n, other := newNode(t, refuse(scafo.CodeDeploysFrozen)), newNode(t, refuse(scafo.CodeDeploysFrozen))
	sent := int64(0)
	_, err := newClient(t, n.URL, other.URL).Deploy(t.Context(), "shop", scafo.DeployMetadata{}, client.Upload{
		Body: bytes.NewReader(make([]byte, 1<<20)), Size: 1 << 20, Progress: func(s, _ int64) { sent = s },
	})
	if scafo.CodeOf(err) != scafo.CodeDeploysFrozen || sent != 0 || other.count() != 0 {
		t.Errorf("%v, %d bytes sent, %d calls of another node", err, sent, other.count())
	}
}

func TestADeployIsNotSentTwice(t *testing.T) {
	n := newNode(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 1))
		panic(http.ErrAbortHandler)
	})
	other := newNode(t, say(202, "{}"))
	_, err := newClient(t, n.URL, other.URL).Deploy(t.Context(), "shop", scafo.DeployMetadata{}, client.Upload{Body: bytes.NewReader(make([]byte, 1<<20)), Size: 1 << 20})
	var u *client.Unreachable
	if !errors.As(err, &u) || n.count() != 1 || other.count() != 0 {
		t.Errorf("%v, %d and %d calls", err, n.count(), other.count())
	}
	if _, err := newClient(t, other.URL).Deploy(t.Context(), "shop", scafo.DeployMetadata{}, client.Upload{Body: http.NoBody}); err == nil || other.count() != 0 {
		t.Error("an artifact without a size was sent")
	}
}

func TestRoutes(t *testing.T) {
	n := newNode(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.URL.Query().Get("prefer") != "self" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		w.Header().Set("ETag", `"e1"`)
		if r.Header.Get("If-None-Match") == `"e1"` {
			w.WriteHeader(304)
			return
		}
		say(200, `{"v":1,"fleet":"f","routes":[{"host":"a.example","application":"a","upstreams":[]}]}`)(w, r)
	})
	c, err := client.New(client.Config{URLs: []string{n.URL}, Credential: client.Static("secret")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	doc, etag, changed, err := c.Routes(t.Context(), "self", "")
	if err != nil || !changed || etag != `"e1"` || len(doc.Routes) != 1 {
		t.Fatal(doc, etag, changed, err)
	}
	if _, etag, changed, err = c.Routes(t.Context(), "self", etag); err != nil || changed || etag != `"e1"` {
		t.Error(etag, changed, err)
	}
}

func TestCancel(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	n := newNode(t, func(http.ResponseWriter, *http.Request) { close(entered); <-leave })
	defer close(leave)
	other := newNode(t, say(200, "{}"))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	if _, err := newClient(t, n.URL, other.URL).State(ctx); !errors.Is(err, context.Canceled) || other.count() != 0 {
		t.Errorf("%v, %d calls of another node", err, other.count())
	}
}
