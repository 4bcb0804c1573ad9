package node

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/deletion"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// A request that is handed on is signed by this node, anew each time, names who asked,
// and is not sent twice; the answer comes back as it is.
func TestForward(t *testing.T) {
	key, err := keyfile.New("node-a")
	if err != nil {
		t.Fatal(err)
	}
	p := newPeers(key, time.Now)
	defer p.close()
	var tokens []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete || r.URL.Path != "/api/v1/applications/shop" || r.Header.Get("X-Scafo-Forwarded-For") != "op" {
			t.Errorf("%s %s for %q", r.Method, r.URL, r.Header.Get("X-Scafo-Forwarded-For"))
		}
		tokens = append(tokens, r.Header.Get("Authorization")+" "+r.URL.RawQuery)
		w.Header().Set("Retry-After", "3")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, "as it is")
	}))
	defer s.Close()
	to := scafo.Node{ID: "node-b", Address: s.URL + "/api"}
	for _, force := range []bool{false, true} {
		a, err := p.Forward(t.Context(), to, deletion.Request{Application: "shop", Caller: "op", Force: force, Forwarded: true})
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(a.Body)
		if a.Body.Close(); err != nil || a.Status != http.StatusConflict || string(body) != "as it is" || http.Header(a.Header).Get("Retry-After") != "3" {
			t.Errorf("%d %q %v", a.Status, body, err)
		}
	}
	if len(tokens) != 2 || tokens[0] == tokens[1] || !strings.HasPrefix(tokens[0], "Bearer ") || !strings.HasSuffix(tokens[0], " ") || !strings.HasSuffix(tokens[1], " force=1") {
		t.Errorf("%q", tokens)
	}
	s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := p.Forward(ctx, to, deletion.Request{Application: "shop", Caller: "op"}); err == nil {
		t.Error("a node that is away answered")
	}
	if _, err := p.Forward(ctx, scafo.Node{ID: "x", Address: "http://%"}, deletion.Request{Application: "shop"}); err == nil {
		t.Error("no address")
	}
}
