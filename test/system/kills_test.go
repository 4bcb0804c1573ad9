//go:build system

package system

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo"
)

const (
	killNodes   = 3
	killsInCI   = 50
	killsOfAll  = 1000
	killPause   = 700 * time.Millisecond // between two kills, at most
	killPeace   = 3 * time.Minute        // within which the fleet is whole after the last one
	killedHosts = 3                      // that are claimed and released
)

// victims are the programs of a fleet that are killed, with how many chances in ten.
var victims = []struct {
	program string
	chances int
}{{"scafo", 5}, {"celld-workerd", 2}, {"workerd", 2}, {"scafo-bucket", 1}}

// ledger is what the fleet has acknowledged while it was being killed.
type ledger struct {
	mu sync.Mutex
	// counts are the numbers that the counter has given away, and twice those that it
	// gave away before.
	counts map[int]bool
	twice  []int
	// deployed is the last deploy that was acknowledged, and tried the last that was
	// begun; all are numbered.
	deployed, tried int
	// hosts are whether the application has them: known until the next call begins.
	hosts         [killedHosts]bool
	unknown       [killedHosts]bool
	calls, failed map[string]int
}

func (l *ledger) note(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[what]++
	if err != nil {
		l.failed[what]++
	}
}

func killHost(i int) string { return fmt.Sprintf("host%d.kills.example", i) }

func numbered(t testing.TB, n int) string {
	return worker(t, "plain", fmt.Sprintf(`export default { fetch() { return new Response("version %d") } }`, n))
}

// work has the fleet do everything at once until the context ends.
func (l *ledger) work(ctx context.Context, c *cluster, wg *sync.WaitGroup, seed uint64) {
	loop := func(stream uint64, step func(rng *rand.Rand)) {
		rng := rand.New(rand.NewPCG(seed, stream)) //nolint:gosec // reproducible on purpose
		wg.Go(func() {
			for ctx.Err() == nil {
				step(rng)
			}
		})
	}
	node := func(rng *rand.Rand) string { return "http://" + c.machines[rng.IntN(killNodes)].api }
	for i := range 2 {
		loop(uint64(i), func(*rand.Rand) {
			body, err := c.ask("counter")
			l.note("write", err)
			if err != nil {
				time.Sleep(20 * time.Millisecond)
				return
			}
			n, _ := strconv.Atoi(digits.FindString(body))
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.counts[n] {
				l.twice = append(l.twice, n)
			}
			l.counts[n] = true
		})
	}
	loop(10, func(rng *rand.Rand) {
		l.mu.Lock()
		l.tried++
		n := l.tried
		l.mu.Unlock()
		_, _, err := c.scafo("deploy", numbered(c.t, n), "--node", node(rng))
		l.note("deploy", err)
		if err == nil {
			l.mu.Lock()
			l.deployed = n
			l.mu.Unlock()
		}
	})
	loop(11, func(rng *rand.Rand) {
		i, verb := rng.IntN(killedHosts), "add"
		if rng.IntN(2) == 0 {
			verb = "remove"
		}
		l.mu.Lock()
		l.unknown[i] = true
		l.mu.Unlock()
		_, errs, err := c.scafo("domains", verb, "counter", killHost(i), "--node", node(rng))
		if err != nil && verb == "remove" && strings.Contains(errs, string(scafo.CodeNotFound)) {
			err = nil // it was none of its
		}
		l.note("claim", err)
		if err == nil {
			l.mu.Lock()
			l.hosts[i], l.unknown[i] = verb == "add", false
			l.mu.Unlock()
		}
	})
}

// exeOf is the name of the program that a process runs.
func exeOf(pid int) string {
	p, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(p), " (deleted)")
}

// family are the processes of a cluster and of its store, the children of its runtimes
// among them.
func (c *cluster) family() map[int]string {
	out := c.belongs()
	store := &fleet{t: c.t, state: c.store.state}
	for pid, cmd := range store.belongs() {
		out[pid] = cmd
	}
	return out
}

// powerOff ends everything at once.
func (c *cluster) powerOff() {
	c.t.Helper()
	eventually(c.t, "everything has ended", func() error {
		left := c.family()
		for pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

// killOne kills one process of the fleet, and starts again what nobody else does.
func (c *cluster) killOne(rng *rand.Rand) string {
	c.t.Helper()
	for {
		n := rng.IntN(10)
		i := 0
		for ; n >= victims[i].chances; i++ {
			n -= victims[i].chances
		}
		var all []int
		for pid := range c.family() {
			if exeOf(pid) == victims[i].program {
				all = append(all, pid)
			}
		}
		slices.Sort(all)
		switch victims[i].program {
		case "scafo":
			m := c.machines[rng.IntN(len(c.machines))]
			m.kill(c.t)
			m.program = start(c.t, m.env, bin(c.t, "scafo"), m.args...)
		case "scafo-bucket":
			c.store.kill(c.t)
			c.store.start(c.t)
		default:
			if len(all) == 0 {
				continue
			}
			_ = syscall.Kill(all[rng.IntN(len(all))], syscall.SIGKILL)
		}
		return victims[i].program
	}
}

// killing has a fleet work while its processes are killed, and checks what is left.
func killing(t *testing.T, kills int) {
	c := newCluster(t, killNodes)
	defer c.powerOff() // the end of a test is no drain
	c.variables = []string{"AWS_ACCESS_KEY_ID=" + c.store.AccessKey, "AWS_SECRET_ACCESS_KEY=" + c.store.SecretKey}
	c.requestClient.Timeout = 10 * time.Second
	c.must("deploy", numbered(t, 0), "--replicas", "2")
	c.must("deploy", c.example("counter"), "--replicas", "2")
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 99)) //nolint:gosec // which processes die
	l := &ledger{counts: map[int]bool{}, calls: map[string]int{}, failed: map[string]int{}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var working sync.WaitGroup
	l.work(ctx, c, &working, seed)
	killed := map[string]int{}
	begun := time.Now()
	for range kills {
		time.Sleep(time.Duration(rng.Int64N(int64(killPause))))
		killed[c.killOne(rng)]++
	}
	t.Logf("%d kills in %s (seed %d): %v", kills, time.Since(begun).Round(time.Second), seed, killed)
	peace := time.Now()
	stop()
	working.Wait()
	for what, n := range l.calls {
		t.Logf("%s: %d, of which %d failed", what, n, l.failed[what])
		if n == l.failed[what] {
			t.Errorf("every %s failed: nothing is shown", what)
		}
	}
	untilWithin(t, killPeace, "the fleet is whole", func() error { return c.wholeAfterKills() })
	t.Logf("whole %s after the last kill", time.Since(peace).Round(100*time.Millisecond))
	l.nothingIsLost(t, c)
	c.nothingIsLeft(t)
}

func untilWithin(t *testing.T, bound time.Duration, what string, cond func() error) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		err := cond()
		if err == nil {
			return
		}
		if time.Since(begun) > bound {
			t.Fatalf("not within %s: %s: %v", bound, what, err)
		}
	}
}

// wholeAfterKills is nil when every application runs on two machines and nothing else does.
func (c *cluster) wholeAfterKills() error {
	running := map[string]int{}
	for _, m := range c.machines {
		s, err := c.stateOf(m)
		if err != nil {
			return err
		}
		for _, p := range s.Processes {
			if p.State != scafo.ProcessReady {
				return fmt.Errorf("%s on %s is %s", p.Application, m.id, p.State)
			}
			running[p.Application]++
		}
	}
	if running["plain"] != 2 || running["counter"] != 2 {
		return fmt.Errorf("running: %v", running)
	}
	for _, a := range []string{"plain", "counter"} {
		if _, err := c.ask(a); err != nil {
			return err
		}
	}
	return nil
}

// nothingIsLost holds the fleet to what it has acknowledged.
func (l *ledger) nothingIsLost(t *testing.T, c *cluster) {
	t.Helper()
	if len(l.twice) > 0 {
		t.Errorf("the counter gave away twice: %v", l.twice)
	}
	body, err := c.ask("counter")
	if err != nil || number(t, body) <= len(l.counts) {
		t.Errorf("the counter says %q, %v after %d answers", body, err, len(l.counts))
	}
	untilWithin(t, patience, "the version of an acknowledged deploy answers", func() error {
		body, err := c.ask("plain")
		if err != nil {
			return err
		}
		if n := number(t, body); n < l.deployed || n > l.tried {
			return fmt.Errorf("%q, while %d was acknowledged and %d tried", body, l.deployed, l.tried)
		}
		return nil
	})
	out := c.must("apps", "show", "counter", "--json")
	for i, has := range l.hosts {
		if !l.unknown[i] && strings.Contains(out, `"`+killHost(i)+`"`) != has {
			t.Errorf("the application has %s: %v, while the last answer said %v", killHost(i), !has, has)
		}
	}
	c.must("deploy", numbered(t, l.tried+1))
	if body, err := c.ask("plain"); err != nil || number(t, body) != l.tried+1 {
		t.Errorf("after one more deploy: %q %v", body, err)
	}
	c.bucketIsSound()
}

// nothingIsLeft looks for processes, ports and files that nobody has any more.
func (c *cluster) nothingIsLeft(t *testing.T) {
	t.Helper()
	untilWithin(t, patience, "nothing is left over", func() error {
		known := map[int]bool{c.store.Process.Pid: true}
		ports := map[int]bool{}
		for _, m := range c.machines {
			known[m.Process.Pid] = true
			s, err := c.stateOf(m)
			if err != nil {
				return err
			}
			for _, p := range s.Processes {
				known[p.PID] = true
				for _, url := range []string{p.URL, p.Internal} {
					if n, err := strconv.Atoi(url[strings.LastIndexByte(url, ':')+1:]); err == nil {
						ports[n] = true
					}
				}
			}
			staged, err := filepath.Glob(filepath.Join(m.state, "staging", "[0-9a-zA-Z]*"))
			if err != nil {
				return err
			}
			if len(staged) > 0 {
				return fmt.Errorf("staged: %v", staged)
			}
		}
		for pid, cmd := range c.family() {
			if exe := exeOf(pid); exe != "" && !known[pid] && !known[parentOf(pid)] {
				return fmt.Errorf("an orphan: %d %s", pid, cmd)
			}
		}
		listening, err := c.listeners()
		if err != nil {
			return err
		}
		for _, port := range listening {
			if !ports[port] {
				return fmt.Errorf("somebody listens on %d, and no process of the fleet is there: %v", port, ports)
			}
		}
		return nil
	})
}

var portRange = regexp.MustCompile(`^(\d+)-(\d+)$`)

// listeners are the ports of the machines' runtimes on which anybody listens.
func (c *cluster) listeners() (out []int, err error) {
	for _, m := range c.machines {
		for _, a := range m.args {
			r := portRange.FindStringSubmatch(a)
			if r == nil {
				continue
			}
			first, _ := strconv.Atoi(r[1])
			last, _ := strconv.Atoi(r[2])
			some, err := listeners(first, last)
			if err != nil {
				return nil, err
			}
			out = append(out, some...)
		}
	}
	return out, nil
}

func parentOf(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(fields[1])
	return n
}

// listeners are the TCP ports of a range on which anybody listens.
func listeners(first, last int) (out []int, err error) {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			const listening = "0A"
			if len(fields) < 4 || fields[3] != listening {
				continue
			}
			port, err := strconv.ParseInt(fields[1][strings.LastIndexByte(fields[1], ':')+1:], 16, 32)
			if err == nil && int(port) >= first && int(port) <= last {
				out = append(out, int(port))
			}
		}
		f.Close()
	}
	return out, nil
}

// Processes of a working fleet are killed at random moments, and nothing that it has
// acknowledged is lost, and nothing is left over.
func TestKills(t *testing.T) { killing(t, killsInCI) }

// A thousand of them, or as many as SCAFO_KILLS says.
func TestTortureKills(t *testing.T) {
	if os.Getenv("SCAFO_TORTURE") == "" {
		t.Skip("make torture runs this")
	}
	kills := killsOfAll
	if s := os.Getenv("SCAFO_KILLS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("SCAFO_KILLS is %q, which is no number of kills", s)
		}
		kills = n
	}
	killing(t, kills)
}
