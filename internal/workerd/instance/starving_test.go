package instance_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
)

// A Worker that allocates without end has a sentence in its log before what the engine
// writes of that, and one only.
func TestAnAllocationLoopIsExplained(t *testing.T) {
	t.Parallel()
	d := deployment(t, layout.Manifest{Main: "index.js"}, map[string]string{"index.js": `const kept = [];
export default { fetch(request) {
	if (new URL(request.url).pathname === "/ok") return new Response("ok");
	for (;;) kept.push({ a: [1, 2, 3], s: "s" + kept.length });
} }`}, nil)
	var log logged
	i, ctx := launch(t, instance.Spec{Deployment: d, Log: log.add, Limits: instance.Limits{Memory: 100 << 20}})
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if _, body := get(t, "http://"+i.Addr()+"/ok"); body != "ok" {
		t.Fatal(body)
	}
	log.mu.Lock()
	for _, l := range log.lines {
		t.Errorf("before the loop: %q", l.Text)
	}
	log.mu.Unlock()
	asked, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(asked, http.MethodGet, "http://"+i.Addr()+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	select {
	case <-i.Done():
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	said, others := 0, 0
	for _, l := range log.lines {
		switch {
		case strings.Contains(l.Text, "asked for more memory than it may have"):
			said++
			if others != 0 || l.Level != "error" || !l.Runtime {
				t.Errorf("after %d lines: %+v of %+v", others, l, log.lines)
			}
		case l.Text != "": // the engine begins with an empty one
			others++
		}
	}
	if said != 1 || others == 0 {
		t.Errorf("said %d times, beside %d lines", said, others)
	}
}
