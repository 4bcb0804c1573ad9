package instance_test

import (
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
)

// A promise that is rejected and that nobody handles is not told by workerd. A listener
// tells it: so the how-to says.
func TestUnhandledRejections(t *testing.T) {
	t.Parallel()
	d := deployment(t, layout.Manifest{Main: "index.js"}, map[string]string{"index.js": `export default { async fetch(request) {
	if (new URL(request.url).pathname === "/listen") addEventListener("unhandledrejection", (e) => console.error(e.reason));
	Promise.reject(new Error("nobody handles it"));
	return new Response("ok");
} }`}, nil)
	var log logged
	i, ctx := launch(t, instance.Spec{Deployment: d, Log: log.add})
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/", "/listen"} {
		if _, body := get(t, "http://"+i.Addr()+path); body != "ok" {
			t.Fatal(body)
		}
	}
	if err := i.Kill(); err != nil {
		t.Fatal(err)
	}
	<-i.Done()
	log.mu.Lock()
	defer log.mu.Unlock()
	if len(log.lines) != 1 || log.lines[0].Level != "error" || !strings.HasPrefix(log.lines[0].Text, "Error: nobody handles it\n    at ") {
		t.Errorf("%+v", log.lines)
	}
}
