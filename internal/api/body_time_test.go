package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/problem"
	"github.com/scafo/scafo/internal/storage"
)

// A body that was announced and does not come holds nobody's connection for ever: not
// where the caller is known, and not where it is refused, since a server waits for the
// rest of a body there too.
func TestABodyThatDoesNotCome(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.application("shop", nil)
	h, err := api.New(api.Deps{
		Node: "node-a", Log: slog.New(slog.DiscardHandler), BodyTime: 100 * time.Millisecond,
		Verifier: auth.New(f.registry, auth.Options{IngressTokens: []string{ingressToken}}),
		Setters:  f.registry, Freezes: f.registry, Storage: storage.New(f.registry, storage.Options{}), Deploys: f.deploys,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	for _, c := range []struct {
		method, path, token string
		status              int
		code                scafo.Code
	}{
		{"POST", "/v1/fleet/freeze", bearer("admin"), 400, scafo.CodeInvalidInput},
		{"POST", "/v1/applications/shop/block", bearer("admin"), 400, scafo.CodeInvalidInput},
		{"PUT", "/v1/storage/objects/a", "Bearer " + ingressToken, 400, scafo.CodeInvalidInput},
		{"POST", "/v1/fleet/freeze", "", 401, scafo.CodeAuthInvalid},
		{"POST", "/v1/applications/shop/deploys", "", 401, scafo.CodeAuthInvalid},
		{"POST", "/v1/nothing", "", 404, scafo.CodeNotFound},
		{"PUT", "/v1/fleet/freeze", "", 405, scafo.CodeMethodNotAllowed},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Length: 10\r\n\r\n{", c.method, c.path, c.token)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s %s: %v", c.method, c.path, err)
			continue
		}
		defer res.Body.Close()
		var said problem.Document
		if err := json.NewDecoder(res.Body).Decode(&said); err != nil || res.StatusCode != c.status || said.Code != c.code {
			t.Errorf("%s %s: %d %+v %v", c.method, c.path, res.StatusCode, said, err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%s %s: the connection goes on: %v", c.method, c.path, err)
		}
	}
	if a, err := f.registry.Application(t.Context(), "shop"); err != nil || a.Blocked != nil {
		t.Errorf("half a request blocked it: %+v %v", a.Blocked, err)
	}
}

// A body that did come bounds nothing: what takes its time afterwards is not cut.
func TestABodyThatCameBoundsNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	const bound = time.Second
	slow := &slowFreezes{f.registry, bound + bound/2}
	h, err := api.New(api.Deps{Node: "node-a", BodyTime: bound, Verifier: auth.New(f.registry, auth.Options{}), Freezes: slow})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	for range 2 { // on one connection
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/fleet/freeze", strings.NewReader(`{"reason":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", bearer("admin"))
		res, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("%d %s %v", res.StatusCode, b, err)
		}
		slow.takes = 0
	}
}

// slowFreezes takes its time, and fails when the call ends meanwhile.
type slowFreezes struct {
	api.Freezes
	takes time.Duration
}

func (s *slowFreezes) FreezeDeploys(ctx context.Context, by, reason string) (scafo.Freeze, bool, error) {
	select {
	case <-time.After(s.takes):
		return s.Freezes.FreezeDeploys(ctx, by, reason)
	case <-ctx.Done():
		return scafo.Freeze{}, false, ctx.Err()
	}
}
