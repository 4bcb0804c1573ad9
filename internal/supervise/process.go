package supervise

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/applog"
	"github.com/scafo/scafo/internal/celld"
)

// child is a running process.
type child struct {
	handle    *handle
	addr      pair
	celld     string // its --version line
	startedAt time.Time
	version   string // wanted when it was started; known of an adopted one alone
	adopted   bool   // started by an earlier daemon
}

// probeURL is where this node asks the process: the address that it listens on,
// or loopback when it listens on all of them.
func probeURL(a netip.AddrPort) string {
	if a.Addr().IsUnspecified() {
		loopback := netip.IPv6Unspecified().Next() // ::1
		if a.Addr().Is4() {
			loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		a = netip.AddrPortFrom(loopback, a.Port())
	}
	return "http://" + a.String()
}

// process runs the machine of one application: it owns the machine's state, feeds
// it and does what it says. One goroutine, run, does all of that; what takes time
// is done beside it and comes back as an event.
type process struct {
	s        *Supervisor
	app, uid string
	dir      string
	log      *slog.Logger
	client   *http.Client
	lines    lines
	kept     *applog.Log   // nil keeps nothing
	done     chan struct{} // closed when run has returned
	over     atomic.Bool   // the machine has ended for good

	mu    sync.Mutex
	inbox []event // guarded by mu
	poke  chan struct{}

	// For run alone, and for take-over before it.
	m       machine
	child   *child
	gen     int // grows with each child: late answers of an earlier one are dropped
	pending []action
	asking  []chan<- reloadAnswer
	checked bool // whether it is known that this child listens itself

	viewMu sync.Mutex
	view   scafo.ProcessStatus // guarded by viewMu
}

func newProcess(s *Supervisor, app, uid string) *process {
	p := &process{
		s: s, app: app, uid: uid,
		dir:  filepath.Join(s.cfg.StateDir, appsDir, uid),
		log:  s.cfg.Log.With("application", app),
		poke: make(chan struct{}, 1),
		done: make(chan struct{}),
		client: &http.Client{
			// One kept connection, so that a probe costs little.
			Transport: &http.Transport{
				DialContext:         (&net.Dialer{}).DialContext,
				MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if s.cfg.Logs != nil {
		if name, err := scafo.ParseApplicationName(app); err == nil {
			p.kept = s.cfg.Logs.Log(name, uid)
		}
	}
	p.view = p.look()
	return p
}

// recall takes up what the record says of an earlier end that still matters.
func (p *process) recall() {
	if r, err := readRecord(p.dir); err == nil && r.Exit != nil {
		p.restore(r)
	}
}

func (p *process) ended() bool { return p.over.Load() }

// send hands over an event. It never blocks. Of several wants that wait, the last
// one counts.
func (p *process) send(e event) {
	p.mu.Lock()
	if n := len(p.inbox); e.kind == evWant && n > 0 && p.inbox[n-1].kind == evWant {
		p.inbox[n-1] = e
	} else {
		p.inbox = append(p.inbox, e)
	}
	p.mu.Unlock()
	nudge(p.poke)
}

func (p *process) receive() []event {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.inbox
	p.inbox = nil
	return list
}

// run runs the machine until it has ended, or until ctx ends; then the process
// goes on by itself.
func (p *process) run(ctx context.Context) {
	var helpers sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		helpers.Wait()
		p.client.CloseIdleConnections()
		p.abandon()
		close(p.done)
	}()
	if p.child != nil {
		p.attend(ctx, &helpers)
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p.perform(ctx, &helpers)
		if p.m.phase == phaseEnded {
			p.finish()
			return
		}
		if at := p.m.wake(p.s.policy); at.IsZero() {
			timer.Reset(time.Hour)
		} else {
			timer.Reset(max(0, time.Until(at)))
		}
		select {
		case <-ctx.Done():
			return
		case <-p.poke:
			for _, e := range p.receive() {
				p.handle(ctx, &helpers, e)
			}
		case <-timer.C:
			p.handle(ctx, &helpers, event{kind: evTick})
		}
	}
}

// abandon lets go of a process that goes on without this daemon, with a start
// that came too late for it.
func (p *process) abandon() {
	for _, e := range p.receive() {
		if e.child != nil {
			e.child.handle.close()
		}
	}
	if p.child != nil {
		p.child.handle.close()
	}
	for _, a := range p.asking {
		a <- reloadAnswer{err: errEnded}
	}
	p.asking = nil
}

// handle feeds the machine one event.
func (p *process) handle(ctx context.Context, helpers *sync.WaitGroup, e event) {
	if e.gen != 0 && e.gen != p.gen {
		return // an answer of a process that is gone
	}
	switch e.kind {
	case evReloadAsked:
		p.asking = append(p.asking, e.answer)
	case evStartFailed:
		p.lines.add(e.err.Error())
	case evStarted, evAdopted:
		p.own(e.child)
		p.attend(ctx, helpers)
	case evExited:
		p.child.handle.close()
		p.child = nil
		p.gen++
		p.client.CloseIdleConnections()
		p.s.ports.release(p.uid)
	}
	p.apply(e)
}

func (p *process) own(c *child) {
	p.child, p.checked = c, c.adopted
	p.gen++
}

// apply steps the machine, and tells whoever looks.
func (p *process) apply(e event) {
	before := p.m.phase
	var do []action
	p.m, do = step(p.s.policy, p.m, e, time.Now())
	p.pending = append(p.pending, do...)
	p.narrate(before, e)
	p.tell(before, e)
	p.tally(before, e)
	if e.kind == evExited || e.kind == evStartFailed || e.kind == evLost {
		p.record()
	}
	p.publish()
}

// narrate logs what a reader of the log wants to know of a step.
func (p *process) narrate(before phase, e event) {
	switch {
	case e.kind == evExited && p.m.phase == phaseEnded:
		p.log.Info("the runtime has stopped", "exit", describe(e.exit))
	case e.kind == evExited || e.kind == evLost:
		p.log.Warn("the runtime has ended", "exit", describe(e.exit), "next", time.Until(p.m.notBefore).Round(time.Millisecond).String())
	case e.kind == evStartFailed:
		p.log.Error("the runtime could not be started", "error", e.err)
	case e.kind == evReloaded && e.err != nil:
		p.log.Warn("the runtime did not answer a reload", "error", e.err)
	case e.kind == evReloaded:
		p.log.Info("reload", "outcome", string(e.reload.Outcome), "version", e.reload.Version, "error", e.reload.Error)
	case p.m.phase == before:
	case p.m.phase == phaseReady:
		p.log.Info("the runtime is ready", "version", p.m.deployment, "pid", p.pid(), "after", time.Since(p.m.startedAt).Round(time.Millisecond).String())
	case p.m.phase == phaseOut:
		p.log.Warn("the runtime is taken out", "pid", p.pid(), "silent", p.m.silent)
	case p.m.phase == phaseKilled:
		p.log.Warn("the runtime is killed", "pid", p.pid())
	}
}

// tally tells who counts what a step was.
func (p *process) tally(before phase, e event) {
	if p.s.cfg.Counted == nil {
		return
	}
	h := Happening("")
	switch {
	case e.kind == evStarted:
		h = Started
	case e.kind == evAdopted:
		h = Adopted
	case e.kind == evStartFailed:
		h = StartFailed
	case e.kind == evExited || e.kind == evLost:
		switch {
		case before == phaseKilled:
			h = Killed
		case before == phaseStopping:
			h = Stopped
		case e.exit.fenced():
			h = Fenced
		default:
			h = Crashed
		}
	case p.m.phase == before:
	case p.m.phase == phaseReady:
		h = Ready
	case p.m.phase == phaseOut:
		h = Silent
	}
	if h != "" {
		p.s.cfg.Counted(h)
	}
}

func (p *process) pid() int {
	if p.child == nil {
		return 0
	}
	return p.child.handle.pid
}

// perform does what the machine said.
func (p *process) perform(ctx context.Context, helpers *sync.WaitGroup) {
	for len(p.pending) > 0 {
		a := p.pending[0]
		p.pending = p.pending[1:]
		switch a {
		case doStart:
			before := p.addresses()
			m := p.m
			helpers.Go(func() { p.send(p.launch(ctx, before, m)) })
		case doTerm:
			p.signal(p.child.handle.signal(unix.SIGTERM))
		case doKill:
			p.signal(p.child.handle.killGroup())
		case doFlush:
			for _, answer := range p.asking {
				answer <- p.m.last
			}
			p.asking = nil
		case doProbe, doState, doReload:
			c, gen, first := p.child, p.gen, !p.checked
			p.checked = p.checked || a == doState
			starting := p.m.phase == phaseStarting
			helpers.Go(func() {
				e := p.inquire(ctx, a, c, starting, first)
				e.gen = gen
				if ctx.Err() == nil {
					p.send(e)
				}
			})
		}
	}
}

func (p *process) signal(err error) {
	if err != nil {
		p.log.Debug("the runtime could not be signalled", "pid", p.pid(), "error", err)
	}
}

// inquire asks the process something, each with its own time-out.
func (p *process) inquire(ctx context.Context, a action, c *child, starting, first bool) event {
	internal := celld.Internal{URL: probeURL(c.addr.internal), HTTP: p.client}
	switch a {
	case doState:
		st, err := internal.State(ctx)
		return event{kind: evState, version: st.Version, err: err}
	case doReload:
		r, err := internal.Reload(ctx)
		return event{kind: evReloaded, reload: r, err: err}
	}
	timeout := p.s.policy.ProbeTimeout
	if starting {
		timeout = p.s.policy.StartProbeTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := celld.HealthyAt(ctx, p.client, probeURL(c.addr.public), celld.HealthPathOf(c.celld))
	e := event{kind: evProbed, health: healthOf(err)}
	if first && e.health != healthSilent && strangerListens(c.handle.pid, c.addr.public) {
		p.client.CloseIdleConnections()
		e.health = healthSilent
	}
	return e
}

// attend follows the child's output and waits for its end.
func (p *process) attend(ctx context.Context, helpers *sync.WaitGroup) {
	c, gen := p.child, p.gen
	gone := make(chan struct{})
	followed := make(chan struct{})
	f, err := newFollower(p.dir, p.s.watch, p.line)
	if err != nil {
		p.log.Error("the runtime's output cannot be followed", "error", err)
		close(followed)
	} else {
		helpers.Go(func() {
			defer close(followed)
			f.run(ctx, gone)
		})
	}
	stop := context.AfterFunc(ctx, c.handle.close)
	helpers.Go(func() {
		defer stop()
		if !c.handle.wait() {
			return // the daemon goes, the process stays
		}
		c.handle.killGroup() //nolint:errcheck,gosec // usually nothing is left
		x := c.handle.reap(time.Now())
		close(gone)
		<-followed // its last lines first
		if ctx.Err() == nil {
			p.send(event{kind: evExited, exit: x, gen: gen})
		}
	})
}

// finish removes what a stopped process leaves. A lost lease is remembered for
// the next start.
func (p *process) finish() {
	p.over.Store(true)
	p.s.ports.release(p.uid)
	if x := p.m.lastExit; x != nil && (exit{Exit: *x}).fenced() {
		return
	}
	if err := removeRecord(p.dir); err != nil {
		p.log.Warn("the record of a stopped runtime stays", "error", err)
	}
}

// record notes the end of a process.
func (p *process) record() {
	r, err := readRecord(p.dir)
	if err != nil {
		return // there was none to tell about
	}
	r.PID, r.StartTicks, r.Exit = 0, 0, p.m.lastExit
	r.Restarts, r.Crashes = p.m.restarts, p.m.crashes
	if err := writeRecord(p.dir, r); err != nil {
		p.log.Warn("the record of a runtime could not be written", "error", err)
	}
}

// addresses are those of the last process, which the next one gets again when
// they are free.
func (p *process) addresses() pair {
	r, err := readRecord(p.dir)
	if err != nil {
		return pair{}
	}
	return r.addresses()
}

func (r record) addresses() pair {
	var a pair
	a.public, _ = netip.ParseAddrPort(r.Listen)     //nolint:errcheck // none is the zero value
	a.internal, _ = netip.ParseAddrPort(r.Internal) //nolint:errcheck // likewise
	return a
}

func (p *process) status() scafo.ProcessStatus {
	p.viewMu.Lock()
	st := p.view
	p.viewMu.Unlock()
	if st.State == scafo.ProcessBackoff || (st.State == scafo.ProcessStarting && st.LastExit != nil) {
		st.LastLines = p.lines.last()
	}
	return st
}

func (p *process) publish() {
	st := p.look()
	p.viewMu.Lock()
	news := !reflect.DeepEqual(st, p.view)
	p.view = st
	p.viewMu.Unlock()
	if news {
		p.s.changed()
	}
}

func (p *process) look() scafo.ProcessStatus {
	st := scafo.ProcessStatus{
		Application: p.app, UID: p.uid, State: p.m.state(),
		Deployment: p.m.deployment, Wanted: p.m.version, Restarts: p.m.restarts, LastExit: p.m.lastExit, Refused: p.m.refused,
	}
	if c := p.child; c != nil {
		st.PID, st.CelldVersion = c.handle.pid, c.celld
		at := c.startedAt
		st.StartedAt = &at
		st.Internal = "http://" + net.JoinHostPort(p.s.cfg.InternalHost, fmt.Sprint(c.addr.internal.Port()))
		st.URL = "http://" + net.JoinHostPort(p.s.cfg.Address, fmt.Sprint(c.addr.public.Port()))
	}
	return st
}
