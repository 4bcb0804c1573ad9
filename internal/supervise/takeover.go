package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/celld"
)

// unseenCode is what an exit that nobody saw counts as.
const unseenCode = celld.ExitFenced

// TakeOver finds the processes that an earlier daemon of this state directory
// started, without touching them, and asks each for its health, so that Statuses
// tells the truth when it returns. It is called once, before Run.
func (s *Supervisor) TakeOver(ctx context.Context) error {
	root := filepath.Join(s.cfg.StateDir, appsDir)
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("supervise: %w", err)
	}
	var asked sync.WaitGroup
	for _, e := range entries {
		if !e.IsDir() || !validUID(e.Name()) {
			continue
		}
		dir := filepath.Join(root, e.Name())
		sweepTemporary(dir)
		r, err := readRecord(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue // stopped: every start writes a record first
		}
		if err != nil {
			// Torn by a power loss, which ended the process too.
			s.cfg.Log.Warn("a runtime's record cannot be read", "dir", dir, "error", err)
			continue
		}
		p := newProcess(s, r.Application, e.Name())
		p.takeOver(r)
		s.mu.Lock()
		s.procs[p.uid] = p
		s.mu.Unlock()
		asked.Go(func() { p.settle(ctx) })
	}
	asked.Wait()
	s.changed()
	return ctx.Err()
}

// takeOver looks what became of the process of that record.
func (p *process) takeOver(r record) {
	p.m.restarts, p.m.crashes, p.m.lastExit = r.Restarts, r.Crashes, r.Exit
	if h := alive(r); h != nil {
		p.log.Info("a running runtime was taken over", "pid", h.pid)
		p.own(p.adopt(r, h))
		p.apply(event{kind: evAdopted, at: r.StartedAt, version: r.Version})
		return
	}
	leader, left, err := heldBy(p.dir)
	for _, h := range left {
		h.close() // the next start deals with them
	}
	if err == nil && leader != nil {
		p.own(p.found(leader))
		p.apply(event{kind: evAdopted, at: r.StartedAt, version: r.Version})
		return
	}
	p.leftover()
	p.restore(r)
}

// leftover passes on what a process wrote that ended while no daemon followed it.
func (p *process) leftover() {
	f, err := newFollower(p.dir, p.s.watch, p.line)
	if err != nil {
		return // it has written nothing
	}
	gone := make(chan struct{})
	close(gone)
	f.run(context.Background(), gone) // ends at the end of the files
}

// alive is the process of that record, if it still runs.
func alive(r record) *handle {
	if r.PID == 0 || r.BootID == "" || r.BootID != bootID() {
		return nil
	}
	h, err := newHandle(r.PID, -1, r.StartTicks)
	if err != nil {
		return nil
	}
	return h
}

// restore takes up the wait for the next start where the last daemon left it.
func (p *process) restore(r record) {
	switch {
	case r.Exit != nil:
		// Its end was seen; the wait runs since then, if the clock is to be believed.
		p.m.restarts, p.m.crashes, p.m.lastExit = r.Restarts, r.Crashes, r.Exit
		x := exit{Exit: *r.Exit, ago: max(0, time.Since(r.Exit.At))}
		p.m.phase = phaseWaiting
		p.m.notBefore = time.Now().Add(max(0, p.s.policy.restartAfter(x, r.Crashes)-x.ago))
		p.publish()
	case r.PID == 0:
		// It was about to start, and did not: nothing was lost.
		p.publish()
	default:
		p.m.startedFor = r.Version
		now := time.Now().UTC()
		if x, ok := reapOwn(r, now); ok {
			p.apply(event{kind: evLost, exit: x})
			return
		}
		x := exit{Exit: scafo.Exit{Code: unseenCode, At: now}, unseen: true}
		if r.BootID != bootID() {
			x.ago = sinceBoot()
		}
		p.apply(event{kind: evLost, exit: x})
	}
}

// settle asks a process that was taken over for its health and its version.
func (p *process) settle(ctx context.Context) {
	for p.child != nil && len(p.pending) > 0 {
		a := p.pending[0]
		if a != doProbe && a != doState {
			return
		}
		p.pending = p.pending[1:]
		e := p.inquire(ctx, a, p.child, true, false)
		p.apply(e)
	}
}
