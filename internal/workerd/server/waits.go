package server

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// A request to an object that lives on a peer waits for that peer. When the peer
// vanishes without closing its connections (a machine that lost its power, or is
// frozen), the object moves after its lease, but a request that was already on
// its way waits for good. From here it looks like any other request that takes
// long, so those are ended alone that have waited for a long time without a byte
// of an answer and began before the lease of such a peer ran out.
const (
	// waitPatience is longer than a lease, with some slack.
	waitPatience = 25 * time.Second
	// waitAgain is how often the store is asked while a request waits longer.
	waitAgain = 15 * time.Second
)

var errPeerGone = errors.New("a peer that it may have waited for is gone")

// wait is a request without an answer yet.
type wait struct {
	since  time.Time
	cancel func(cause error)
}

type waitKey struct{}

// waiting counts r among the requests that wait; done ends that.
func (b *backend) waiting(r *http.Request) (counted *http.Request, done func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	w := &wait{since: time.Now(), cancel: cancel}
	b.mu.Lock()
	b.waits[w] = struct{}{}
	b.mu.Unlock()
	return r.WithContext(context.WithValue(ctx, waitKey{}, w)), func() {
		b.answeredWait(w)
		cancel(nil)
	}
}

// Waiting implements relay.Backend: it counts a request among those that wait.
func (b *backend) Waiting(end func()) (over func()) {
	if !b.durable() {
		return nil
	}
	w := &wait{since: time.Now(), cancel: func(error) { end() }}
	b.mu.Lock()
	b.waits[w] = struct{}{}
	b.mu.Unlock()
	return func() { b.answeredWait(w) }
}

// heard says that the answer to r has begun.
func (b *backend) heard(r *http.Request) {
	if w, ok := r.Context().Value(waitKey{}).(*wait); ok {
		b.answeredWait(w)
	}
}

func (b *backend) answeredWait(w *wait) {
	b.mu.Lock()
	delete(b.waits, w)
	b.mu.Unlock()
}

// longWaits are the requests that have waited for at least that long.
func (b *backend) longWaits(least time.Duration) []*wait {
	b.mu.Lock()
	defer b.mu.Unlock()
	var long []*wait
	for w := range b.waits {
		if time.Since(w.since) >= least {
			long = append(long, w)
		}
	}
	return long
}

// watchWaits ends the requests that wait for a peer which is gone.
func (s *Server) watchWaits(b *backend) {
	tick := time.NewTicker(waitAgain)
	defer tick.Stop()
	for {
		select {
		case <-b.gone:
			return
		case <-tick.C:
		}
		long := b.longWaits(waitPatience)
		if len(long) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
		lapses, err := s.rt.Lapsed(ctx)
		cancel()
		if err != nil {
			s.log.Debug("the records of the peers cannot be read", "err", err)
			continue
		}
		for _, w := range long {
			for _, ago := range lapses {
				if ago < time.Since(w.since) {
					s.log.Warn("a request that waited while a peer vanished is ended", "waited", time.Since(w.since).Round(time.Second))
					w.cancel(errPeerGone)
					break
				}
			}
		}
	}
}
