//go:build system

package server_test

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/scafo/scafo/internal/paralleltest"
)

// quickly is far below the 20 seconds of workerd's lease.
const quickly = 8 * time.Second

func TestKillOfAWorkerd(t *testing.T) {
	b := newBench(t)
	b.deploy(counterWorker, "Counter")
	s := b.serve("n1")
	for i := range 25 {
		s.want("/add", fmt.Sprint(i+1))
	}
	for round := range 3 {
		pid := s.workerdPID()
		kill(t, s)
		got, took := s.settled("/rows?count")
		if n := len(strings.Split(got, ",")); n != 25 || took > quickly {
			t.Errorf("round %d: %d rows after %s", round, n, took)
		}
		b.until("its end", time.Second, func() bool { return gone(pid) })
	}
	b.until("the log tells of it", quickly, func() bool {
		return strings.Contains(s.log.String(), "ended the lease of a dead workerd")
	})
}

// Two machines: the objects of the one whose workerd was killed answer through
// the other one at once.
func TestKillOfAWorkerdSeenFromAPeer(t *testing.T) {
	b := newBench(t)
	b.deploy(counterWorker, "Counter")
	s1, s2 := b.serve("n1"), b.serve("n2")
	s1.want("/add", "1")
	s2.want("/add", "2")
	if err := syscall.Kill(s1.workerdPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got, took := s2.settled("/count"); got != "2" || took > quickly {
		t.Errorf("%s after %s", got, took)
	}
	if got, took := s1.settled("/add"); got != "3" || took > quickly {
		t.Errorf("%s after %s", got, took)
	}
}

// With the supervisor its workerds go, and its next run ends their leases.
func TestKillOfTheSupervisor(t *testing.T) {
	b := newBench(t)
	b.deploy(counterWorker, "Counter")
	s := b.serve("n1")
	s.want("/add", "1")
	pid := s.workerdPID()
	b.until("the member is known", 5*time.Second, func() bool {
		out, err := exec.Command("grep", "-c", `"record"`, b.dir+"/n1/state.json").Output()
		return err == nil && strings.TrimSpace(string(out)) == "1"
	})
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	b.until("the workerd's end", 2*time.Second, func() bool { return gone(pid) })
	<-s.done
	s = b.serve("n1")
	if got, took := s.settled("/add"); got != "2" || took > quickly {
		t.Errorf("%s after %s", got, took)
	}
}

const releases = `
export default { async fetch(request) {
  const url = new URL(request.url);
  if (url.pathname === "/slow") await scheduler.wait(3000);
  if (url.pathname === "/echo") {
    const [client, server] = Object.values(new WebSocketPair());
    server.accept();
    server.addEventListener("message", (e) => server.send("RELEASE:" + e.data));
    return new Response(null, { status: 101, webSocket: client });
  }
  if (url.pathname === "/hog") { const kept = []; for (;;) { kept.push(new Uint8Array(4 << 20).fill(1)); await scheduler.wait(1); } }
  if (url.pathname === "/loop") for (;;);
  return new Response("RELEASE");
} };
`

// A Worker without objects is no member of a cluster, and workerd then stops
// taking connections as soon as it is asked to leave.
func TestSwapsOfAStatelessWorkerUnderLoad(t *testing.T) {
	b := newBench(t)
	b.deploy(strings.ReplaceAll(releases, "RELEASE", "r0"))
	s := b.serve("n1")
	slow := make(chan string, 1)
	go func() { _, got, _ := s.try("/slow"); slow <- got }()
	var stop atomic.Bool
	var total, failed atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				n, got, err := s.try("/")
				total.Add(1)
				if n != 200 || err != nil {
					failed.Add(1)
					t.Errorf("%d %q %v", n, got, err)
				}
			}
		})
	}
	for i := 1; i <= 3; i++ {
		b.deploy(strings.ReplaceAll(releases, "RELEASE", fmt.Sprint("r", i)))
		if o := s.reload(); o != "adopted" {
			t.Errorf("reload: %s", o)
		}
		s.want("/", fmt.Sprint("r", i))
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d requests, %d failed", total.Load(), failed.Load())
	if got := <-slow; got != "r0" {
		t.Errorf("the slow one: %q", got)
	}
	b.until("the old ones' end", 15*time.Second, func() bool { return len(s.state().Processes) == 1 })
}

func TestWebSocketsAreToldToComeBack(t *testing.T) {
	paralleltest.Beside(t)
	b := newBench(t)
	b.deploy(strings.ReplaceAll(releases, "RELEASE", "r0"))
	s := b.serve("n1")
	dial := func() *websocket.Conn {
		t.Helper()
		c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(s.url, "http")+"/echo", nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	echo := func(c *websocket.Conn, want string) {
		t.Helper()
		if err := c.Write(t.Context(), websocket.MessageText, []byte("hi")); err != nil {
			t.Fatal(err)
		}
		if _, m, err := c.Read(t.Context()); err != nil || string(m) != want {
			t.Fatalf("%q %v, want %q", m, err, want)
		}
	}
	restarted := func(c *websocket.Conn) {
		t.Helper()
		_, _, err := c.Read(t.Context())
		var e websocket.CloseError
		if !errors.As(err, &e) || e.Code != 1012 || e.Reason != "service restart" {
			t.Errorf("%v, want 1012", err)
		}
	}
	c := dial()
	echo(c, "r0:hi")
	b.deploy(strings.ReplaceAll(releases, "RELEASE", "r1"))
	s.reload()
	restarted(c)
	c = dial()
	echo(c, "r1:hi")
	if err := syscall.Kill(s.workerdPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	restarted(c)
	s.settled("/")
	c = dial()
	echo(c, "r1:hi")
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	restarted(c)
	<-s.done
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestAWorkerThatTakesAllMemory(t *testing.T) {
	b := newBench(t)
	b.deploy(strings.ReplaceAll(releases, "RELEASE", "r0"))
	s := b.serve("n1", "CELLD_MAX_RSS_MB=200")
	pid := s.workerdPID()
	begun := time.Now()
	// It is killed, or the kernel refuses it more: then the Worker itself fails.
	if n, _, err := s.try("/hog"); n != 503 && n != 500 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	t.Logf("ended after %s", time.Since(begun))
	b.until("another workerd", 15*time.Second, func() bool {
		for _, p := range s.state().Processes {
			if p.Serving {
				return p.PID != pid
			}
		}
		return false
	})
	s.settled("/")
}

func TestAWorkerThatNeverYields(t *testing.T) {
	paralleltest.Waits(t)
	for _, kind := range []string{"stateless", "durable"} {
		t.Run(kind, func(t *testing.T) {
			paralleltest.Beside(t)
			b := newBench(t)
			source, classes := strings.ReplaceAll(releases, "RELEASE", "r0"), []string(nil)
			if kind == "durable" {
				source, classes = source+"import { DurableObject } from 'cloudflare:workers'; export class Thing extends DurableObject {}", []string{"Thing"}
			}
			b.deploy(source, classes...)
			s := b.serve("n1")
			begun := time.Now()
			if n, _, err := s.try("/loop"); n != 503 || err != nil {
				t.Errorf("%d %v", n, err)
			}
			if took := time.Since(begun); took > 15*time.Second {
				t.Errorf("it hung for %s", took)
			}
			s.settled("/")
		})
	}
}

func TestItOutlivesWhoStartedIt(t *testing.T) {
	b := newBench(t)
	b.deploy(strings.ReplaceAll(releases, "RELEASE", "r0"))
	public, internal := freePort(t), freePort(t)
	// The shell is the parent, and its pipe the reader of the output.
	args := append([]string{"-c", `"$@" & echo $!`, "sh", b.program}, append(b.target(), "--listen", public, "--internal-listen", internal)...)
	cmd := exec.Command("sh", args...)
	cmd.Env = b.env("n1")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(pipe, &pid); err != nil {
		t.Fatal(err)
	}
	_ = pipe.Close()
	_ = cmd.Wait()
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	s := &serving{b: b, url: "http://" + public, internal: "http://" + internal}
	if got, _ := s.settled("/"); got != "r0" {
		t.Errorf("%q", got)
	}
	workerd := s.workerdPID()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	b.until("the end", 20*time.Second, func() bool { return gone(workerd) })
}

// A machine that vanishes takes its objects along until its lease has run out:
// through the others, requests to them are refused meanwhile, and none hangs. One that
// comes back serves what they hold by then.
func TestAMachineThatVanishes(t *testing.T) {
	paralleltest.Waits(t)
	for _, kind := range []string{"killed", "frozen"} {
		t.Run(kind, func(t *testing.T) {
			paralleltest.Early(t)
			b := newBench(t)
			b.deploy(counterWorker, "Counter")
			s1, s2 := b.serve("n1"), b.serve("n2")
			s1.want("/add", "1")
			s2.want("/add", "2")
			workerd := s1.workerdPID()
			if kind == "killed" {
				_ = s1.cmd.Process.Kill()
			} else {
				_ = s1.cmd.Process.Signal(syscall.SIGSTOP)
				_ = syscall.Kill(workerd, syscall.SIGSTOP)
				defer func() { _ = syscall.Kill(workerd, syscall.SIGKILL) }()
			}
			begun := time.Now()
			for {
				one := time.Now()
				n, got, err := s2.try("/add")
				if took := time.Since(one); took > 45*time.Second || err != nil {
					t.Fatalf("%d %v after %s", n, err, took)
				}
				if n == 200 {
					if got != "3" && got != "4" { // one that was refused may have happened
						t.Errorf("%s", got)
					}
					break
				}
				if n != 503 {
					t.Errorf("%d %q", n, got)
				}
				if time.Since(begun) > time.Minute {
					t.Fatal("it does not come back")
				}
			}
			t.Logf("back after %s", time.Since(begun).Round(time.Second))
			if kind == "frozen" {
				rows, _ := s2.settled("/rows")
				_ = syscall.Kill(workerd, syscall.SIGCONT)
				_ = s1.cmd.Process.Signal(syscall.SIGCONT)
				// What it held is another's by now: its workerd leaves, and a new one joins.
				b.until("the frozen one serves again", 20*time.Second, func() bool {
					for _, p := range s1.state().Processes {
						if p.Serving && p.PID != workerd {
							return true
						}
					}
					return false
				})
				for _, s := range []*serving{s1, s2} {
					if got, _ := s.settled("/rows"); got != rows {
						t.Errorf("%q became %q", rows, got)
					}
				}
			}
		})
	}
}
