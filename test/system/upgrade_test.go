//go:build system

package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/scafo/scafo"
)

// load asks something again and again from several sides until it is stopped, and
// remembers what failed.
type load struct {
	what   string
	asked  atomic.Int64
	failed atomic.Int64
	first  atomic.Value // of the failures, in words
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func startLoad(t testing.TB, what string, sides int, ask func(context.Context) error) *load {
	l := &load{what: what}
	ctx, cancel := context.WithCancel(t.Context())
	l.cancel = cancel
	for range sides {
		l.wg.Go(func() {
			for ctx.Err() == nil {
				l.asked.Add(1)
				if err := ask(context.WithoutCancel(ctx)); err != nil {
					l.failed.Add(1)
					l.first.CompareAndSwap(nil, err.Error())
				}
			}
		})
	}
	return l
}

// stop ends the load; nothing of it may have failed.
func (l *load) stop(t testing.TB) {
	t.Helper()
	l.cancel()
	l.wg.Wait()
	if l.failed.Load() > 0 {
		t.Errorf("%s: %d of %d failed, the first with %v", l.what, l.failed.Load(), l.asked.Load(), l.first.Load())
	}
	t.Logf("%s: %d requests", l.what, l.asked.Load())
}

// copyProgram puts a program at a path in one step, as an upgrade does.
func copyProgram(t testing.TB, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(to+".new", to); err != nil {
		t.Fatal(err)
	}
}

// behindIngress puts an ingress of its own before the first machine, deploys counter and
// chat, and opens two sockets to the chat; stillTalk sends a word through them.
func behindIngress(t testing.TB, c *cluster) (stillTalk func(word string)) {
	t.Helper()
	c.http = freePort(t)
	c.requestClient = &http.Client{Timeout: patience, Transport: &http.Transport{
		MaxIdleConnsPerHost: 8,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if !strings.HasPrefix(address, "127.0.0.1:") {
				address = "127.0.0.1:" + strconv.Itoa(c.http)
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}}
	t.Cleanup(c.requestClient.CloseIdleConnections)
	start(t, []string{"SCAFO_INGRESS_TOKEN=" + clusterIngressToken}, bin(t, "scafo-caddy"), "run", "--node", c.machines[0].url,
		"--listen", "127.0.0.1", "--http-port", strconv.Itoa(c.http), "--http-only", "--state", filepath.Join(c.state, "ingress"))
	for _, application := range []string{"counter", "chat"} {
		c.must("deploy", c.example(application))
		eventually(t, application+" answers", func() error {
			status, body, err := c.get("http://" + application + ".apps.test")
			if err != nil || status != http.StatusOK {
				return fmt.Errorf("%d %q %v", status, body, err)
			}
			return nil
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	dial := func() *websocket.Conn {
		w, _, err := websocket.Dial(ctx, "ws://chat.apps.test/ws/lobby?name=someone", &websocket.DialOptions{HTTPClient: c.requestClient})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.CloseNow() })
		return w
	}
	from, to := dial(), dial()
	return func(word string) {
		t.Helper()
		if err := from.Write(ctx, websocket.MessageText, []byte(word)); err != nil {
			t.Fatalf("an open socket: %v", err)
		}
		for {
			_, msg, err := to.Read(ctx)
			if err != nil {
				t.Fatalf("an open socket: %v", err)
			}
			if bytes.Contains(msg, []byte(word)) {
				return
			}
		}
	}
}

// A node that is killed is missed by nobody: what runs goes on, and the next daemon
// finds it.
func TestAKilledNodeDropsNothing(t *testing.T) {
	c := newCluster(t, 1)
	m := c.machines[0]
	stillTalk := behindIngress(t, c)
	before, err := c.process("counter")
	if err != nil {
		t.Fatal(err)
	}
	visitors := startLoad(t, "the ingress", 3, func(context.Context) error {
		status, body, err := c.get("http://counter.apps.test")
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("%d %q %v", status, body, err)
		}
		return nil
	})
	stillTalk("before")
	m.kill(t)
	time.Sleep(3 * time.Second) // three polls of the ingress find nobody
	stillTalk("without a node")
	c.run(m)
	after, err := c.process("counter")
	if err != nil || after.PID != before.PID || after.Restarts != 0 || after.State != scafo.ProcessReady {
		t.Errorf("the runtime: %+v, then %+v, %v", before, after, err)
	}
	time.Sleep(2 * time.Second) // and two polls find the next one
	stillTalk("afterwards")
	visitors.stop(t)
	if got, want := number(t, c.body("http://counter.apps.test")), int(visitors.asked.Load())+2; got != want {
		t.Errorf("the count is %d, want %d", got, want)
	}
}

// An upgrade of the daemon drops nothing: SIGHUP executes the program on disk in
// place of the old one, while requests run through the ingress and the API, a socket
// is open, and a deploy is under way. A program that does not start changes nothing.
func TestAnUpgradeDropsNothing(t *testing.T) {
	c := newCluster(t, 1)
	m := c.machines[0]
	m.program.stop(t)
	program := filepath.Join(t.TempDir(), "scafo")
	copyProgram(t, bin(t, "scafo"), program)
	m.program = start(t, append(m.env, "SCAFO_LOG_FORMAT=text"), program, m.args...)
	said := func(what string, times int) {
		t.Helper()
		eventually(t, "the node says "+what, func() error {
			if n := strings.Count(m.out.String(), what); n < times {
				return fmt.Errorf("%d times", n)
			}
			return nil
		})
	}
	said("the node answers", 1)
	stillTalk := behindIngress(t, c)
	counter := "http://counter.apps.test"
	before, err := c.process("counter")
	if err != nil {
		t.Fatal(err)
	}
	visitors := startLoad(t, "the ingress", 3, func(context.Context) error {
		status, body, err := c.get(counter)
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("%d %q %v", status, body, err)
		}
		return nil
	})
	routes := startLoad(t, "the API", 1, func(context.Context) error {
		_, err := c.routes(m)
		return err
	})
	fresh := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	health := startLoad(t, "the API on new connections", 1, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.api+"/.well-known/scafo/health", nil)
		if err != nil {
			return err
		}
		res, err := fresh.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
			return fmt.Errorf("%d %v", res.StatusCode, err)
		}
		return nil
	})

	upgrade := func() {
		t.Helper()
		if err := m.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	// A program that is broken is told, and the old one goes on.
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho this one is broken >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	copyProgram(t, broken, program)
	upgrade()
	said("this one is broken", 1)

	deployed := make(chan error, 1)
	dir := worker(t, "plain", `export default { fetch() { return new Response("plain") } }`)
	for i := range 2 {
		copyProgram(t, bin(t, "scafo"), program)
		if i == 0 {
			go func() {
				_, errs, err := c.scafo("deploy", dir)
				if err != nil {
					err = errors.New(errs)
				}
				deployed <- err
			}()
			said("msg=deploy.accepted event=deploy.accepted actor=admin application=plain", 1)
		}
		upgrade()
		said("the node answers", 2+i)
	}
	if err := <-deployed; err != nil {
		t.Errorf("a deploy under way: %v", err)
	}
	said("event=deploy.resumed", 1) // it was under way
	if body, err := c.ask("plain"); err != nil || body != "plain" {
		t.Errorf("what was deployed meanwhile: %q %v", body, err)
	}
	stillTalk("after the upgrade")
	time.Sleep(2 * time.Second) // the load goes on for two polls of the ingress
	visitors.stop(t)
	routes.stop(t)
	health.stop(t)
	after, err := c.process("counter")
	if err != nil || after.PID != before.PID || after.Restarts != 0 {
		t.Errorf("the runtime: %+v, then %+v, %v", before, after, err)
	}
	// The metrics are the new program's, on the same listener.
	for series, want := range map[string]float64{`scafo_process_events_total{event="started"}`: 1, "scafo_deploys_active": 0} {
		if got, err := c.metric(m, series); err != nil || got != want {
			t.Errorf("%s is %g, want %g; %v", series, got, want, err)
		}
	}
	if got, err := c.metric(m, `scafo_process_events_total{event="adopted"}`); err != nil || got < 1 {
		t.Errorf("%g processes were taken over; %v", got, err)
	}
	now, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", m.Process.Pid))
	if err != nil || now != program {
		t.Errorf("the process runs %q, %v", now, err)
	}
	// Every request was counted once.
	if got, want := number(t, c.body(counter)), int(visitors.asked.Load())+2; got != want {
		t.Errorf("the count is %d, want %d", got, want)
	}
}
