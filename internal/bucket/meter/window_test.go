package meter_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/bucket/meter"
)

// The window forgets the start, and nothing of the last hour.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := meter.New(memory.New())
		began := time.Now()
		w := meter.NewWindow(b)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = w.Run(ctx) }()
		ask := func(n int) {
			for range n {
				_, _ = b.Get(t.Context(), "k")
			}
		}
		ask(100) // the start
		if c, _, beginning := w.Recent(); c.Total() != 100 || !beginning {
			t.Fatalf("the start: %v, %v", c, beginning)
		}
		time.Sleep(time.Second)
		for minute := range 180 {
			time.Sleep(time.Minute)
			ask(1)
			c, since, beginning := w.Recent()
			passed := time.Since(since)
			if passed > meter.WindowLength+5*time.Minute+time.Second {
				t.Fatalf("minute %d: the window is %s", minute, passed)
			}
			if beginning || since.Sub(began) < meter.WindowStart {
				t.Fatalf("minute %d: since %s after the beginning, which it tells of: %v", minute, since.Sub(began), beginning)
			}
			want := int64(passed/time.Minute) + 1
			if known := min(time.Since(began)-meter.WindowStart, meter.WindowLength); passed < known {
				t.Fatalf("minute %d: only %s is known of %s", minute, passed, known)
			}
			// A request at the very moment of a mark may be in it or not.
			if got := c.Total(); got != want && got != want-1 {
				t.Fatalf("minute %d: %d requests in %s, want %d", minute, got, passed, want)
			}
		}
		cancel()
		<-done
	})
}
