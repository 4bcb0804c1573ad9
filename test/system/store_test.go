//go:build system

package system

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/paralleltest"
)

// storePID is the process of the embedded store.
func (f *fleet) storePID() int {
	f.t.Helper()
	for pid := range f.belongs() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue
		}
		// `scafo bucket`, or a program of its own for it.
		args := strings.Split(string(b), "\x00")
		if strings.HasSuffix(args[0], "-bucket") || len(args) > 1 && args[1] == "bucket" {
			return pid
		}
	}
	f.t.Fatal("the embedded store does not run")
	return 0
}

// A frozen store is replaced: requests that need no store never notice, and objects
// answer again by themselves.
func TestAFrozenStoreIsReplaced(t *testing.T) {
	paralleltest.Early(t)
	f := newFleet(t)
	plain := f.deploy(worker(t, "plain", `export default { fetch() { return new Response("here") } }`))
	counter := f.deploy(f.example("counter"))
	if got := number(t, f.body(counter)); got != 1 {
		t.Fatalf("count %d", got)
	}
	if err := syscall.Kill(f.storePID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	f.requestClient.Timeout = 20 * time.Second
	eventually(t, "the counter answers again", func() error {
		if body := f.body(plain); body != "here" {
			t.Fatalf("%q", body)
		}
		status, body, err := f.get(counter)
		if err != nil {
			t.Fatalf("a request hangs: %v", err)
		}
		switch status {
		case http.StatusOK:
			if got := number(t, body); got < 2 {
				t.Fatalf("count %d", got)
			}
			return nil
		case http.StatusServiceUnavailable:
			return errors.New(body)
		}
		t.Fatalf("%d %q", status, body)
		return nil
	})
	t.Logf("the counter answers again after %s", time.Since(begun).Round(time.Millisecond))
}

// Ctrl-C ends in time though the store answers nobody.
func TestStoppingWithoutTheStore(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	counter := f.deploy(f.example("counter"))
	if got := number(t, f.body(counter)); got != 1 {
		t.Fatalf("count %d", got)
	}
	if err := syscall.Kill(f.storePID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	begun := time.Now()
	f.up.stop(t)
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it took %s to stop", took)
	} else {
		t.Logf("it took %s to stop", took.Round(time.Millisecond))
	}
	f.noProcessIsLeft()
	f.start()
	eventually(t, "the counter answers again", func() error {
		status, body, err := f.get(counter)
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("%d %s %v", status, body, err)
		}
		if got := number(t, body); got != 2 {
			t.Fatalf("count %d", got)
		}
		return nil
	})
}

// The bucket of a fleet goes away for so long that runtimes lose their leases, and comes
// back: nothing that needs it not notices, what needs it says so in time, and everything
// returns by itself.
func TestTheBucketGoesAwayAndComesBack(t *testing.T) {
	paralleltest.Early(t)
	const away = 20 * time.Second
	c := newCluster(t, 1)
	c.deploy(worker(t, "plain", `export default { fetch() { return new Response("here") } }`))
	c.deploy(c.example("counter"))
	urls := map[string]string{}
	eventually(t, "both run", func() error {
		s, err := c.stateOf(c.machines[0])
		if err != nil {
			return err
		}
		for _, p := range s.Processes {
			if p.State == "ready" {
				urls[p.Application] = p.URL
			}
		}
		if len(urls) != 2 {
			return fmt.Errorf("ready: %v", urls)
		}
		return nil
	})
	c.requestClient.Timeout = 20 * time.Second
	if got := number(t, c.body(urls["counter"])); got != 1 {
		t.Fatalf("count %d", got)
	}
	plain := func() {
		t.Helper()
		if body := c.body(urls["plain"]); body != "here" {
			t.Fatalf("%q", body)
		}
	}
	c.store.kill(t)
	for begun := time.Now(); time.Since(begun) < away; time.Sleep(200 * time.Millisecond) {
		plain()
		status, body, err := c.get(urls["counter"])
		if err != nil || status != http.StatusServiceUnavailable {
			t.Errorf("%s without the bucket: %d %q %v", time.Since(begun), status, body, err)
		}
	}
	c.store.start(t)
	begun := time.Now()
	eventually(t, "the counter answers again", func() error {
		plain()
		status, body, err := c.get(urls["counter"]) // its ports stay its own
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("%d %q %w", status, body, err)
		}
		if got := number(t, body); got < 2 {
			t.Fatalf("count %d", got)
		}
		return nil
	})
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the counter answers again %s after the bucket came back", took)
	} else {
		t.Logf("the counter answers again after %s", took.Round(time.Millisecond))
	}
}
