package caddy

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// nobodyThere reports whether a request failed because none of its upstreams could be
// reached: nobody listens there for the moment, as between the end of a process and its
// next start, and nothing of the request was sent. A visitor who went is not told.
func nobodyThere(r *http.Request, err error) bool {
	var dial reverseproxy.DialError
	return errors.As(err, &dial) && r.Context().Err() == nil
}

// refuseUnserved answers for a host that nobody serves at the moment.
func refuseUnserved(w http.ResponseWriter, r *http.Request, host string) {
	refuse(w, r, http.StatusServiceUnavailable, "draining", "Not ready", "The application behind "+host+" is not serving at the moment.")
}
