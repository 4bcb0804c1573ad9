//go:build system

package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/embedded/embeddedtest"
	"github.com/scafo/scafo/internal/paralleltest"
	"github.com/scafo/scafo/internal/workerd/workerdtest"
)

func TestMain(m *testing.M) {
	embeddedtest.Main()
	code := paralleltest.Main(m)
	if programDir != "" {
		_ = os.RemoveAll(programDir)
	}
	os.Exit(code)
}

var programDir string // removed at the end

var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "celld-workerd-test-")
	if err != nil {
		return "", err
	}
	programDir = dir
	p := filepath.Join(dir, "celld-workerd")
	out, err := exec.Command("go", "build", "-o", p, "github.com/scafo/scafo/cmd/celld-workerd").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return p, nil
})

// bench is a store behind a gate, and a place for processes.
type bench struct {
	*testing.T
	program, workerd string
	store            embedded.Endpoint
	gate             *gate
	prefix           string
	dir              string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	p, err := program()
	if err != nil {
		t.Fatal(err)
	}
	e := embeddedtest.Start(t, t.TempDir())
	return &bench{T: t, program: p, workerd: workerdtest.Path(t), store: e, gate: newGate(t, e.URL), prefix: "app", dir: t.TempDir()}
}

func (b *bench) env(node string, extra ...string) []string {
	return append([]string{
		"AWS_ACCESS_KEY_ID=" + b.store.AccessKey, "AWS_SECRET_ACCESS_KEY=" + b.store.SecretKey, "AWS_REGION=" + b.store.Region,
		"CELLD_NODE=" + node, "CELLD_WATCH=" + filepath.Join(b.dir, node), "CELLD_WORKERD_BIN=" + b.workerd, "CELLD_DEPLOY_POLL_S=3600",
		"PATH=" + os.Getenv("PATH"), "RUST_LOG=debug",
	}, extra...)
}

func (b *bench) target() []string {
	return []string{"--bucket", b.store.Bucket + "/" + b.prefix, "--endpoint", b.gate.url, "--region", b.store.Region}
}

// deploy publishes a Worker with one module.
func (b *bench) deploy(source string, classes ...string) {
	b.Helper()
	dir := b.TempDir()
	config := map[string]any{"name": "subject", "main": "main.js", "compatibility_date": "2026-01-01"}
	if len(classes) > 0 {
		var bindings []map[string]string
		for _, c := range classes {
			bindings = append(bindings, map[string]string{"name": strings.ToUpper(c), "class_name": c})
		}
		config["durable_objects"] = map[string]any{"bindings": bindings}
		config["migrations"] = []map[string]any{{"tag": "v1", "new_sqlite_classes": classes}}
	}
	j, err := json.Marshal(config)
	if err != nil {
		b.Fatal(err)
	}
	for name, body := range map[string]string{"wrangler.json": string(j), "main.js": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	cmd := exec.Command(b.program, append([]string{"deploy", dir}, b.target()...)...)
	cmd.Env = b.env("deployer")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("deploy: %v\n%s", err, out)
	}
}

// serving is a running celld-workerd.
type serving struct {
	b             *bench
	cmd           *exec.Cmd
	url, internal string
	done          chan struct{}
	log           *lockedBuffer
	begun         time.Time
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *lockedBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func (b *bench) serve(node string, extra ...string) *serving {
	b.Helper()
	s := &serving{b: b, done: make(chan struct{}), log: &lockedBuffer{}, begun: time.Now()}
	public, internal := freePort(b.T), freePort(b.T)
	s.url, s.internal = "http://"+public, "http://"+internal
	s.cmd = exec.Command(b.program, append(b.target(), "--listen", public, "--internal-listen", internal)...)
	s.cmd.Env = b.env(node, extra...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.WaitDelay = time.Second
	if err := s.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	go func() { _ = s.cmd.Wait(); close(s.done) }()
	b.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
		if b.Failed() {
			b.Logf("%s said:\n%s", node, s.log)
		}
	})
	b.until("health of "+node, 20*time.Second, func() bool {
		select {
		case <-s.done:
			b.Fatalf("%s ended: %v\n%s", node, s.cmd.ProcessState, s.log)
		default:
		}
		return s.status("/.well-known/celld/health") == 200
	})
	return s
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

var client = &http.Client{Timeout: 60 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

func (s *serving) try(path string) (int, string, error) {
	resp, err := client.Get(s.url + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

func (s *serving) status(path string) int { n, _, _ := s.try(path); return n }

func (s *serving) want(path, body string) {
	s.b.Helper()
	if n, got, err := s.try(path); n != 200 || got != body || err != nil {
		s.b.Errorf("%s: %d %q %v, want %q", path, n, got, err, body)
	}
}

// settled asks until the answer is a 200, and says how long that took.
func (s *serving) settled(path string) (string, time.Duration) {
	s.b.Helper()
	begun := time.Now()
	var body string
	s.b.until(path, 40*time.Second, func() bool {
		n, got, err := s.try(path)
		body = got
		return n == 200 && err == nil
	})
	return body, time.Since(begun)
}

type state struct {
	PID        int
	RSS        int64 `json:"rss_bytes"`
	Restarts   int
	Deployment struct {
		Version    string
		Generation int
		Draining   int
	}
	Processes []struct {
		PID     int
		Serving bool
	}
}

func (s *serving) state() state {
	s.b.Helper()
	resp, err := client.Get(s.internal + "/state")
	if err != nil {
		s.b.Fatal(err)
	}
	defer resp.Body.Close()
	var st state
	if err := json.NewDecoder(resp.Body).Decode(&st); err != nil {
		s.b.Fatal(err)
	}
	return st
}

// workerdPID is the workerd that serves.
func (s *serving) workerdPID() int {
	s.b.Helper()
	for _, p := range s.state().Processes {
		if p.Serving {
			return p.PID
		}
	}
	s.b.Fatal("no workerd serves")
	return 0
}

func (s *serving) reload() string {
	s.b.Helper()
	resp, err := client.Post(s.internal+"/reload", "", nil)
	if err != nil {
		s.b.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	var o struct{ Outcome string }
	if err := json.Unmarshal(body, &o); err != nil {
		s.b.Fatalf("%s: %v", body, err)
	}
	return o.Outcome
}

func (b *bench) until(what string, within time.Duration, ok func() bool) {
	b.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("%s: not within %s", what, within)
		}
	}
}

func gone(pid int) bool { return syscall.Kill(pid, 0) != nil }

// gate is a way to the store that can hold requests back, as a slow network
// would, also when the sender has died meanwhile.
type gate struct {
	url string
	to  *url.URL

	mu    sync.Mutex
	holds func(r *http.Request) *held // nil, or what to hold r in
	away  bool                        // whoever comes is cut off
}

// held are requests that were sent and have not arrived.
type held struct {
	release chan struct{} // closed: they arrive now
	once    sync.Once

	mu       sync.Mutex
	waiting  []string
	statuses []int
}

func newHeld() *held { return &held{release: make(chan struct{})} }

func (h *held) let() { h.once.Do(func() { close(h.release) }) }

func (h *held) count() (waiting, arrived int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting), len(h.statuses)
}

func (g *gate) hold(f func(r *http.Request) *held) { g.mu.Lock(); g.holds = f; g.mu.Unlock() }

// shut makes the store unreachable, or reachable again.
func (g *gate) shut(away bool) { g.mu.Lock(); g.away = away; g.mu.Unlock() }

func newGate(t *testing.T, to string) *gate {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{to: u}
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	reverse := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = u.Scheme, u.Host, p.In.Host
		},
		Transport:    transport,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		holds, away := g.holds, g.away
		g.mu.Unlock()
		if away {
			panic(http.ErrAbortHandler)
		}
		if holds != nil {
			if h := holds(r); h != nil {
				g.late(r, h, transport)
				panic(http.ErrAbortHandler)
			}
		}
		reverse.ServeHTTP(w, r)
	}))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	srv.Start()
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); transport.CloseIdleConnections() })
	g.url = srv.URL
	return g
}

// late sends r on once it is let, whatever became of its sender.
func (g *gate) late(r *http.Request, h *held, transport http.RoundTripper) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	h.mu.Lock()
	h.waiting = append(h.waiting, r.Method+" "+r.URL.Path)
	h.mu.Unlock()
	<-h.release
	out := r.Clone(context.WithoutCancel(r.Context()))
	out.RequestURI, out.Body = "", io.NopCloser(bytes.NewReader(body))
	out.URL.Scheme, out.URL.Host = g.to.Scheme, g.to.Host
	resp, err := transport.RoundTrip(out)
	status := 0
	if err == nil {
		status = resp.StatusCode
		_ = resp.Body.Close()
	}
	h.mu.Lock()
	h.statuses = append(h.statuses, status)
	h.mu.Unlock()
}
