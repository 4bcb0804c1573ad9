package pipeline

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func env(m map[string]string) func(string) string { return func(name string) string { return m[name] } }

func unsigned(exp int64) string {
	return "e30." + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"iss":"https://i","sub":"s","exp":%d}`, exp)) + ".c2ln"
}

func TestWhereATokenIsFound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("from-file\n")
	if _, err := Find(env(nil), "scafo-node"); !errors.Is(err, ErrNone) {
		t.Errorf("nowhere: %v", err)
	}
	if _, err := Find(env(map[string]string{githubURL: "https://x"}), "a"); !errors.Is(err, ErrNone) {
		t.Errorf("a job without the permission: %v", err)
	}
	s, err := Find(env(map[string]string{TokenVariable: " given ", FileVariable: file, githubURL: "https://x"}), "a")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Token(t.Context()); got != "given" || err != nil || s.Name != TokenVariable {
		t.Errorf("%s: %q %v", s.Name, got, err)
	}
	if s, err = Find(env(map[string]string{FileVariable: file, githubToken: "y"}), "a"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"from-file", "renewed"} { // it is read each time
		write(want + "\n")
		if got, err := s.Token(t.Context()); got != want || err != nil {
			t.Errorf("%q %v, want %q", got, err, want)
		}
	}
	if _, err := Find(env(map[string]string{gitlab: "true"}), "shop-deploys"); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "{SCAFO_OIDC_TOKEN: {aud: shop-deploys}}") {
		t.Errorf("a job of GitLab without a token: %v", err)
	}
	write(" \n")
	if got, err := s.Token(t.Context()); err == nil {
		t.Errorf("an empty file: %q", got)
	}
}

// The token of the job itself comes before what else is in its environment.
func TestTheJobsOwnTokenComesFirst(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"value":"for %s"}`, r.URL.Query().Get("audience"))
	}))
	t.Cleanup(service.Close)
	s, err := Find(env(map[string]string{TokenVariable: "given", FileVariable: "/nowhere", githubURL: service.URL + "/?audience=theirs", githubToken: "y"}), "shop-deploys")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Token(t.Context()); got != "for shop-deploys" || err != nil || s.Name != "GitHub Actions" {
		t.Errorf("%s: %q %v", s.Name, got, err)
	}
}

func TestGitHubIsAskedAgainBeforeATokenExpires(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	asked := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.URL.Query().Get("audience") != "scafo-node" || r.URL.Query().Get("api-version") != "2" || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		fmt.Fprintf(w, `{"value":%q}`, unsigned(now.Unix()+300))
	}))
	t.Cleanup(service.Close)
	s, err := Find(env(map[string]string{githubURL: service.URL + "/?api-version=2", githubToken: "secret"}), "scafo-node")
	if err != nil {
		t.Fatal(err)
	}
	g := &github{url: service.URL + "/?api-version=2&audience=scafo-node", bearer: "secret", http: http.DefaultClient, now: func() time.Time { return now }}
	for _, step := range []struct {
		after time.Duration
		asked int
	}{{0, 1}, {0, 1}, {239 * time.Second, 1}, {time.Second, 2}, {time.Hour, 3}} {
		now = now.Add(step.after)
		if _, err := g.token(t.Context()); err != nil || asked != step.asked {
			t.Errorf("after %s more: asked %d times, want %d; %v", step.after, asked, step.asked, err)
		}
	}
	if _, err := s.Token(t.Context()); err != nil {
		t.Error(err)
	}
}

// What goes wrong says nothing of the job's secrets.
func TestGitHubRefuses(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"status":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) },
		"no token": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) },
		"HTML":     func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `<html>`) },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		},
		"cut": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		service := httptest.NewServer(h)
		s, err := Find(env(map[string]string{githubURL: service.URL + "/?key=in-the-address", githubToken: "secret"}), "a")
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Token(t.Context())
		service.Close()
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "in-the-address") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDescribe(t *testing.T) {
	if i, s := Describe(unsigned(5)); i != "https://i" || s != "s" || !Expiry(unsigned(5)).Equal(time.Unix(5, 0)) {
		t.Error(i, s, Expiry(unsigned(5)))
	}
	for _, bad := range []string{"", "a.b", "a.!.c", "a.e30.c", "a.bm8.c"} {
		if i, s := Describe(bad); i != "" || s != "" || !Expiry(bad).IsZero() {
			t.Errorf("%q: %q %q", bad, i, s)
		}
	}
}
