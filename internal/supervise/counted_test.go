package supervise

import (
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/scafo/scafo"
)

// What happens to a process is told once each: its starts, its ends, and a takeover.
func TestWhatHappensIsCounted(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	var mu sync.Mutex
	got := map[Happening]int{}
	count := func(c *Config) {
		c.Counted = func(h Happening) {
			mu.Lock()
			defer mu.Unlock()
			got[h]++
		}
	}
	s, stop := w.supervise(count)
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	get(t, fmt.Sprintf("%s/exit?code=1", st.URL))
	again := until(t, s, "app", "another one", func(n scafo.ProcessStatus) bool { return ready(v1)(n) && n.PID != st.PID })
	stop() // the daemon goes, the process stays
	s, _ = w.supervise(count)
	s.Set(one(v1))
	until(t, s, "app", "the same", func(n scafo.ProcessStatus) bool { return ready(v1)(n) && n.PID == again.PID })
	s.Set(nil)
	waitFor(t, "no process", func() bool { return len(s.Statuses()) == 0 })
	mu.Lock()
	defer mu.Unlock()
	want := map[Happening]int{Started: 2, Ready: 3, Crashed: 1, Adopted: 1, Stopped: 1}
	if !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}
