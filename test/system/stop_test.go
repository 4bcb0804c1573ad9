//go:build system

package system

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/paralleltest"
)

// A second Ctrl-C does not wait for objects to come to rest: everything ends at once,
// no process stays, and what was acknowledged is there at the next start.
func TestASecondCtrlCEndsAtOnce(t *testing.T) {
	f := newFleet(t)
	url := f.deploy(f.example("counter"))
	for range 5 {
		f.body(url)
	}
	interrupt := func() {
		t.Helper()
		if err := f.up.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	interrupt()
	eventually(t, "up says that it stops", func() error {
		if !strings.Contains(f.up.out.String(), "Ctrl-C again") {
			return errors.New("not yet")
		}
		return nil
	})
	interrupt()
	// The runtime's own stop takes five seconds.
	const atOnce = 3 * time.Second
	select {
	case <-f.up.done:
	case <-time.After(atOnce):
		t.Errorf("up has not ended within %s of the second Ctrl-C", atOnce)
		<-f.up.done
	}
	f.noProcessIsLeft()
	f.start()
	eventually(t, "the counter answers", func() error {
		status, body, err := f.get(url)
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("%d %s %v", status, body, err)
		}
		if got := number(t, body); got != 6 {
			t.Fatalf("the count is %d, want 6", got)
		}
		return nil
	})
}

// A Ctrl-C while everything starts leaves nothing either.
func TestCtrlCDuringTheStart(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	f.up.stop(t)
	for _, after := range []time.Duration{0, 20 * time.Millisecond, 60 * time.Millisecond, 120 * time.Millisecond} {
		p := start(t, f.env(), bin(t, "scafo"), "up", "--state", f.state, "--listen", f.api, "--http-port", fmt.Sprint(f.http))
		// The signal has to hit different steps of the start, whichever they are.
		time.Sleep(after)
		if err := p.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.done:
		case <-time.After(patience):
			t.Fatalf("up does not end, interrupted %s after its start", after)
		}
		f.noProcessIsLeft()
	}
	f.start()
}
