//go:build system

package server_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const hostile = `
const kept = [];
export default {
  async fetch(request) {
    switch (new URL(request.url).pathname) {
      case "/loop": for (;;);
      case "/buffers": for (;;) kept.push(new Uint8Array(1 << 24).fill(1));
      case "/heap": for (;;) kept.push({ a: [1, 2, 3], s: "s" + kept.length });
      case "/hang": await new Promise(() => setInterval(() => {}, 1000));
      case "/slow": {
        const { readable, writable } = new TransformStream();
        (async () => {
          const w = writable.getWriter();
          for (let i = 0; i < 8; i++) { await w.write(new TextEncoder().encode("x")); await scheduler.wait(500); }
          await w.close();
        })();
        return new Response(readable);
      }
      case "/echo": return new Response(await request.text());
    }
    return new Response("ok");
  },
};`

// load asks another application all the time, and says what it noticed.
type load struct {
	b    *bench
	stop chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	asked   int
	failed  []string
	slowest time.Duration
}

// neighbour starts another application, under load until the test has seen enough.
func (b *bench) neighbour() *load {
	b.Helper()
	nb := *b
	nb.prefix = "neighbour"
	nb.deploy(`export default { fetch() { return new Response("here") } }`)
	s := nb.serve("neighbour")
	l := &load{b: b, stop: make(chan struct{})}
	l.done.Go(func() {
		for {
			select {
			case <-l.stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			begun := time.Now()
			n, body, err := s.try("/")
			took := time.Since(begun)
			l.mu.Lock()
			l.asked++
			l.slowest = max(l.slowest, took)
			if n != 200 || body != "here" || err != nil {
				l.failed = append(l.failed, fmt.Sprintf("%d %q %v", n, body, err))
			}
			l.mu.Unlock()
		}
	})
	return l
}

// fewest is how many requests of a neighbour say something.
const fewest = 50

// noticed holds the neighbour to have noticed nothing.
func (l *load) noticed() {
	l.b.Helper()
	// What it was to notice may be over before it asked often enough.
	l.b.until("the neighbour asked often enough", 20*time.Second, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.asked >= fewest
	})
	close(l.stop)
	l.done.Wait()
	if len(l.failed) > 0 || l.slowest > time.Second {
		l.b.Errorf("the neighbour noticed: %d of %d requests failed, the slowest took %s: %.300q", len(l.failed), l.asked, l.slowest, l.failed)
	}
	l.b.Logf("neighbour: %d requests, none failed, slowest %s", l.asked, l.slowest)
}

// refused expects a 503 within that time.
func (s *serving) refused(path string, within time.Duration) {
	s.b.Helper()
	begun := time.Now()
	n, body, err := s.try(path)
	if took := time.Since(begun); n != http.StatusServiceUnavailable || err != nil || took > within {
		s.b.Errorf("%s: %d %.100q %v after %s, want a 503 within %s", path, n, body, err, took, within)
	}
}

func TestEndlessLoop(t *testing.T) {
	b := newBench(t)
	b.deploy(hostile)
	s := b.serve("n1")
	l := b.neighbour()
	s.refused("/loop", 16*time.Second)
	_, took := s.settled("/")
	if took > 5*time.Second {
		t.Errorf("it answers again %s after the loop was ended", took)
	}
	l.noticed()
	if st := s.state(); st.Restarts != 1 {
		t.Errorf("%d restarts", st.Restarts)
	}
}

func TestAllocationLoops(t *testing.T) {
	const bound = 256 // MiB
	b := newBench(t)
	b.deploy(hostile)
	s := b.serve("n1", "CELLD_MAX_RSS_MB="+strconv.Itoa(bound))
	l := b.neighbour()
	for _, path := range []string{"/buffers", "/heap"} {
		pid := s.workerdPID()
		over := make(chan struct{})
		var most int64
		var watching sync.WaitGroup
		watching.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(time.Millisecond):
					most = max(most, resident(pid))
				}
			}
		})
		// It is killed, or the kernel refuses it more: then the Worker itself fails.
		begun := time.Now()
		if n, _, err := s.try(path); n != http.StatusServiceUnavailable && n != http.StatusInternalServerError || err != nil || time.Since(begun) > 10*time.Second {
			t.Errorf("%s: %d %v after %s", path, n, err, time.Since(begun))
		}
		b.until("another workerd", 15*time.Second, func() bool {
			for _, p := range s.state().Processes {
				if p.Serving {
					return p.PID != pid
				}
			}
			return false
		})
		close(over)
		watching.Wait()
		if most > bound*3/2<<20 {
			t.Errorf("%s: %d MiB were taken, the bound is %d", path, most>>20, bound)
		}
		if _, took := s.settled("/"); took > 5*time.Second {
			t.Errorf("it answers again after %s", took)
		}
		t.Logf("%s: at most %d MiB", path, most>>20)
	}
	l.noticed()
}

func resident(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// A Worker that never answers holds up its own requests alone, and those not for good.
func TestNeverAnswers(t *testing.T) {
	b := newBench(t)
	b.deploy(hostile)
	s := b.serve("n1", "CELLD_WORKERD_ANSWER_S=2")
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { s.refused("/hang", 4*time.Second) })
	}
	s.want("/", "ok")
	// An answer that has begun may take its time, and so may a body that is sent.
	all.Go(func() { s.want("/slow", "xxxxxxxx") })
	all.Go(func() {
		r, w := net.Pipe()
		go func() {
			for range 8 {
				_, _ = w.Write([]byte("y"))
				time.Sleep(500 * time.Millisecond)
			}
			_ = w.Close()
		}()
		resp, err := client.Post(s.url+"/echo", "text/plain", r)
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("a slow upload: %v %v", resp, err)
			return
		}
		_ = resp.Body.Close()
	})
	all.Wait()
	if st := s.state(); st.Restarts != 0 {
		t.Errorf("%d restarts", st.Restarts)
	}
}

// workerd closes its listener for good when it cannot accept a connection, and lives
// on: it has to be replaced. Here clients are too many for it; a Worker that opens them
// itself is in sockets_system_test.go.
func TestTooManySockets(t *testing.T) {
	b := newBench(t)
	b.deploy(hostile)
	s := b.serve("n1")
	l := b.neighbour()
	var now unix.Rlimit
	pid := s.workerdPID()
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now); err != nil || now.Cur > 16384 || now.Max != now.Cur {
		t.Errorf("files: %+v, %v", now, err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 60, Max: 60}, nil); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if n, _, err := s.try("/hang"); n != http.StatusServiceUnavailable || err != nil {
				t.Errorf("%d %v, want 503", n, err)
			}
		})
	}
	b.until("another workerd", 20*time.Second, func() bool { return s.state().Restarts == 1 })
	s.settled("/")
	all.Wait()
	l.noticed()
}
