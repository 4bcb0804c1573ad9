package contracttest

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/scafo/scafo/internal/celld"
)

// freeze stops the process as a machine does that is paused.
// The signal takes effect a moment after it was sent: what is asked before that is
// still answered.
func (r *running) freeze() {
	r.b.Helper()
	r.signal(syscall.SIGSTOP)
	r.b.until("the process is stopped", soon, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid))
		_, behindName, _ := strings.Cut(string(stat), ") ")
		return err == nil && strings.HasPrefix(behindName, "T")
	})
}

func (r *running) thaw() { r.signal(syscall.SIGCONT) }

// drains checks what a draining process must do, from the moment on in which stop
// was called: running requests finish, new ones are turned away politely, health
// says no, and it ends with 0.
func (b *bench) drains(stop func(r *running)) {
	b.deploy(subject("one"))
	r := b.serve("n1")
	slow := r.begin(4 * time.Second)
	stop(r)
	b.until("health 503", soon, func() bool {
		a, err := r.ask(celld.HealthPath)
		return err == nil && a.status == http.StatusServiceUnavailable
	})
	// Over a connection that would be kept.
	keeping := &http.Client{Transport: &http.Transport{}, Timeout: soon}
	defer keeping.CloseIdleConnections()
	resp, err := keeping.Get(r.url + "/release")
	if err != nil {
		b.Fatalf("a new request while it drains: %v", err)
	}
	resp.Body.Close() //nolint:errcheck,gosec // its head is looked at
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" || !resp.Close {
		b.Errorf("a new request: status %d, Retry-After %q, Connection: close %v", resp.StatusCode, resp.Header.Get("Retry-After"), resp.Close)
	}
	if r.over() {
		b.Error("it left before its request was done")
	}
	if got := <-slow; got.status != 200 || got.body != "slow one" {
		b.Errorf("the request that ran: %d %q", got.status, got.body)
	}
	if code := r.exit(patience); code != celld.ExitDrained {
		b.Errorf("exit code %d", code)
	}
}

func testSIGTERMDrains(b *bench) {
	b.drains(func(r *running) { r.signal(syscall.SIGTERM) })
}

func testShutdownDrains(b *bench) {
	b.drains(func(r *running) {
		if err := r.in.Shutdown(b.Context()); err != nil {
			b.Errorf("shutdown: %v", err)
		}
	})
}

// What does not finish is cut at the bound, and the exit code is 0 all the same.
func testDrainHasABound(b *bench) {
	b.deploy(subject("one"))
	const bound = 2 * time.Second
	r := b.serve("n1", map[string]string{"CELLD_SHUTDOWN_TOTAL_MS": fmt.Sprint(bound.Milliseconds())})
	slow := r.begin(50 * time.Second)
	begin := time.Now()
	r.signal(syscall.SIGTERM)
	code := r.exit(patience)
	if code != celld.ExitDrained {
		b.Errorf("exit code %d", code)
	}
	if took := time.Since(begin); took > bound+5*time.Second {
		b.Errorf("it took %v with a bound of %v", took, bound)
	}
	if got := <-slow; got.status == http.StatusOK {
		b.Errorf("the request that was cut: %+v", got)
	}
}

func testSIGTERMWhileBooting(b *bench) {
	b.deploy(subject("one"))
	b.proxy.set(hanging)
	r := b.start("n1", nil)
	time.Sleep(300 * time.Millisecond) // booting, for as long as the store hangs
	if r.over() {
		b.Fatalf("it ended with %d", r.cmd.ProcessState.ExitCode())
	}
	r.signal(syscall.SIGTERM)
	r.exit(soon)
}

const writes = 25

// write makes that many durable writes, each of which is acknowledged.
func (r *running) write(from, n int) {
	r.b.Helper()
	for i := range n {
		if got := r.get("/next"); got != fmt.Sprint(from+i+1) {
			r.b.Fatalf("write %d is counted as %q", from+i+1, got)
		}
	}
}

func testKillLosesNothing(b *bench) {
	b.deploy(subject("one"))
	r := b.serve("n1")
	r.write(0, writes)
	group := r.cmd.Process.Pid
	if err := r.cmd.Process.Kill(); err != nil { // it alone: whatever it started must end by itself
		b.Fatal(err)
	}
	<-r.done
	b.until("the end of all that it started", soon, func() bool { return syscall.Kill(-group, 0) != nil })
	again := b.serve("n1")
	if got := again.settled("/count"); got != fmt.Sprint(writes) {
		b.Errorf("%d writes were acknowledged; there are %s", writes, got)
	}
	again.write(writes, 1)
}

func testDrainAndRestart(b *bench) {
	b.deploy(subject("one"))
	r := b.serve("n1")
	r.write(0, writes)
	r.signal(syscall.SIGTERM)
	if code := r.exit(patience); code != celld.ExitDrained {
		b.Errorf("exit code %d", code)
	}
	begin := time.Now()
	again := b.serve("n1")
	if got := again.settled("/count"); got != fmt.Sprint(writes) {
		b.Errorf("%d writes were acknowledged; there are %s", writes, got)
	}
	b.Logf("answered for its objects %v after the new start", time.Since(begin).Round(time.Millisecond))
}

// leaseLapses is when no lease of before can be held any more that was not renewed.
const leaseLapses = 20 * time.Second

// Without its store it cannot renew its lease: it leaves with 3, or it goes on, where it
// has a way to, and owns no objects from then on. Its data is whole.
func testLostLease(b *bench) {
	b.deploy(subject("one"))
	r := b.serve("n1", b.program.ShortLease)
	r.write(0, 3)
	b.proxy.set(vanished)
	begin := time.Now()
	goesOn := func() bool { return time.Since(begin) > leaseLapses && celld.Healthy(b.Context(), r.url) == nil }
	b.until("the end, or health without a lease", 2*patience, func() bool { return r.over() || goesOn() })
	if r.over() {
		if code := r.exit(0); code != celld.ExitFenced {
			b.Errorf("exit code %d, want %d\n%s", code, celld.ExitFenced, r.out.String())
		}
		b.Logf("fenced itself after %v", time.Since(begin).Round(time.Millisecond))
		b.proxy.set(passing)
		r = b.serve("n1", b.program.ShortLease)
	} else {
		if a, err := r.ask("/count"); err != nil || a.status != http.StatusServiceUnavailable {
			b.Errorf("an object without a lease: %d %q, %v", a.status, a.body, err)
		}
		b.proxy.set(passing)
	}
	if got := r.settled("/count"); got != "3" {
		b.Errorf("3 writes were acknowledged; there are %s", got)
	}
}

// Two nodes of one application share its objects, and one takes over from the
// other without losing a write.
func testTwoNodes(b *bench) {
	b.deploy(subject("one"))
	first, second := b.serve("n1", b.program.ShortLease), b.serve("n2", b.program.ShortLease)
	first.write(0, 1)
	for i := 1; i < writes; i++ {
		r := first
		if i%2 == 1 {
			r = second
		}
		if got := r.settled("/next"); got != fmt.Sprint(i+1) {
			b.Fatalf("write %d is counted as %q", i+1, got)
		}
	}
	two := b.deploy(subject("two")).Version
	for _, r := range []*running{first, second} {
		if got := r.reload(); got.Outcome != celld.ReloadAdopted || got.Version != two {
			b.Errorf("%+v", got)
		}
	}
	if got := second.settled("/count"); got != fmt.Sprint(writes) {
		b.Errorf("after the reload there are %s", got)
	}
	first.signal(syscall.SIGTERM)
	if code := first.exit(patience); code != celld.ExitDrained {
		b.Errorf("exit code %d", code)
	}
	begin := time.Now()
	if got := second.settled("/next"); strings.TrimSpace(got) != fmt.Sprint(writes+1) {
		b.Errorf("after the drain of the other: %s", got)
	}
	b.Logf("answered for the other's objects after %v", time.Since(begin).Round(time.Millisecond))
}
