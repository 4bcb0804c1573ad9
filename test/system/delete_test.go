//go:build system

package system

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/s3"
	"github.com/scafo/scafo/internal/paralleltest"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

// fleetBucket is the bucket of a cluster.
func (c *cluster) bucket() *s3.Store {
	c.t.Helper()
	b, err := s3.Open(c.t.Context(), s3.Config{
		Bucket: c.store.Bucket, Prefix: "one", Endpoint: c.store.URL, Region: c.store.Region,
		Credentials: credentials.NewStaticCredentialsProvider(c.store.AccessKey, c.store.SecretKey, ""),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(b.Close)
	return b
}

// keysWith lists every key of the whole bucket that has that part.
func keysWith(t testing.TB, b bucket.Bucket, part string) []string {
	t.Helper()
	var out []string
	err := bucket.Walk(context.Background(), b, "", func(i bucket.Info) error {
		if strings.Contains(i.Key, part) {
			out = append(out, i.Key)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *cluster) uid(application string) string {
	c.t.Helper()
	var said struct{ Application scafo.Application }
	if err := json.Unmarshal([]byte(c.must("apps", "show", application, "--json")), &said); err != nil || said.Application.UID == "" {
		c.t.Fatalf("%v %+v", err, said)
	}
	return said.Application.UID
}

// onDisk are the machines that have something on disk for a uid.
func (c *cluster) onDisk(uid string) []string {
	var out []string
	for _, m := range c.machines {
		if _, err := os.Stat(filepath.Join(m.state, "runtimes", "apps", uid)); err == nil {
			out = append(out, m.id)
		}
	}
	return out
}

// follower is a machine that does not hold the lease.
func (c *cluster) follower(t *testing.T) *machine {
	t.Helper()
	holder := c.coordinator(t)
	for _, m := range c.machines {
		if m != holder {
			return m
		}
	}
	t.Fatal("there is one machine")
	return nil
}

// An application with data is deleted, by way of a node that does not coordinate:
// processes, directories, routes and keys are gone on all machines when the answer is
// there, another application does not notice, and the next one of the name is new.
func TestADeletedApplicationIsGone(t *testing.T) {
	paralleltest.Beside(t)
	c := newCluster(t, 2)
	b := c.bucket()
	c.must("deploy", c.example("counter"), "--replicas", "2")
	c.must("deploy", worker(t, "counter-staging", `export default { fetch() { return new Response("other") } }`))
	c.running("counter", 2)
	for want := 1; want <= 3; want++ {
		if body, err := c.ask("counter"); err != nil || number(t, body) != want {
			t.Fatalf("%q %v, want %d", body, err, want)
		}
	}
	uid := c.uid("counter")
	eventually(t, "the object's data is in the bucket", func() error {
		if n := len(keysWith(t, b, "/"+uid+"/")); n < 8 {
			return fmt.Errorf("%d keys", n)
		}
		return nil
	})
	if on := c.onDisk(uid); len(on) != 2 {
		t.Fatalf("on the disks of %v", on)
	}
	node := []string{"--node", c.follower(t).url}
	if _, errs, err := c.scafo(append([]string{"apps", "delete", "counter", "--yes"}, node...)...); err == nil || !contains(errs, string(scafo.CodeNotRetired)) {
		t.Errorf("not retired: %v %s", err, errs)
	}
	c.must("apps", "retire", "counter")
	if _, errs, err := c.scafo(append([]string{"apps", "delete", "counter", "--yes"}, node...)...); err == nil || !contains(errs, string(scafo.CodeRetireGrace)) {
		t.Errorf("within its grace period: %v %s", err, errs)
	}
	c.must("apps", "unretire", "counter")
	pids := c.running("counter", 2)
	if _, errs, err := c.scafo(append([]string{"apps", "delete", "counter", "--force"}, node...)...); err == nil || !contains(errs, "--yes") {
		t.Errorf("without being asked: %v %s", err, errs)
	}

	began := time.Now()
	out := c.must(append([]string{"apps", "delete", "counter", "--force", "--yes", "--json"}, node...)...)
	t.Logf("deleted within %s", time.Since(began).Round(10*time.Millisecond))
	var said struct{ Deleted []string }
	if err := json.Unmarshal([]byte(out), &said); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, part := range []string{"fleets/counter/" + uid + "/", registry.ApplicationKey("counter"), registry.PlacementKey("counter", uid), registry.DeploymentsPrefix("counter", uid), registry.DeploysPrefix("counter")} {
		if !slices.ContainsFunc(said.Deleted, func(k string) bool { return strings.HasPrefix(k, part) }) {
			t.Errorf("the answer names nothing of %s", part)
		}
	}
	for pid := range pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			t.Errorf("process %d is there", pid)
		}
	}
	if left := keysWith(t, b, uid); len(left) > 0 {
		t.Errorf("left in the bucket: %v", left)
	}
	if left := keysWith(t, b, "/counter/"); len(left) > 0 {
		t.Errorf("left in the bucket: %v", left)
	}
	eventually(t, "its directories are gone", func() error {
		if on := c.onDisk(uid); len(on) > 0 {
			return fmt.Errorf("there on %v", on)
		}
		return nil
	})
	c.stopped("counter", pids, false)
	if body, err := c.ask("counter-staging"); err != nil || body != "other" {
		t.Errorf("another application: %q %v", body, err)
	}
	check.Bucket(t, b)
	logs := c.machines[0].out.String() + c.machines[1].out.String()
	if !contains(logs, "application.deleted") || !contains(logs, "actor=admin") && !contains(logs, `"actor":"admin"`) {
		t.Error("no event names who deleted it")
	}
	if _, errs, err := c.scafo("apps", "delete", "counter", "--force", "--yes"); err == nil || !contains(errs, string(scafo.CodeNotFound)) {
		t.Errorf("once more: %v %s", err, errs)
	}

	c.must("deploy", c.example("counter"), "--replicas", "2")
	c.running("counter", 2)
	if body, err := c.ask("counter"); err != nil || number(t, body) != 1 {
		t.Errorf("the next one begins with %q %v", body, err)
	}
	if next := c.uid("counter"); next == uid {
		t.Error("the next one has the uid of the last")
	}
}

// The coordinator is killed in the middle of a deletion, daemon alone: its runtimes go
// on. Repeated at the other machine the deletion comes to its end, and ends those too.
func TestACoordinatorDiesWhileItDeletes(t *testing.T) {
	paralleltest.Beside(t)
	c := newCluster(t, 2)
	for _, m := range c.machines {
		m.stop(t)
		m.args = append(m.args, "--lease-ttl-seconds", "3")
		c.run(m)
	}
	b := c.bucket()
	c.must("deploy", c.example("counter"), "--replicas", "2")
	pids := c.running("counter", 2)
	if body, err := c.ask("counter"); err != nil || number(t, body) != 1 {
		t.Fatalf("%q %v", body, err)
	}
	uid := c.uid("counter")
	const many = 4000
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < many; i += 8 {
				if _, err := b.Put(t.Context(), fmt.Sprintf("fleets/counter/%s/zz/%05d", uid, i), []byte("x")); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	holder, survivor := c.coordinator(t), c.follower(t)
	cut := make(chan error, 1)
	go func() {
		_, errs, err := c.scafo("apps", "delete", "counter", "--force", "--yes", "--node", holder.url)
		cut <- fmt.Errorf("%w: %s", orNil(err), errs)
	}()
	eventually(t, "the deletion is under way", func() error {
		page, err := b.List(t.Context(), fmt.Sprintf("fleets/counter/%s/zz/", uid), bucket.ListOptions{Max: 1})
		if err != nil {
			return err
		}
		if len(page.Objects) == 0 {
			t.Fatal("it was too fast")
		}
		if strings.HasSuffix(page.Objects[0].Key, "/00000") {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	holder.kill(t)
	if err := <-cut; !contains(err.Error(), "broke off") && !contains(err.Error(), "cannot reach") {
		t.Errorf("the caller heard: %v", err)
	}
	if left := keysWith(t, b, "/"+uid+"/zz/"); len(left) == 0 || len(left) == many {
		t.Fatalf("%d keys are left", len(left))
	}
	began := time.Now()
	c.must("apps", "delete", "counter", "--force", "--yes", "--node", survivor.url)
	t.Logf("finished %s after the coordinator's death", time.Since(began).Round(10*time.Millisecond))
	if left := keysWith(t, b, uid); len(left) > 0 {
		t.Errorf("left in the bucket: %v", left[:min(len(left), 10)])
	}
	eventually(t, "the dead daemon's runtimes have ended", func() error {
		for pid := range pids {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				return fmt.Errorf("process %d is there", pid)
			}
		}
		return nil
	})
	check.Bucket(t, b)
	c.run(holder)
	eventually(t, "its directories are gone", func() error {
		if on := c.onDisk(uid); len(on) > 0 {
			return fmt.Errorf("there on %v", on)
		}
		return nil
	})
}
