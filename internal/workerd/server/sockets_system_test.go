//go:build system

package server_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// opens opens as many sockets as it is asked for, or as it gets, and says how many those
// are; /hold opens whatever it gets and keeps that.
const opens = `import { connect } from "cloudflare:sockets";
export default { async fetch(request) {
  const { pathname, searchParams } = new URL(request.url), at = searchParams.get("at"), kept = [];
  const some = async (n) => { const more = Array.from({ length: n }, () => connect(at)); kept.push(...more); await Promise.all(more.map((s) => s.opened)); };
  if (pathname === "/hold") {
    try { for (;;) await some(100); } catch {}
    for (;;) { try { await some(1); } catch { await scheduler.wait(5); } }
  }
  try { while (kept.length < Number(searchParams.get("open") ?? 0)) await some(100); } catch (e) { return new Response("no more than " + kept.length, { status: 507 }); }
  return new Response(String(kept.length));
} };`

const (
	// inNamespace says that the test runs in a network of its own.
	inNamespace = "SCAFO_TEST_NETWORK"
	// faraway is a private network whose addresses all lead back to this machine, which
	// does not have them as its own: celld-workerd keeps those closed.
	faraway = "10.77.0.0/16"
)

// A Worker that opens ten thousand sockets does not get them all: each takes two of the
// 16,384 files and sockets of its workerd. It is told so; where it keeps what it got,
// its workerd is replaced. Its neighbour does not notice.
func TestAWorkerThatOpensSockets(t *testing.T) {
	if os.Getenv(inNamespace) == "" {
		ownNetwork(t)
		return
	}
	for _, args := range []string{"link set lo up", "route add local " + faraway + " dev lo"} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Skipf("ip %s: %v %s", args, err, out)
		}
	}
	b := newBench(t)
	open, most, port := holdConnections(t)
	b.deploy(opens)
	s := b.serve("n1", "CELLD_WORKERD_PRIVATE_NETWORKS="+faraway)
	l := b.neighbour()
	s.want("/?open=5000&at=10.77.0.1:"+port, "5000")
	if n := most.Load(); n != 5000 {
		t.Errorf("%d sockets were open, want 5000", n)
	}
	n, body, err := s.try("/?open=10000&at=10.77.0.2:" + port)
	if err != nil || n != http.StatusServiceUnavailable && n != http.StatusInsufficientStorage {
		t.Errorf("ten thousand: %d %.100q %v", n, body, err)
	}
	if n := most.Load(); n < 5000 || n > 16384 {
		t.Errorf("%d sockets were open", n)
	}
	s.settled("/")
	b.until("its sockets are closed", 10*time.Second, func() bool { return open.Load() == 0 })

	before := s.state().Restarts
	begun := time.Now()
	var all sync.WaitGroup
	all.Go(func() { s.refused("/hold?at=10.77.0.3:"+port, 20*time.Second) })
	b.until("it keeps all that it can get", 10*time.Second, func() bool { return open.Load() > 8000 })
	for range 8 { // there is no room for them
		all.Go(func() { s.refused("/hold?at=10.77.0.3:"+port, 10*time.Second) })
	}
	all.Wait()
	s.settled("/")
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it answers again after %s", took)
	} else {
		t.Logf("ten thousand: %d %.60q; %d at once; who keeps them is replaced, and answers again after %s", n, body, most.Load(), took.Round(time.Millisecond))
	}
	if st := s.state(); st.Restarts == before {
		t.Error("it was not replaced")
	}
	b.until("its sockets are closed", 10*time.Second, func() bool { return open.Load() == 0 })
	l.noticed()
}

// ownNetwork runs the test once more, in a network that goes with it.
func ownNetwork(t *testing.T) {
	t.Helper()
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Max < 18000 {
		t.Skipf("this process may have %d files", files.Max)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), inNamespace+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := c.CombinedOutput()
	var ended *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &ended):
		t.Skipf("no network of its own: %v", err)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("%s", out)
	default:
		t.Logf("%s", out)
	}
}

// holdConnections accepts whoever comes, at whatever address of the network far away: who
// opens many sockets again wants another one, since the kernel keeps the ports of the last
// ones for a while. It counts who is there, and how many were at most.
func holdConnections(t *testing.T) (open, most *atomic.Int64, port string) {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	open, most = new(atomic.Int64), new(atomic.Int64)
	var mu sync.Mutex // one change of both at a time
	count := func(by int64) {
		mu.Lock()
		defer mu.Unlock()
		most.Store(max(most.Load(), open.Add(by)))
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			count(1)
			go func() {
				_, _ = io.Copy(io.Discard, c) // until the other end goes
				_ = c.Close()
				count(-1)
			}()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return open, most, port
}
