package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
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

// A request was ended from here, and not by its client.
var (
	errPeerGone = errors.New("a peer that it may have waited for is gone")
	errNoAnswer = errors.New("it had no answer for too long")
)

// endedHere reports whether a request's context was ended from here.
func endedHere(ctx context.Context) (error, bool) {
	cause := context.Cause(ctx)
	return cause, errors.Is(cause, errPeerGone) || errors.Is(cause, errNoAnswer)
}

// wait is a request without an answer yet.
type wait struct {
	since  atomic.Int64 // when it began, or last sent something, in nanoseconds
	cancel func(cause error)
}

func (w *wait) touch() { w.since.Store(time.Now().UnixNano()) }

func (w *wait) begun() time.Time { return time.Unix(0, w.since.Load()) }

// arrivingBody is a body whose sender is not waiting for an answer yet.
type arrivingBody struct {
	io.ReadCloser
	w *wait
}

func (a arrivingBody) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	a.w.touch()
	return n, err
}

type waitKey struct{}

// waiting counts r among the requests that wait; done ends that.
func (b *backend) waiting(r *http.Request) (counted *http.Request, done func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	w := &wait{cancel: cancel}
	w.touch()
	b.mu.Lock()
	b.waits[w] = struct{}{}
	b.mu.Unlock()
	r = r.WithContext(context.WithValue(ctx, waitKey{}, w))
	if r.ContentLength != 0 {
		r.Body = arrivingBody{r.Body, w}
	}
	return r, func() {
		b.answeredWait(w)
		cancel(nil)
	}
}

// Waiting implements relay.Backend: it counts a request among those that wait.
func (b *backend) Waiting(end func()) (over func()) {
	w := &wait{cancel: func(error) { end() }}
	w.touch()
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
		if time.Since(w.begun()) >= least {
			long = append(long, w)
		}
	}
	return long
}

// watchWaits ends the requests that wait for a peer which is gone, and those that have
// waited for longer than any may.
func (s *Server) watchWaits(b *backend) {
	every := waitAgain
	if s.o.AnswerWithin > 0 {
		every = min(every, max(s.o.AnswerWithin/10, time.Second/10))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	peersAt := time.Now().Add(waitAgain)
	for {
		select {
		case <-b.gone:
			return
		case <-tick.C:
		}
		if s.o.AnswerWithin > 0 {
			for _, w := range b.longWaits(s.o.AnswerWithin) {
				s.log.Warn("a request without an answer is ended", "pid", b.proc.PID(), "waited", time.Since(w.begun()).Round(time.Second))
				w.cancel(errNoAnswer)
			}
		}
		if !b.durable() || time.Now().Before(peersAt) {
			continue
		}
		peersAt = time.Now().Add(waitAgain)
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
				if ago < time.Since(w.begun()) {
					s.log.Warn("a request that waited while a peer vanished is ended", "waited", time.Since(w.begun()).Round(time.Second))
					w.cancel(errPeerGone)
					break
				}
			}
		}
	}
}
