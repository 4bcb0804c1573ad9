//go:build system

package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/paralleltest"
)

// lost ends a machine for good: the program, its workerds, and the disk.
func (s *serving) lost(node string) {
	s.b.Helper()
	_ = s.cmd.Process.Kill()
	<-s.done
	if err := os.RemoveAll(filepath.Join(s.b.dir, node)); err != nil {
		s.b.Fatal(err)
	}
}

// leaseAndMore is how long a peer waits for what a lost machine owned.
const leaseAndMore = 50 * time.Second

// What was under way on a machine that is lost goes on on another one, once the
// lease of the lost one is over.
func TestWhatIsUnderWayMoves(t *testing.T) {
	paralleltest.Waits(t)
	t.Run("queue", func(t *testing.T) {
		paralleltest.Early(t)
		b := newBench(t)
		b.deployProject(queueConfig, queueWorker)
		s1, s2 := b.serve("n1"), b.serve("n2")
		s1.want("/make", "ok")
		s1.want("/send?name=kept&delay=5", "ok")
		s1.want("/send?name=bad", "ok")
		s1.lost("n1")
		s2.eventually("/seen?name=kept", "RELEASE1", leaseAndMore)
		// The try that was cut off may have counted.
		b.until("the dead letter", leaseAndMore, func() bool {
			_, got, err := s2.try("/seen?name=bad")
			return err == nil && strings.HasPrefix(got, "RELEASE1") && strings.HasSuffix(got, "dead1")
		})
	})
	t.Run("workflow", func(t *testing.T) {
		paralleltest.Early(t)
		b := newBench(t)
		b.deployProject(object{"workflows": []object{{"binding": "ORDERS", "name": "orders", "class_name": "Order"}}}, workflowWorker)
		s1, s2 := b.serve("n1"), b.serve("n2")
		s1.want("/start?id=w&pause=5&wait", "w")
		s1.want("/start?id=v&pause=5", "v")
		s1.asleep("w", "v")
		s1.lost("n1")
		s2.settled("/approve?id=w")
		s2.eventually("/status?id=w", `complete {"b":20,"by":"boss","release":"RELEASE"}`, leaseAndMore)
		s2.eventually("/status?id=v", `complete {"b":20,"by":"nobody","release":"RELEASE"}`, leaseAndMore)
	})
	// A Worker without state that gets some, and loses it, and has it back.
	t.Run("state comes and goes", func(t *testing.T) {
		paralleltest.Beside(t)
		b := newBench(t)
		b.deploy(strings.ReplaceAll(releases, "RELEASE", "plain"))
		s := b.serve("n1")
		s.want("/", "plain")
		next := func(deploy func(), path, want string) {
			t.Helper()
			deploy()
			if o := s.reload(); o != "adopted" {
				t.Fatalf("reload: %s", o)
			}
			s.want(path, want)
		}
		next(func() { b.deployProject(storesConfig, storesWorker) }, "/kv/put?k=a&v=1", "ok")
		next(func() { b.deploy(strings.ReplaceAll(releases, "RELEASE", "plain again")) }, "/", "plain again")
		next(func() { b.deployProject(storesConfig, storesWorker) }, "/kv/get?k=a", "1")
	})
}
