package caddy

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// holdsBack reports whether the client of a request waits to be asked for its body.
func holdsBack(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.Header.Get("Expect") != "" && r.Body != nil && r.Body != http.NoBody
}

// held answers a client that holds its body back. Before net/http answers, it reads
// what is left of a request's body, unless it sees that nobody asked for it; Caddy
// puts a reader of its own around the body, so it does not see that, and both sides
// would wait for each other. It reads nothing when the connection ends with the
// answer, which it has to anyway: what the client sends next may be the body or not.
type held struct {
	*caddyhttp.ResponseWriterWrapper
	body *heldBody
}

// holding is the answer and the request of a client that holds its body back.
func holding(w http.ResponseWriter, r *http.Request) *held {
	h := &held{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, body: &heldBody{ReadCloser: r.Body}}
	r.Body = h.body
	return h
}

func (h *held) WriteHeader(status int) {
	if status >= http.StatusOK && !h.body.ended.Load() {
		h.Header().Set("Connection", "close")
	}
	h.ResponseWriterWrapper.WriteHeader(status)
}

// heldBody notes that it was read to its end.
type heldBody struct {
	io.ReadCloser
	ended atomic.Bool
}

func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}
