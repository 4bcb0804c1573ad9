package caddy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A host whose only process has closed its port is answered like one that nobody
// serves, and again by its process once that is back.
func TestAClosedPortIsNotReady(t *testing.T) {
	process := httptest.NewServer(http.HandlerFunc(echo))
	url := process.URL
	ask := serving(t, url)
	if status, _, _ := ask("GET", nil); status != http.StatusOK {
		t.Fatalf("with its process: %d", status)
	}
	process.Close()
	for method, body := range map[string]io.Reader{"GET": nil, "POST": strings.NewReader("a body")} {
		begun := time.Now()
		status, text, header := ask(method, body)
		if status != http.StatusServiceUnavailable || header.Get("Retry-After") != retryAfter || header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d, %v", method, status, header)
		}
		if header.Get("Content-Type") != "application/problem+json" || !strings.Contains(text, `"code":"draining"`) {
			t.Errorf("%s: %s %q", method, header.Get("Content-Type"), text)
		}
		if took := time.Since(begun); took > tryDuration+2*time.Second {
			t.Errorf("%s took %s", method, took)
		}
	}
}

// A process that breaks off may have begun: that is no refusal.
func TestABrokenAnswerIsNoRefusal(t *testing.T) {
	process := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer process.Close()
	ask := serving(t, process.URL)
	if status, _, header := ask("POST", strings.NewReader("a body")); status != http.StatusBadGateway || header.Get("Retry-After") != "" {
		t.Errorf("%d, %v", status, header)
	}
}
