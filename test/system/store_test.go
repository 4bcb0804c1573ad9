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
