package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/workerd/relay"
)

// The times of the supervisor.
const (
	// startTimeout bounds a workerd's way from its start to ready.
	startTimeout = 60 * time.Second
	// healthHold is how long a question for the health may wait for the first
	// adoption. It is shorter than what anybody waits for the answer.
	healthHold = 500 * time.Millisecond
	// prepareRetry and prepareGiveUp: a store that does not answer at start is
	// asked again for a while, and then the process leaves with the reason.
	prepareRetry  = 500 * time.Millisecond
	prepareGiveUp = 10 * time.Second
	// proofRetry is how often a store that stays away is asked for its proof while a
	// deployment that does not need it is served.
	proofRetry = 5 * time.Second
	// lookEvery and lookTimeout are the probes of a workerd; one that answered
	// none for frozenAfter is killed. Its lease lasts 20 s, and while it holds the
	// lease without working, nobody can use its objects.
	lookEvery   = time.Second
	lookTimeout = 2 * time.Second
	frozenAfter = 10 * time.Second
	// unreadyAfter: a workerd that answers, but says for so long that it does not
	// serve, is replaced.
	unreadyAfter = 45 * time.Second
	// stayedUp: after so long the next crash counts as the first.
	stayedUp = 10 * time.Second
	// The waits between the starts of a workerd that keeps dying, and how often
	// it is tried before the whole process leaves for its supervisor to see.
	firstBackoff = 200 * time.Millisecond
	lastBackoff  = 10 * time.Second
	maxCrashes   = 10
	// idleClient is how long a client's connection may be idle.
	idleClient = 5 * time.Minute
	// settleTime is what the last answers get to reach their clients once every
	// workerd is gone.
	settleTime = time.Second
)

// Server supervises the workerds of one application.
type Server struct {
	o   Options
	rt  Runtime
	log *slog.Logger
	rss func(pid int) int64

	ctx    context.Context         // ends when it stops
	cancel context.CancelCauseFunc // with the reason
	work   sync.WaitGroup          // every goroutine below

	swap   chan struct{} // held while a workerd is being brought up
	proven chan struct{} // closed once the store is known to keep its conditions

	booted chan struct{} // closed once the first look at the pointer came to something

	proofNeeded chan struct{} // closed once that has to be proven
	proofOnce   sync.Once     // closes it

	mu         sync.Mutex // guards the rest
	current    *backend   // gets the requests; nil: none is ready
	served     *adoption  // what current serves, or would
	backends   map[*backend]struct{}
	slots      map[int]bool
	generation int64
	swapping   bool
	stopping   bool
	refused    *Outcome // the last deployment that could not be adopted
	crashes    int
	restarts   int
	replacedAt time.Time
	startedAt  time.Time
}

// Options of a Server.
type Options struct {
	Node          string
	DeployPoll    time.Duration
	DeployMaxAge  time.Duration
	ShutdownTotal time.Duration
	MaxRSS        int64
	AnswerWithin  time.Duration // how long a request may wait for the beginning of its answer; 0: for good
	Trust         bool          // forwarded headers
	Log           *slog.Logger

	rss func(pid int) int64 // replaced in tests
}

// New makes a Server; Run starts it.
func New(rt Runtime, o Options) *Server {
	s := &Server{
		o: o, rt: rt, log: o.Log, rss: o.rss, swap: make(chan struct{}, 1), proven: make(chan struct{}),
		booted: make(chan struct{}), proofNeeded: make(chan struct{}),
		backends: map[*backend]struct{}{}, slots: map[int]bool{}, startedAt: time.Now(),
	}
	if s.rss == nil {
		s.rss = rss
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// exitError ends the process with a code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// errStop is an orderly end: a signal, or POST /shutdown.
var errStop = errors.New("asked to stop")

// Stop begins an orderly end.
func (s *Server) Stop() { s.cancel(errStop) }

// Run serves on the two listeners, which it closes, until Stop, or until
// something ends it. It returns nil after an orderly end.
func (s *Server) Run(public, internal net.Listener) error {
	web := &http.Server{Handler: http.HandlerFunc(s.servePublic), ReadHeaderTimeout: 60 * time.Second, IdleTimeout: idleClient, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
	control := &http.Server{Handler: s.internalHandler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
	short := s.newRelay()
	s.work.Go(func() { s.listen(web, short.Rest(public)) })
	s.work.Go(func() { s.relay(short, public) })
	s.work.Go(func() { s.listen(control, internal) })
	s.work.Go(s.boot)

	<-s.ctx.Done()
	cause := context.Cause(s.ctx)
	s.finish(cause)
	_ = public.Close() // nothing that it has to say matters now
	s.settleRequests(short, web)
	_ = web.Close()
	_ = control.Close()
	s.work.Wait()
	if errors.Is(cause, errStop) {
		return nil
	}
	return cause
}

// newRelay is the short way of plain requests.
func (s *Server) newRelay() *relay.Server {
	return relay.New(relay.Options{
		Acquire: func() relay.Backend {
			if b, _ := s.acquire(); b != nil {
				return b
			}
			return nil // an interface that is nil
		},
		Stopping: s.isStopping, Refused: refusal(), Trust: s.o.Trust, Idle: idleClient, Log: s.log,
	})
}

func (s *Server) relay(r *relay.Server, l net.Listener) {
	if err := r.Serve(l); !errors.Is(err, net.ErrClosed) {
		s.fatal(ExitFailed, fmt.Errorf("listener %s: %w", l.Addr(), err))
	}
}

func (s *Server) isStopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping
}

func (s *Server) listen(h *http.Server, l net.Listener) {
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		s.fatal(ExitFailed, fmt.Errorf("listener %s: %w", l.Addr(), err))
	}
}

func (s *Server) fatal(code int, err error) { s.cancel(&exitError{code: code, err: err}) }

// boot settles what was before, adopts what the pointer names, and then follows the
// pointer. The proof of the store waits for the first adoption, unless that needs
// it: the proof writes a dozen times, and a deployment that keeps nothing in the
// store serves without.
func (s *Server) boot() {
	var prove func(context.Context) error
	err := s.insist(func(ctx context.Context) (err error) {
		prove, err = s.rt.Prepare(ctx)
		return err
	})
	if err != nil {
		s.fatal(ExitFailed, err)
		return
	}
	if prove == nil {
		close(s.proven)
	} else {
		s.work.Go(func() { s.proveStore(prove) })
	}
	adopted := s.firstAdoption()
	close(s.booted)
	if !adopted {
		return
	}
	s.needProof()
	s.poll()
}

// needProof lets the proof of the store begin.
func (s *Server) needProof() { s.proofOnce.Do(func() { close(s.proofNeeded) }) }

// proveStore proves the store once that is needed. A store that ignores conditions
// ends the process; one that is away does so only while nothing is served.
func (s *Server) proveStore(prove func(context.Context) error) {
	select {
	case <-s.proofNeeded:
	case <-s.ctx.Done():
		return
	}
	err := s.insist(prove)
	for err != nil && unreachable(err) && s.ready() {
		if !s.sleep(proofRetry) {
			return
		}
		err = prove(s.ctx)
	}
	if err != nil {
		s.fatal(ExitFailed, err)
		return
	}
	close(s.proven)
}

// insist tries something for a while that a store which is away keeps from being done.
func (s *Server) insist(do func(context.Context) error) error {
	deadline := time.Now().Add(prepareGiveUp)
	for {
		err := do(s.ctx)
		if err == nil || s.ctx.Err() != nil {
			return err
		}
		if !unreachable(err) || time.Now().After(deadline) {
			return err
		}
		s.log.Warn("the store does not answer yet", "err", err)
		if !s.sleep(prepareRetry) {
			return err
		}
	}
}

// awaitProof waits until the store is known to keep its conditions.
func (s *Server) awaitProof(ctx context.Context) error {
	s.needProof()
	select {
	case <-s.proven:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// firstAdoption ends the process when the pointer names something that cannot
// run: a supervisor sees a crash loop with its reason. With no pointer it waits.
func (s *Server) firstAdoption() bool {
	for deadline := time.Now().Add(prepareGiveUp); ; {
		r := s.Reload(s.ctx)
		switch r.Kind {
		case Adopted, Unchanged:
			return true
		case Failed:
			s.fatal(ExitFailed, fmt.Errorf("the deployment %s cannot be served: %s", r.Version, r.Error))
			return false
		}
		if errors.Is(r.err, layout.ErrNoPointer) {
			s.log.Info("nothing is deployed yet: waiting")
			return true
		}
		if s.ctx.Err() != nil {
			return false
		}
		if time.Now().After(deadline) {
			s.fatal(ExitFailed, fmt.Errorf("the pointer cannot be read: %w", r.err))
			return false
		}
		if !s.sleep(prepareRetry) {
			return false
		}
	}
}

// sleep waits; false when the server stops meanwhile.
func (s *Server) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// finish ends every workerd: by draining in an orderly end, at once otherwise.
func (s *Server) finish(cause error) {
	s.mu.Lock()
	s.stopping = true
	all := make([]*backend, 0, len(s.backends))
	for b := range s.backends {
		all = append(all, b)
	}
	s.mu.Unlock()
	if !errors.Is(cause, errStop) {
		for _, b := range all {
			b.kill("the server ends: " + cause.Error())
		}
		for _, b := range all {
			<-b.gone
		}
		return
	}
	s.log.Info("draining", "processes", len(all), "bound", s.o.ShutdownTotal)
	bound := time.Now().Add(s.o.ShutdownTotal)
	var each sync.WaitGroup
	for _, b := range all {
		each.Go(func() { s.leave(b, bound) })
	}
	each.Wait()
}

// leave lets a workerd finish what runs on it, until the bound, and waits until
// it is gone.
func (s *Server) leave(b *backend, bound time.Time) {
	b.retire()
	timer := time.NewTimer(time.Until(bound))
	defer timer.Stop()
	if !b.durable() {
		// Outside a cluster it refuses connections as soon as it is asked to leave,
		// and it has nothing to hand over: first let it be idle.
		select {
		case <-b.idle:
		case <-b.proc.Done():
		case <-timer.C:
			b.kill("it did not finish in time")
		}
	}
	b.drained.Store(true)
	if err := b.proc.Drain(); err != nil {
		s.log.Debug("drain", "pid", b.proc.PID(), "err", err)
	}
	select {
	case <-b.gone:
	case <-b.cannotHandOver(b.gone):
		b.kill("the store is away, and nothing can be handed over")
		<-b.gone
	case <-timer.C:
		b.kill("it did not finish in time")
		<-b.gone
	}
}

// settleRequests gives answers that are still on their way to clients a moment.
func (s *Server) settleRequests(short *relay.Server, h *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	short.Shutdown(ctx)
	_ = h.Shutdown(ctx) // what is left after that is cut
}

// launch brings a workerd up, ready to serve. The caller holds swap.
func (s *Server) launch(a adoption) (*backend, error) {
	slot, ok := s.takeSlot()
	if !ok {
		return nil, errStop
	}
	ctx, cancel := context.WithTimeout(s.ctx, startTimeout)
	defer cancel()
	if a.deployment.Durable() { // it writes to the store as soon as it runs
		if err := s.awaitProof(ctx); err != nil {
			s.freeSlot(slot)
			return nil, err
		}
	}
	p, err := s.rt.Start(ctx, a.deployment, slot)
	if err != nil {
		s.freeSlot(slot)
		return nil, err
	}
	if err = p.Ready(ctx); err != nil {
		_ = p.Kill()
		<-p.Done()
		s.rt.Reaped(context.WithoutCancel(ctx), p, false)
		s.freeSlot(slot)
		if ctx.Err() != nil && s.ctx.Err() == nil {
			return nil, fmt.Errorf("workerd was not ready after %s: %w", startTimeout, err)
		}
		return nil, err
	}
	if err := s.migrate(a, p, slot); err != nil {
		return nil, err
	}
	b := newBackend(a, p, slot)
	if err := s.enlist(b); err != nil {
		s.freeSlot(slot)
		return nil, err
	}
	s.rt.Joined(ctx, p)
	if b.durable() {
		s.work.Go(func() { s.watchStore(b) })
	}
	return b, nil
}

// enlist begins to look after a workerd that is ready. When the server stops it ends
// the workerd instead.
func (s *Server) enlist(b *backend) error {
	b.proxy = s.newProxy(b)
	b.healthy.Store(true)
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		_ = b.proc.Kill()
		<-b.proc.Done()
		return errStop
	}
	s.backends[b] = struct{}{}
	s.mu.Unlock()
	s.work.Go(func() { s.watch(b) })
	s.work.Go(func() { s.watchWaits(b) })
	if s.o.MaxRSS > 0 {
		s.work.Go(func() { s.watchMemory(b) })
	}
	return nil
}

func (s *Server) takeSlot() (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return 0, false
	}
	n := s.rt.FirstSlot()
	for i := 0; s.slots[n]; i++ {
		n = i
	}
	s.slots[n] = true
	return n, true
}

func (s *Server) freeSlot(n int) {
	s.mu.Lock()
	delete(s.slots, n)
	s.mu.Unlock()
}

// exitCode is what the process ends with after err.
func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &e):
		return e.code
	}
	return ExitFailed
}

// rss is the resident memory of a process in bytes; 0 when it is gone.
func rss(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var size, resident int64
	if _, err := fmt.Fscan(strings.NewReader(string(b)), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}
