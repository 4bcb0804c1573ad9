// Package api serves the node API. Its handlers have no logic of their own: the
// guard finds out who calls and what they may name, a handler parses, calls one
// of the interfaces of [Deps], and says what they answered.
package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/deploy"
	"github.com/scafo/scafo/internal/problem"
)

// DefaultJSONBytes bounds the body of a control request unless api.jsonBytes says
// otherwise.
const DefaultJSONBytes = 65_536

// Applications reads application records.
type Applications interface {
	// Application reads one record afresh; absence is a not-found.
	Application(ctx context.Context, name string) (scafo.Application, error)
	// Applications is every record, in any order, with at least what was announced
	// before the call.
	Applications(ctx context.Context) ([]scafo.Application, error)
}

// Setters change one thing of an application each: not-found where there is none,
// application-deleting where its deletion has begun. changed says whether anything
// was written, also beside an error: then the change could not be announced.
type Setters interface {
	BlockApplication(ctx context.Context, name, by string) (app scafo.Application, changed bool, err error)
	UnblockApplication(ctx context.Context, name string) (app scafo.Application, changed bool, err error)
	LabelApplication(ctx context.Context, name string, labels map[string]string) (app scafo.Application, changed bool, err error)
	RetireApplication(ctx context.Context, name, by string) (app scafo.Application, changed bool, err error)
	UnretireApplication(ctx context.Context, name string) (app scafo.Application, changed bool, err error)
	SelectNodes(ctx context.Context, name string, selector map[string]string) (app scafo.Application, changed bool, err error)
	ScaleApplication(ctx context.Context, name string, replicas scafo.Replicas) (app scafo.Application, changed bool, err error)
}

// Domains give hosts to applications and take them. changed says whether anything was
// written, also beside an error.
type Domains interface {
	// ClaimDomain is reference-held, with a registry.HeldError in its chain, where
	// another application holds what was asked for.
	ClaimDomain(ctx context.Context, name, host string, wildcard bool) (app scafo.Application, changed bool, err error)
	ReleaseDomain(ctx context.Context, name, host string) (app scafo.Application, changed bool, err error)
}

// Freezes are the fleet's one freeze.
type Freezes interface {
	// Freeze is nil while deploys are not frozen.
	Freeze(ctx context.Context) (*scafo.Freeze, error)
	// FreezeDeploys returns the first freeze where there is one already.
	FreezeDeploys(ctx context.Context, by, reason string) (f scafo.Freeze, created bool, err error)
	LiftFreeze(ctx context.Context) (lifted bool, err error)
}

// Operators are the trusted operator keys. Who may add and remove which of them is
// decided before.
type Operators interface {
	// Operators is every key, in the order of ids.
	Operators(ctx context.Context) ([]scafo.Operator, error)
	// AddOperator returns the record that is there when it is the identical one;
	// another one under that id, or a node, is reference-held.
	AddOperator(ctx context.Context, op scafo.Operator) (added scafo.Operator, created bool, err error)
	// RemoveOperator is not-found for a key that is not there, and reference-held for
	// the last key and the last admin. removed is true, beside an error too, once the
	// key is revoked: then that could not be announced.
	RemoveOperator(ctx context.Context, id string) (removed bool, err error)
}

// Deploys takes deploys in and tells how far they are.
type Deploys interface {
	// Accept does not read the body before it has agreed to the deploy.
	Accept(ctx context.Context, r deploy.Request) (scafo.DeployStatus, error)
	Status(ctx context.Context, id scafo.DeployID) (scafo.DeployStatus, error)
	// Changed is closed when a deploy's status may be another one than at the time of
	// the call; nil where this node would not hear of that.
	Changed(id scafo.DeployID) <-chan struct{}
}

// Loop is what the routes ask of the reconcile loop.
type Loop interface {
	// State is the whole document of GET /v1/state.
	State(ctx context.Context) (scafo.DaemonState, error)
	// RoutingBody is the encoded routing document with one node's upstreams first;
	// "self" is this node. ready is false until the first pass is complete.
	RoutingBody(prefer string) (body []byte, etag string, ready bool)
	// RoutingChanged is closed when that document is another one than at the time of
	// the call.
	RoutingChanged() <-chan struct{}
	// Hint is what another node tells this one.
	Hint(ctx context.Context, from string, h scafo.PeerHint) (scafo.PeerAnswer, error)
	// Asked says that another node asked for this one's health.
	Asked(from string)
}

// Deps are what the API serves. A part that is nil has no routes.
type Deps struct {
	Node      string // this node's id
	Version   string // empty takes scafo.Version
	JSONBytes int64  // api.jsonBytes; 0 takes DefaultJSONBytes
	// BodyTime bounds how long the body of a request may take to arrive; 0 takes
	// DefaultBodyTime. That of a deploy is bounded by who takes it in.
	BodyTime time.Duration

	Verifier     *auth.Verifier
	Applications Applications
	Setters      Setters
	Domains      Domains
	Freezes      Freezes
	Operators    Operators
	Deploys      Deploys
	Loop         Loop
	Storage      Storage
	Renderings   Renderings
	Deletions    Deletions

	// PlatformDomains are this node's platform.domains: nobody claims a host there.
	PlatformDomains []string

	// Closing is closed when the node stops: then no poll is kept waiting. May be nil.
	Closing <-chan struct{}

	Log *slog.Logger // nil takes slog.Default
}

type server struct {
	Deps
	table table
}

// New makes the handler of a node's API. A node needs an id and a verifier.
func New(d Deps) (http.Handler, error) {
	if d.Node == "" || d.Verifier == nil {
		return nil, errors.New("api: a node id and a verifier are needed")
	}
	if d.Version == "" {
		d.Version = scafo.Version
	}
	if d.JSONBytes <= 0 {
		d.JSONBytes = DefaultJSONBytes
	}
	if d.BodyTime <= 0 {
		d.BodyTime = DefaultBodyTime
	}
	if d.Log == nil {
		d.Log = slog.Default()
	}
	s := &server{Deps: d}
	s.table = newTable(s.routes())
	return s, nil
}

// routes is the route table. A route that is not in it is 404 for everybody.
func (s *server) routes() []route {
	r := []route{
		{method: http.MethodGet, path: scafo.HealthPath, access: access{kind: public}, handle: s.health},
	}
	if s.Loop != nil {
		r = append(r,
			route{method: http.MethodGet, path: "/v1/state", access: access{kind: fleetToken}, handle: s.state},
			route{method: http.MethodGet, path: "/v1/ingress/routes", access: access{kind: ingressToken}, handle: s.ingressRoutes},
			route{method: http.MethodPost, path: "/v1/peer/hints", access: access{kind: nodeToken, localUse: true}, handle: s.peerHints},
		)
	}
	if s.Deletions != nil {
		r = append(r, route{method: http.MethodDelete, path: "/v1/applications/:name", access: access{kind: fleetToken}, handle: s.deleteApplication})
	}
	if s.Deploys != nil {
		r = append(r,
			route{method: http.MethodPost, path: "/v1/applications/:name/deploys", access: access{kind: fleetToken, workload: takesWorkload}, handle: s.postDeploy},
			route{method: http.MethodGet, path: "/v1/deploys/:id", access: access{kind: fleetToken, application: deployApplication, workload: takesWorkload}, handle: s.getDeploy},
		)
	}
	if s.Applications != nil {
		r = append(r,
			route{method: http.MethodGet, path: "/v1/applications", access: access{kind: operatorToken}, handle: s.listApplications},
			route{method: http.MethodGet, path: "/v1/applications/:name", access: access{kind: operatorToken}, handle: s.getApplication},
		)
	}
	if s.Setters != nil {
		r = append(r, s.setterRoutes()...)
	}
	if s.Domains != nil {
		r = append(r,
			route{method: http.MethodPost, path: "/v1/applications/:name/domains/:host", access: access{kind: operatorToken, workload: refusesWorkload}, handle: s.claimDomain},
			route{method: http.MethodDelete, path: "/v1/applications/:name/domains/:host", access: access{kind: operatorToken, workload: refusesWorkload}, handle: s.releaseDomain},
		)
	}
	if s.Freezes != nil {
		freezes := access{kind: operatorToken, admin: freezeTier}
		r = append(r,
			route{method: http.MethodGet, path: "/v1/fleet/freeze", access: access{kind: operatorToken}, handle: s.getFreeze},
			route{method: http.MethodPost, path: "/v1/fleet/freeze", access: freezes, handle: s.postFreeze},
			route{method: http.MethodDelete, path: "/v1/fleet/freeze", access: freezes, handle: s.deleteFreeze},
		)
	}
	if s.Operators != nil {
		r = append(r,
			route{method: http.MethodGet, path: "/v1/operators", access: access{kind: operatorToken}, handle: s.listOperators},
			route{method: http.MethodPost, path: "/v1/operators", access: access{kind: operatorToken}, handle: s.postOperator},
			route{method: http.MethodDelete, path: "/v1/operators/:id", access: access{kind: operatorToken}, handle: s.deleteOperator},
		)
	}
	return slices.Concat(r, s.storageRoutes(), s.renderingRoutes())
}

// ServeHTTP answers one request. Whatever fails is a problem document.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = s.bounded(w, r)
	found, params, allowed := s.table.find(r.Method, r.URL.EscapedPath())
	switch {
	case found != nil:
		s.serve(&call{w: w, r: r, params: params}, found)
	case allowed != "":
		w.Header().Set("Allow", allowed)
		s.fail(w, r, scafo.Errorf(scafo.CodeMethodNotAllowed, "this route takes %s", allowed))
	default:
		s.fail(w, r, scafo.Errorf(scafo.CodeNotFound, "there is no such route"))
	}
}

// event logs what a call changed, and who made it.
func (s *server) event(c *call, name string, about ...any) {
	s.Log.Info(name, append([]any{"event", name, "actor", c.principal.ID}, about...)...)
}

func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	problem.Write(w, r, s.Log, err)
}
