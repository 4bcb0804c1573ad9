package reconcile

import (
	"context"
	"slices"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

// MaxHintKeys bounds the keys of one hint. A node with more to say says it in
// several.
const MaxHintKeys = 256

// maxAwait bounds how long a hint may wait for a version, whatever it asks for.
const maxAwait = 30 * time.Second

// Hint is what POST /v1/peer/hints does; from is the node that gives it. The named
// documents are read again at once. With an await it answers when the process has
// come to its end with the version, when the application is none of this node's
// business any more, or when the time is up; the answer is the truth of that
// moment either way.
func (l *Loop) Hint(ctx context.Context, from string, h scafo.PeerHint) (scafo.PeerAnswer, error) {
	if len(h.Keys) > MaxHintKeys {
		return scafo.PeerAnswer{}, scafo.Errorf(scafo.CodeResourceLimit, "a hint names at most %d keys", MaxHintKeys)
	}
	if h.Await != nil {
		if _, err := scafo.ParseApplicationName(h.Await.Application); err != nil {
			return scafo.PeerAnswer{}, err
		}
	}
	l.Asked(from)
	l.heard(from)
	keys := hintable(h.Keys)
	if h.Await != nil {
		keys = append(keys, registry.ApplicationKey(h.Await.Application))
	}
	if len(keys) > 0 {
		l.c.Store.Hint(keys...)
		l.Kick()
	}
	if h.Await != nil {
		l.await(ctx, *h.Await)
	}
	return l.answer(), nil
}

// answer is what the processes of this node are now.
func (l *Loop) answer() scafo.PeerAnswer {
	l.mu.Lock()
	phase := drainNone
	if l.view != nil {
		phase = l.view.phase
	}
	l.mu.Unlock()
	return scafo.PeerAnswer{Node: l.c.Node, Processes: disguise(l.statuses(), phase)}
}

func (l *Loop) statuses() []scafo.ProcessStatus {
	if l.c.Supervisor == nil {
		return []scafo.ProcessStatus{}
	}
	if s := l.c.Supervisor.Statuses(); s != nil {
		return s
	}
	return []scafo.ProcessStatus{}
}

func (l *Loop) await(ctx context.Context, a scafo.PeerAwait) {
	ctx, cancel := context.WithTimeout(ctx, min(time.Duration(max(a.TimeoutMS, 0))*time.Millisecond, maxAwait))
	defer cancel()
	v, ok := l.fresh(ctx)
	for ok {
		app, exists := v.snap.Applications[a.Application]
		if !exists || !plan.Servable(app) {
			return
		}
		if pl, placed := v.placements[a.Application]; placed && pl.UID == app.UID && pl.DeploySeq >= a.DeploySeq &&
			!slices.Contains(pl.Nodes, l.c.Node) {
			return
		}
		if app.Deployment == a.Version && slices.ContainsFunc(l.statuses(), func(p scafo.ProcessStatus) bool {
			return p.UID == app.UID && plan.Answered(p, a.Version)
		}) {
			return
		}
		v, ok = l.nextView(ctx)
	}
}

// fresh waits for a pass that began after the call and has read the bucket, and
// returns its view; ok is false when ctx or the loop ended first.
func (l *Loop) fresh(ctx context.Context) (v *view, ok bool) {
	l.mu.Lock()
	want := l.begun + 1
	l.mu.Unlock()
	l.Kick()
	for l.tasks.running() {
		l.mu.Lock()
		v, read, passed := l.view, l.read, l.passed
		l.mu.Unlock()
		if read >= want && v != nil {
			return v, true
		}
		select {
		case <-ctx.Done():
			return v, false
		case <-passed:
		}
	}
	return nil, false
}

// nextView waits for the next pass.
func (l *Loop) nextView(ctx context.Context) (v *view, ok bool) {
	if !l.tasks.running() {
		return nil, false
	}
	l.mu.Lock()
	passed := l.passed
	l.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, false
	case <-passed:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.view, l.view != nil
}
