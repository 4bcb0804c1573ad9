package embedded

import (
	"context"
	"time"

	"github.com/scafo/scafo/internal/bucket/embedded/state"
)

// A store that is stopped, or stuck, keeps its port and answers nobody: everything on
// this machine would wait for it.
const (
	// DefaultFrozenAfter is shorter than the leases that the runtimes keep in it.
	DefaultFrozenAfter = 10 * time.Second
	// pulses is how often it is asked in that time.
	pulses   = 5
	killWait = 5 * time.Second
	// stopWait is how long a kept store may take to end before it is killed.
	stopWait = 8 * time.Second
)

// await returns nil once the store has ended, also because it was silent for too long
// and was killed for that.
func (k *Keeper) await(ctx context.Context, h *Handle) error {
	watched, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.feel(watched, h)
	}()
	err := h.Wait(ctx)
	stop()
	<-done
	return err
}

// feel asks the store whether it lives, until ctx ends, and kills a silent one.
func (k *Keeper) feel(ctx context.Context, h *Handle) {
	dir, err := state.Open(k.stateDir)
	if err != nil {
		return // it is found by its end alone
	}
	patience := k.o.FrozenAfter
	if patience == 0 {
		patience = DefaultFrozenAfter
	}
	tick := time.NewTicker(patience / pulses)
	defer tick.Stop()
	heard := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c, err := dir.LoadConfig()
		if err != nil {
			heard = time.Now() // nobody knows where to ask
			continue
		}
		asked, cancel := context.WithTimeout(ctx, patience/2)
		err = probe(asked, c.URL())
		cancel()
		switch {
		case err == nil:
			heard = time.Now()
		case ctx.Err() == nil && time.Since(heard) >= patience:
			k.o.Log.Warn("the embedded bucket does not answer and is killed", "event", "bucket.frozen", "pid", h.PID(), "err", err)
			killing, cancel := context.WithTimeout(ctx, killWait)
			_ = h.Kill(killing) // it is tried again
			cancel()
			heard = time.Now()
		}
	}
}
