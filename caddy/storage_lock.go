package caddy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/scafo/scafo"
)

const (
	// lockPoll is about how often one who waits for a lock asks for it.
	lockPoll = time.Second
	// letGoTimeout bounds giving a lock back, whatever became of who had it.
	letGoTimeout = 10 * time.Second
)

// locks are those that this process has.
type locks struct {
	mu sync.Mutex
	// held are the locks by name; guarded by mu. More than one has a name only when
	// the earlier ones were lost and not given back yet.
	held map[string][]*heldLock
}

// heldLock is a lock from its acquisition until it is given back, renewed meanwhile.
type heldLock struct {
	name, holder string
	lease        time.Duration
	stop         chan struct{} // closed to end the renewals
	done         chan struct{} // closed once they have ended

	mu      sync.Mutex
	renewed time.Time // guarded by mu; when the last renewal that succeeded was sent
	lost    bool      // guarded by mu
}

// Lock waits for a lock until it has it or the context ends.
func (s *sharedStorage) Lock(ctx context.Context, name string) error {
	for {
		ok, err := s.TryLock(ctx, name)
		if ok || err != nil {
			return err
		}
		// Who waits together does not ask together.
		t := time.NewTimer(lockPoll/2 + mathrand.N(lockPoll))
		select {
		case <-ctx.Done():
			t.Stop()
			return describe("locking", name, ctx.Err())
		case <-t.C:
		}
	}
}

// TryLock takes a lock if nobody has it.
func (s *sharedStorage) TryLock(ctx context.Context, name string) (bool, error) {
	if err := checkKey(name); err != nil {
		return false, err
	}
	// A name of its own for each acquisition: two goroutines of this process exclude
	// each other as two ingresses do, and asking again after a lost answer renews.
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails since Go 1.24
	h := &heldLock{name: name, holder: hex.EncodeToString(id[:]), stop: make(chan struct{}), done: make(chan struct{}), renewed: time.Now()}
	granted, err := s.post(ctx, h, s.lease, false)
	switch {
	case isConflict(err):
		return false, nil
	case err != nil:
		// It may have been granted although the answer is lost.
		_ = s.letGo(ctx, h, true) // else it ends by itself
		return false, describe("locking", name, err)
	}
	h.lease = granted
	s.mu.Lock()
	s.held[name] = append(s.held[name], h)
	s.nodes.counted.held.Inc()
	s.mu.Unlock()
	go s.renew(h) //nolint:gosec // the lock outlives the call that took it: renewal ends with Unlock
	return true, nil
}

// post asks for a lock, or renews it. granted is 0 where the node does not tell: it
// knows no holders then, and there is nothing to renew.
func (s *sharedStorage) post(ctx context.Context, h *heldLock, lease time.Duration, once bool) (granted time.Duration, err error) {
	a, err := s.nodes.do(ctx, call{operation: "lock", method: http.MethodPost, path: lockPath(h.name), once: once, header: map[string]string{
		scafo.LockHolderHeader: h.holder, scafo.LockSecondsHeader: strconv.FormatInt(int64(lease/time.Second), 10),
	}})
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(a.header.Get(scafo.LockSecondsHeader), 10, 32)
	if err != nil || n <= 0 {
		return 0, nil
	}
	return time.Duration(n) * time.Second, nil
}

func isConflict(err error) bool {
	var r *refusal
	return errors.As(err, &r) && r.status == http.StatusConflict
}

// renew keeps a lock until it is given back or lost.
func (s *sharedStorage) renew(h *heldLock) {
	defer close(h.done)
	if h.lease == 0 {
		return
	}
	every := h.lease / 3
	t := time.NewTimer(every)
	defer t.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-t.C:
		}
		// The renewal that is under way when the lock is given back is not cut short: it
		// could arrive after that, and take the lock for nobody.
		ctx, cancel := context.WithTimeout(context.Background(), min(h.lease/2, storageTimeout))
		err := s.renewOnce(ctx, h)
		cancel()
		switch {
		case err == nil:
			t.Reset(every)
		case h.isLost():
			s.log.Error("a lock is lost: another ingress may do the same work", zap.String("lock", h.name), zap.Error(err))
			return
		default:
			s.log.Warn("a lock could not be renewed", zap.String("lock", h.name), zap.Error(err))
			t.Reset(min(every, time.Second))
		}
	}
}

var errLockLost = errors.New("the lock is not held any more")

// renewOnce renews a lock. One that was not renewed for the whole of its lease is
// lost, though nobody else may have it: somebody may have had it in between.
func (s *sharedStorage) renewOnce(ctx context.Context, h *heldLock) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost {
		return errLockLost
	}
	now := time.Now()
	if now.Sub(h.renewed) >= h.lease {
		s.lose(h)
		return errLockLost
	}
	granted, err := s.post(ctx, h, h.lease, true)
	switch {
	case isConflict(err):
		s.lose(h)
		return fmt.Errorf("%w: %w", errLockLost, err)
	case err != nil:
		return err
	case granted > 0:
		h.renewed = now
	}
	return nil
}

// lose notes that a lock is lost; h.mu is held.
func (s *sharedStorage) lose(h *heldLock) {
	h.lost = true
	s.nodes.counted.lost.Inc()
}

func (h *heldLock) isLost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}

// RenewLockLease makes sure that a lock is still held. It is renewed all the time,
// so there is no need to make its lease as long as is asked for: a lock of hours
// would outlive the death of its holder by hours.
func (s *sharedStorage) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	s.mu.Lock()
	all := s.held[name]
	var h *heldLock
	if len(all) > 0 {
		h = all[len(all)-1]
	}
	s.mu.Unlock()
	if h == nil {
		return describe("renewing the lock", name, errLockLost)
	}
	if h.lease == 0 {
		return nil
	}
	return describe("renewing the lock", name, s.renewOnce(ctx, h))
}

// Unlock gives a lock back. One that this process does not have is an error. A lock
// that was lost is another's, and stays so.
func (s *sharedStorage) Unlock(ctx context.Context, name string) error {
	h := s.take(name)
	if h == nil {
		return describe("unlocking", name, errLockLost)
	}
	close(h.stop)
	<-h.done // a renewal that is under way ends in time
	return describe("unlocking", name, s.letGo(ctx, h, false))
}

// take removes a lock from those that are held: a lost one first, since whoever lost
// it took it first.
func (s *sharedStorage) take(name string) *heldLock {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.held[name]
	if len(all) == 0 {
		return nil
	}
	h := all[0]
	if s.held[name] = slices.Delete(all, 0, 1); len(all) == 1 {
		delete(s.held, name)
	}
	s.nodes.counted.held.Dec()
	return h
}

// letGo tells the nodes, also when whoever had the lock was told to stop.
func (s *sharedStorage) letGo(ctx context.Context, h *heldLock, once bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), letGoTimeout)
	defer cancel()
	_, err := s.nodes.do(ctx, call{operation: "unlock", method: http.MethodDelete, path: lockPath(h.name), once: once, header: map[string]string{scafo.LockHolderHeader: h.holder}})
	return err
}
