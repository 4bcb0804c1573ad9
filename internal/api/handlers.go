package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/auth"
)

// askingNode is the header in which a node that asks another's health names
// itself.
const askingNode = "X-Scafo-Node"

// MaxHintKeys bounds the keys of one hint: what a revision holds.
const MaxHintKeys = scafo.MaxChanges

func (s *server) health(_ context.Context, c *call) (answer, error) {
	if from := c.r.Header.Get(askingNode); s.Loop != nil && scafo.ValidName(from) {
		s.Loop.Asked(from)
	}
	return ok(scafo.Health{OK: true, Version: s.Version, Node: s.Node})
}

func (s *server) state(ctx context.Context, c *call) (answer, error) {
	d, err := s.Loop.State(ctx)
	if err != nil {
		return answer{}, err
	}
	return ok(stateFor(c.principal, d))
}

// stateFor is the state as a caller may see it.
func stateFor(p auth.Principal, d scafo.DaemonState) scafo.DaemonState {
	if d.Node != nil {
		n := *d.Node
		n.Write = ""
		d.Node = &n
	}
	if d.Lease != nil {
		l := *d.Lease
		l.Write = ""
		d.Lease = &l
	}
	if !p.Whole() {
		d = scopedState(p, d)
	}
	// An empty list is a list.
	if d.Processes == nil {
		d.Processes = []scafo.ProcessStatus{}
	}
	if d.Placements == nil {
		d.Placements = []scafo.PlacementView{}
	}
	return d
}

// scopedState leaves what the caller's key reaches. The loop's error is a sentence
// about any application, so it goes too.
func scopedState(p auth.Principal, d scafo.DaemonState) scafo.DaemonState {
	d.Scoped = true
	d.Bucket = nil     // what the fleet costs, and its addresses
	d.Unreadable = nil // keys name applications
	d.Processes = filter(d.Processes, func(s scafo.ProcessStatus) bool { return p.Reaches(s.Application) })
	for i := range d.Processes {
		d.Processes[i].Internal = "" // of the fleet's own network
	}
	d.Placements = filter(d.Placements, func(v scafo.PlacementView) bool { return p.Reaches(v.Application) })
	if d.Coordinator != nil && d.Coordinator.Unplaced != nil {
		view := *d.Coordinator
		unplaced := filter(*view.Unplaced, func(u scafo.Unplaced) bool { return p.Reaches(u.Application) })
		view.Unplaced = &unplaced
		d.Coordinator = &view
	}
	if d.Reconcile != nil && d.Reconcile.Error != "" {
		pass := *d.Reconcile
		pass.Error = "the pass failed"
		d.Reconcile = &pass
	}
	return d
}

// filter is a new list, never nil.
func filter[T any](list []T, keep func(T) bool) []T {
	out := []T{}
	for _, v := range list {
		if keep(v) {
			out = append(out, v)
		}
	}
	return out
}

func (s *server) listApplications(ctx context.Context, c *call) (answer, error) {
	all, err := s.Applications.Applications(ctx)
	if err != nil {
		return answer{}, err
	}
	list := make([]scafo.Application, 0, len(all))
	for _, a := range all {
		if c.principal.Whole() || c.principal.Reaches(a.Name) {
			list = append(list, applicationFor(c.principal, a))
		}
	}
	slices.SortFunc(list, func(a, b scafo.Application) int { return strings.Compare(a.Name, b.Name) })
	return ok(struct {
		Applications []scafo.Application `json:"applications"`
		Scoped       bool                `json:"scoped,omitempty"`
	}{list, !c.principal.Whole()})
}

func (s *server) getApplication(ctx context.Context, c *call) (answer, error) {
	a, err := s.Applications.Application(ctx, c.params["name"])
	if err != nil {
		return answer{}, err
	}
	return applicationAnswer(c, a)
}

// applicationAnswer is one record, as the caller may see it.
func applicationAnswer(c *call, a scafo.Application) (answer, error) {
	return ok(struct {
		Application scafo.Application `json:"application"`
	}{applicationFor(c.principal, a)})
}

// applicationFor is a record as a caller may see it: labels belong to the fleet.
func applicationFor(p auth.Principal, a scafo.Application) scafo.Application {
	a.Write = ""
	if !p.Whole() {
		a.Labels = nil
	}
	return a
}

func (s *server) ingressRoutes(ctx context.Context, c *call) (answer, error) {
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return answer{}, scafo.Wrap(err, scafo.CodeInvalidInput, "the query does not read")
	}
	// Asked for before the document, so that no change falls in between.
	changed := s.Loop.RoutingChanged()
	body, etag, ready := s.Loop.RoutingBody(q.Get("prefer"))
	if !ready || notModified(c.r, etag) {
		s.await(ctx, c.r, changed)
		body, etag, ready = s.Loop.RoutingBody(q.Get("prefer"))
	}
	if !ready {
		return answer{}, scafo.Errorf(scafo.CodeDraining, "this node has not completed its first reconcile pass")
	}
	a := answer{status: http.StatusOK, body: body}
	if notModified(c.r, etag) {
		a = answer{status: http.StatusNotModified}
	}
	return a.with("ETag", etag).with("Cache-Control", "no-cache"), nil
}

func (s *server) peerHints(ctx context.Context, c *call) (answer, error) {
	var h scafo.PeerHint
	body, err := s.readBody(c)
	if err != nil {
		return answer{}, err
	}
	if err := json.Unmarshal(body, &h); err != nil {
		return answer{}, errNotTheDocument(err)
	}
	if len(h.Keys) > MaxHintKeys {
		return answer{}, scafo.Malformed("a hint names at most %d keys", MaxHintKeys)
	}
	said, err := s.Loop.Hint(ctx, c.principal.ID, h)
	if err != nil {
		return answer{}, err
	}
	if said.Processes == nil {
		said.Processes = []scafo.ProcessStatus{}
	}
	return ok(said)
}
