package embedded

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Waits between two starts of a store that does not stay up.
const (
	restartMin = time.Second
	restartMax = 30 * time.Second
)

// Keeper starts a store again that ended although nobody asked it to: the runtimes
// cannot do without it, and its address stays the same.
type Keeper struct {
	stateDir, executable string
	o                    Options

	cancel context.CancelFunc
	done   chan struct{} // closed once nothing is started any more

	mu sync.Mutex
	h  *Handle // the last one that was seen to answer
}

// Keep watches over a store that Ensure returned for the same arguments.
func Keep(stateDir, executable string, o Options, h *Handle) *Keeper {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &Keeper{stateDir: stateDir, executable: executable, o: o, cancel: cancel, done: make(chan struct{}), h: h}
	go func() {
		defer close(k.done)
		k.run(ctx)
	}()
	return k
}

// Release leaves the store to itself.
func (k *Keeper) Release() {
	k.cancel()
	<-k.done
}

// Stop ends the store for good: one that does not end within the context's time, or
// within stopWait, is killed.
func (k *Keeper) Stop(ctx context.Context) error {
	k.Release()
	h := k.handle()
	asked, cancel := context.WithTimeout(ctx, stopWait)
	defer cancel()
	err := h.Stop(asked)
	if err == nil || !h.Alive() {
		return err
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWait)
	defer cancel()
	return h.Kill(ending)
}

// Kill ends the store for good, and at once.
func (k *Keeper) Kill(ctx context.Context) error {
	k.Release()
	return k.handle().Kill(ctx)
}

func (k *Keeper) handle() *Handle {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.h
}

func (k *Keeper) run(ctx context.Context) {
	var wait time.Duration // the first time at once: everything on this machine waits for it
	begun := time.Now()
	for k.await(ctx, k.handle()) == nil {
		if time.Since(begun) > restartMax {
			wait = 0 // it stayed up
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		wait = min(max(restartMin, wait*2), restartMax)
		k.again(ctx)
		begun = time.Now()
	}
}

// again starts the store, or finds it where somebody else was faster.
func (k *Keeper) again(ctx context.Context) {
	_, h, err := Ensure(ctx, k.stateDir, k.executable, k.o)
	if h == nil {
		if ctx.Err() == nil {
			k.o.Log.Warn("the embedded bucket has ended and does not start", "event", "bucket.failed", "err", err)
		}
		return
	}
	k.mu.Lock()
	k.h = h
	k.mu.Unlock()
	k.o.Log.Warn("the embedded bucket had ended and runs again", "event", "bucket.restarted", "pid", h.PID())
}
