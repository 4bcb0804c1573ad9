//go:build system

package system

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// worldReplicas are the applications of a world and on how many machines each runs.
var worldReplicas = map[string]int{"plain": 2, "single": 1, "counter": 2}

// limits are what may become of one application's requests while something is broken.
type limits struct {
	failed  int           // requests; -1: as many as fall into the silence
	silence time.Duration // without any answer
}

// trouble is something that machines do.
type trouble struct {
	name string
	ci   bool // short enough for every run
	// cause makes it, and returns what ends it; both return when they have.
	cause func(w *world) (end func())
	// lasts is how long it goes on.
	lasts time.Duration
	may   map[string]limits // by application; nothing may fail where it says nothing
	// whole is within which time after its end the fleet is whole again.
	whole time.Duration
}

// The bounds that docs/explanation/guarantees.md promises, and what the ingress adds: a
// second for its poll, and two for a machine that does not even refuse.
const (
	goneAfter  = 25*time.Second + 3*time.Second
	objectsToo = goneAfter + 10*time.Second
)

var troubles = []trouble{
	{
		name: "a node is killed, power and cable", ci: true, lasts: 20 * time.Second, whole: 40 * time.Second,
		cause: func(w *world) func() {
			m := w.home("single")
			w.powerOff(m)
			return func() { w.plugIn(m); w.power(m) }
		},
		may: map[string]limits{"single": {-1, goneAfter}, "plain": {-1, 5 * time.Second}, "counter": {-1, objectsToo}},
	},
	{
		name: "the bucket is restarted", ci: true, lasts: 2 * time.Second, whole: 15 * time.Second,
		cause: func(w *world) func() {
			w.store.program.kill(w.t)
			return func() { w.startStore() }
		},
		may: map[string]limits{"counter": {-1, 12 * time.Second}},
	},
	{
		name: "the bucket is away for a minute", lasts: time.Minute, whole: 30 * time.Second,
		cause: func(w *world) func() {
			w.store.program.kill(w.t)
			return func() { w.startStore() }
		},
		may: map[string]limits{"counter": {-1, time.Minute + 20*time.Second}},
	},
	{
		name: "planned: a node stops and starts", whole: 45 * time.Second,
		cause: func(w *world) func() {
			m := w.home("single")
			w.dead[m] = true
			m.program.stop(w.t)
			return func() { w.power(m) }
		},
	},
	{
		name: "planned: a node is drained and undrained", whole: 45 * time.Second,
		cause: func(w *world) func() {
			m := w.home("single")
			w.mustNodes("drain", m.id, "--wait", "--timeout", "60s")
			return func() { w.mustNodes("undrain", m.id) }
		},
	},
	{
		name: "planned: everything is deployed anew", whole: 20 * time.Second,
		cause: func(w *world) func() {
			w.deployAll("anew")
			return func() {}
		},
	},
	{
		name: "a node is paused and continued", lasts: 40 * time.Second, whole: 45 * time.Second,
		cause: func(w *world) func() {
			m := w.home("single")
			w.dead[m] = true
			w.signalAll(m, syscall.SIGSTOP)
			return func() { w.signalAll(m, syscall.SIGCONT); delete(w.dead, m) }
		},
		may: map[string]limits{"single": {-1, goneAfter}, "plain": {-1, 10 * time.Second}, "counter": {-1, objectsToo}},
	},
	{
		name: "a node is cut off from the bucket", lasts: 40 * time.Second, whole: 60 * time.Second,
		cause: func(w *world) func() {
			m := w.home("counter")
			w.cut(m, bucketIP)
			return func() { w.join(m, bucketIP) }
		},
		may: map[string]limits{"counter": {-1, objectsToo}},
	},
	{
		name: "a node is cut off from the others", lasts: 40 * time.Second, whole: 60 * time.Second,
		cause: func(w *world) func() {
			m := w.home("counter")
			w.cut(m, w.others(m)...)
			return func() { w.join(m, w.others(m)...) }
		},
		may: map[string]limits{"counter": {-1, objectsToo}},
	},
	{
		name: "the coordinator is cut off from the bucket and the others", lasts: 40 * time.Second, whole: 60 * time.Second,
		cause: func(w *world) func() {
			m := w.coordinator()
			away := append(w.others(m), bucketIP)
			w.cut(m, away...)
			return func() { w.join(m, away...) }
		},
		may: map[string]limits{"counter": {-1, objectsToo}},
	},
	{
		name: "the bucket is slow, 150 ms more for each request", lasts: 30 * time.Second, whole: 20 * time.Second,
		cause: (*world).slowBucket,
	},
	{
		name: "a disk is full", lasts: 20 * time.Second, whole: 30 * time.Second,
		cause: func(w *world) func() {
			m := w.home("single")
			ballast, more := filepath.Join(m.state, "ballast"), filepath.Join(m.state, "more")
			_ = os.WriteFile(ballast, make([]byte, 256<<20), 0o600) // as far as it goes
			if err := os.WriteFile(more, make([]byte, 64<<10), 0o600); !errors.Is(err, syscall.ENOSPC) {
				w.t.Fatalf("the disk is not full: %v", err)
			}
			// It takes no deploys, and says why.
			_, errs, err := w.scafo("deploy", w.plainProject("single", "full"), "--no-wait", "--node", "http://"+m.api)
			if err == nil || !contains(errs, "staging directory is full") {
				w.t.Errorf("the disk is full, and a deploy through it says: %v %s", err, errs)
			}
			return func() { _, _ = os.Remove(ballast), os.Remove(more) }
		},
		may: map[string]limits{"counter": {-1, objectsToo}},
	},
	{
		name: "a node has no file descriptors left", lasts: 20 * time.Second, whole: 30 * time.Second,
		cause: func(w *world) func() {
			m := w.coordinator()
			var was unix.Rlimit
			if err := unix.Prlimit(m.Process.Pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
				w.t.Fatal(err)
			}
			none := unix.Rlimit{Max: was.Max} // what is open stays so
			for err := error(nil); err == nil; {
				if _, err = os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", m.Process.Pid, none.Cur)); err == nil {
					none.Cur++
				}
			}
			if err := unix.Prlimit(m.Process.Pid, unix.RLIMIT_NOFILE, &none, nil); err != nil {
				w.t.Fatal(err)
			}
			// It takes no connection any more beside those that it has.
			other := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
			if res, err := other.Get("http://" + m.api + "/"); err == nil {
				res.Body.Close()
				w.t.Errorf("%s is short of file descriptors and answers on a new connection", m.id)
			}
			return func() { _ = unix.Prlimit(m.Process.Pid, unix.RLIMIT_NOFILE, &was, nil) }
		},
	},
}

func (w *world) plainProject(name, word string) string {
	return worker(w.t, name, `export default { fetch() { return new Response("`+name+" "+word+`") } }`)
}

// deployAll deploys the applications of the world.
func (w *world) deployAll(word string) {
	w.t.Helper()
	w.must("deploy", w.plainProject("plain", word), "--replicas", "2")
	w.must("deploy", w.plainProject("single", word))
	w.must("deploy", w.example("counter"), "--replicas", "2")
}

// suffer goes through one trouble and says what it did to the visitors.
func (w *world) suffer(t *testing.T, x trouble) {
	w.within(t, x.name+": the fleet is whole before", patience, w.whole)
	w.load.since(time.Now())
	begun := time.Now()
	end := x.cause(w)
	if rest := x.lasts - time.Since(begun); rest > 0 {
		time.Sleep(rest)
	}
	end()
	ended := time.Now()
	w.within(t, x.name+": the fleet is whole again", x.whole, w.whole)
	again := time.Since(ended)
	time.Sleep(time.Second) // what is under way comes back, or fails
	got := w.load.since(begun)
	t.Logf("%s, for %s: %s; whole %s after it", x.name, ended.Sub(begun).Round(time.Second), tallies(got), again.Round(100*time.Millisecond))
	for name, c := range got {
		l := x.may[name]
		if l.failed >= 0 && c.failed > l.failed {
			t.Errorf("%s: %d of %d requests to %s failed, the first with %s", x.name, c.failed, c.asked, name, c.first)
		}
		if l.silence == 0 {
			l.silence = 2 * time.Second
		}
		if c.silence > l.silence {
			t.Errorf("%s: %s gave no answer for %s; %s is the bound; the first failure was %s", x.name, name, c.silence, l.silence, c.first)
		}
	}
	twice, answered := w.load.lostWrites()
	if len(twice) > 0 {
		t.Errorf("%s: the counter gave away twice: %v", x.name, twice)
	}
	if n := number(t, w.body("http://counter.apps.test/")); n <= answered {
		t.Errorf("%s: the counter stands at %d after %d answers", x.name, n, answered)
	}
	w.bucketIsSound()
}

// within waits for a condition, and goes on without it when its time is over.
func (w *world) within(t *testing.T, what string, bound time.Duration, cond func() error) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		err := cond()
		if err == nil {
			return
		}
		if time.Since(begun) > bound {
			t.Errorf("not within %s: %s: %v", bound, what, err)
			return
		}
	}
}

// sufferAll makes a world and has it suffer.
func sufferAll(t *testing.T, program string, all []trouble) {
	begun := time.Now()
	w := newWorld(t, 4, program)
	w.deployAll("first")
	w.within(t, "the fleet is whole", patience, w.whole)
	t.Logf("four machines in namespaces of their own serve after %s", time.Since(begun).Round(100*time.Millisecond))
	w.load = startVisitors(t, w.requestClient, []string{"plain", "plain", "plain", "plain", "plain", "plain", "single", "single", "counter", "plain"})
	for _, x := range all {
		w.suffer(t, x)
	}
	w.load.stop()
}

// What machines do to a fleet of four, seen by its visitors: what every run goes through.
func TestMachines(t *testing.T) {
	if inNamespaces(t) {
		sufferAll(t, bin(t, "scafo"), slices.DeleteFunc(slices.Clone(troubles), func(x trouble) bool { return !x.ci }))
	}
}

// All of it. SCAFO_TROUBLE is a pattern for a part of it.
func TestTortureMachines(t *testing.T) {
	if os.Getenv("SCAFO_TORTURE") == "" {
		t.Skip("make torture runs this")
	}
	if !inNamespaces(t) {
		return
	}
	only := regexp.MustCompile(os.Getenv("SCAFO_TROUBLE"))
	other := func(x trouble) bool { return !only.MatchString(x.name) }
	clocks := slices.DeleteFunc(slices.Clone(clockTroubles), other)
	program := bin(t, "scafo")
	if len(clocks) > 0 {
		program = clockProgram(t)
	}
	sufferAll(t, program, append(slices.DeleteFunc(slices.Clone(troubles), other), clocks...))
}
