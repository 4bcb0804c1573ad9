package reconcile

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/mistake"
	"github.com/scafo/scafo/internal/registry"
)

// endLives ends on this node what belongs to lives of applications that are over, or
// are being deleted: their processes, those that an earlier daemon forgot too, and
// what they left on disk. A uid never comes again, so this can be done at any time.
func (l *Loop) endLives(v *view) {
	for key := range v.snap.Unreadable {
		if strings.HasPrefix(key, registry.ApplicationPrefix) {
			return // an application that this release cannot read may live all the same
		}
	}
	var alive map[string]bool
	for _, app := range v.snap.Applications {
		if app.Deleting != nil && l.c.Ending != nil {
			l.c.Ending(app)
		}
	}
	if l.c.Supervisor == nil {
		return
	}
	wanted := make(map[string]bool, len(l.set))
	for _, w := range l.set {
		wanted[w.UID] = true
	}
	for _, uid := range l.c.Supervisor.Kept() {
		if wanted[uid] || mistake.Made(mistake.ForgottenKept) {
			continue // the usual case costs nothing for each application of the fleet
		}
		if alive == nil {
			alive = make(map[string]bool, len(v.snap.Applications))
			for _, app := range v.snap.Applications {
				alive[app.UID] = app.Deleting == nil
			}
		}
		switch {
		case !alive[uid]:
			l.endLife(uid)
		case !l.searched[uid] && !runs(v.running, uid):
			l.searched[uid] = true
			l.endForgotten(uid)
		}
	}
}

// endForgotten ends the process of an application that lives and whose place this is
// not, if an earlier daemon left one that this one does not know of: nothing else
// would. Only daemons before this one can have, so that it is looked for once.
func (l *Loop) endForgotten(uid string) {
	l.tasks.start(func(ctx context.Context) {
		if err := l.c.Supervisor.Stop(ctx, uid, stopWithin); err != nil {
			l.log.Warn("it is not known whether an earlier daemon left a process of an application", "event", "application.leftover", "uid", uid, "err", err)
		}
		// It may have become this node's to run meanwhile.
		l.mu.Lock()
		l.setAgain = true
		l.mu.Unlock()
		signal(l.wake)
	})
}

// endLife ends one life here, unless that is being done.
func (l *Loop) endLife(uid string) {
	l.mu.Lock()
	busy := l.ending[uid]
	l.ending[uid] = true
	l.mu.Unlock()
	if busy {
		return
	}
	done := func() {
		l.mu.Lock()
		delete(l.ending, uid)
		l.mu.Unlock()
	}
	started := l.tasks.start(func(ctx context.Context) {
		defer done()
		if err := l.c.Supervisor.Stop(ctx, uid, stopWithin); err != nil {
			l.log.Warn("what is left of an application does not end", "event", "application.leftover", "uid", uid, "err", err)
			return
		}
		if err := l.c.Supervisor.Forget(uid); err != nil {
			l.log.Warn("what an application left on this machine stays", "event", "application.leftover", "uid", uid, "err", err)
			return
		}
		l.log.Info("what an application left on this machine was removed", "event", "application.forgotten", "uid", uid)
	})
	if !started {
		done()
	}
}

// resumeDeletions has the coordinator finish the deletions that have begun.
func (r *reaping) resumeDeletions(v *view) {
	if r.l.c.Deleting == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(v.snap.Applications)) {
		if app := v.snap.Applications[name]; app.Deleting != nil && r.held() {
			r.l.c.Deleting(app)
		}
	}
}

// Deleting carries a deletion on that has begun, unless it is being carried out
// already. It returns at once.
type Deleting func(app scafo.Application)

// Ending gives up what this node does for an application that is being deleted. It
// returns at once, and is called again as long as the application is there.
type Ending func(app scafo.Application)
