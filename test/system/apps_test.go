//go:build system

package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/paralleltest"
)

// stopped waits until no machine runs or routes an application, and every process
// that belonged to it is gone. The ingress answers 404 for it where it is to be
// unknown, and 503 where it is to be served and cannot.
func (c *cluster) stopped(application string, pids map[int]bool, known bool) {
	c.t.Helper()
	eventually(c.t, application+" is served by nobody", func() error {
		for _, m := range c.machines {
			s, err := c.stateOf(m)
			if err != nil {
				return err
			}
			for _, p := range s.Processes {
				if p.Application == application {
					return fmt.Errorf("%s has it %s", m.id, p.State)
				}
			}
			r, err := c.routes(m)
			if err != nil {
				return err
			}
			for _, route := range r.Routes {
				if route.Application == application {
					return fmt.Errorf("%s routes %s", m.id, route.Host)
				}
			}
			unserved := false
			for _, u := range r.Unserved {
				unserved = unserved || u.Application == application
			}
			if unserved != known {
				return fmt.Errorf("%s lists it as unserved: %v", m.id, unserved)
			}
		}
		for pid := range pids {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				return fmt.Errorf("process %d is still there", pid)
			}
		}
		return nil
	})
}

// running are the runtime's processes of an application, once n nodes serve it.
func (c *cluster) running(application string, n int) map[int]bool {
	c.t.Helper()
	var pids map[int]bool
	eventually(c.t, fmt.Sprintf("%d nodes serve %s", n, application), func() error {
		pids = map[int]bool{}
		for _, m := range c.machines {
			s, err := c.stateOf(m)
			if err != nil {
				return err
			}
			for _, p := range s.Processes {
				if p.Application == application && p.State == scafo.ProcessReady {
					pids[p.PID] = true
				}
			}
		}
		for _, m := range c.machines {
			r, err := c.routes(m)
			if err != nil {
				return err
			}
			upstreams := 0
			for _, route := range r.Routes {
				if route.Application == application {
					upstreams = len(route.Upstreams)
				}
			}
			if upstreams != n {
				return fmt.Errorf("%s routes to %d", m.id, upstreams)
			}
		}
		if len(pids) != n {
			return fmt.Errorf("%d do", len(pids))
		}
		return nil
	})
	return pids
}

// Blocked and retired applications stop on every node, leave the ingress and take
// no harm: what they kept is there when they go on.
func TestStoppedApplications(t *testing.T) {
	paralleltest.Beside(t)
	c := newCluster(t, 2)
	c.must("deploy", c.example("counter"), "--replicas", "2")
	c.must("deploy", worker(t, "other", `export default { fetch() { return new Response("other") } }`))
	want := 0
	for i, way := range []struct{ stop, start, state string }{{"block", "unblock", "blocked"}, {"retire", "unretire", "retired"}} {
		node := []string{"--node", c.machines[i%2].url}
		pids := c.running("counter", 2)
		body, err := c.ask("counter")
		if want++; err != nil || number(t, body) != want {
			t.Fatalf("%q %v, want %d", body, err, want)
		}
		began := time.Now()
		c.must(append([]string{"apps", way.stop, "counter"}, node...)...)
		c.stopped("counter", pids, false)
		t.Logf("%s: gone everywhere after %s", way.state, time.Since(began).Round(10*time.Millisecond))
		if out := c.must("apps", "show", "counter"); !strings.Contains(out, way.state) {
			t.Errorf("%s", out)
		}
		if body, err := c.ask("other"); err != nil || body != "other" {
			t.Errorf("another application: %q %v", body, err)
		}
		if way.stop == "block" {
			_, errs, err := c.scafo("deploy", c.example("counter"))
			if err == nil || !contains(errs, string(scafo.CodeApplicationBlocked)) {
				t.Errorf("a blocked application takes deploys: %v %s", err, errs)
			}
			if out := c.machines[0].out.String() + c.machines[1].out.String(); !contains(out, "application.blocked") || !contains(out, "admin") {
				t.Error("no event of the block")
			}
		}
		c.must("apps", way.start, "counter")
	}
	c.running("counter", 2)
	body, err := c.ask("counter")
	if want++; err != nil || number(t, body) != want {
		t.Errorf("%q %v, want %d", body, err, want)
	}
	c.must("apps", "scale", "counter", "1")
	c.running("counter", 1)
	c.must("apps", "select", "counter", "region=nowhere")
	c.stopped("counter", nil, true)
	out := c.must("status", "--node", c.coordinator(t).url)
	if !contains(out, "unplaced: counter (0 of 1): no node has the labels region=nowhere") {
		t.Errorf("status does not say why it runs nowhere:\n%s", out)
	}
	c.must("apps", "select", "counter", "--clear")
	c.must("apps", "scale", "counter", "all")
	c.running("counter", 2)
	body, err = c.ask("counter")
	if want++; err != nil || number(t, body) != want {
		t.Errorf("%q %v, want %d", body, err, want)
	}
}

// coordinator is the machine that holds the lease.
func (c *cluster) coordinator(t *testing.T) *machine {
	t.Helper()
	var holder *machine
	eventually(t, "somebody coordinates", func() error {
		for _, m := range c.machines {
			s, err := c.stateOf(m)
			if err != nil {
				return err
			}
			if s.Coordinator != nil && s.Coordinator.Self {
				holder = m
				return nil
			}
		}
		return fmt.Errorf("nobody")
	})
	return holder
}

// A freeze on one node stops deploys on all of them, at once, and nothing else.
func TestAFreezeHoldsEverywhere(t *testing.T) {
	paralleltest.Beside(t)
	c := newCluster(t, 2)
	dir := worker(t, "plain", `export default { fetch() { return new Response("plain") } }`)
	c.must("deploy", dir)
	c.must("freeze", "on", "--reason", "moving to a new release", "--node", c.machines[0].url)
	for _, m := range c.machines {
		_, errs, err := c.scafo("deploy", dir, "--name", "fresh", "--node", m.url)
		if err == nil || !contains(errs, "moving to a new release") || !contains(errs, string(scafo.CodeDeploysFrozen)) {
			t.Errorf("%s: %v %s", m.id, err, errs)
		}
	}
	if out := c.must("apps", "list"); contains(out, "fresh") {
		t.Errorf("a refused deploy made an application:\n%s", out)
	}
	if body, err := c.ask("plain"); err != nil || body != "plain" {
		t.Errorf("%q %v", body, err)
	}
	pids := c.running("plain", 1)
	c.must("apps", "retire", "plain")
	c.stopped("plain", pids, false)
	c.must("freeze", "off", "--node", c.machines[1].url)
	c.must("deploy", dir, "--name", "fresh", "--node", c.machines[0].url)
}

// A key that one node revokes is refused by the others as soon as they hear of it,
// on routes that believe their cache too; and rotation leaves nobody without a key.
func TestRevokedKeysEverywhere(t *testing.T) {
	paralleltest.Beside(t)
	c := newCluster(t, 2)
	one, two := c.machines[0].url, c.machines[1].url
	key := filepath.Join(c.state, "ci.jwk")
	c.must("operators", "add", "ci", "--applications", "shop-*", "--new-key", key, "--node", one)
	use := func(node string) error {
		_, errs, err := c.scafo("status", "--key-file", key, "--node", node)
		if err != nil {
			return fmt.Errorf("%w: %s", err, errs)
		}
		return nil
	}
	if err := use(two); err != nil {
		t.Fatal(err)
	}
	out := c.must("operators", "rotate", "--key-file", key, "--node", one)
	if !contains(out, "replaces ci, which is revoked") {
		t.Error(out)
	}
	if err := use(two); err != nil {
		t.Errorf("the new key: %v", err)
	}
	list := c.must("operators", "list", "--key-file", key, "--node", two)
	if strings.Count(list, "\n") != 2 || !contains(list, "shop-*") {
		t.Errorf("%s", list)
	}
	id := strings.Fields(out)[0]
	c.must("operators", "remove", id, "--node", one)
	began := time.Now()
	eventually(t, "the other node refuses the key", func() error {
		if err := use(two); err == nil || !contains(err.Error(), string(scafo.CodeAuthInvalid)) {
			return fmt.Errorf("it says %w", orNil(err))
		}
		return nil
	})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s, and it was told", took)
	}
}
