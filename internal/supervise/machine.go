package supervise

import (
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/celld"
)

// This file is the decision core of one application's process: values and the
// time go in, actions come out. It reads no clock and does no I/O.

// phase is where the process is in its life.
type phase int

const (
	phaseIdle     phase = iota // no process, and no reason to wait
	phaseWaiting               // no process; the next start is due at notBefore
	phaseLaunch                // the runner was told to start one
	phaseStarting              // it lives; health was not seen yet
	phaseReady                 // it lives, and its last answers were health 200
	phaseOut                   // it lives and was ready, but does not answer, or says no
	phaseStopping              // SIGTERM was sent
	phaseKilled                // SIGKILL was sent
	phaseEnded                 // gone, and not wanted: the last phase
)

func (p phase) alive() bool { return p >= phaseStarting && p <= phaseKilled }

// eventKind says what happened.
type eventKind int

const (
	evTick        eventKind = iota // only time passed
	evWant                         // wanted or not, and in which version
	evStop                         // stop it, whatever is wanted
	evStarted                      // a process runs now
	evStartFailed                  // none could be started
	evAdopted                      // a process of before was found alive
	evLost                         // a process of before is gone; nobody saw its exit
	evProbed                       // the answer to a probe
	evState                        // the answer to GET /state
	evReloaded                     // the answer to POST /reload
	evReloadAsked                  // somebody asks for a reload
	evExited                       // the process ended
)

// health is what a probe found.
type health int

const (
	healthOK     health = iota // 200
	healthBusy                 // it answered, and not with 200
	healthSilent               // no answer in time
)

type event struct {
	kind    eventKind
	wanted  bool
	version string // evWant: the wanted one; evState: the served one; evAdopted: the one it was started for
	within  time.Duration
	health  health
	err     error
	exit    exit
	reload  celld.Reload
	at      time.Time // evAdopted: when it was started

	answer chan<- reloadAnswer // evReloadAsked; for the runner alone
	child  *child              // evStarted, evAdopted; for the runner alone
	gen    int                 // which child it is about; 0: whichever; for the runner alone
}

// exit says how a process ended.
type exit struct {
	scafo.Exit
	unseen bool          // nobody saw the code
	ago    time.Duration // how long it has been gone for certain
}

// fenced reports whether the process lost its lease, or may have: a code that
// nobody saw counts as that, since the lease of a process that vanished may
// still hold.
func (x exit) fenced() bool {
	return x.unseen || (x.Signal == "" && x.Code == celld.ExitFenced)
}

// action is what the runner shall do.
type action int

const (
	doStart  action = iota // start a process; answers evStarted, evAdopted or evStartFailed
	doTerm                 // SIGTERM
	doKill                 // SIGKILL, to the whole process group
	doProbe                // ask its health; answers evProbed
	doState                // ask what it serves; answers evState
	doReload               // make it look at its pointer; answers evReloaded
	doFlush                // tell those who asked for a reload what came of it
)

// machine is the state of one application's process. It is a value: step returns
// a new one.
type machine struct {
	known   bool // somebody said whether it is wanted
	wanted  bool
	version string

	phase     phase
	since     time.Time // when the phase began
	startedAt time.Time
	upAt      time.Time // when it was first ready since its start
	killAt    time.Time // stopping: when to kill
	killedAt  time.Time // killed: when the last kill was sent
	notBefore time.Time // waiting: when to start

	probing  bool
	probeAt  time.Time
	health   health    // what the last probe found
	silent   int       // answers missed in a row
	heardAt  time.Time // when it last answered anything
	stateAt  time.Time // when to ask what it serves; zero while asking
	asking   bool
	crashes  int // in a row, for the back-off
	restarts int
	lastExit *scafo.Exit
	// startedFor is the version that was wanted when the process was started; empty
	// where nobody knows.
	startedFor string

	deployment string // what it serves, as it said itself
	refused    *scafo.Refusal

	reloading   bool
	reloadAsked bool // by somebody who waits for the answer
	reloadAt    time.Time
	reloadTries int
	last        reloadAnswer // what the last reload came to
}

// reloadAnswer is what one who asked for a reload is told.
type reloadAnswer struct {
	reload celld.Reload
	err    error
}

// step takes one event at that time.
func step(p Policy, m machine, e event, now time.Time) (machine, []action) {
	s := &stepper{p: p, m: m, now: now}
	switch e.kind {
	case evTick:
	case evWant:
		s.want(e.wanted, e.version)
	case evStop:
		s.stop(e.within)
	case evStarted:
		s.started(now)
	case evStartFailed:
		s.startFailed()
	case evAdopted:
		s.m.startedFor = e.version
		s.started(e.at)
	case evLost:
		s.exited(e.exit)
	case evProbed:
		s.probed(e.health)
	case evState:
		s.stated(e)
	case evReloaded:
		s.reloaded(e)
	case evReloadAsked:
		s.reloadAskedFor()
	case evExited:
		s.exited(e.exit)
	}
	s.due()
	return s.m, s.do
}

type stepper struct {
	p   Policy
	m   machine
	now time.Time
	do  []action
}

func (s *stepper) act(a action) { s.do = append(s.do, a) }

func (s *stepper) enter(p phase) {
	if s.m.phase != p {
		s.m.phase, s.m.since = p, s.now
	}
}

func (s *stepper) want(wanted bool, version string) {
	first := !s.m.known
	news := wanted && version != "" && version != s.m.version
	s.m.known, s.m.wanted = true, wanted
	if wanted {
		s.m.version = version
	}
	switch {
	case !wanted:
		s.stop(s.p.StopBound)
	case s.m.phase == phaseIdle || s.m.phase == phaseEnded:
		s.waitUntil(s.now)
	case !news:
	case s.m.phase == phaseWaiting && (!first || s.endedOnAnother()) && !s.fenced():
		// Another version is another chance. What a new daemon is told first is one only
		// where the last process is known to have been started for another.
		s.m.crashes = 0
		s.waitUntil(s.now)
	case s.up() && s.m.deployment != version:
		s.m.reloadAt, s.m.reloadTries = s.now, 0
	}
}

// up reports whether the process is past its start, and not being ended.
func (s *stepper) up() bool { return s.m.phase == phaseReady || s.m.phase == phaseOut }

// fenced reports whether the last process may still hold its lease, so that
// nothing may bring the next start forward.
func (s *stepper) fenced() bool {
	return s.m.lastExit != nil && exit{Exit: *s.m.lastExit}.fenced()
}

// endedOnAnother reports whether the last process is known to have been started for
// another version than the wanted one.
func (s *stepper) endedOnAnother() bool {
	x := s.m.lastExit
	return x != nil && x.Version != "" && x.Version != s.m.version
}

// stop ends the process within that time; 0 kills it at once.
func (s *stepper) stop(within time.Duration) {
	s.m.known, s.m.wanted = true, false
	switch s.m.phase {
	case phaseIdle, phaseWaiting:
		s.end()
	case phaseLaunch, phaseKilled, phaseEnded:
		// The start's answer, or the exit, comes first.
		s.m.killAt = s.now.Add(within)
	case phaseStopping:
		if at := s.now.Add(within); at.Before(s.m.killAt) {
			s.m.killAt = at
		}
	default:
		s.m.killAt = s.now.Add(within)
		s.enter(phaseStopping)
		s.act(doTerm)
	}
}

func (s *stepper) end() {
	s.enter(phaseEnded)
	s.m.notBefore = time.Time{}
	s.answer(reloadAnswer{err: errEnded})
}

var errEnded = scafo.Errorf(scafo.CodeNotFound, "the application's process has ended")

func (s *stepper) waitUntil(at time.Time) {
	s.enter(phaseWaiting)
	s.m.notBefore = at
}

func (s *stepper) started(at time.Time) {
	s.enter(phaseStarting)
	s.m.startedAt, s.m.upAt, s.m.heardAt = at, time.Time{}, s.now
	s.m.probing, s.m.probeAt, s.m.silent = false, s.now, 0
	s.m.asking, s.m.stateAt = false, time.Time{}
	s.m.deployment, s.m.refused = "", nil
	s.m.reloading, s.m.reloadAt, s.m.reloadTries = false, time.Time{}, 0
	if s.m.known && !s.m.wanted {
		within := max(0, s.m.killAt.Sub(s.now))
		s.stop(within)
	}
}

func (s *stepper) startFailed() {
	if s.m.known && !s.m.wanted {
		s.end()
		return
	}
	s.m.crashes++
	s.m.restarts++
	s.waitUntil(s.now.Add(s.p.backoff(s.m.crashes)))
	s.answer(reloadAnswer{err: scafo.Errorf(scafo.CodeInternal, "the runtime could not be started")})
}

func (s *stepper) exited(x exit) {
	at := x.Exit
	at.Version = s.m.startedFor
	s.m.lastExit = &at
	wasUp := !s.m.upAt.IsZero() && s.now.Sub(s.m.startedAt) >= s.p.Stable
	asked := s.m.phase == phaseStopping && !x.fenced()
	s.m.probing, s.m.asking, s.m.reloading = false, false, false
	s.m.deployment, s.m.refused = "", nil
	if s.m.known && !s.m.wanted {
		if x.unseen && s.m.phase == phaseStopping {
			// Taken over, told to drain, and gone in time: its code could not be seen,
			// and the next start need not wait for it.
			s.m.lastExit = nil
		}
		s.end()
		return
	}
	s.m.restarts++
	if asked {
		// It was told to stop, and is wanted again since.
		s.m.crashes = 0
		s.waitUntil(s.now)
		return
	}
	switch {
	case x.fenced():
		// No crash: it did what a runtime must do without its lease.
	case wasUp:
		s.m.crashes = 1
	default:
		s.m.crashes++
	}
	s.waitUntil(s.now.Add(max(0, s.p.restartAfter(x, s.m.crashes)-x.ago)))
	s.answer(reloadAnswer{err: scafo.Errorf(scafo.CodePublishFailed, "the runtime ended with %s", describe(x))})
}

func (s *stepper) probed(h health) {
	s.m.probing, s.m.health = false, h
	if h != healthSilent {
		s.m.silent, s.m.heardAt = 0, s.now
	} else {
		s.m.silent++
	}
	switch s.m.phase {
	case phaseStarting:
		s.probedStarting(h)
	case phaseReady, phaseOut:
		s.probedUp(h)
	}
}

func (s *stepper) probedStarting(h health) {
	s.m.probeAt = s.now.Add(s.p.startProbe(s.now.Sub(s.m.since)))
	switch {
	case h == healthOK && s.m.stateAt.IsZero() && !s.m.asking:
		// It is ready once it said what it serves: see stated.
		s.ask()
	case h == healthSilent && s.now.Sub(s.m.heardAt) >= s.p.StartSilence:
		s.kill()
	}
}

func (s *stepper) probedUp(h health) {
	switch {
	case h == healthOK:
		s.m.probeAt = s.now.Add(s.p.ProbeEvery)
		if s.m.phase == phaseOut {
			s.enter(phaseReady)
			s.m.stateAt = s.now
		}
		return
	case h == healthBusy:
		s.enter(phaseOut)
	case s.m.silent >= s.p.KillAfter:
		s.kill()
		return
	case s.m.silent >= s.p.OutAfter:
		s.enter(phaseOut)
	}
	s.m.probeAt = s.now.Add(s.p.ProbeRetry)
}

func (s *stepper) ask() {
	s.m.asking = true
	s.m.stateAt = time.Time{}
	s.act(doState)
}

// stated takes what the process says that it serves. A release that does not say
// it is asked by a reload.
func (s *stepper) stated(e event) {
	s.m.asking = false
	if s.m.phase != phaseStarting && !s.up() {
		return
	}
	if s.m.phase == phaseStarting && s.m.health != healthOK {
		return // it changed its mind: the next good answer asks again
	}
	s.m.stateAt = s.now.Add(s.p.StateEvery)
	if e.err == nil && e.version != "" {
		s.serves(e.version)
	}
	if s.m.phase == phaseStarting {
		s.enter(phaseReady)
		s.m.upAt = s.now
		s.m.probeAt = s.now.Add(s.p.ProbeEvery)
		if s.m.deployment == "" || s.m.reloadAsked {
			s.m.reloadAt = s.now
		}
	}
	s.wantedVersion()
}

// serves notes the version that the process said it serves.
func (s *stepper) serves(version string) {
	s.m.deployment = version
	if s.m.refused != nil && s.m.refused.Version == version {
		s.m.refused = nil
	}
}

// wantedVersion asks for a reload when the process serves another version than
// the wanted one.
func (s *stepper) wantedVersion() {
	if s.lags() && !s.m.reloading && s.m.reloadAt.IsZero() {
		s.m.reloadAt = s.now
	}
}

// lags reports whether it serves another version than it should.
func (s *stepper) lags() bool {
	return s.m.wanted && s.m.version != "" && s.m.deployment != s.m.version
}

func (s *stepper) reloadAskedFor() {
	s.m.reloadAsked = true
	switch s.m.phase {
	case phaseWaiting:
		// Whoever asks knows of a new pointer: that is worth a start at once, but
		// never one that the lease of the last process forbids.
		if !s.fenced() {
			s.waitUntil(s.now)
		}
	case phaseIdle, phaseEnded:
		s.answer(reloadAnswer{err: errEnded})
	case phaseStopping, phaseKilled:
		if s.m.known && !s.m.wanted {
			s.answer(reloadAnswer{err: errEnded})
		}
	case phaseReady, phaseOut:
		s.m.reloadAt, s.m.reloadTries = s.now, 0
	}
}

func (s *stepper) reloaded(e event) {
	s.m.reloading = false
	if !s.up() {
		return
	}
	// Somebody asked, or a want came, while this one was under way: it may have
	// looked too early for them.
	again := !s.m.reloadAt.IsZero()
	retry := time.Duration(0)
	switch {
	case e.err != nil || e.reload.Outcome == celld.ReloadUnavailable:
		s.m.reloadTries++
		retry = min(s.p.ReloadMin<<min(s.m.reloadTries-1, maxDoublings), s.p.ReloadMax)
	case e.reload.Outcome == celld.ReloadFailed:
		s.m.reloadTries = 0
		s.m.refused = &scafo.Refusal{Version: e.reload.Version, Detail: e.reload.Error}
		if e.reload.Version == "" {
			s.m.refused.Version = s.m.version
		}
	default: // the pointer names something that it takes
		s.m.reloadTries, s.m.refused = 0, nil
		if e.reload.Version != "" {
			s.serves(e.reload.Version)
		} else {
			s.m.stateAt = s.now
		}
	}
	switch {
	case again:
		return
	case retry > 0:
		s.m.reloadAt = s.now.Add(retry)
	case s.lags():
		s.m.reloadAt = s.now.Add(s.p.ReloadRefused)
	}
	s.answer(reloadAnswer{reload: e.reload, err: e.err})
}

// maxDoublings keeps a doubled delay from overflowing.
const maxDoublings = 16

// answer tells those who asked for a reload, unless another one is due for them.
func (s *stepper) answer(a reloadAnswer) {
	if !s.m.reloadAsked {
		return
	}
	s.m.last, s.m.reloadAsked = a, false
	s.act(doFlush)
}

func (s *stepper) kill() {
	s.enter(phaseKilled)
	s.m.killedAt = s.now
	s.act(doKill)
}

// due does what the time has come for.
func (s *stepper) due() {
	reached := func(at time.Time) bool { return !at.IsZero() && !s.now.Before(at) }
	switch s.m.phase {
	case phaseWaiting:
		if s.m.known && s.m.wanted && reached(s.m.notBefore) {
			s.enter(phaseLaunch)
			s.m.startedFor = s.m.version
			s.act(doStart)
		}
	case phaseStopping:
		if reached(s.m.killAt) {
			s.kill()
		}
	case phaseKilled:
		if reached(s.m.killedAt.Add(s.p.KillAgain)) {
			s.m.killedAt = s.now
			s.act(doKill)
		}
	case phaseStarting, phaseReady, phaseOut:
		if !s.m.probing && reached(s.m.probeAt) {
			s.m.probing = true
			s.act(doProbe)
		}
		if s.m.phase == phaseStarting {
			return
		}
		if !s.m.asking && reached(s.m.stateAt) {
			s.ask()
		}
		if !s.m.reloading && reached(s.m.reloadAt) {
			s.m.reloading, s.m.reloadAt = true, time.Time{}
			s.act(doReload)
		}
	}
}

// wake is when the next event is due by time alone; zero for never.
func (m machine) wake(p Policy) time.Time {
	var at time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	switch m.phase {
	case phaseWaiting:
		if m.known && m.wanted {
			sooner(m.notBefore)
		}
	case phaseStopping:
		sooner(m.killAt)
	case phaseKilled:
		sooner(m.killedAt.Add(p.KillAgain))
	case phaseStarting, phaseReady, phaseOut:
		if !m.probing {
			sooner(m.probeAt)
		}
		if m.phase != phaseStarting {
			if !m.asking {
				sooner(m.stateAt)
			}
			if !m.reloading {
				sooner(m.reloadAt)
			}
		}
	}
	return at
}

// state is the phase as others see it.
func (m machine) state() scafo.ProcessState {
	switch m.phase {
	case phaseReady:
		return scafo.ProcessReady
	case phaseStopping, phaseKilled:
		if m.known && !m.wanted {
			return scafo.ProcessDraining
		}
		return scafo.ProcessStarting // taken out, and about to be replaced
	case phaseWaiting:
		if m.crashes == 0 && m.lastExit == nil {
			return scafo.ProcessStarting
		}
		return scafo.ProcessBackoff
	case phaseLaunch, phaseStarting, phaseOut:
		return scafo.ProcessStarting
	}
	return scafo.ProcessStopped
}
