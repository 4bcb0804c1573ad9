//go:build system

package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/paralleltest"
)

// where are the flags that name the cluster's bucket.
func (c *cluster) where() []string {
	return []string{"--bucket-url", "s3://" + c.store.Bucket + "/one", "--bucket-endpoint", c.store.URL, "--bucket-region", c.store.Region}
}

// nodes runs a command of `scafo nodes`.
func (c *cluster) nodes(args ...string) (string, string, error) {
	c.t.Helper()
	return c.scafo(append(append([]string{"nodes"}, args...), c.where()...)...)
}

func (c *cluster) mustNodes(args ...string) {
	c.t.Helper()
	if out, errs, err := c.nodes(args...); err != nil {
		c.t.Fatalf("scafo nodes %v: %v\n%s%s", args, err, out, errs)
	}
}

// standing is what `nodes show` says of a machine.
func (c *cluster) standing(m *machine) (string, error) {
	out, errs, err := c.nodes("show", m.id, "--json")
	if err != nil {
		return "", errors.New(errs)
	}
	var v struct {
		Node struct {
			State string `json:"state"`
		} `json:"node"`
	}
	return v.Node.State, json.Unmarshal([]byte(out), &v)
}

// refusedToRun starts a machine that the fleet does not admit.
func (c *cluster) refusedToRun(m *machine) {
	c.t.Helper()
	m.program = start(c.t, m.env, bin(c.t, "scafo"), m.args...)
	c.leaves(m)
}

// leaves waits until a machine that was removed has ended by itself, with the reason in
// its log.
func (c *cluster) leaves(m *machine) {
	c.t.Helper()
	select {
	case <-m.done:
	case <-time.After(patience):
		c.t.Fatalf("%s goes on\n%s", m.id, m.out)
	}
	if m.err == nil || !contains(m.out.String(), "was removed from the fleet") || !contains(m.out.String(), "scafo nodes admit") {
		c.t.Errorf("%s: %v, and said\n%s", m.id, m.err, m.out)
	}
	if left := c.belongsTo(m); len(left) > 0 {
		c.t.Errorf("%s left %v behind", m.id, left)
	}
}

// A drain moves what a machine runs without a failed request; a machine that was
// removed ends, is refused, and comes back only when it is admitted.
func TestAMachineIsDrainedAndRemoved(t *testing.T) {
	paralleltest.Early(t)
	c := newCluster(t, 2)
	c.variables = []string{"AWS_ACCESS_KEY_ID=" + c.store.AccessKey, "AWS_SECRET_ACCESS_KEY=" + c.store.SecretKey}
	behindIngress(t, c)
	home, other := c.machines[0], c.machines[1]
	if s, err := c.stateOf(home); err != nil || len(s.Processes) == 0 {
		t.Fatalf("%+v %v", s.Processes, err)
	}
	ask := func(ctx context.Context) error {
		for _, application := range []string{"counter", "chat"} {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+application+".apps.test", nil)
			if err != nil {
				return err
			}
			if status, body, err := c.do(req); err != nil || status != http.StatusOK {
				return fmt.Errorf("%s: %d %q %v", application, status, body, err)
			}
		}
		return nil
	}
	visitors := startLoad(t, "the ingress", 2, ask)
	c.mustNodes("drain", home.id, "--wait", "--timeout", "60s")
	if s, err := c.standing(home); err != nil || s != "drained" {
		t.Errorf("after the wait it is %s, %v", s, err)
	}
	time.Sleep(time.Second) // the load goes on where everything is now
	visitors.stop(t)
	if s, err := c.stateOf(other); err != nil || len(s.Processes) != 2 {
		t.Errorf("%s runs %+v, %v", other.id, s.Processes, err)
	}

	// It is removed: it ends, its key is refused, and so is its next life.
	key := []string{"status", "--node", other.url, "--key-file", filepath.Join(home.state, "node.key")}
	if _, errs, err := c.scafo(key...); err != nil {
		t.Errorf("a node's key is refused before it is removed: %s", errs)
	}
	c.mustNodes("remove", home.id)
	c.leaves(home)
	eventually(t, "its key is refused", func() error {
		_, errs, err := c.scafo(key...)
		if err == nil || !contains(errs, string(scafo.CodeAuthInvalid)) {
			return fmt.Errorf("%v %s", err, errs)
		}
		return nil
	})
	c.refusedToRun(home)
	c.mustNodes("admit", home.id)
	c.run(home)

	// One whose daemon is gone while its applications run ends them when it comes back.
	other.kill(t)
	if _, errs, err := c.nodes("remove", other.id); err == nil || !contains(errs, string(scafo.CodeReferenceHeld)) {
		t.Errorf("a machine that serves is removed without --force: %v %s", err, errs)
	}
	if len(c.belongsTo(other)) == 0 {
		t.Error("its applications do not outlive the daemon")
	}
	c.mustNodes("remove", other.id, "--force")
	c.refusedToRun(other)
}
