package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// answer is what a handler says.
type answer struct {
	status int
	header http.Header // beside those of every answer; may be nil
	body   []byte      // JSON, unless the header says what
	// stream, when set, writes the body instead, and fails to break the answer off.
	stream func(w *streamed) error
}

// ok is 200 with a document.
func ok(v any) (answer, error) { return document(http.StatusOK, v) }

func document(status int, v any) (answer, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return answer{}, err
	}
	return answer{status: status, body: b.Bytes()}, nil
}

func (a answer) with(name, value string) answer {
	if a.header == nil {
		a.header = http.Header{}
	}
	a.header.Set(name, value)
	return a
}

func (a answer) write(c *call) {
	h := c.w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if a.status != http.StatusNotModified && a.status != http.StatusNoContent {
		h.Set("Content-Type", "application/json")
		if a.stream == nil {
			h.Set("Content-Length", strconv.Itoa(len(a.body)))
		}
	}
	for name, values := range a.header {
		h[name] = values
	}
	c.w.WriteHeader(a.status)
	if a.stream != nil {
		rc := http.NewResponseController(c.w)
		if err := a.stream(&streamed{w: c.w, c: rc}); err != nil {
			panic(http.ErrAbortHandler) // net/http's way to close the connection here
		}
		_ = rc.SetWriteDeadline(time.Time{}) // the connection goes on
		return
	}
	_, _ = c.w.Write(a.body) // a caller that left needs no answer
}

// notModified reports whether the caller already has what the ETag names
// (RFC 9110, section 13.1.2: compared weakly).
func notModified(r *http.Request, etag string) bool {
	etag = strings.TrimPrefix(etag, "W/")
	for _, line := range r.Header.Values("If-None-Match") {
		for _, one := range strings.Split(line, ",") {
			one = strings.TrimSpace(one)
			if one == "*" || strings.TrimPrefix(one, "W/") == etag {
				return true
			}
		}
	}
	return false
}
