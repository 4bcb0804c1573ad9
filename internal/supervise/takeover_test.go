package supervise

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
)

// daemonLines are the runtime's lines in the daemons' log, in order.
func daemonLines(t *testing.T, w *world, app string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(w.dir, "daemon.log"))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(b)) {
		_, rest, ok := strings.Cut(line, app+" | ")
		if ok {
			text, _, _ := strings.Cut(rest, `"`)
			list = append(list, text)
		}
	}
	return list
}

func TestTakeOverAfterKill(t *testing.T) {
	w := newWorld(t)
	w.script("counter", script{Pointer: v1, Lines: 100})
	d := w.daemon("counter")
	st := d.until(t, "counter", "ready", ready(v1))
	base := "http://" + strings.TrimPrefix(st.URL, "http://")

	// A connection that stays open across it all.
	conn, err := net.Dial("tcp", strings.TrimPrefix(st.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	ask := func() {
		t.Helper()
		conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(conn, "GET /.well-known/celld/health HTTP/1.1\r\nHost: x\r\n\r\n")
		line, err := answers.ReadString('\n')
		if err != nil || !strings.Contains(line, "200") {
			t.Fatalf("the open connection: %q, %v", line, err)
		}
		for strings.TrimSpace(line) != `{"ok":true}` {
			if line, err = answers.ReadString('\n'); err != nil && line == "" {
				t.Fatal(err)
			}
			if strings.HasSuffix(line, `{"ok":true}`) {
				break
			}
			if line == "\r\n" {
				b := make([]byte, len(`{"ok":true}`))
				if _, err := answers.Read(b); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
	}
	ask()
	get(t, base+"/print?line=before")
	d.kill()
	for i := range 50 {
		get(t, base+fmt.Sprintf("/print?line=while-%d", i)) // nobody follows
	}
	ask()

	d = w.daemon("counter")
	again := d.until(t, "counter", "its first statuses", func(scafo.ProcessStatus) bool { return true })
	if !ready(v1)(again) || again.PID != st.PID || again.URL != st.URL || again.Restarts != 0 {
		t.Errorf("taken over as %+v, was %+v", again, st)
	}
	get(t, base+"/print?line=after")
	waitFor(t, "the last line", func() bool { return slices.Contains(daemonLines(t, w, "counter"), "after") })
	ask()
	lines := daemonLines(t, w, "counter")
	next := 0
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprintf("line %d", i))
	}
	want = append(want, "before")
	for i := range 50 {
		want = append(want, fmt.Sprintf("while-%d", i))
	}
	want = append(want, "after")
	for _, line := range lines { // in order, none lost; one may come twice
		if next < len(want) && line == want[next] {
			next++
		}
	}
	if next != len(want) {
		t.Errorf("line %q is lost; have %q", want[next], lines)
	}
	if n := len(readStarts(t, w.dir, "counter")); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func TestTakenOverIsStillSupervised(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	s, stop := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	stop()
	if !alivePID(st.PID) {
		t.Fatal("it ended with the supervisor")
	}
	s, stop = w.supervise()
	if list := s.Statuses(); len(list) != 1 || list[0].PID != st.PID || !ready(v1)(list[0]) {
		t.Fatalf("taken over as %+v", list)
	}
	// Until somebody says what is wanted, it goes on.
	time.Sleep(200 * time.Millisecond)
	if list := s.Statuses(); len(list) != 1 || !ready(v1)(list[0]) {
		t.Fatalf("without a want: %+v", list)
	}
	s.Set(one(v1))
	w.script("app", script{Pointer: v2})
	s.Set(one(v2))
	until(t, s, "app", "the second version", ready(v2))
	get(t, st.URL+"/exit?code=1")
	again := until(t, s, "app", "another one", func(n scafo.ProcessStatus) bool { return ready(v2)(n) && n.PID != st.PID })
	if again.Restarts != 1 {
		t.Errorf("status %+v", again)
	}
	s.Set(nil)
	waitFor(t, "its end", func() bool { return len(s.Statuses()) == 0 })
	stop()
}

func TestAnExitNobodySawCountsAsALostLease(t *testing.T) {
	w := newWorld(t)
	w.script("counter", script{Pointer: v1})
	d := w.daemon("counter")
	st := d.until(t, "counter", "ready", ready(v1))
	d.kill()
	get(t, st.URL+"/partial?line=its%20last%20words")
	get(t, st.URL+"/exit?code=1")
	waitFor(t, "its end", func() bool { return !alivePID(st.PID) })
	seen := time.Now()
	d = w.daemon("counter")
	wait := d.until(t, "counter", "the wait", inState(scafo.ProcessBackoff))
	if wait.LastExit == nil || wait.LastExit.Code != 3 {
		t.Errorf("last exit %+v", wait.LastExit)
	}
	again := d.until(t, "counter", "another one", ready(v1))
	if waited := again.StartedAt.Sub(seen); waited < quick().FenceWait {
		t.Errorf("started again after %v", waited)
	}
	if !slices.Contains(daemonLines(t, w, "counter"), "its last words") {
		t.Error("what it wrote while nobody followed is lost")
	}
}

func TestARecycledIDIsNotKilled(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	stranger := exec.Command("sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stranger.Process.Kill(); stranger.Wait() }()
	for name, r := range map[string]record{
		"another start time": {PID: stranger.Process.Pid, StartTicks: 1, BootID: bootID()},
		"another boot":       {PID: stranger.Process.Pid, StartTicks: ticksOf(t, stranger.Process.Pid), BootID: "another"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(w.dir, "state", "apps", "u1")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			r.Application, r.UID = "app", "u1"
			if err := writeRecord(dir, r); err != nil {
				t.Fatal(err)
			}
			s, stop := w.supervise()
			if list := s.Statuses(); len(list) != 1 || list[0].PID != 0 {
				t.Errorf("the stranger was taken over: %+v", list)
			}
			s.Set(nil)
			waitFor(t, "nothing", func() bool { return len(s.Statuses()) == 0 })
			stop()
			if !alivePID(stranger.Process.Pid) {
				t.Fatal("the stranger was killed")
			}
		})
	}
}

func ticksOf(t *testing.T, pid int) uint64 {
	t.Helper()
	st, err := readStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	return st.startTicks
}

// A zombie has its id and start time still, and is not alive.
func TestAZombieIsNotAlive(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer cmd.Wait()
	waitFor(t, "a zombie", func() bool { st, err := readStat(pid); return err == nil && st.state == 'Z' })
	if h := alive(record{PID: pid, StartTicks: ticksOf(t, pid), BootID: bootID()}); h != nil {
		h.close()
		t.Error("a zombie passes for alive")
	}
}

func TestAHeldDirectoryWithoutARecord(t *testing.T) {
	for name, forget := range map[string]func(t *testing.T, dir string){
		"the daemon died before it noted the start": func(t *testing.T, dir string) {
			r, err := readRecord(dir)
			if err != nil {
				t.Fatal(err)
			}
			r.PID, r.StartTicks, r.Listen, r.Internal = 0, 0, "", ""
			if err := writeRecord(dir, r); err != nil {
				t.Fatal(err)
			}
		},
		"the record is gone": func(t *testing.T, dir string) {
			if err := removeRecord(dir); err != nil {
				t.Fatal(err)
			}
		},
		"the record is torn": func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, recordFile), []byte(`{"v":1,"pi`), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.script("app", script{Pointer: v1})
			s, stop := w.supervise()
			s.Set(one(v1))
			st := until(t, s, "app", "ready", ready(v1))
			stop()
			forget(t, filepath.Join(w.dir, "state", "apps", "u1"))
			s, _ = w.supervise()
			s.Set(one(v1))
			again := until(t, s, "app", "ready", ready(v1))
			if again.PID != st.PID || again.URL != st.URL {
				t.Errorf("found %+v, was %+v", again, st)
			}
			if n := len(readStarts(t, w.dir, "app")); n != 1 {
				t.Errorf("%d starts", n)
			}
		})
	}
}

func TestARecordWithoutALockIsEnough(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1, CloseLock: true})
	s, stop := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	stop()
	s, _ = w.supervise()
	s.Set(one(v1))
	if again := until(t, s, "app", "ready", ready(v1)); again.PID != st.PID {
		t.Errorf("a second one was started: %+v", again)
	}
}

// A crash loop is not forgotten when the daemon is: neither the count nor the wait.
func TestBackoffOutlivesTheDaemon(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Exit: 1})
	slow := func(c *Config) { c.Policy.BackoffMin, c.Policy.BackoffMax = time.Minute, time.Minute }
	s, stop := w.supervise(slow)
	s.Set(one(v1))
	st := until(t, s, "app", "back-off", inState(scafo.ProcessBackoff))
	stop()
	s, stop = w.supervise(slow)
	s.Set(one(v1))
	time.Sleep(300 * time.Millisecond)
	list := s.Statuses()
	if len(list) != 1 || list[0].State != scafo.ProcessBackoff || list[0].Restarts != st.Restarts {
		t.Errorf("statuses %+v", list)
	}
	if n := len(readStarts(t, w.dir, "app")); n != 1 {
		t.Errorf("%d starts", n)
	}
	stop()
}

// The exit of an old version is not held against the version that the next daemon is
// told of: that one is started at once.
func TestAnOldExitOutlivesTheDaemonAsThatOfItsVersion(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Exit: 1})
	slow := func(c *Config) { c.Policy.BackoffMin, c.Policy.BackoffMax = time.Minute, time.Minute }
	s, stop := w.supervise(slow)
	s.Set(one(v1))
	st := until(t, s, "app", "back-off", inState(scafo.ProcessBackoff))
	if st.LastExit == nil || st.LastExit.Version != v1 {
		t.Fatalf("exit %+v", st.LastExit)
	}
	stop()
	w.script("app", script{Pointer: v2})
	s, stop = w.supervise(slow)
	list := s.Statuses()
	if len(list) != 1 || list[0].LastExit == nil || list[0].LastExit.Version != v1 {
		t.Fatalf("statuses %+v", list)
	}
	s.Set(one(v2))
	until(t, s, "app", "ready", ready(v2))
	s.Set(nil)
	waitFor(t, "its end", func() bool { return len(s.Statuses()) == 0 })
	stop()
}

func TestTakeOverEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	s, err := New(w.config())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.TakeOver(ctx); err == nil {
		t.Error("no error")
	}
}

// A daemon that is not to run ends what an earlier one left, and starts nothing.
func TestEndOfWhatIsLeft(t *testing.T) {
	w := newWorld(t)
	w.script("counter", script{Pointer: v1})
	d := w.daemon("counter")
	st := d.until(t, "counter", "ready", ready(v1))
	d.kill()
	s, err := New(w.config())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.TakeOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.End(t.Context()); err != nil {
		t.Error(err)
	}
	if alivePID(st.PID) || len(s.Statuses()) != 0 {
		t.Errorf("it still runs: %+v", s.Statuses())
	}
	// It was told to drain, so that the next start waits for nothing.
	next, stop := w.supervise()
	next.Set([]Want{{Application: "counter", UID: "u-counter", Version: v1}})
	until(t, next, "counter", "ready", ready(v1))
	next.Set(nil)
	waitFor(t, "its end", func() bool { return len(next.Statuses()) == 0 })
	stop()
}

// A process that was taken over is nobody's child: its exit code is never seen.
// One that drained when it was told to makes the next start wait for nothing.
func TestATakenOverProcessThatDrainedLeavesNoWait(t *testing.T) {
	w := newWorld(t)
	w.script("counter", script{Pointer: v1})
	d := w.daemon("counter")
	st := d.until(t, "counter", "ready", ready(v1))
	d.kill()
	const lease = 15 * time.Second
	s, _ := w.supervise(func(c *Config) { c.Policy.FenceWait = lease })
	s.Set(nil)
	waitFor(t, "its end", func() bool { return len(s.Statuses()) == 0 })
	if alivePID(st.PID) {
		t.Error("it still runs")
	}
	begin := time.Now()
	s.Set([]Want{{Application: "counter", UID: "u-counter", Version: v1}})
	until(t, s, "counter", "ready", ready(v1))
	if took := time.Since(begin); took >= lease {
		t.Errorf("the next start took %v", took)
	}
}

// What a daemon started that executed itself anew is still its child: the end of a
// process meanwhile is seen, and no zombie stays.
func TestTheEndOfAnOwnChildIsSeen(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	s, stop := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	stop() // as the old program of the same process
	get(t, st.URL+"/exit?code=1")
	waitFor(t, "a zombie", func() bool { n, err := readStat(st.PID); return err == nil && n.state == 'Z' })
	s, _ = w.supervise()
	// The first thread of a process is a zombie a moment before the whole of it is, so
	// its end may be seen right after the take-over and not by it.
	var list []scafo.ProcessStatus
	waitFor(t, "its end is seen", func() bool {
		list = s.Statuses()
		return len(list) == 1 && list[0].LastExit != nil
	})
	if list[0].LastExit.Code != 1 {
		t.Errorf("it ended with %+v, want exit code 1", list[0].LastExit)
	}
	waitFor(t, "no zombie", func() bool { _, err := readStat(st.PID); return err != nil })
}

func TestForget(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	s, _ := w.supervise()
	s.Set(one(v1))
	until(t, s, "app", "ready", ready(v1))
	if err := s.Forget("u1"); err == nil {
		t.Error("a running one is forgotten")
	}
	s.Set(nil)
	waitFor(t, "its end", func() bool { return len(s.Statuses()) == 0 })
	for range 2 {
		if err := s.Forget("u1"); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(w.dir, "state", "apps", "u1")); !os.IsNotExist(err) {
		t.Errorf("its directory stays: %v", err)
	}
	if err := s.Forget("../u1"); scafo.CodeOf(err) != scafo.CodeInvalidInput {
		t.Error(err)
	}
}
