package contracttest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/scafo/scafo/internal/celld"
)

func testServes(b *bench) {
	b.deploy(subject("one"))
	r := b.serve("n1")
	for path, want := range map[string]string{"/release": "one", "/greeting": "hello from one"} {
		if got := r.get(path); got != want {
			b.Errorf("%s: %q", path, got)
		}
	}
	for _, want := range []string{"1", "2", "3"} {
		if got := r.get("/next"); got != want {
			b.Errorf("/next: %q, want %s", got, want)
		}
	}
	a, err := r.ask("/nothing")
	if err != nil || a.status != http.StatusNotFound || a.body != "worker has no /nothing" {
		b.Errorf("the Worker's own 404: %+v, %v", a, err)
	}
	a, err = r.ask(celld.HealthPath)
	if err != nil || a.status != http.StatusOK || strings.ReplaceAll(strings.TrimSpace(a.body), " ", "") != `{"ok":true}` {
		b.Errorf("health: %+v, %v", a, err)
	}
}

func testAssets(b *bench) {
	b.deploy(files{
		"wrangler.jsonc":    config(map[string]any{"main": nil, "assets": map[string]any{"directory": "./public"}}),
		"public/index.html": "<h1>front</h1>",
		"public/a/b.txt":    "deep",
	})
	r := b.serve("n1")
	a, err := r.ask("/")
	if err != nil || a.status != 200 || a.body != "<h1>front</h1>" || !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") {
		b.Errorf("/: %+v, %v", a, err)
	}
	if got := r.get("/a/b.txt"); got != "deep" {
		b.Errorf("/a/b.txt: %q", got)
	}
	if a, err := r.ask("/nothing"); err != nil || a.status != http.StatusNotFound {
		b.Errorf("/nothing: %+v, %v", a, err)
	}
}

func testWebSocket(b *bench) {
	b.deploy(subject("one"))
	r := b.serve("n1")
	ctx, cancel := context.WithTimeout(b.Context(), soon)
	defer cancel()
	c, _, err := websocket.Dial(ctx, r.url+"/echo", nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.CloseNow() //nolint:errcheck // at the end of the test
	for _, word := range []string{"a", strings.Repeat("b", 10_000)} {
		if err := c.Write(ctx, websocket.MessageText, []byte(word)); err != nil {
			b.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || string(got) != "one:"+word {
			b.Fatalf("%.40q, %v", got, err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		b.Errorf("closing: %v", err)
	}
}

func testForwardedHeaders(b *bench) {
	b.deploy(subject("one"))
	forwarded := func(req *http.Request) {
		req.Host = "seen.example"
		req.Header["X-Forwarded-Host"] = []string{"forged.example, last.example"}
		req.Header["X-Forwarded-Proto"] = []string{"http, https"}
	}
	untrusting := b.serve("n1")
	if got := untrusting.get("/url?x=1", forwarded); got != "http://seen.example/url?x=1" {
		b.Errorf("without the flag: %q", got)
	}
	untrusting.kill()
	trusting := b.start("n2", func(s *celld.Serve) { s.TrustForwarded = true })
	trusting.healthy()
	if got := trusting.get("/url?x=1", forwarded); got != "https://last.example/url?x=1" {
		b.Errorf("with the flag: %q", got)
	}
	lines := func(req *http.Request) {
		req.Header["X-Forwarded-Host"] = []string{"forged.example", "last.example"}
		req.Header["X-Forwarded-Proto"] = []string{"http", "https"}
	}
	if got := trusting.get("/url", lines); got != "https://last.example/url" {
		b.Errorf("with the flag, in lines of their own: %q", got)
	}
	if got := trusting.get("/url", func(req *http.Request) { req.Host = "plain.example" }); got != "http://plain.example/url" {
		b.Errorf("with the flag, not forwarded: %q", got)
	}
}

func testInternalRoutesAreNotPublic(b *bench) {
	b.deploy(subject("one"))
	r := b.serve("n1")
	for path, method := range map[string]string{"/state": "GET", "/reload": "POST", "/shutdown": "POST"} {
		a, err := r.ask(path, func(req *http.Request) { req.Method = method })
		if err != nil || a.body != "worker has no "+path {
			b.Errorf("%s %s: %+v, %v", method, path, a, err)
		}
	}
	if r.over() {
		b.Error("it went")
	}
}

// Without a pointer it waits with its ports bound, until there is one.
func testNoPointerYet(b *bench) {
	r := b.start("n1", nil)
	b.until("bound ports", soon, func() bool {
		for _, a := range []string{r.listen, r.internal} {
			c, err := net.DialTimeout("tcp", a, time.Second)
			if err != nil {
				return false
			}
			c.Close() //nolint:errcheck,gosec // only dialled
		}
		return true
	})
	time.Sleep(time.Second) // it has nothing to do, and must not give up
	if r.over() {
		b.Fatalf("it ended with %d", r.cmd.ProcessState.ExitCode())
	}
	v := b.deploy(subject("one")).Version
	b.until("adoption", patience, func() bool {
		got, err := r.in.Reload(b.Context())
		return err == nil && got.OK && got.Version == v
	})
	r.healthy()
	if got := r.get("/release"); got != "one" {
		b.Errorf("%q", got)
	}
}

// Ports may be bound long before anything is served: health says nothing good
// until then, and whoever asks must bring a time-out.
func testNothingServedWhileTheStoreHangs(b *bench) {
	b.deploy(subject("one"))
	b.proxy.set(hanging)
	r := b.start("n1", nil)
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end) && !r.over(); time.Sleep(look) {
		ctx, cancel := context.WithTimeout(b.Context(), 500*time.Millisecond)
		err := celld.Healthy(ctx, r.url)
		cancel()
		if err == nil {
			b.Fatal("it is healthy without having read anything")
		}
	}
	b.proxy.set(passing)
	b.until("health, or exit 1", patience, func() bool { return r.over() || celld.Healthy(b.Context(), r.url) == nil })
	if r.over() {
		if code := r.exit(0); code != celld.ExitFailed {
			b.Errorf("exit code %d", code)
		}
		return
	}
	if got := r.get("/release"); got != "one" {
		b.Errorf("%q", got)
	}
}

func testState(b *bench) {
	v := b.deploy(subject("one")).Version
	r := b.serve("n1")
	s := r.state()
	if s.Version != v || strings.Trim(s.Prefix, "/") != strings.Trim(versionPrefix(v), "/") || s.RSS <= 0 || s.Draining {
		b.Errorf("%+v", s)
	}
}

// A process that is stopped keeps its ports and answers nobody.
func testFrozen(b *bench) {
	b.deploy(subject("one"))
	r := b.serve("n1")
	r.freeze()
	if err := celld.Healthy(b.Context(), r.url); !errors.Is(err, celld.ErrUnanswered) {
		b.Errorf("health of a frozen process: %v", err)
	}
	if _, err := r.in.State(b.Context()); !errors.Is(err, celld.ErrUnanswered) {
		b.Errorf("state of a frozen process: %v", err)
	}
	r.thaw()
	b.until("health, or a lost lease", patience, func() bool { return r.over() || celld.Healthy(b.Context(), r.url) == nil })
	if r.over() {
		if code := r.exit(0); code != celld.ExitFenced {
			b.Errorf("exit code %d", code)
		}
	}
}
