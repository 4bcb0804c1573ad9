package contracttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/celld"
)

func isNotFound(err error) bool { return errors.Is(err, bucket.ErrNotFound) }

// output is what a process prints, safe to read while it prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// finished is a command that has ended.
type finished struct {
	code           int
	stdout, stderr string
}

// said is all that it printed.
func (f finished) said() string { return f.stdout + f.stderr }

// command runs the program to its end.
func (b *bench) command(env []string, args ...string) finished {
	b.Helper()
	return b.commandIn("", env, args...)
}

func (b *bench) commandIn(dir string, env []string, args ...string) finished {
	b.Helper()
	f, err := b.tryCommand(dir, env, args...)
	if err != nil {
		b.Fatalf("%q: %v\n%s", args, err, f.said())
	}
	return f
}

// tryCommand is commandIn for goroutines of a test.
func (b *bench) tryCommand(dir string, env []string, args ...string) (finished, error) {
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.program.Path, args...) //nolint:gosec // the program under test
	cmd.Dir, cmd.Env = dir, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out, errs output
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	f := finished{code: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: errs.String()}
	var exit *exec.ExitError
	if ctx.Err() != nil {
		return f, fmt.Errorf("it did not end within %v", patience)
	}
	if err != nil && !errors.As(err, &exit) {
		return f, err
	}
	return f, nil
}

// running is a serving process.
type running struct {
	b                *bench
	cmd              *exec.Cmd
	url              string // of the public listener
	listen, internal string
	in               celld.Internal
	out              output
	done             chan struct{} // closed when it has ended
}

// serve starts the program for a node of that name and waits until it is healthy.
func (b *bench) serve(node string, extra ...map[string]string) *running {
	b.Helper()
	r := b.start(node, nil, extra...)
	r.healthy()
	return r
}

// start starts it and waits for nothing.
func (b *bench) start(node string, change func(*celld.Serve), extra ...map[string]string) *running {
	b.Helper()
	s := celld.Serve{Target: b.target(), Listen: b.freePort(), InternalListen: b.freePort()}
	s.Advertise = s.InternalListen
	if change != nil {
		change(&s)
	}
	r := &running{
		b: b, listen: s.Listen, internal: s.InternalListen, url: "http://" + s.Listen,
		in: celld.Internal{URL: "http://" + s.InternalListen}, done: make(chan struct{}),
	}
	r.cmd = exec.Command(b.program.Path, s.Args()...) //nolint:gosec // the program under test
	r.cmd.Env = b.env(node, extra...)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.out
	// A group of its own, so that nothing of it outlives the test.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.cmd.WaitDelay = time.Second
	if err := r.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	go func() {
		r.cmd.Wait() //nolint:errcheck,gosec // its state says it
		close(r.done)
	}()
	b.Cleanup(func() {
		r.kill()
		if b.Failed() {
			b.Logf("%s printed:\n%s", node, r.out.String())
		}
	})
	return r
}

func (b *bench) freePort() string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // only asked for its address
	return l.Addr().String()
}

func (r *running) signal(s syscall.Signal) {
	r.b.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.b.Fatal(err)
	}
}

func (r *running) kill() {
	select {
	case <-r.done:
	default:
		syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) //nolint:errcheck,gosec // it has not been waited for
		<-r.done
	}
}

// exit waits for its end and returns its code.
func (r *running) exit(within time.Duration) int {
	r.b.Helper()
	select {
	case <-r.done:
		return r.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		r.b.Fatalf("it has not ended after %v", within)
		return -1
	}
}

func (r *running) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// healthy waits for health 200.
func (r *running) healthy() {
	r.b.Helper()
	r.b.until("health", patience, func() bool {
		if r.over() {
			r.b.Fatalf("it ended with %d instead of becoming healthy", r.cmd.ProcessState.ExitCode())
		}
		return celld.Healthy(r.b.Context(), r.url) == nil
	})
}

// answer is an HTTP answer, read whole.
type answer struct {
	status int
	header http.Header
	body   string
}

var fresh = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       patience,
}

// ask makes one request over a connection of its own.
func (r *running) ask(path string, change ...func(*http.Request)) (answer, error) {
	req, err := http.NewRequestWithContext(r.b.Context(), http.MethodGet, r.url+path, nil)
	if err != nil {
		return answer{}, err
	}
	for _, c := range change {
		c(req)
	}
	resp, err := fresh.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // read whole, or failed
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

// get expects a 200 and returns its body.
func (r *running) get(path string, change ...func(*http.Request)) string {
	r.b.Helper()
	a, err := r.ask(path, change...)
	if err != nil || a.status != http.StatusOK {
		r.b.Fatalf("GET %s: %d %.300q, %v", path, a.status, a.body, err)
	}
	return a.body
}

// settled is get, asked again while the answer is a 503: an object that moves, or
// whose last owner's lease runs out, is away for a while.
func (r *running) settled(path string) string {
	r.b.Helper()
	var last answer
	var err error
	r.b.until("an answer to "+path, patience, func() bool {
		last, err = r.ask(path)
		return err == nil && last.status == http.StatusOK
	})
	return last.body
}

func (r *running) reload() celld.Reload {
	r.b.Helper()
	got, err := r.in.Reload(r.b.Context())
	if err != nil {
		r.b.Fatalf("reload: %v", err)
	}
	return got
}

func (r *running) state() celld.State {
	r.b.Helper()
	got, err := r.in.State(r.b.Context())
	if err != nil {
		r.b.Fatalf("state: %v", err)
	}
	return got
}

// expectFailure holds a command that must fail to the form of a failure: exit
// code 1, and a reason on standard error that has those words.
func (b *bench) expectFailure(f finished, words ...string) {
	b.Helper()
	if f.code != celld.ExitFailed {
		b.Errorf("exit code %d, want %d\n%s", f.code, celld.ExitFailed, f.said())
	}
	if strings.TrimSpace(f.stderr) == "" {
		b.Errorf("nothing on standard error; standard output: %q", f.stdout)
	}
	for _, w := range words {
		if !strings.Contains(f.stderr, w) {
			b.Errorf("standard error does not say %q: %q", w, f.stderr)
		}
	}
}
