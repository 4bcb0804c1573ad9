package reconcile

import (
	"context"
	"sync"
	"time"
)

// tasks are the goroutines of a loop: each begins while Run runs, is given its
// context, and has ended when Run returns.
type tasks struct {
	mu  sync.Mutex
	ctx context.Context // guarded by mu; nil while Run does not run
	wg  sync.WaitGroup
}

func (t *tasks) open(ctx context.Context) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx != nil {
		return false
	}
	t.ctx = ctx
	return true
}

// start runs f, unless the loop does not run.
func (t *tasks) start(f func(ctx context.Context)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx == nil || t.ctx.Err() != nil {
		return false
	}
	ctx := t.ctx
	t.wg.Go(func() { f(ctx) })
	return true
}

// running is whether Run runs.
func (t *tasks) running() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ctx != nil && t.ctx.Err() == nil
}

// close admits no more and waits for those that run; their context has ended.
func (t *tasks) close() {
	t.mu.Lock()
	t.ctx = nil
	t.mu.Unlock()
	t.wg.Wait()
}

// sleep waits, and reports whether the context still holds.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// signal fires a channel of capacity one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
