package reconcile

import (
	"slices"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/mistake"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/route"
	"github.com/scafo/scafo/internal/supervise"
)

// apply tells the supervisor what shall run here. A process that was replaced
// lingers until the ingress has had the time to see that its routes left.
func (l *Loop) apply(v *view) {
	v.wants = v.fleet.Wants(l.c.Node, v.running)
	l.sayBeat(v)
	if l.c.Supervisor == nil {
		return
	}
	now := time.Now()
	set := []supervise.Want{}
	lingering := map[string]time.Time{}
	for _, w := range v.wants {
		keep := w.Role.Runs()
		if w.Role == plan.RoleReplaced {
			since, ok := l.leaving[w.UID]
			if !ok {
				since = now
			}
			if keep = !since.IsZero() && now.Sub(since) < l.c.Times.DrainRoute; !keep {
				since = time.Time{} // it is over, also while the process takes its time to go
			}
			lingering[w.UID] = since
		}
		if v.phase == drainGone {
			keep = false
		}
		if keep {
			set = append(set, supervise.Want{Application: w.Application, UID: w.UID, Version: w.Version})
		}
	}
	l.leaving = lingering
	if !l.told || !slices.Equal(set, l.set) {
		l.c.Supervisor.Set(set)
		l.set, l.told = set, true
	}
}

// lingering is whether some process has lingered for long enough.
func (l *Loop) lingering() bool {
	for _, since := range l.leaving {
		if !since.IsZero() && time.Since(since) >= l.c.Times.DrainRoute {
			return true
		}
	}
	return false
}

// publish puts the routing document in force.
func (l *Loop) publish(v *view) error {
	in := route.Input{
		Fleet: v.snap.Fleet.ID, Node: l.c.Node,
		Applications: v.snap.Applications, Placements: v.placements, Claims: v.snap.Claims,
		PlatformDomains: l.c.PlatformDomains, APIPublic: l.c.APIPublic, Serves: plan.Servable,
	}
	for _, m := range v.machines {
		n := route.Node{ID: m.ID, API: v.snap.Nodes[m.ID].Address, Live: m.Live, Draining: m.Draining}
		for _, p := range m.Processes {
			if mistake.Made(mistake.RoutesBeforeHealth) && p.State == scafo.ProcessStarting {
				p.State, p.Deployment = scafo.ProcessReady, p.Wanted
			}
			if v.fleet.RoleOf(m.ID, p.Application, p.UID).Routed() {
				n.Processes = append(n.Processes, p)
			}
		}
		in.Nodes = append(in.Nodes, n)
	}
	doc, problems := route.Build(in)
	l.report(problems)
	_, err := l.pub.Publish(doc, time.Now().UTC().Truncate(time.Millisecond))
	if err != nil {
		return scafo.Wrap(err, scafo.CodeInternal, "the routing document could not be encoded")
	}
	return nil
}

// report logs each problem of the routing document once, for as long as it lasts.
func (l *Loop) report(problems []route.Problem) {
	now := make(map[route.Problem]bool, len(problems))
	for _, p := range problems {
		now[p] = true
		if !l.problems[p] {
			l.log.Warn("a host is left out of the routes", "event", "route.problem",
				"application", p.Application, "host", p.Host, "detail", p.Detail)
		}
	}
	l.problems = now
}
