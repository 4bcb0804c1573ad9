package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/scafo/scafo"
)

// Kept are the uids that have a process or a directory here.
func (s *Supervisor) Kept() []string {
	s.mu.Lock()
	uids := make([]string, 0, len(s.procs))
	for uid, p := range s.procs {
		if !p.ended() {
			uids = append(uids, uid)
		}
	}
	s.mu.Unlock()
	entries, err := os.ReadDir(filepath.Join(s.cfg.StateDir, appsDir))
	if err != nil {
		s.cfg.Log.Warn("the runtimes' directory cannot be read", "error", err)
	}
	for _, e := range entries {
		if e.IsDir() && validUID(e.Name()) {
			uids = append(uids, e.Name())
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// Stop drains the process of that uid, kills it when it is not gone within that
// time, and returns when it is gone. A process that this daemon does not know of,
// and that has the uid's data directory, is found and stopped too. A later Set that
// names the uid starts it again.
func (s *Supervisor) Stop(ctx context.Context, uid string, within time.Duration) error {
	s.mu.Lock()
	p, ok := s.procs[uid]
	delete(s.wanted, uid)
	s.mu.Unlock()
	if !ok {
		if !validUID(uid) {
			return nil
		}
		var err error
		if p, err = s.findForgotten(ctx, uid, within); p == nil || err != nil {
			return err
		}
	}
	p.send(event{kind: evStop, within: within})
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// findForgotten makes a process of the one that has the data directory of a uid
// without being known here. It is nil where there is none; what is left of one that
// has ended is killed when it does not go by itself within that time.
func (s *Supervisor) findForgotten(ctx context.Context, uid string, within time.Duration) (*process, error) {
	dir := filepath.Join(s.cfg.StateDir, appsDir, uid)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	deadline := time.Now().Add(min(within, leftTimeout))
	for {
		lock, err := lockData(dir)
		if err == nil {
			return nil, lock.Close()
		}
		if !errors.Is(err, errHeld) {
			return nil, fmt.Errorf("supervise: stop %s: %w", uid, err)
		}
		leader, left, err := heldBy(dir)
		if err != nil {
			return nil, fmt.Errorf("supervise: stop %s: %w", uid, err)
		}
		overdue := time.Now().After(deadline)
		for _, h := range left {
			if leader == nil && overdue {
				h.signal(syscall.SIGKILL) //nolint:errcheck,gosec // looked at again
			}
			h.close()
		}
		if leader != nil {
			return s.adoptForgotten(uid, leader), nil
		}
		if overdue && len(left) == 0 {
			return nil, fmt.Errorf("supervise: stop %s: %w, by a process that cannot be seen", uid, errHeld)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(leftLook):
		}
	}
}

// adoptForgotten supervises a process that was found by its lock, so that it can be
// stopped like any other.
func (s *Supervisor) adoptForgotten(uid string, leader *handle) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.procs[uid]; ok { // somebody was faster
		leader.close()
		return p
	}
	application := ""
	if r, err := readRecord(filepath.Join(s.cfg.StateDir, appsDir, uid)); err == nil {
		application = r.Application
	}
	p := newProcess(s, application, uid)
	c := p.found(leader)
	p.own(c)
	p.apply(event{kind: evAdopted, at: c.startedAt, version: c.version})
	s.addLocked(p)
	return p
}

// Forget removes what a stopped application left on this machine: its data
// directory, which only speeds up a next start, and its logs. One that runs is left
// alone with an error.
func (s *Supervisor) Forget(uid string) error {
	if !validUID(uid) {
		return scafo.Errorf(scafo.CodeInvalidInput, "%q is no application's uid", uid)
	}
	s.mu.Lock()
	defer s.mu.Unlock() // so that none starts meanwhile
	if p, ok := s.procs[uid]; ok && !p.ended() {
		return fmt.Errorf("supervise: forget %s: it runs", uid)
	}
	if s.cfg.Logs != nil {
		if err := s.cfg.Logs.Remove(uid); err != nil {
			return fmt.Errorf("supervise: forget %s: %w", uid, err)
		}
	}
	dir := filepath.Join(s.cfg.StateDir, appsDir, uid)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := lockData(dir)
	if err != nil {
		return fmt.Errorf("supervise: forget %s: %w", uid, err)
	}
	defer lock.Close() //nolint:errcheck // removed with the rest
	return os.RemoveAll(dir)
}
