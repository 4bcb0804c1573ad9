//go:build system

package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/paralleltest"
)

// patience bounds every wait of these tests: a condition that does not hold by
// then never will.
const patience = 60 * time.Second

// root is the folder of the module.
func root(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// bin is one of the programs; `make build` makes them.
func bin(t testing.TB, name string) string {
	t.Helper()
	p := filepath.Join(root(t), "bin", name)
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%s is missing: run make build", p)
	}
	return p
}

// freePort is a port that nobody listens on. Another program may take it before it
// is used; the range of celld.ports is far from where the kernel picks.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// logBuffer keeps what a program said.
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

// program is one started program.
type program struct {
	*exec.Cmd
	out  *logBuffer
	done chan struct{}
	err  error
}

// start runs a program until the test ends. Its environment is the test's own,
// less what could lead it to somebody else's fleet.
func start(t testing.TB, env []string, path string, args ...string) *program {
	t.Helper()
	return startWith(t, nil, env, path, args...)
}

// startWith is start with files that the program inherits, as 3 and what follows.
func startWith(t testing.TB, files []*os.File, env []string, path string, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.Command(path, args...), out: &logBuffer{}, done: make(chan struct{})}
	p.Env = append(environment(), env...)
	p.Stdout, p.Stderr = p.out, p.out
	p.ExtraFiles = files
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.stop(t)
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(path), tail(p.out.String(), 6000))
		}
	})
	return p
}

func environment() []string {
	var out []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "SCAFO_") || strings.HasPrefix(name, "AWS_") || strings.HasPrefix(name, "CELLD_") || strings.HasPrefix(name, "ACTIONS_ID_TOKEN_") {
			continue
		}
		out = append(out, e)
	}
	return append(out, "AWS_EC2_METADATA_DISABLED=true")
}

func tail(s string, most int) string {
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

// stop ends the program as Ctrl-C does and waits until it is gone.
func (p *program) stop(t testing.TB) {
	t.Helper()
	select {
	case <-p.done:
		return
	default:
	}
	_ = p.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = p.Process.Kill()
		<-p.done
		t.Errorf("%s did not end within %s of SIGTERM", filepath.Base(p.Path), patience)
	}
}

// kill ends the program without a chance to clean up.
func (p *program) kill(t testing.TB) {
	t.Helper()
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.done
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, cond func() error) {
	t.Helper()
	eventuallyWithin(t, patience, what, cond)
}

func eventuallyWithin(t testing.TB, most time.Duration, what string, cond func() error) {
	t.Helper()
	deadline := time.Now().Add(most)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("never: %s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// fleet is a fleet of one machine as `scafo up` runs it.
type fleet struct {
	t             testing.TB
	state         string
	profile       string
	api           string // where it listens
	url           string // its API as everybody but the test itself knows it
	http          int
	firstPort     int
	up            *program
	requestClient *http.Client
	variables     []string // of the environment, beside those that all have
}

// newFleet prepares one and starts it, with these variables in its environment.
func newFleet(t testing.TB, variables ...string) *fleet {
	t.Helper()
	dir := t.TempDir()
	f := &fleet{
		t: t, variables: variables, state: filepath.Join(dir, "state"), profile: filepath.Join(dir, "profile.json"),
		api: "127.0.0.1:" + strconv.Itoa(freePort(t)), http: freePort(t), firstPort: paralleltest.Ports(t, paralleltest.MostPorts),
	}
	f.requestClient = &http.Client{
		Timeout: patience,
		// Go's resolver does not know *.localhost.
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, "127.0.0.1:"+strconv.Itoa(f.http))
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(f.requestClient.CloseIdleConnections)
	f.url = documented(t, f.api)
	f.start()
	t.Cleanup(func() { f.noProcessIsLeft() })
	t.Cleanup(func() { f.up.stop(t) })
	return f
}

func (f *fleet) env() []string {
	return append([]string{"SCAFO_PROFILE=" + f.profile, "SCAFO_LOG_LEVEL=info"}, f.variables...)
}

func (f *fleet) start() {
	f.t.Helper()
	f.up = start(f.t, f.env(), bin(f.t, "scafo"), "up", "--state", f.state, "--listen", f.api, "--node-advertise", f.url, "--http-port", strconv.Itoa(f.http),
		"--celld-ports", fmt.Sprintf("%d-%d", f.firstPort, f.firstPort+paralleltest.MostPorts-1))
	eventually(f.t, "up says how to deploy", func() error {
		select {
		case <-f.up.done:
			f.t.Fatalf("up ended: %v\n%s", f.up.err, f.up.out)
		default:
		}
		if !strings.Contains(f.up.out.String(), "  Deploy ") {
			return errors.New("not yet")
		}
		return nil
	})
}

// scafo runs one command.
func (f *fleet) scafo(args ...string) (stdout, stderr string, err error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	c := exec.CommandContext(ctx, bin(f.t, "scafo"), args...)
	c.Env = append(environment(), f.env()...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err = c.Run()
	return out.String(), errs.String(), err
}

func (f *fleet) must(args ...string) string {
	f.t.Helper()
	out, errs, err := f.scafo(args...)
	if err != nil {
		f.t.Fatalf("scafo %s: %v\n%s%s", strings.Join(args, " "), err, out, errs)
	}
	return out
}

// deploy deploys a folder and returns the application's address.
func (f *fleet) deploy(dir string, args ...string) string {
	f.t.Helper()
	out := strings.TrimSpace(f.must(append([]string{"deploy", dir}, args...)...))
	lines := strings.Split(out, "\n")
	return lines[len(lines)-1]
}

func (f *fleet) example(name string) string { return filepath.Join(root(f.t), "examples", name) }

// get asks an application and returns the whole answer.
func (f *fleet) get(url string) (int, string, error) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	return f.do(req)
}

func (f *fleet) do(req *http.Request) (int, string, error) {
	res, err := f.requestClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// body asks an application that must answer 200.
func (f *fleet) body(url string) string {
	f.t.Helper()
	status, body, err := f.get(url)
	if err != nil || status != http.StatusOK {
		f.t.Fatalf("GET %s: %d %q %v", url, status, body, err)
	}
	return body
}

// status is `scafo status --json`.
func (f *fleet) status() scafo.DaemonState {
	f.t.Helper()
	var s scafo.DaemonState
	if err := json.Unmarshal([]byte(f.must("status", "--json")), &s); err != nil {
		f.t.Fatal(err)
	}
	return s
}

// process is an application's runtime process.
func (f *fleet) process(application string) (scafo.ProcessStatus, error) {
	for _, p := range f.status().Processes {
		if p.Application == application {
			return p, nil
		}
	}
	return scafo.ProcessStatus{}, fmt.Errorf("no process of %s", application)
}

// belongs finds every process that has to do with this fleet: its state directory
// is in the command line or the environment.
func (f *fleet) belongs() map[int]string {
	out := map[int]string{}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, dir := range all {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if bytes.Contains(cmdline, []byte(f.state)) || bytes.Contains(env, []byte(f.state)) {
			out[pid] = strings.ReplaceAll(string(cmdline), "\x00", " ")
		}
	}
	return out
}

func (f *fleet) noProcessIsLeft() {
	f.t.Helper()
	left := f.belongs()
	for pid, cmd := range left {
		f.t.Errorf("left behind: %d %s", pid, cmd)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// project writes a small Workers project.
func project(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// worker is a project of one file.
func worker(t testing.TB, name, source string) string {
	t.Helper()
	return project(t, map[string]string{
		"wrangler.jsonc": fmt.Sprintf("{\n\t\"name\": %q,\n\t\"main\": \"index.js\",\n\t\"compatibility_date\": \"2026-11-01\"\n}\n", name),
		"index.js":       source,
	})
}

func number(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(regexp.MustCompile(`\d+`).FindString(s))
	if err != nil {
		t.Fatalf("%q has no number", s)
	}
	return n
}

func contains(s, part string) bool { return strings.Contains(s, part) }
