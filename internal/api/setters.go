package api

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"

	"github.com/scafo/scafo"
)

// The refusals of operators that are no admins.
const (
	blockTier  = "blocking an application is a decision of the fleet's admins"
	labelTier  = "labels belong to the fleet: only its admins set them"
	freezeTier = "freezing deploys is a decision that the fleet makes about itself, not one taken inside an application: only its admins make it"
)

func (s *server) setterRoutes() []route {
	block := access{kind: operatorToken, admin: blockTier}
	label := access{kind: operatorToken, admin: labelTier}
	own := access{kind: fleetToken}
	post := func(action string, a access, h handler) route {
		return route{method: http.MethodPost, path: "/v1/applications/:name/" + action, access: a, handle: h}
	}
	return []route{
		post("block", block, s.blockApplication),
		post("unblock", block, s.unblockApplication),
		post("labels", label, s.labelApplication),
		post("retire", own, s.retireApplication),
		post("unretire", own, s.unretireApplication),
		post("selector", own, s.selectNodes),
		post("replicas", own, s.scaleApplication),
	}
}

// changedApplication answers what a setter returned, and logs what it changed.
func (s *server) changedApplication(c *call, event string, a scafo.Application, changed bool, err error, about ...any) (answer, error) {
	if changed {
		s.event(c, event, append([]any{"application", a.Name}, about...)...)
	}
	if err != nil {
		return answer{}, err
	}
	return applicationAnswer(c, a)
}

// stoppedApplication is changedApplication of a block, and of its end: each such
// call is an event, also one that found what it asked for.
func (s *server) stoppedApplication(c *call, event string, a scafo.Application, changed bool, err error) (answer, error) {
	if changed || err == nil {
		s.event(c, event, "application", c.params["name"], "changed", changed)
	}
	return s.changedApplication(c, event, a, false, err)
}

func (s *server) blockApplication(ctx context.Context, c *call) (answer, error) {
	if err := s.noBody(c); err != nil {
		return answer{}, err
	}
	a, changed, err := s.Setters.BlockApplication(ctx, c.params["name"], c.principal.ID)
	return s.stoppedApplication(c, "application.blocked", a, changed, err)
}

func (s *server) unblockApplication(ctx context.Context, c *call) (answer, error) {
	if err := s.noBody(c); err != nil {
		return answer{}, err
	}
	a, changed, err := s.Setters.UnblockApplication(ctx, c.params["name"])
	return s.stoppedApplication(c, "application.unblocked", a, changed, err)
}

func (s *server) retireApplication(ctx context.Context, c *call) (answer, error) {
	if err := s.noBody(c); err != nil {
		return answer{}, err
	}
	a, changed, err := s.Setters.RetireApplication(ctx, c.params["name"], c.principal.ID)
	return s.changedApplication(c, "application.retired", a, changed, err)
}

func (s *server) unretireApplication(ctx context.Context, c *call) (answer, error) {
	if err := s.noBody(c); err != nil {
		return answer{}, err
	}
	a, changed, err := s.Setters.UnretireApplication(ctx, c.params["name"])
	return s.changedApplication(c, "application.unretired", a, changed, err)
}

func (s *server) labelApplication(ctx context.Context, c *call) (answer, error) {
	body, err := s.readObject(c)
	if err != nil {
		return answer{}, err
	}
	labels, ok := textMap(body["labels"])
	if !ok {
		return answer{}, scafo.Errorf(scafo.CodeInvalidInput, "labels must be given, as an object of strings; an empty one clears them")
	}
	a, changed, err := s.Setters.LabelApplication(ctx, c.params["name"], labels)
	return s.changedApplication(c, "application.labeled", a, changed, err, "labels", slices.Sorted(maps.Keys(labels)))
}

func (s *server) selectNodes(ctx context.Context, c *call) (answer, error) {
	body, err := s.readObject(c)
	if err != nil {
		return answer{}, err
	}
	v, given := body["selector"]
	selector, ok := textMap(v)
	if !given || !ok && string(v) != "null" {
		return answer{}, scafo.Errorf(scafo.CodeInvalidInput, "selector must be given, as an object of strings, or as null to lift it")
	}
	a, changed, err := s.Setters.SelectNodes(ctx, c.params["name"], selector)
	return s.changedApplication(c, "application.selected", a, changed, err, "selector", selector)
}

func (s *server) scaleApplication(ctx context.Context, c *call) (answer, error) {
	body, err := s.readObject(c)
	if err != nil {
		return answer{}, err
	}
	replicas, ok := parseReplicas(body["replicas"])
	if !ok {
		return answer{}, scafo.Errorf(scafo.CodeInvalidInput, `replicas must be given, as "all" or as a whole number of at least 1`)
	}
	a, changed, err := s.Setters.ScaleApplication(ctx, c.params["name"], replicas)
	return s.changedApplication(c, "application.scaled", a, changed, err, "replicas", replicas.String())
}

// maxReplicas bounds a number of replicas: the greatest that every JSON
// implementation holds exactly.
const maxReplicas = 1<<53 - 1

// parseReplicas reads "all", or a whole number however it is spelled: to JSON 2.0
// and 2 are the same.
func parseReplicas(v json.RawMessage) (scafo.Replicas, bool) {
	if s, ok := text(v); ok {
		return scafo.Replicas{All: true}, s == "all"
	}
	var number json.Number
	if json.Unmarshal(v, &number) != nil {
		return scafo.Replicas{}, false
	}
	n, err := strconv.ParseFloat(number.String(), 64)
	if err != nil || n != math.Trunc(n) || n < 1 || n > maxReplicas {
		return scafo.Replicas{}, false
	}
	return scafo.Replicas{Count: int(n)}, true
}
