package api

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/scafo/scafo"
)

// Renderings are the routing document in the forms that ingresses read natively.
type Renderings interface {
	// Formats are their names.
	Formats() []string
	// Render is the document in one of the formats, with one node's upstreams first;
	// "self" is this node. ready is false until the first pass is complete. Whoever is
	// given the body must not change it.
	Render(format, prefer string) (body []byte, etag string, ready bool, err error)
}

func (s *server) renderingRoutes() []route {
	if s.Renderings == nil {
		return nil
	}
	return []route{
		{method: http.MethodGet, path: "/v1/ingress/routes/:format", access: access{kind: ingressToken}, handle: s.renderedRoutes},
	}
}

func (s *server) renderedRoutes(_ context.Context, c *call) (answer, error) {
	q, err := query(c)
	if err != nil {
		return answer{}, err
	}
	format := c.params["format"]
	if known := s.Renderings.Formats(); !slices.Contains(known, format) {
		return answer{}, scafo.Errorf(scafo.CodeNotFound, "this node renders no such format; it renders %s", strings.Join(known, ", "))
	}
	body, etag, ready, err := s.Renderings.Render(format, q.Get("prefer"))
	if err != nil {
		return answer{}, err
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
