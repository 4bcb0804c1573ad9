package caddy

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(Gate{})
}

// routeVar is the request variable in which the gate leaves the route for the
// upstream source.
const routeVar = "scafo.route"

// retryAfter is what a visitor is told to wait, in seconds, for a host that
// nobody serves at the moment.
const retryAfter = "2"

// Gate lets requests pass whose host some fleet serves, and answers the others
// itself: 404 for a host that no fleet knows, 503 for one that nobody serves now.
type Gate struct {
	app *App
}

// CaddyModule returns the module's information.
func (Gate) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.scafo", New: func() caddy.Module { return new(Gate) }}
}

// Provision finds the app.
func (g *Gate) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return fmt.Errorf("scafo: %w", err)
	}
	g.app = app
	return nil
}

// attempt is a request's way through the upstreams.
type attempt struct {
	entry   *entry
	began   time.Time
	tried   []string // the upstreams that were tried, in that order
	refused []string // those that were about to end
	body    *replay  // nil before the first try of a request that has a body
}

func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if holdsBack(r) {
		w = holding(w, r)
	}
	host := hostOf(r.Host)
	e, known := g.app.lookup(host)
	if e == nil && !known {
		// Caddy may serve before the fleets were asked once.
		ctx, cancel := context.WithTimeout(r.Context(), firstWait)
		g.app.awaitFirst(ctx)
		cancel()
		e, known = g.app.lookup(host)
	}
	switch {
	case e == nil && !known:
		g.app.counted.noDocument.Inc()
		refuse(w, r, http.StatusServiceUnavailable, "draining", "No routes yet", "The ingress has not heard from its fleet yet.")
		return nil
	case e == nil:
		g.app.counted.unknown.Inc()
		refuse(w, r, http.StatusNotFound, "not-found", "Nothing is here", "No application answers for "+host+".")
		return nil
	case e.unserved != "":
		g.app.counted.unserved.Inc()
		refuseUnserved(w, r, host)
		return nil
	}
	// The other forwarding headers are overwritten by the proxy; this one it would
	// pass on as the visitor wrote it (RFC 7239).
	r.Header.Del("Forwarded")
	if r.ContentLength != 0 && r.ProtoMajor == 1 {
		// An application may answer while it still reads. Where that cannot be had, its
		// answer waits for the request. The connection of one that answers before it has
		// read all ends with the answer: net/http, which then reads the rest itself, would
		// read the next request while it still watches the connection, and panic.
		if err := http.NewResponseController(w).EnableFullDuplex(); err == nil && !holdsBack(r) {
			w = holding(w, r)
		}
	}
	// An answer without a type has none: net/http would guess one.
	w.Header()["Content-Type"] = nil
	caddyhttp.SetVar(r.Context(), routeVar, &attempt{entry: e, began: time.Now()})
	err := next.ServeHTTP(w, r)
	if nobodyThere(r, err) {
		refuseUnserved(w, r, host)
		return nil
	}
	return err
}

// refuse answers with a plain page for browsers and a problem document (RFC 9457)
// for everything else.
func refuse(w http.ResponseWriter, r *http.Request, status int, code, title, detail string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if status == http.StatusServiceUnavailable {
		h.Set("Retry-After", retryAfter)
	}
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		h.Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(status)
		fmt.Fprintf(w, page, html.EscapeString(title), status, html.EscapeString(title), html.EscapeString(detail))
		return
	}
	h.Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // the visitor may be gone
		"type": "/reference/errors#" + code, "title": title, "status": status, "detail": detail, "code": code,
	})
}

const page = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s</title>
<style>body{font:16px/1.5 system-ui,sans-serif;margin:15vh auto;max-width:34rem;padding:0 1rem;color:#222}h1{font-size:1.4rem}small{color:#777}</style>
<p><small>%d</small></p>
<h1>%s</h1>
<p>%s</p>
</html>
`

var (
	_ caddy.Provisioner           = (*Gate)(nil)
	_ caddyhttp.MiddlewareHandler = (*Gate)(nil)
)
