package api

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// route is one row of the route table.
type route struct {
	method string
	// path is literal segments and :parameters. Each segment of a request is decoded
	// for itself, so that an escaped slash never makes a new one. A last segment **
	// stands for all that follows, which the handler reads from the path itself.
	path   string
	access access
	handle handler

	segments []string
	open     bool // more segments follow
}

// params are the parameters of a route that matched, decoded.
type params map[string]string

// table finds the route of a request. It redirects nothing and cleans nothing:
// /v1//state and /v1/x/../state are no routes.
type table []route

func newTable(routes []route) table {
	t := make(table, len(routes))
	for i, r := range routes {
		r.segments = strings.Split(r.path, "/")[1:]
		if n := len(r.segments) - 1; r.segments[n] == "**" {
			r.segments, r.open = r.segments[:n], true
		}
		t[i] = r
	}
	return t
}

// find returns the route of a method and an escaped path. When only the method is
// missing, allowed lists those that the path takes.
func (t table) find(method, escaped string) (found *route, p params, allowed string) {
	segments, ok := splitPath(escaped)
	if !ok {
		return nil, nil, ""
	}
	// A HEAD is a GET whose body net/http does not send.
	if method == http.MethodHead {
		method = http.MethodGet
	}
	var methods []string
	for i := range t {
		p, ok := t[i].match(segments)
		if !ok {
			continue
		}
		if t[i].method == method {
			return &t[i], p, ""
		}
		methods = append(methods, t[i].method)
		if t[i].method == http.MethodGet {
			methods = append(methods, http.MethodHead)
		}
	}
	slices.Sort(methods)
	return nil, nil, strings.Join(slices.Compact(methods), ", ")
}

// splitPath splits an escaped path at its slashes and decodes each segment.
func splitPath(escaped string) ([]string, bool) {
	rest, ok := strings.CutPrefix(escaped, "/")
	if !ok {
		return nil, false
	}
	segments := strings.Split(rest, "/")
	for i, s := range segments {
		if !strings.Contains(s, "%") {
			continue
		}
		decoded, err := url.PathUnescape(s)
		if err != nil {
			return nil, false
		}
		segments[i] = decoded
	}
	return segments, true
}

func (r *route) match(segments []string) (params, bool) {
	if n := len(r.segments); len(segments) < n || r.open == (len(segments) == n) {
		return nil, false
	}
	var p params
	for i, want := range r.segments {
		name, parameter := strings.CutPrefix(want, ":")
		switch {
		case !parameter && segments[i] != want, parameter && segments[i] == "":
			return nil, false
		case parameter:
			if p == nil {
				p = params{}
			}
			p[name] = segments[i]
		}
	}
	return p, true
}
