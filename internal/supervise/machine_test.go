package supervise

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/celld"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// play feeds events to a machine, one after another, at given times.
type play struct {
	t   *testing.T
	p   Policy
	m   machine
	now time.Time
}

func newPlay(t *testing.T) *play { return &play{t: t, p: DefaultPolicy(nil), now: epoch} }

func (p *play) after(d time.Duration, e event) []action {
	p.now = p.now.Add(d)
	var do []action
	p.m, do = step(p.p, p.m, e, p.now)
	return do
}

func (p *play) expect(what string, do []action, want ...action) {
	p.t.Helper()
	if !slices.Equal(do, want) {
		p.t.Fatalf("%s: actions %v, want %v", what, do, want)
	}
}

func wanted(version string) event { return event{kind: evWant, wanted: true, version: version} }

func exited(code int) event { return event{kind: evExited, exit: exit{Exit: scafo.Exit{Code: code}}} }

func killed() event {
	return event{kind: evExited, exit: exit{Exit: scafo.Exit{Code: -1, Signal: "SIGKILL"}}}
}

// up brings the machine to ready with that version.
func (p *play) up(version string) {
	p.t.Helper()
	p.expect("want", p.after(0, wanted(version)), doStart)
	p.expect("started", p.after(0, event{kind: evStarted}), doProbe)
	p.expect("healthy", p.after(5*time.Millisecond, event{kind: evProbed}), doState)
	p.after(time.Millisecond, event{kind: evState, version: version})
	if p.m.state() != scafo.ProcessReady {
		p.t.Fatalf("state %s", p.m.state())
	}
}

// waits is how long until the next start.
func (p *play) waits() time.Duration {
	p.t.Helper()
	if p.m.phase != phaseWaiting {
		p.t.Fatalf("phase %d does not wait", p.m.phase)
	}
	return p.m.notBefore.Sub(p.now)
}

func (p *play) restart() {
	p.t.Helper()
	p.expect("too early", p.after(p.waits()-1, event{}))
	p.expect("due", p.after(1, event{}), doStart)
	p.after(0, event{kind: evStarted})
}

func TestBackoffDoublesToAMinute(t *testing.T) {
	p := newPlay(t)
	p.up(v1)
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		p.after(time.Millisecond, exited(1))
		if got := p.waits(); got != want*time.Second {
			t.Fatalf("waits %v, want %v s", got, want)
		}
		if p.m.state() != scafo.ProcessBackoff {
			t.Fatalf("state %s", p.m.state())
		}
		p.restart()
	}
	// It stays up for a minute: the next crash is a first one.
	p.after(0, event{kind: evProbed})
	p.after(0, event{kind: evState, version: v1})
	p.after(time.Minute, exited(1))
	if got := p.waits(); got != time.Second {
		t.Errorf("after it stayed up, waits %v", got)
	}
}

func TestBackoffIsNotResetByAShortLife(t *testing.T) {
	p := newPlay(t)
	p.up(v1)
	p.after(0, exited(1))
	p.restart()
	p.after(0, event{kind: evProbed})
	p.after(0, event{kind: evState, version: v1})
	p.after(59*time.Second, killed())
	if got := p.waits(); got != 2*time.Second {
		t.Errorf("waits %v", got)
	}
}

func TestAFencedProcessWaitsALease(t *testing.T) {
	for name, x := range map[string]exit{
		"exit 3":      {Exit: scafo.Exit{Code: 3}},
		"unseen exit": {Exit: scafo.Exit{Code: 3}, unseen: true},
	} {
		p := newPlay(t)
		p.up(v1)
		for range 100 { // no attempt limit, and no growing wait
			p.after(time.Millisecond, event{kind: evExited, exit: x})
			if got := p.waits(); got != 10*time.Second {
				t.Fatalf("%s: waits %v", name, got)
			}
			// Nothing brings it forward.
			p.expect("another version", p.after(0, wanted(v2)))
			p.expect("a question", p.after(0, event{kind: evReloadAsked}))
			p.expect("back", p.after(0, wanted(v1)))
			p.restart()
		}
		p.after(0, exited(1))
		if got := p.waits(); got != time.Second {
			t.Errorf("%s counted as a crash: the next one waits %v", name, got)
		}
	}
	longer := DefaultPolicy(map[string]string{"CELLD_TTL_MS": "30000"})
	if longer.FenceWait != 30*time.Second {
		t.Errorf("a lease of 30 s gives a wait of %v", longer.FenceWait)
	}
}

func TestWhatEndedBeforeTheBootNeedNotWait(t *testing.T) {
	p := newPlay(t)
	p.after(0, event{kind: evLost, exit: exit{Exit: scafo.Exit{Code: 3}, unseen: true, ago: 4 * time.Second}})
	p.after(0, wanted(v1))
	if got := p.waits(); got != 6*time.Second {
		t.Errorf("waits %v", got)
	}
	p = newPlay(t)
	p.after(0, event{kind: evLost, exit: exit{Exit: scafo.Exit{Code: 3}, unseen: true, ago: time.Hour}})
	p.expect("wanted", p.after(0, wanted(v1)), doStart)
}

func TestNothingStartsOrStopsBeforeItIsWanted(t *testing.T) {
	p := newPlay(t)
	p.expect("adopted", p.after(0, event{kind: evAdopted, at: epoch.Add(-time.Hour)}), doProbe)
	p.expect("time", p.after(time.Hour, event{}))
	p.after(0, exited(1))
	p.expect("time", p.after(time.Hour, event{}))
	p.expect("wanted", p.after(0, wanted(v1)), doStart)
}

func TestFrozen(t *testing.T) {
	p := newPlay(t)
	p.up(v1)
	silent := event{kind: evProbed, health: healthSilent}
	p.expect("probe", p.after(2*time.Second, event{}), doProbe)
	p.after(2*time.Second, silent)
	if p.m.state() != scafo.ProcessReady {
		t.Fatal("one missed answer takes it out")
	}
	p.expect("again", p.after(500*time.Millisecond, event{}), doProbe)
	p.after(2*time.Second, silent)
	if p.m.state() != scafo.ProcessStarting {
		t.Fatal("two missed answers do not take it out")
	}
	for range 2 {
		p.expect("again", p.after(500*time.Millisecond, event{}), doProbe)
		p.expect("missed", p.after(2*time.Second, silent))
	}
	p.expect("again", p.after(500*time.Millisecond, event{}), doProbe)
	p.expect("the fifth", p.after(2*time.Second, silent), doKill)
	p.expect("it does not go", p.after(time.Second, event{}), doKill)
	p.after(0, killed())
	if got := p.waits(); got != time.Second {
		t.Errorf("waits %v", got)
	}
}

func TestAnAnswerForgetsMissedOnes(t *testing.T) {
	p := newPlay(t)
	p.up(v1)
	for range 10 {
		for range 4 {
			p.after(500*time.Millisecond, event{kind: evProbed, health: healthSilent})
		}
		p.after(500*time.Millisecond, event{kind: evProbed, health: healthBusy})
		if p.m.phase != phaseOut {
			t.Fatalf("phase %d", p.m.phase)
		}
	}
	p.after(0, event{kind: evProbed})
	if p.m.phase != phaseReady {
		t.Fatalf("phase %d", p.m.phase)
	}
}

func TestStartingMayTakeLongButNotInSilence(t *testing.T) {
	p := newPlay(t)
	p.after(0, wanted(v1))
	p.after(0, event{kind: evStarted})
	for range 30 { // a gate of half an hour
		p.after(time.Minute, event{kind: evProbed, health: healthBusy})
	}
	if p.m.phase != phaseStarting {
		t.Fatalf("phase %d", p.m.phase)
	}
	p.after(10*time.Minute-1, event{kind: evProbed, health: healthSilent})
	if p.m.phase != phaseStarting {
		t.Fatalf("phase %d", p.m.phase)
	}
	p.after(1, event{kind: evProbed, health: healthSilent})
	if p.m.phase != phaseKilled {
		t.Fatalf("phase %d", p.m.phase)
	}
}

// What probing adds to a start is a tenth of it, or 5 ms.
func TestStartProbesAreCloseTogether(t *testing.T) {
	p := DefaultPolicy(nil)
	for elapsed, want := range map[time.Duration]time.Duration{
		0: 5 * time.Millisecond, 20 * time.Millisecond: 5 * time.Millisecond,
		100 * time.Millisecond: 10 * time.Millisecond, 2 * time.Second: 200 * time.Millisecond,
		time.Minute: time.Second,
	} {
		if got := p.startProbe(elapsed); got != want {
			t.Errorf("after %v: %v, want %v", elapsed, got, want)
		}
	}
}

func TestReloadFollowsTheWant(t *testing.T) {
	p := newPlay(t)
	p.up(v1)
	p.expect("the same", p.after(0, wanted(v1)))
	p.expect("another", p.after(0, wanted(v2)), doReload)
	// Another one while it is under way: one more, after it.
	p.expect("a third", p.after(0, wanted(v3)))
	p.expect("answer", p.after(0, event{kind: evReloaded, reload: celld.Reload{Outcome: celld.ReloadAdopted, Version: v2}}), doReload)
	if p.m.deployment != v2 {
		t.Errorf("serves %q", p.m.deployment)
	}
	p.expect("refused", p.after(0, event{kind: evReloaded, reload: celld.Reload{Outcome: celld.ReloadFailed, Version: v3, Error: "no"}}))
	if p.m.deployment != v2 || p.m.refused == nil || *p.m.refused != (scafo.Refusal{Version: v3, Detail: "no"}) {
		t.Errorf("serves %q, refused %+v", p.m.deployment, p.m.refused)
	}
	// What was refused is asked again a minute later: the cause may have gone.
	do := p.after(time.Minute, event{})
	if !slices.Contains(do, doReload) {
		t.Errorf("a minute later: %v", do)
	}
}

func TestWhoAsksWhileAReloadRunsGetsALaterOne(t *testing.T) {
	p := newPlay(t)
	p.up(v1)
	p.expect("first", p.after(0, event{kind: evReloadAsked}), doReload)
	p.expect("second", p.after(0, event{kind: evReloadAsked}))
	p.expect("an answer that may be too old", p.after(0, event{kind: evReloaded, reload: celld.Reload{Outcome: celld.ReloadUnchanged, Version: v1}}), doReload)
	p.expect("the later one", p.after(0, event{kind: evReloaded, reload: celld.Reload{Outcome: celld.ReloadAdopted, Version: v2}}), doFlush)
	if p.m.last.reload.Version != v2 {
		t.Errorf("told %+v", p.m.last)
	}
}

func TestANewVersionEndsABackoff(t *testing.T) {
	p := newPlay(t)
	p.up(v1)
	for range 6 {
		p.after(0, exited(1))
		p.restart()
	}
	p.after(0, exited(1))
	p.expect("the same", p.after(0, wanted(v1)))
	p.expect("another", p.after(0, wanted(v2)), doStart)
	p.after(0, event{kind: evStarted})
	p.after(0, exited(1))
	if got := p.waits(); got != time.Second {
		t.Errorf("waits %v", got)
	}
	p.expect("a question", p.after(0, event{kind: evReloadAsked}), doStart)
}

// How a process ended says nothing of a version that was wanted only later.
func TestAnExitIsOfTheVersionItsProcessWasStartedFor(t *testing.T) {
	of := func(p *play) string {
		t.Helper()
		if p.m.lastExit == nil {
			t.Fatal("no exit")
		}
		return p.m.lastExit.Version
	}
	p := newPlay(t)
	p.expect("want", p.after(0, wanted(v1)), doStart)
	p.after(0, event{kind: evStarted})
	p.after(0, wanted(v2)) // while it starts
	p.after(0, exited(1))
	if got := of(p); got != v1 {
		t.Errorf("the exit is of %q", got)
	}
	p.restart()
	p.after(0, exited(1))
	if got := of(p); got != v2 {
		t.Errorf("the next exit is of %q", got)
	}

	p = newPlay(t)
	p.after(0, event{kind: evAdopted, at: epoch, version: v1})
	p.after(0, wanted(v2))
	p.after(0, exited(1))
	if got := of(p); got != v1 {
		t.Errorf("the exit of a process that was taken over is of %q", got)
	}
}

// A new daemon keeps the wait of a crash loop, unless it is told of another version
// than the one that crashed.
func TestANewDaemonGivesAnotherVersionAChance(t *testing.T) {
	waiting := func(x scafo.Exit) *play {
		p := newPlay(t)
		p.m.phase, p.m.lastExit, p.m.crashes, p.m.notBefore = phaseWaiting, &x, 6, epoch.Add(time.Minute)
		return p
	}
	p := waiting(scafo.Exit{Code: 1, Version: v1})
	p.expect("the version that crashed", p.after(0, wanted(v1)))
	p = waiting(scafo.Exit{Code: 1, Version: v1})
	p.expect("another", p.after(0, wanted(v2)), doStart)
	p = waiting(scafo.Exit{Code: 1})
	p.expect("nobody knows which crashed", p.after(0, wanted(v2)))
	p = waiting(scafo.Exit{Code: celld.ExitFenced, Version: v1})
	p.expect("the lease may still hold", p.after(0, wanted(v2)))
}

func TestStopHasABound(t *testing.T) {
	p := newPlay(t)
	p.up(v1)
	p.expect("not wanted", p.after(0, event{kind: evWant}), doTerm)
	if p.m.state() != scafo.ProcessDraining {
		t.Errorf("state %s", p.m.state())
	}
	p.expect("before the bound", p.after(45*time.Second-1, event{}))
	p.expect("at the bound", p.after(1, event{}), doKill)
	p.after(0, killed())
	if p.m.phase != phaseEnded {
		t.Errorf("phase %d", p.m.phase)
	}
	// A shorter bound counts, a longer one does not.
	p = newPlay(t)
	p.up(v1)
	p.after(0, event{kind: evStop, within: 15 * time.Second})
	p.expect("longer", p.after(time.Second, event{kind: evWant}))
	p.expect("shorter", p.after(0, event{kind: evStop, within: time.Second}))
	p.expect("at the shorter one", p.after(time.Second, event{}), doKill)
}

func TestAProcessThatStartsWhileItIsStoppedIsStopped(t *testing.T) {
	p := newPlay(t)
	p.expect("want", p.after(0, wanted(v1)), doStart)
	p.expect("not wanted", p.after(0, event{kind: evWant}))
	p.expect("started", p.after(time.Second, event{kind: evStarted}), doTerm)
	p.after(0, exited(0))
	if p.m.phase != phaseEnded {
		t.Errorf("phase %d", p.m.phase)
	}
}

// oracle watches a machine from outside and knows what must never happen.
type oracle struct {
	alive, launching bool
	termAt, fencedAt time.Time
}

func (o *oracle) see(t *rapid.T, p Policy, a action, m machine, now time.Time) {
	switch a {
	case doStart:
		if o.alive || o.launching {
			t.Fatal("a second process")
		}
		if !m.known || !m.wanted {
			t.Fatal("started without being wanted")
		}
		if !o.fencedAt.IsZero() && now.Sub(o.fencedAt) < p.FenceWait {
			t.Fatalf("started %v after a lost lease", now.Sub(o.fencedAt))
		}
		o.launching = true
	case doTerm:
		if !o.alive {
			t.Fatal("SIGTERM to nobody")
		}
		if m.wanted {
			t.Fatal("SIGTERM to a wanted process")
		}
		o.termAt = now
	case doKill, doProbe, doState, doReload:
		if !o.alive {
			t.Fatalf("action %d on nobody", a)
		}
	}
}

// TestMachineProperties plays random lives and holds them to what must always be.
func TestMachineProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := DefaultPolicy(nil)
		var m machine
		o := &oracle{}
		now := epoch
		probing, asking, reloading := false, false, false
		waiters := 0
		for range rapid.IntRange(50, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 50, 500, 2000, 10_000, 60_000}).Draw(t, "ms")) * time.Millisecond)
			e := event{kind: evTick}
			possible := []eventKind{evTick, evTick, evTick, evWant, evReloadAsked}
			if o.alive {
				possible = append(possible, evStop)
			}
			if o.launching {
				possible = append(possible, evStarted, evStartFailed, evAdopted)
			}
			if o.alive {
				possible = append(possible, evExited)
			}
			if probing {
				possible = append(possible, evProbed, evProbed)
			}
			if asking {
				possible = append(possible, evState)
			}
			if reloading {
				possible = append(possible, evReloaded)
			}
			e.kind = rapid.SampledFrom(possible).Draw(t, "event")
			if m.phase == phaseEnded { // the runner makes a new one
				m, o, waiters = machine{}, &oracle{}, 0
				probing, asking, reloading = false, false, false
				continue
			}
			switch e.kind {
			case evWant:
				e.wanted = rapid.IntRange(0, 5).Draw(t, "wanted") > 0
				e.version = rapid.SampledFrom([]string{"", v1, v2}).Draw(t, "version")
			case evStop:
				e.within = time.Duration(rapid.IntRange(0, 20).Draw(t, "within")) * time.Second
			case evReloadAsked:
				waiters++
			case evStarted, evAdopted:
				o.alive, o.launching = true, false
				e.at = now.Add(-time.Minute)
			case evStartFailed:
				o.launching = false
			case evExited:
				o.alive, probing, asking, reloading = false, false, false, false
				e.exit.Code = rapid.SampledFrom([]int{0, 1, 3, 137}).Draw(t, "code")
				e.exit.unseen = e.exit.Code == 3 && rapid.Bool().Draw(t, "unseen")
				o.termAt = time.Time{}
				if e.exit.fenced() {
					o.fencedAt = now
				}
			case evProbed:
				probing = false
				e.health = health(rapid.IntRange(0, 2).Draw(t, "health"))
			case evState:
				asking = false
				e.version = rapid.SampledFrom([]string{"", v1, v2}).Draw(t, "serves")
			case evReloaded:
				reloading = false
				e.reload.Outcome = rapid.SampledFrom([]celld.Outcome{celld.ReloadAdopted, celld.ReloadUnchanged, celld.ReloadFailed, celld.ReloadUnavailable}).Draw(t, "outcome")
				e.reload.Version = rapid.SampledFrom([]string{v1, v2}).Draw(t, "pointer")
			}
			var do []action
			m, do = step(p, m, e, now)
			for _, a := range do {
				o.see(t, p, a, m, now)
				switch a {
				case doProbe:
					if probing {
						t.Fatal("two probes at once")
					}
					probing = true
				case doState:
					if asking {
						t.Fatal("two questions at once")
					}
					asking = true
				case doReload:
					if reloading {
						t.Fatal("two reloads at once")
					}
					reloading = true
				case doFlush:
					waiters = 0
				}
			}
			check(t, p, m, o, now, waiters, probing || asking || reloading)
		}
	})
}

// check holds a state to what must be true of every one.
func check(t *rapid.T, p Policy, m machine, o *oracle, now time.Time, waiters int, busy bool) {
	if m.phase.alive() != o.alive {
		t.Fatalf("phase %d, alive %v", m.phase, o.alive)
	}
	if (m.phase == phaseLaunch) != o.launching {
		t.Fatalf("phase %d, launching %v", m.phase, o.launching)
	}
	if m.state() == scafo.ProcessReady && m.silent >= p.OutAfter {
		t.Fatalf("ready with %d missed answers", m.silent)
	}
	// A process that was told to go is killed in time.
	if !o.termAt.IsZero() && m.phase == phaseStopping && now.Sub(o.termAt) > p.StopBound {
		t.Fatalf("draining for %v", now.Sub(o.termAt))
	}
	// Nothing is forgotten: whatever waits for time alone has a time, and whatever
	// waits for an answer has a question under way.
	wake := m.wake(p)
	pending := wake.IsZero() && !busy
	switch {
	case m.phase == phaseWaiting && m.known && m.wanted && wake.IsZero(),
		(m.phase == phaseStopping || m.phase == phaseKilled) && wake.IsZero(),
		(m.phase == phaseStarting || m.phase == phaseReady || m.phase == phaseOut) && pending:
		t.Fatalf("phase %d waits for nothing", m.phase)
	case !wake.IsZero() && wake.Before(now):
		t.Fatalf("phase %d was due at %v", m.phase, now.Sub(wake))
	}
	if waiters > 0 && (m.phase == phaseIdle || m.phase == phaseEnded) {
		t.Fatal("somebody waits for an answer that never comes")
	}
}
