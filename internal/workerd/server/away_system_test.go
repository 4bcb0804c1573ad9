//go:build system

package server_test

import (
	"flag"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/paralleltest"
)

const keeper = `import { DurableObject } from "cloudflare:workers";
export class Keeper extends DurableObject {
  async fetch(request) {
    if (new URL(request.url).pathname === "/throw") throw new Error("of the Worker's own");
    if (new URL(request.url).pathname === "/read") return new Response(String((await this.ctx.storage.get("n")) ?? 0));
    const n = ((await this.ctx.storage.get("n")) ?? 0) + 1;
    await this.ctx.storage.put("n", n);
    return new Response(String(n));
  }
}
export default {
  fetch(request, env) {
    const path = new URL(request.url).pathname;
    if (path === "/plain") return new Response("plain");
    if (path === "/own") throw new Error("of the Worker's own");
    return env.KEEPER.get(env.KEEPER.idFromName("k")).fetch(request);
  },
};`

// away makes the store unreachable in one of two ways, until open is called.
func (b *bench) away(how string) (open func()) {
	if how == "cut" {
		b.gate.shut(true)
		return func() { b.gate.shut(false) }
	}
	h := newHeld()
	b.gate.hold(func(*http.Request) *held { return h })
	open = func() { b.gate.hold(nil); h.let() }
	b.Cleanup(open)
	return open
}

// awayFor is longer than any member keeps its lease without the store.
var awayFor = flag.Duration("away", 20*time.Second, "how long the store is away")

// How long a request to an object may wait for its 503: until the lease is given up at
// the latest, some 12 seconds after the store went, and not at all from then on.
const (
	untilLost = 16 * time.Second
	onceLost  = 2 * time.Second
)

// While the store is away, also for longer than a lease lasts, what needs it not goes
// on, what needs it is told so in time, and everything comes back with the store.
func TestStoreAway(t *testing.T) {
	paralleltest.Waits(t)
	for _, how := range []string{"cut", "hangs"} {
		t.Run(how, func(t *testing.T) {
			paralleltest.Early(t)
			b := newBench(t)
			b.deploy(keeper, "Keeper")
			other := *b
			other.prefix = "plain"
			other.deploy(`export default { fetch() { return new Response("plain") } }`)
			s, p := b.serve("n1"), other.serve("n2")
			s.want("/", "1")
			member := s.workerdPID()
			var two *pair
			if how == "cut" {
				made := b.pair()
				two = &made
			}
			open := b.away(how)
			asked, missed := 0, 0
			for end := time.Now().Add(*awayFor); time.Now().Before(end); asked++ {
				begun, most := time.Now(), untilLost
				if gone(member) {
					most = onceLost
				}
				n, body, err := s.try("/")
				if took := time.Since(begun); n != http.StatusServiceUnavailable || err != nil || took > most {
					t.Errorf("a write without the store: %d %.80q %v after %s, want a 503 within %s", n, body, err, took, most)
				}
				if n, body, err := s.try("/plain"); n != 200 || body != "plain" || err != nil {
					missed++
					t.Logf("a request that needs no store: %d %q %v", n, body, err)
				}
				p.want("/", "plain")
				time.Sleep(300 * time.Millisecond)
			}
			if missed > 0 {
				t.Errorf("%d of %d requests that need no store were missed", missed, asked)
			}
			if s.status("/.well-known/celld/health") != 200 || !gone(member) {
				t.Error("it is not served by one that stands in")
			}
			if two != nil {
				two.parted()
			}
			open()
			body, took := s.settled("/read")
			if body < "1" || len(body) > 1 || took > 5*time.Second {
				t.Errorf("%q after %s, of 1 acknowledged write and %d others", body, took, asked)
			}
			t.Logf("objects answer again %s after the store", took.Round(time.Millisecond))
			s.want("/plain", "plain")
			if over := s.cmd.ProcessState; over != nil {
				t.Errorf("the process ended: %v", over)
			}
		})
	}
}

// pair is an application on two nodes of which one alone reaches the store through the
// gate. The other one starts when that one has looked for its peers once already.
type pair struct{ through, past *serving }

func (b *bench) pair() pair {
	through := *b
	through.prefix = "pair"
	through.deploy(keeper, "Keeper")
	past := through
	past.gate = &gate{url: b.store.URL}
	p := pair{through: through.serve("n4")}
	p.through.want("/", "1")
	since := func(d time.Duration) func() bool { return func() bool { return time.Since(p.through.begun) > d } }
	b.until("it has looked for peers, and found none", 10*time.Second, since(3*time.Second))
	p.past = past.serve("n3")
	p.past.want("/read", "1")
	b.until("it has looked for them again", 10*time.Second, since(8*time.Second))
	return p
}

// parted holds that the node without the store has ended, so that requests go to the
// other one, which has its objects and lost nothing.
func (p pair) parted() {
	t := p.past.b
	t.Helper()
	select {
	case <-p.through.done:
		if code := p.through.cmd.ProcessState.ExitCode(); code != 3 {
			t.Errorf("the node without the store ended with %d, want 3", code)
		}
	case <-time.After(10 * time.Second):
		t.Error("the node without the store goes on beside one that has it")
	}
	if body, took := p.past.settled("/"); body != "2" || took > time.Second {
		t.Errorf("its peer: %q after %s", body, took)
	}
}

// What the Worker throws itself stays a 500.
func TestAnExceptionIsNotTheStores(t *testing.T) {
	paralleltest.Beside(t)
	b := newBench(t)
	b.deploy(keeper, "Keeper")
	s := b.serve("n1")
	for _, path := range []string{"/own", "/throw"} {
		if n, body, err := s.try(path); n != 500 || body != "Internal Server Error" || err != nil {
			t.Errorf("%s: %d %q %v", path, n, body, err)
		}
	}
}

// A drain does not wait for a store that is away.
func TestDrainWithoutTheStore(t *testing.T) {
	paralleltest.Waits(t)
	for _, how := range []string{"cut", "hangs"} {
		t.Run(how, func(t *testing.T) {
			paralleltest.Early(t)
			b := newBench(t)
			b.deploy(keeper, "Keeper")
			s := b.serve("n1")
			s.want("/", "1")
			open := b.away(how)
			time.Sleep(time.Second)
			begun := time.Now()
			if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			select {
			case <-s.done:
			case <-time.After(30 * time.Second):
				t.Fatalf("it drains for more than 30 s\n%s", s.log)
			}
			if took := time.Since(begun); took > 15*time.Second {
				t.Errorf("the drain took %s", took)
			} else {
				t.Logf("the drain took %s, exit code %d", took, s.cmd.ProcessState.ExitCode())
			}
			open()
			s = b.serve("n1")
			if body, took := s.settled("/read"); body != "1" || took > 25*time.Second {
				t.Errorf("%q after %s", body, took)
			}
		})
	}
}
