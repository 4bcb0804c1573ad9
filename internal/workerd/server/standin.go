package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scafo/scafo/internal/workerd/layout"
)

// A workerd of the cluster that cannot reach the store leaves before its lease runs
// out, as it must. While the store is away another one stands in for it: of the same
// deployment, but outside of the cluster and without anything that it could own, so
// that requests which need no state go on. Once the store answers, the lease of the one
// that left is ended, since this process has reaped it, and a new member takes over.
const (
	// standInAfter is how long the store has to be in trouble before a workerd is made
	// ready to stand in. It is longer than what one lost answer counts, and shorter than
	// the ten seconds after which a member leaves.
	standInAfter = troubleFor + time.Second
	// storeEvery and storeTimeout: how often the store is asked whether it is back, and
	// how long it may take to answer.
	storeEvery   = 500 * time.Millisecond
	storeTimeout = 2 * time.Second
	// peersSettle is how long after this member its peers have left as well, where the
	// store is away for all of them. One that still serves then has the store.
	peersSettle = 10 * time.Second
)

// launchStandIn starts a workerd that can stand in for one of a.
func (s *Server) launchStandIn(a adoption) (*backend, error) {
	ctx, cancel := context.WithTimeout(s.ctx, startTimeout)
	defer cancel()
	p, err := s.rt.StandIn(ctx, a.deployment)
	if err != nil {
		return nil, err
	}
	if err := p.Ready(ctx); err != nil {
		_ = p.Kill()
		<-p.Done()
		return nil, err
	}
	b := newBackend(a, p, noSlot)
	b.standIn = true
	if err := s.enlist(b); err != nil {
		return nil, err
	}
	return b, nil
}

// noSlot is the slot of a workerd without a disk.
const noSlot = -1

// watchStore has a workerd ready to stand in for b while the store is in trouble.
func (s *Server) watchStore(b *backend) {
	tick := time.NewTicker(storeEvery)
	defer tick.Stop()
	var since time.Time
	for {
		select {
		case <-b.gone:
			s.dismiss(b.lastSpare()) // it came too late
			return
		case <-tick.C:
		}
		switch {
		case !b.storeAway():
			since = time.Time{}
			s.dismiss(b.takeSpare())
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= standInAfter && b.wantsSpare() && !b.drained.Load():
			spare, err := s.launchStandIn(b.adoption)
			if err != nil {
				s.log.Warn("a workerd that stands in while the store is away did not start", "err", err)
				since = time.Now()
				continue
			}
			spare.of = b // before anybody else knows of it
			b.setSpare(spare)
		}
	}
}

// dismiss ends a spare that is not needed; nil is none.
func (s *Server) dismiss(spare *backend) {
	if spare != nil {
		spare.kill("it is not needed to stand in")
	}
}

func (b *backend) wantsSpare() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spare == nil && !b.retired && !b.leaves
}

func (b *backend) setSpare(spare *backend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spare = spare
}

func (b *backend) takeSpare() *backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	spare := b.spare
	b.spare = nil
	return spare
}

// lastSpare takes the spare of one that is about to end, and gets no other.
func (b *backend) lastSpare() *backend {
	b.mu.Lock()
	b.leaves = true
	b.mu.Unlock()
	return b.takeSpare()
}

// standFor puts the spare of b in its place, if it has one that lives. Called with mu
// held.
func (s *Server) standFor(b *backend) {
	spare := b.lastSpare()
	if spare == nil {
		return
	}
	if _, lives := s.backends[spare]; lives {
		s.current = spare
	}
}

// rescue serves what needs no store of a, and brings a back when the store answers.
// gone ends the lease of the member that left; it is called when the store answers,
// once, and may be nil.
func (s *Server) rescue(a adoption, gone func()) {
	s.log.Warn("the store is away, or was: what needs no state is served until it answers", "version", a.pointer.Version)
	begun := time.Now()
	for failed := 0; ; {
		if s.superseded(a) {
			if gone != nil {
				gone()
			}
			return
		}
		s.standIn(a)
		if !s.storeAnswers() {
			failed = 0
			if time.Since(begun) > peersSettle && s.peersServe() {
				s.fatal(ExitFenced, errors.New("the lease was lost, and a peer has the store: this process leaves it to it"))
				return
			}
			if !s.sleep(storeEvery) {
				return
			}
			continue
		}
		if gone != nil {
			gone()
			gone = nil
		}
		back, err := s.comeBack(a)
		if back || s.ctx.Err() != nil {
			return
		}
		if failed++; failed > maxCrashes {
			s.fatal(ExitFailed, fmt.Errorf("workerd did not come back %d times in a row: %w", maxCrashes, err))
			return
		}
		s.log.Error("workerd did not come back", "version", a.pointer.Version, "try", failed, "err", err)
		if !s.sleep(backoff(failed + 1)) {
			return
		}
	}
}

// superseded reports whether something else than a, or a itself, is served.
func (s *Server) superseded(a adoption) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping || s.served.generation != a.generation || s.current != nil && !s.current.standIn
}

// standIn sees to it that somebody stands in for a.
func (s *Server) standIn(a adoption) {
	if !s.lockSwap(s.ctx) {
		return
	}
	defer s.unlockSwap()
	s.mu.Lock()
	needed := s.current == nil && !s.stopping && s.served.generation == a.generation
	s.mu.Unlock()
	if !needed {
		return
	}
	b, err := s.launchStandIn(a)
	if err != nil {
		s.log.Warn("nobody stands in while the store is away", "err", err)
		return
	}
	s.switchTo(b)
}

// comeBack brings a member of the cluster back; also true when there is one.
func (s *Server) comeBack(a adoption) (bool, error) {
	if !s.lockSwap(s.ctx) {
		return false, errStop
	}
	defer s.unlockSwap()
	if s.superseded(a) {
		return true, nil
	}
	b, err := s.launch(a)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	s.restarts++
	s.mu.Unlock()
	s.switchTo(b)
	s.log.Info("the store is back, and workerd", "version", a.pointer.Version, "pid", b.proc.PID())
	return true, nil
}

// storeAnswers asks the store for the pointer.
func (s *Server) storeAnswers() bool {
	ctx, cancel := context.WithTimeout(s.ctx, storeTimeout)
	defer cancel()
	_, err := s.rt.Load(ctx)
	return err == nil || errors.Is(err, layout.ErrNoPointer) || errors.Is(err, layout.ErrPointer)
}

func (s *Server) peersServe() bool {
	ctx, cancel := context.WithTimeout(s.ctx, storeTimeout)
	defer cancel()
	return s.rt.PeersServe(ctx)
}
