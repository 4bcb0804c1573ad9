package reconcile

import (
	"context"

	"github.com/scafo/scafo"
)

// Loop is the reconcile loop of one node.
type Loop struct {
	c Config
}

// New makes a loop; Run runs it.
func New(c Config) (*Loop, error) { c.Times = c.Times.withDefaults(); return &Loop{c: c}, nil }

// Run passes until ctx ends. It leaves the processes running.
func (l *Loop) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Kick begins a pass now.
func (l *Loop) Kick() {}

// Changed says that this node wrote those documents: they are read again at
// once, here and on the other nodes.
func (l *Loop) Changed(keys ...string) {}

// Hint is what POST /v1/peer/hints does; from is the node that gives it.
func (l *Loop) Hint(ctx context.Context, from string, h scafo.PeerHint) (scafo.PeerAnswer, error) {
	return scafo.PeerAnswer{Node: l.c.Node}, nil
}

// Asked says that a node asked this one's health (header X-Scafo-Node).
func (l *Loop) Asked(from string) {}

// Status is the last pass; nil before the first one.
func (l *Loop) Status() *scafo.ReconcileStatus { return nil }

// State is the whole document of GET /v1/state.
func (l *Loop) State(ctx context.Context) (scafo.DaemonState, error) { return scafo.DaemonState{}, nil }

// Routing is the routing document with one node's upstreams first; "self" is this
// node, and empty the fleet's own order. ready is false until the first pass is
// complete.
func (l *Loop) Routing(prefer string) (doc scafo.FleetRouting, etag string, ready bool) {
	return scafo.FleetRouting{}, "", false
}

// RoutingBody is Routing, encoded once for each change.
func (l *Loop) RoutingBody(prefer string) (body []byte, etag string, ready bool) {
	return nil, "", false
}

// Settle waits until the application's nodes serve the version.
func (l *Loop) Settle(ctx context.Context, app scafo.Application, seq int64, version string, report func([]scafo.DeployNode)) error {
	return nil
}

// CelldVersions maps the answering nodes that serve the application, or
// crash-loop on it, to the version of their runtime.
func (l *Loop) CelldVersions(ctx context.Context, app string) map[string]string { return nil }

// NodeAnswers reports whether the node answers now.
func (l *Loop) NodeAnswers(ctx context.Context, node string) bool { return false }

// Drain says that this node goes, waits until its applications are ready
// elsewhere where they can be, takes it out of the routes, and stops its
// processes.
func (l *Loop) Drain(ctx context.Context) error { return nil }
