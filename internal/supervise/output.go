package supervise

import (
	"fmt"
	"time"

	"github.com/scafo/scafo/internal/applog"
)

// line passes one line of output on: to the application's log, and to the node's. A
// flood stays out of both.
func (p *process) line(text string) {
	p.lines.add(text)
	e := applog.Parse(text, time.Now().UTC())
	if e.Deployment == "" {
		p.viewMu.Lock()
		e.Deployment = p.view.Deployment
		p.viewMu.Unlock()
	}
	if p.keep(e) {
		p.log.Info(p.app+" | "+text, "source", "runtime")
	}
}

// keep writes an entry to the application's log. It is false when the application
// says more than is kept.
func (p *process) keep(e applog.Entry) bool {
	if p.kept == nil {
		return true
	}
	kept, err := p.kept.Append(e)
	if err != nil {
		p.log.Error("the application's log cannot be written", "error", err)
	}
	return kept
}

// tell writes to the application's log what became of its process.
func (p *process) tell(before phase, e event) {
	t := applog.Entry{Time: time.Now().UTC(), Level: applog.Warn, Source: applog.Node, Deployment: p.view.Deployment}
	switch {
	case e.kind == evExited && p.m.phase == phaseEnded:
		t.Level, t.Event, t.Message = applog.Info, applog.Stopped, "the runtime has stopped"
	case (e.kind == evExited || e.kind == evLost) && before == phaseStopping:
		t.Level, t.Event, t.Message = applog.Info, applog.Stopped, "the runtime was stopped and is started again"
	case e.kind == evExited || e.kind == evLost:
		t.Level, t.Event = applog.Error, applog.Crash
		t.Message = fmt.Sprintf("the runtime ended with %s and is started again in %s", describe(e.exit), max(0, time.Until(p.m.notBefore)).Round(100*time.Millisecond))
	case e.kind == evStartFailed:
		t.Level, t.Event = applog.Error, applog.Crash
		t.Message = "the runtime could not be started: " + e.err.Error()
	case p.m.phase == before:
		return
	case p.m.phase == phaseReady:
		t.Level, t.Event, t.Message, t.Deployment = applog.Info, applog.Ready, "the runtime is ready", p.m.deployment
	case p.m.phase == phaseOut:
		t.Message = "the runtime does not answer: it is taken out of the routes"
	case p.m.phase == phaseKilled && before != phaseStopping:
		t.Message = "the runtime does not answer: it is killed"
	default:
		return
	}
	p.keep(t)
}
