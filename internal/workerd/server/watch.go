package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/scafo/scafo/internal/workerd/instance"
)

// watch follows a workerd from ready to its end.
func (s *Server) watch(b *backend) {
	defer close(b.gone)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	lastAnswer, lastReady := time.Now(), time.Now()
	leaving := b.proc.Leaving()
	for {
		select {
		case <-b.proc.Done():
		case <-leaving:
			leaving = nil
			s.leaves(b)
			continue
		case <-tick.C:
		}
		if b.killed() != "" {
			<-b.proc.Done()
		}
		select {
		case <-b.proc.Done(): // before any tick
			s.exited(b)
			return
		default:
		}
		b.pool.Prune(time.Now())
		if b.drained.Load() {
			continue // it stops answering by and by, and has its bound
		}
		ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
		p := b.look(ctx)
		cancel()
		if b.drained.Load() {
			continue // what was seen may be its leaving
		}
		now := time.Now()
		if p != silent {
			lastAnswer = now
		}
		if p == answered {
			lastReady = now
		}
		if was := b.healthy.Swap(p == answered); was != (p == answered) {
			s.log.Warn("workerd's health changed", "pid", b.proc.PID(), "healthy", !was)
		}
		switch {
		case p == closed:
			b.kill("it refuses connections: it may have had too many files open")
		case now.Sub(lastAnswer) >= frozenAfter:
			b.kill(fmt.Sprintf("it did not answer for %s", frozenAfter))
		case now.Sub(lastReady) >= unreadyAfter:
			b.kill(fmt.Sprintf("it was not ready for %s", unreadyAfter))
		}
	}
}

// hardOver is how far above the bound a workerd is killed at once instead of
// being replaced in an orderly way.
const hardOver = 1.25

// replaceAgain keeps a deployment that needs more than the bound from being
// replaced all the time.
const replaceAgain = time.Minute

// memoryEvery is how often the memory of a workerd is looked at. What grows faster is
// the kernel's (see instance.Limits).
const memoryEvery = 200 * time.Millisecond

// watchMemory keeps a workerd within its memory until it is gone.
func (s *Server) watchMemory(b *backend) {
	tick := time.NewTicker(memoryEvery)
	defer tick.Stop()
	for {
		select {
		case <-b.gone:
			return
		case <-tick.C:
			s.lookAtMemory(b)
		}
	}
}

func (s *Server) lookAtMemory(b *backend) {
	used := s.rss(b.proc.PID())
	switch {
	case used > int64(float64(s.o.MaxRSS)*hardOver):
		b.kill(fmt.Sprintf("it used %d MiB of memory, the bound is %d", used>>20, s.o.MaxRSS>>20))
	case used > s.o.MaxRSS:
		s.mu.Lock()
		due := s.current == b && !s.swapping && !s.stopping && time.Since(s.replacedAt) >= replaceAgain
		if due {
			s.replacedAt = time.Now()
		}
		s.mu.Unlock()
		if due {
			s.log.Warn("workerd is above its memory bound and is replaced", "pid", b.proc.PID(), "mib", used>>20)
			s.work.Go(func() { s.replace(b) })
		}
	}
}

// replace puts a fresh workerd of the same deployment in the place of b.
func (s *Server) replace(b *backend) {
	if !s.lockSwap(s.ctx) {
		return
	}
	defer s.unlockSwap()
	s.mu.Lock()
	still := s.current == b && !s.stopping
	s.mu.Unlock()
	if !still {
		return
	}
	n, err := s.launch(b.adoption)
	if err != nil {
		s.log.Error("workerd could not be replaced", "err", err)
		return
	}
	s.switchTo(n)
}

// leaves moves the requests off a workerd that is just about to end for want of its
// lease, where another one is ready to stand in for it.
func (s *Server) leaves(b *backend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == b && !s.stopping {
		s.standFor(b)
	}
}

// exited deals with the end of a workerd.
func (s *Server) exited(b *backend) {
	exit := b.proc.Exit()
	clean := b.drained.Load() && exit.Code == 0
	fenced := strings.Contains(exit.Stderr, instance.LeaseLost) || strings.Contains(b.proc.Stderr(), instance.LeaseLost)
	s.mu.Lock()
	delete(s.backends, b)
	wasCurrent := s.current == b || s.current != nil && s.current.of == b
	stopping := s.stopping
	if s.current == b {
		s.current = nil
		if fenced && !stopping {
			s.standFor(b)
		}
	}
	uptime := time.Since(b.started)
	s.mu.Unlock()
	s.dismiss(b.lastSpare())
	b.closeIdle()

	log := s.log.With("pid", b.proc.PID(), "version", b.pointer.Version, "code", exit.Code, "signal", exit.Signal)
	switch {
	case clean:
		log.Info("workerd left")
	default:
		log.Warn("workerd died", "killed", b.killed(), "said", lastLine(exit.Stderr))
	}
	if b.standIn {
		return // whoever put it there looks after that: see rescue
	}
	if wasCurrent && fenced && !stopping {
		s.freeSlot(b.slot)
		s.work.Go(func() { s.rescue(b.adoption, func() { s.reaped(b, false) }) })
		return
	}
	// What it held is handed on before its disk is used again.
	s.reaped(b, clean)
	s.freeSlot(b.slot)
	if wasCurrent && !stopping {
		a := b.adoption
		s.work.Go(func() { s.restart(a, uptime) })
	}
}

const reapTimeout = 3 * time.Second

func (s *Server) reaped(b *backend, clean bool) {
	ctx, cancel := context.WithTimeout(context.Background(), reapTimeout)
	defer cancel()
	s.rt.Reaped(ctx, b.proc, clean)
}

// restart brings back what was served when its workerd died, unless something
// else was adopted meanwhile.
func (s *Server) restart(a adoption, uptime time.Duration) {
	s.mu.Lock()
	if uptime >= stayedUp {
		s.crashes = 0
	}
	s.mu.Unlock()
	for {
		s.mu.Lock()
		s.crashes++
		n := s.crashes
		s.mu.Unlock()
		if n > maxCrashes {
			s.fatal(ExitFailed, fmt.Errorf("workerd died %d times in a row", maxCrashes))
			return
		}
		if !s.sleep(backoff(n)) || !s.lockSwap(s.ctx) {
			return
		}
		s.mu.Lock()
		superseded := s.current != nil || s.served.generation != a.generation
		s.mu.Unlock()
		if superseded {
			s.unlockSwap()
			return
		}
		if a.deployment.Durable() && !s.storeAnswers() {
			s.unlockSwap()
			s.rescue(a, nil) // it would not start
			return
		}
		b, err := s.launch(a)
		if err == nil {
			s.mu.Lock()
			s.restarts++
			s.mu.Unlock()
			s.switchTo(b)
			s.unlockSwap()
			s.log.Info("workerd is back", "version", a.pointer.Version, "pid", b.proc.PID())
			return
		}
		s.unlockSwap()
		if s.ctx.Err() != nil {
			return
		}
		s.log.Error("workerd did not come back", "version", a.pointer.Version, "try", n, "err", err)
	}
}

// backoff is the wait before the n-th start in a row: none at first.
func backoff(n int) time.Duration {
	if n <= 1 {
		return 0
	}
	d := firstBackoff
	for ; n > 2 && d < lastBackoff; n-- {
		d *= 2
	}
	return min(d, lastBackoff)
}

func lastLine(s string) string {
	s = strings.TrimRight(s, "\n")
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	return s
}
