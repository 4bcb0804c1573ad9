package reconcile

import (
	"context"
	"slices"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/registry"
)

const (
	// beatEvery is the least time between two heartbeats that tell of a change.
	beatEvery = time.Second
	// beatRetry is how soon a heartbeat that could not be written is tried again.
	beatRetry = 2 * time.Second
	// beatAlone is how often a node writes that some living peer does not ask, so
	// that this peer can see by the bucket that it lives, and askedWithin how long
	// a peer may not ask before it is that one.
	beatAlone   = 5 * time.Second
	askedWithin = 10 * time.Second
	// beatLook is how often it is looked whether a peer stopped asking.
	beatLook = time.Second
	// beatTimeout bounds one write.
	beatTimeout = 10 * time.Second
)

// beatContent is what a heartbeat says beside its time.
type beatContent struct {
	known     bool
	processes []scafo.ProcessStatus
	draining  bool
}

// sayBeat sets what the next heartbeat says.
func (l *Loop) sayBeat(v *view) {
	l.mu.Lock()
	l.said = beatContent{known: true, processes: v.own, draining: v.phase != drainNone}
	l.mu.Unlock()
	signal(l.beat)
}

// news is whether the difference is one that others act on, so that it is told at
// once. How often a process crashed and what it said last is not: a crash loop
// must not become a loop of writes.
func (c beatContent) news(was beatContent) bool {
	return c.draining != was.draining || !slices.EqualFunc(c.processes, was.processes, func(a, b scafo.ProcessStatus) bool {
		return a.UID == b.UID && !differs(a, b)
	})
}

// differs is whether a process became something that others act on.
func differs(a, b scafo.ProcessStatus) bool {
	return class(a) != class(b) || a.Deployment != b.Deployment || refused(a) != refused(b) ||
		a.CelldVersion != b.CelldVersion || a.URL != b.URL && class(a) != scafo.ProcessBackoff
}

// class takes a process that starts again and again for one that waits to.
func class(p scafo.ProcessStatus) scafo.ProcessState {
	if p.State == scafo.ProcessStarting && p.LastExit != nil {
		return scafo.ProcessBackoff
	}
	return p.State
}

func refused(p scafo.ProcessStatus) string {
	if p.Refused == nil {
		return ""
	}
	return p.Refused.Version
}

// heartbeats writes the heartbeat: on a change at once, at most one a second, and
// otherwise in its rhythm.
func (l *Loop) heartbeats(ctx context.Context) {
	ctx = meter.With(ctx, "heartbeat")
	var (
		was     beatContent
		allowed crashNewsAllowance
		first   = true
		last    time.Time // of the last one that was written
		failed  time.Time // when the last try failed; zero when it did not
	)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.beat:
		case <-timer.C:
		}
		now := time.Now()
		l.mu.Lock()
		say := l.said
		l.mu.Unlock()
		if !say.known {
			continue // the first pass wakes it
		}
		news := first || say.news(was)
		allowed.look(now, say)
		due, crashed := last.Add(l.rhythm(now)), false
		if news {
			var from time.Time
			if from, crashed = allowed.from(now, say, was); now.Before(from) {
				news = false // a renewal on the way does not tell of it
				due = earlier(due, from)
			} else {
				due = last.Add(beatEvery)
			}
		}
		if again := failed.Add(beatRetry); !failed.IsZero() && due.Before(again) {
			due = again
		}
		if now.Before(due) {
			timer.Reset(min(due.Sub(now), beatLook))
			continue
		}
		if err := l.writeBeat(ctx, say, now); err != nil {
			failed = time.Now()
			if ctx.Err() == nil {
				l.log.Warn("the heartbeat could not be written", "event", "heartbeat.failed", "err", err)
			}
			timer.Reset(beatRetry)
			continue
		}
		last, failed = now, time.Time{}
		if news {
			if crashed {
				allowed.take()
			}
			was, first = say, false
			l.announce(registry.HeartbeatKey(l.c.Node))
		}
		timer.Reset(beatLook)
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (l *Loop) writeBeat(ctx context.Context, say beatContent, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	processes := say.processes
	if processes == nil {
		processes = []scafo.ProcessStatus{}
	}
	return l.c.Store.WriteHeartbeat(ctx, scafo.Heartbeat{
		Node: l.c.Node, At: now.UTC().Truncate(time.Millisecond), BootID: l.c.BootID, CelldVersion: l.c.CelldVersion,
		Processes: processes, Draining: say.draining, NoRunner: l.c.Supervisor == nil,
	})
}

// rhythm is how often the heartbeat is written without news.
func (l *Loop) rhythm(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, since := range l.known {
		if !l.live.Live(id) || now.Sub(since) < askedWithin {
			continue
		}
		if at, ok := l.asked[id]; !ok || now.Sub(at) >= askedWithin {
			return min(beatAlone, l.c.Times.Heartbeat)
		}
	}
	return l.c.Times.Heartbeat
}

// Asked says that a node asked this one for its health, or gave it a hint.
func (l *Loop) Asked(from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.known[from]; ok {
		l.asked[from] = time.Now()
	}
}
