package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/embedded/server"
	"github.com/scafo/scafo/internal/bucket/embedded/state"
	"github.com/scafo/scafo/internal/bucket/s3"
)

func stop(t *testing.T, h *embedded.Handle) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := h.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestEndpointStays(t *testing.T) {
	dir := t.TempDir()
	first, h := ensure(t, dir)
	if !h.Started() {
		t.Error("the first one found a bucket")
	}
	if _, err := open(t, first).Create(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	stop(t, h)
	if d := time.Since(begun); d > 10*time.Second {
		t.Errorf("stopping took %v", d)
	}
	if h.Alive() {
		t.Error("it is alive after Stop")
	}
	if err := syscall.Kill(h.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("a process is left: %v", err)
	}
	if _, _, ok, err := embedded.Running(t.Context(), dir); ok || err != nil {
		t.Errorf("it is found after Stop: %v", err)
	}
	second, again := ensure(t, dir)
	if first != second {
		t.Errorf("the endpoint changed: %v, then %v", first, second)
	}
	if h.PID() == again.PID() {
		t.Error("the same process")
	}
	if !strings.HasPrefix(first.URL, "http://127.0.0.1:") {
		t.Errorf("it listens at %s", first.URL)
	}
	if got := fmt.Sprintf("%v %+v %#v", first, first, first); strings.Contains(got, first.SecretKey) {
		t.Error("printing the endpoint shows the secret")
	}
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	e, _ := ensure(t, dir)
	if _, err := open(t, e).Create(t.Context(), "deep/er", []byte("v")); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		if i.Mode().Perm()&0o077 != 0 {
			t.Errorf("others may use %s: %v", path, i.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "bucket.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(b, &config); err != nil || config["secretKey"] != e.SecretKey || len(e.SecretKey) != 64 {
		t.Errorf("bucket.json: %v", err)
	}
	// The secret is nowhere in what others can see of the process, nor in its log.
	log, err := os.ReadFile(filepath.Join(dir, "bucket.log"))
	if err != nil || strings.Contains(string(log), e.SecretKey) {
		t.Errorf("the log: %v, or has the secret", err)
	}
}

// A store that ends although nobody asked it to is started again where it was, each
// time, and one that is stopped stays away.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	first, h := ensure(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	k := embedded.Keep(dir, self(t), ensureOptions(dir), h)
	s := open(t, first)
	if _, err := s.Create(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := h.Kill(ctx); err != nil {
			t.Fatal(err)
		}
		killed, ok := h.PID(), false
		for tick := time.Tick(10 * time.Millisecond); !ok; <-tick {
			var e embedded.Endpoint
			var err error
			if e, h, ok, err = embedded.Running(ctx, dir); err != nil {
				t.Fatal(err)
			}
			if ok && (e != first || h.PID() == killed) {
				t.Fatalf("after a kill of %d: %v, process %d", killed, e, h.PID())
			}
			if ctx.Err() != nil {
				t.Fatal("it was not started again")
			}
		}
	}
	if o, err := s.Get(t.Context(), "k"); err != nil || string(o.Body) != "v" {
		t.Errorf("what it held: %v", err)
	}
	if err := k.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, ok, err := embedded.Running(t.Context(), dir); ok || err != nil {
		t.Errorf("it is found after Stop: %v", err)
	}
}

// A store that is frozen is replaced, and one that cannot be asked to stop is ended.
func TestFrozenIsReplaced(t *testing.T) {
	dir := t.TempDir()
	first, h := ensure(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	o := ensureOptions(dir)
	o.FrozenAfter = time.Second
	k := embedded.Keep(dir, self(t), o, h)
	s := open(t, first)
	if _, err := s.Create(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(h.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := h.Wait(ctx); err != nil {
		t.Fatalf("the frozen store is still there: %v", err)
	}
	var next *embedded.Handle
	for ok := false; !ok && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		_, next, ok, _ = embedded.Running(ctx, dir)
	}
	if took := time.Since(begun); ctx.Err() != nil || took > 8*time.Second {
		t.Fatalf("it was replaced after %s", took)
	}
	if o, err := s.Get(t.Context(), "k"); err != nil || string(o.Body) != "v" {
		t.Errorf("what it held: %v", err)
	}
	if err := syscall.Kill(next.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second/2)
	defer cancel()
	if err := k.Stop(short); err != nil || next.Alive() {
		t.Errorf("stopped: %v; alive %v", err, next.Alive())
	}
}

// Many look for the bucket at once; one process serves them all.
func TestEnsureAtOnce(t *testing.T) {
	dir := t.TempDir()
	const callers = 6
	var wg sync.WaitGroup
	pids, started := make([]int, callers), make([]bool, callers)
	for i := range callers {
		wg.Go(func() {
			_, h, err := embedded.Ensure(t.Context(), dir, self(t), ensureOptions(dir))
			if err != nil {
				t.Error(err)
				return
			}
			pids[i], started[i] = h.PID(), h.Started()
		})
	}
	wg.Wait()
	_, h := ensure(t, dir)
	n := 0
	for i, pid := range pids {
		if pid != h.PID() {
			t.Errorf("caller %d has process %d, another %d", i, pid, h.PID())
		}
		if started[i] {
			n++
		}
	}
	if n != 1 || h.Started() {
		t.Errorf("%d of them say that they started it", n)
	}
	// The others' children are gone: none is left to serve when this one ends.
	children, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range children {
		b, err := os.ReadFile(c) //nolint:gosec // under /proc
		if err != nil || !strings.Contains(string(b), stateVariable+"="+dir) {
			continue
		}
		if pid := strings.Split(c, "/")[2]; pid != strconv.Itoa(h.PID()) {
			t.Errorf("process %s is left", pid)
		}
	}
}

// A descriptor that the one who starts it was given is not handed on.
func TestInheritsNothing(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()                                                   //nolint:errcheck // the test's end
	defer w.Close()                                                   //nolint:errcheck // the test's end
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETFD, 0); err != nil { // as if it had been inherited
		t.Fatal(err)
	}
	_, h := ensure(t, t.TempDir())
	mine, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", h.PID()))
	if err != nil || len(fds) == 0 {
		t.Fatal(fds, err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == mine {
			t.Errorf("it has %s", target)
		}
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", h.PID()))
	if err != nil || strings.Contains(string(b), "PATH=") {
		t.Errorf("it inherited an environment: %q, %v", b, err)
	}
}

// The one who started it is killed, with its whole process group; the bucket
// goes on, and the next one finds it.
func TestOutlivesItsParent(t *testing.T) {
	dir := t.TempDir()
	parent, out := program(t, roleEnsure, dir)
	var pid int
	var started bool
	if _, err := fmt.Fscanln(out, &pid, &started); err != nil || !started {
		t.Fatal(started, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("session %d of process %d, %v", sid, pid, err)
	}
	e, h := ensure(t, dir)
	if h.Started() || h.PID() != pid {
		t.Errorf("found process %d (started %v), want %d", h.PID(), h.Started(), pid)
	}
	s := open(t, e)
	if _, err := s.Create(t.Context(), "k", []byte("v")); err != nil {
		t.Error(err)
	}
	// And it can be stopped by one who is not its parent.
	stop(t, h)
	if h.Alive() {
		t.Error("it is alive after Stop")
	}
}

func TestOnlyOneServes(t *testing.T) {
	dir := t.TempDir()
	_, h := ensure(t, dir)
	err := server.Serve(t.Context(), dir, server.Options{})
	if !errors.Is(err, server.ErrServed) {
		t.Errorf("a second one: %v", err)
	}
	if !h.Alive() {
		t.Error("the first one ended")
	}
	// A kill frees the lock.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := h.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if _, again := ensure(t, dir); !again.Started() {
		t.Error("nothing was started")
	}
}

func TestPortTaken(t *testing.T) {
	dir := t.TempDir()
	e, h := ensure(t, dir)
	stop(t, h)
	address := strings.TrimPrefix(e.URL, "http://")
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test's end
	_, _, err = embedded.Ensure(t.Context(), dir, self(t), ensureOptions(dir))
	_, port, _ := net.SplitHostPort(address)
	for _, want := range []string{port, "is taken", filepath.Join(dir, "bucket.json")} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestStartFails(t *testing.T) {
	dir := t.TempDir()
	_, _, err := embedded.Ensure(t.Context(), dir, filepath.Join(dir, "no-such-program"), ensureOptions(dir))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing program: %v", err)
	}
	// A state directory that cannot be used: the bucket's own words come back.
	if err := os.WriteFile(filepath.Join(dir, "bucket.json"), []byte(`{"v": 99}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = embedded.Ensure(t.Context(), dir, self(t), ensureOptions(dir))
	if err == nil || !strings.Contains(err.Error(), "newer release") {
		t.Errorf("a newer configuration: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	o := ensureOptions(dir)
	dir, elsewhere := t.TempDir(), t.TempDir()
	o.Env = []string{roleVariable + "=" + roleServe, stateVariable + "=" + elsewhere}
	_, h, err := embedded.Ensure(ctx, dir, self(t), o)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for ever: %v, %v", h, err)
	}
	if _, _, ok, err := embedded.Running(t.Context(), elsewhere); ok || err != nil {
		t.Errorf("what was started and never answered is left running: %v", err)
	}
}

// A record that names a process which is another one by now.
func TestRecycledProcess(t *testing.T) {
	dir := t.TempDir()
	id, err := state.Self()
	if err != nil {
		t.Fatal(err)
	}
	id.Start++ // this test's own id, but begun at another time
	b, err := json.Marshal(state.Process{V: 1, Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bucket.process.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, ok, err := embedded.Running(t.Context(), dir); ok || err != nil {
		t.Errorf("taken for the bucket: %v %v", ok, err)
	}
	if err := id.Signal(unix.SIGKILL); !errors.Is(err, state.ErrGone) { // would end the test
		t.Errorf("signal: %v", err)
	}
	if err := id.Wait(t.Context()); err != nil {
		t.Errorf("wait: %v", err)
	}
	if _, h := ensure(t, dir); !h.Started() || h.PID() == os.Getpid() {
		t.Error("no bucket was started")
	}
}

func TestStopGivesUpWithTheContext(t *testing.T) {
	dir := t.TempDir()
	_, h := ensure(t, dir)
	if err := syscall.Kill(h.PID(), syscall.SIGSTOP); err != nil { // frozen
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := h.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stopping a frozen one: %v", err)
	}
	ctx2, cancel2 := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel2()
	if _, _, err := embedded.Ensure(ctx2, dir, self(t), ensureOptions(dir)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ensuring a frozen one: %v", err)
	}
	ctx3, cancel3 := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel3()
	if err := h.Kill(ctx3); err != nil || h.Alive() {
		t.Errorf("killing it: %v", err)
	}
}

func TestCredentialIsNeeded(t *testing.T) {
	e, _ := ensure(t, t.TempDir())
	wrong := e
	wrong.SecretKey = strings.Repeat("0", len(e.SecretKey))
	_, err := open(t, wrong).Get(t.Context(), "k")
	if !errors.Is(err, bucket.ErrDenied) {
		t.Errorf("a wrong secret: %v", err)
	}
	other := e
	other.Bucket = "another-bucket"
	if _, err = open(t, other).Get(t.Context(), "k"); !errors.Is(err, bucket.ErrDenied) {
		t.Errorf("another bucket: %v", err)
	}
	for _, path := range []string{"/", "/" + e.Bucket, "/" + e.Bucket + "/k", "/" + e.Bucket + "?list-type=2"} {
		resp, err := http.Get(e.URL + path) //nolint:noctx // the test's own server
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("GET %s without a signature: %s", path, resp.Status)
		}
	}
}

// It listens on loopback alone.
func TestLoopbackOnly(t *testing.T) {
	e, h := ensure(t, t.TempDir())
	_, port, err := net.SplitHostPort(strings.TrimPrefix(e.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, table := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", h.PID(), table))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			const listening = "0A"
			if len(f) > 3 && f[3] == listening && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) {
				found = true
				if f[1] != fmt.Sprintf("0100007F:%04X", n) {
					t.Errorf("it listens at %s", f[1])
				}
			}
		}
	}
	if !found {
		t.Error("it listens nowhere")
	}
}

// p beside p/q is a clear outcome, not a loop of refusals.
func TestParentIsAnObject(t *testing.T) {
	e, _ := ensure(t, t.TempDir())
	s := open(t, e)
	if _, err := s.Create(t.Context(), "p", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "p/q", nil); !errors.Is(err, bucket.ErrInvalid) {
		t.Errorf("p and then p/q: %v", err)
	}
	if _, err := s.Create(t.Context(), "r/s", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), "r", nil); !errors.Is(err, bucket.ErrInvalid) {
		t.Errorf("r/s and then r: %v", err)
	}
	if _, err := s.Get(t.Context(), "r"); !errors.Is(err, bucket.ErrNotFound) {
		t.Errorf("reading a folder: %v", err)
	}
	if _, err := s.Get(t.Context(), "p/q"); !errors.Is(err, bucket.ErrNotFound) {
		t.Errorf("reading below an object: %v", err)
	}
}

// The store goes away and comes back; the driver says so and recovers.
func TestRestartUnderADriver(t *testing.T) {
	dir := t.TempDir()
	e, h := ensure(t, dir)
	s := open(t, e)
	etag, err := s.Create(t.Context(), "k", []byte("v"))
	if err != nil {
		t.Fatal(err)
	}
	stop(t, h)
	if _, err := s.Get(t.Context(), "k"); !errors.Is(err, bucket.ErrUnavailable) {
		t.Errorf("while it is away: %v", err)
	}
	if _, err := s.Replace(t.Context(), "k", etag, []byte("w")); !errors.Is(err, bucket.ErrUnavailable) {
		t.Errorf("a write while it is away: %v", err)
	}
	ensure(t, dir)
	if _, err := s.Replace(t.Context(), "k", etag, []byte("w")); err != nil {
		t.Errorf("when it is back: %v", err)
	}
}

var _ bucket.Bucket = (*s3.Store)(nil)
