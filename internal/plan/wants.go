package plan

import (
	"cmp"
	"slices"
	"strings"

	"github.com/scafo/scafo"
)

// Role is why an application's process is, or is not, to run on a node.
type Role int

// The roles. Only the first three keep a process running.
const (
	// RolePlaced: the coordinator decided that it runs here.
	RolePlaced Role = iota + 1
	// RolePending: it runs here and nothing is decided about this life of the name.
	RolePending
	// RoleAwaiting: it was moved away, and its new place does not answer yet.
	RoleAwaiting
	// RoleReplaced: its new place answers. The routes leave this one; it may linger
	// until every ingress has seen that.
	RoleReplaced
	// RoleStopped: it has no business here.
	RoleStopped
)

// Runs is whether a process of this role is kept without regard to time.
func (r Role) Runs() bool {
	return r == RolePlaced || r == RolePending || r == RoleAwaiting
}

// Routed is whether a process of this role may be an upstream.
func (r Role) Routed() bool { return r.Runs() }

// Fleet is what the roles of processes follow from.
type Fleet struct {
	Applications map[string]scafo.Application
	Placements   map[string]scafo.Placement
	// Ready is whether that node counts as alive and its process of that uid is
	// ready.
	Ready func(node, uid string) bool
	// Live is whether that node counts as alive.
	Live func(node string) bool
	// Draining is whether that node gives its applications up.
	Draining func(node string) bool
	// Unreadable are the applications whose records a newer release wrote: what runs of
	// them is left alone.
	Unreadable map[string]bool
}

// RoleOf is the role that the node's process of the application's life uid has.
// Make before break: a process that was moved away keeps running, and its route,
// until every live node that has the application now answers for it, and one at
// least does.
func (f Fleet) RoleOf(node, application, uid string) Role {
	app, ok := f.Applications[application]
	if !ok && f.Unreadable[application] {
		return RolePending
	}
	if !ok || app.UID != uid || !Servable(app) {
		return RoleStopped
	}
	pl, ok := f.Placements[application]
	if !ok || pl.UID != uid {
		return RolePending
	}
	if slices.Contains(pl.Nodes, node) {
		return RolePlaced
	}
	if len(pl.Nodes) == 0 {
		// Nothing qualifies, this node neither. One that drains goes on until its
		// drain is over, for nobody replaces it.
		if f.Draining(node) {
			return RoleAwaiting
		}
		return RoleStopped
	}
	ready, waiting := 0, 0
	for _, n := range pl.Nodes {
		switch {
		case f.Ready(n, uid):
			ready++
		case f.Live(n):
			waiting++
		}
	}
	if ready == 0 || waiting > 0 {
		return RoleAwaiting
	}
	return RoleReplaced
}

// Want is one application with the role that its process has on a node.
type Want struct {
	Application string
	UID         string
	Version     string
	Role        Role
}

// Wants are the processes of one node: what shall run on it, and of what runs on
// it already, what shall not. They are in the order of names, then of uids.
func (f Fleet) Wants(node string, running []scafo.ProcessStatus) []Want {
	var out []Want
	placed := map[string]bool{} // by uid
	for name, pl := range f.Placements {
		if slices.Contains(pl.Nodes, node) && f.RoleOf(node, name, pl.UID) == RolePlaced {
			out = append(out, f.want(name, pl.UID, RolePlaced))
			placed[pl.UID] = true
		}
	}
	for _, p := range running {
		if !placed[p.UID] {
			out = append(out, f.want(p.Application, p.UID, f.RoleOf(node, p.Application, p.UID)))
		}
	}
	slices.SortFunc(out, func(a, b Want) int {
		return cmp.Or(strings.Compare(a.Application, b.Application), strings.Compare(a.UID, b.UID))
	})
	return out
}

func (f Fleet) want(name, uid string, r Role) Want {
	w := Want{Application: name, UID: uid, Role: r}
	if app, ok := f.Applications[name]; ok && app.UID == uid {
		w.Version = app.Deployment
	}
	return w
}
