//go:build system

package server_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Redeploys under a load on KV and D1: what was acknowledged is there, and no more
// calls fail than the reference says: those under way when the object moves.
func TestStoresUnderRedeploys(t *testing.T) {
	const swaps = 3
	b := newBench(t)
	b.deployProject(storesConfig, storesWorker)
	s := b.serve("n1")
	s.want("/d1/make", "ok")
	var stop atomic.Bool
	var acknowledged []string // of one goroutine, read after its end
	var wg sync.WaitGroup
	failed := map[string]*atomic.Int64{}
	for _, path := range []string{"/d1/add?v=", "/d1/all?n=", "/kv/put?k=a&v=", "/kv/get?k=a&n="} {
		failures := &atomic.Int64{}
		failed[path] = failures
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				status, body, err := s.try(fmt.Sprint(path, n))
				switch {
				case err != nil || status != 200:
					failures.Add(1)
					if err != nil || status < 500 {
						t.Errorf("%s: %d %s %v", path, status, body, err)
					}
				case path == "/d1/add?v=":
					acknowledged = append(acknowledged, fmt.Sprint(n))
				}
				time.Sleep(5 * time.Millisecond) // a load, and room for the swaps
			}
		})
	}
	for i := range swaps {
		b.deployProject(storesConfig, strings.ReplaceAll(storesWorker, "RELEASE", fmt.Sprint("r", i)))
		if o := s.reload(); o != "adopted" {
			t.Errorf("reload: %s", o)
		}
		b.until("the old one's end", 15*time.Second, func() bool { return len(s.state().Processes) == 1 })
	}
	stop.Store(true)
	wg.Wait()
	for path, n := range failed {
		most := int64(0) // they are done again
		if path == "/d1/add?v=" {
			most = swaps
		}
		if n.Load() > most {
			t.Errorf("%s: %d calls failed in %d redeploys, want %d at most", path, n.Load(), swaps, most)
		}
		t.Logf("%s: %d calls failed in %d redeploys", path, n.Load(), swaps)
	}
	body, _ := s.settled("/d1/all")
	var rows []string
	if err := json.Unmarshal([]byte(body), &rows); err != nil {
		t.Fatal(err)
	}
	for _, v := range acknowledged {
		if !slices.Contains(rows, v) {
			t.Errorf("the acknowledged row %s is not there", v)
		}
	}
	t.Logf("%d rows acknowledged, %d there", len(acknowledged), len(rows))
}
