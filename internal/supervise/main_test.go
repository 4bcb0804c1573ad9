package supervise

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/celld"
)

// daemonName is the name under which the test binary is a daemon that can be
// killed: it supervises the applications that its arguments name.
const daemonName = "test-daemon"

// roles are further programs that the test binary is, by the variable that says so.
var roles = map[string]func(value string){}

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case fakeName:
		fakeMain()
		return
	case daemonName:
		daemonMain()
		return
	}
	for variable, main := range roles {
		if os.Getenv(variable) != "" {
			main(os.Getenv(variable))
			return
		}
	}
	goleak.VerifyTestMain(m)
}

func timeout(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// quick is the default policy with the long waits of a test taken out.
func quick() Policy {
	p := DefaultPolicy(nil)
	p.BackoffMin, p.BackoffMax = 50*time.Millisecond, 400*time.Millisecond
	p.FenceWait = time.Second
	p.Stable = 2 * time.Second
	p.ProbeEvery, p.ProbeRetry, p.ProbeTimeout = 50*time.Millisecond, 20*time.Millisecond, 200*time.Millisecond
	p.StateEvery = 200 * time.Millisecond
	p.StopBound = 3 * time.Second
	p.ReloadMin, p.ReloadRefused = 10*time.Millisecond, 300*time.Millisecond
	return p
}

func testConfig(dir string, log *slog.Logger, first int) Config {
	return Config{
		Node: "n1", MachineID: "m1", StateDir: filepath.Join(dir, "state"),
		Command: filepath.Join(dir, fakeName),
		Bind:    netip.MustParseAddr("127.0.0.1"), Address: "127.0.0.1",
		Ports: Range{first, first + 99},
		Target: func(app, uid string) celld.Target {
			return celld.Target{Bucket: "b/fleets/" + app + "/" + uid, Endpoint: "http://127.0.0.1:1", Region: "r1"}
		},
		Credentials: func(context.Context) (celld.Credentials, error) {
			return celld.Credentials{AccessKey: "AK", SecretKey: "SK", Region: "r1"}, nil
		},
		Env:    map[string]string{"FAKE_DIR": dir, "RUST_LOG": "warn"},
		Log:    log,
		Policy: quick(),
	}
}

// world is one state directory with its fakes.
type world struct {
	t     *testing.T
	dir   string
	log   *logBuffer
	first int
}

var nextRange = struct {
	sync.Mutex
	at int
}{at: 21000}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{fakeName, daemonName} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	nextRange.Lock()
	first := nextRange.at
	nextRange.at += 100
	nextRange.Unlock()
	w := &world{t: t, dir: dir, log: &logBuffer{}, first: first}
	t.Cleanup(w.killLeft)
	return w
}

// killLeft ends every fake that this test started and left, each by its own note.
func (w *world) killLeft() {
	notes, _ := filepath.Glob(filepath.Join(w.dir, "*.starts"))
	for _, n := range notes {
		app := strings.TrimSuffix(filepath.Base(n), ".starts")
		for _, s := range readStarts(w.t, w.dir, app) {
			if args := arguments(s.PID); len(args) > 0 && args[0] == filepath.Join(w.dir, fakeName) {
				syscall.Kill(s.PID, syscall.SIGKILL)
			}
		}
	}
	if w.t.Failed() {
		w.t.Log(w.log.String())
	}
}

func (w *world) script(app string, s script) {
	w.t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		w.t.Fatal(err)
	}
	tmp := filepath.Join(w.dir, app+".tmp")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(tmp, scriptFile(w.dir, app)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) config() Config {
	return testConfig(w.dir, slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})), w.first)
}

// supervise runs a supervisor until the test ends or stop is called.
func (w *world) supervise(change ...func(*Config)) (s *Supervisor, stop func()) {
	w.t.Helper()
	cfg := w.config()
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := s.TakeOver(ctx); err != nil {
		w.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(stop)
	return s, stop
}

const patience = 20 * time.Second

// until waits for a status of the application that the condition likes.
func until(t *testing.T, s *Supervisor, app, what string, ok func(scafo.ProcessStatus) bool) scafo.ProcessStatus {
	t.Helper()
	ctx, cancel := timeout(patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond) // for what no change announces
	defer tick.Stop()
	for {
		var last scafo.ProcessStatus
		for _, st := range s.Statuses() {
			if st.Application == app {
				last = st
				if ok(st) {
					return st
				}
			}
		}
		select {
		case <-s.Changes():
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: waited for %s, have %+v", app, what, last)
		}
	}
}

func ready(version string) func(scafo.ProcessStatus) bool {
	return func(st scafo.ProcessStatus) bool {
		return st.State == scafo.ProcessReady && st.Deployment == version
	}
}

func inState(state scafo.ProcessState) func(scafo.ProcessStatus) bool {
	return func(st scafo.ProcessStatus) bool { return st.State == state }
}

func get(t *testing.T, url string) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := c.Get(url)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	b.ReadFrom(resp.Body)
	return b.String()
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("waited for " + what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// daemonMain supervises application counter as the real daemon would, and prints
// its statuses as JSON lines. It never stops by itself.
func daemonMain() {
	dir := filepath.Dir(os.Args[0])
	var first int
	fmt.Sscan(os.Args[1], &first)
	logFile, err := os.OpenFile(filepath.Join(dir, "daemon.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	s, err := New(testConfig(dir, slog.New(slog.NewTextHandler(logFile, nil)), first))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	if err := s.TakeOver(ctx); err != nil {
		panic(err)
	}
	go s.Run(ctx)
	if len(os.Args) > 2 {
		var wants []Want
		for _, app := range os.Args[2:] {
			wants = append(wants, Want{Application: app, UID: "u-" + app, Version: v1})
		}
		s.Set(wants)
	}
	enc := json.NewEncoder(os.Stdout)
	enc.Encode(s.Statuses())
	for range s.Changes() {
		enc.Encode(s.Statuses())
	}
}

// daemon is a daemon in a process of its own.
type daemon struct {
	cmd   *exec.Cmd
	lines chan []scafo.ProcessStatus
}

func (w *world) daemon(apps ...string) *daemon {
	w.t.Helper()
	cmd := exec.Command(filepath.Join(w.dir, daemonName), append([]string{fmt.Sprint(w.first)}, apps...)...)
	cmd.Stderr = w.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	d := &daemon{cmd: cmd, lines: make(chan []scafo.ProcessStatus, 1000)}
	go func() {
		defer close(d.lines)
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			var list []scafo.ProcessStatus
			if json.Unmarshal(sc.Bytes(), &list) == nil {
				d.lines <- list
			}
		}
	}()
	w.t.Cleanup(d.kill)
	return d
}

func (d *daemon) kill() {
	if d.cmd.ProcessState == nil {
		d.cmd.Process.Kill()
		d.cmd.Wait()
		for range d.lines {
		}
	}
}

func (d *daemon) until(t *testing.T, app, what string, ok func(scafo.ProcessStatus) bool) scafo.ProcessStatus {
	t.Helper()
	after := time.After(patience)
	var last any
	for {
		select {
		case list, open := <-d.lines:
			if !open {
				t.Fatalf("the daemon has ended, waiting for %s", what)
			}
			last = list
			for _, st := range list {
				if st.Application == app && ok(st) {
					return st
				}
			}
		case <-after:
			t.Fatalf("waited for %s; last %+v", what, last)
		}
	}
}

// taken listens on a port for the length of the test.
func taken(t *testing.T, port int) {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// The versions of the tests.
const (
	v1 = "1111111111111111"
	v2 = "2222222222222222"
	v3 = "3333333333333333"
)
