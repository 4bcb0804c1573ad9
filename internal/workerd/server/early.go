package server

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// early is the answer to a request whose body may be on its way still. One that begins
// before the body was read to its end ends the connection: net/http, which then reads
// the rest itself, would read the next request while it still watches the connection,
// and panic.
type early struct {
	http.ResponseWriter
	body *watchedBody
}

// mayBeEarly lets a Worker answer a request while it still reads it: w and r take the
// place of those that they are made of.
func mayBeEarly(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *http.Request) {
	// Every HTTP/1 connection can; another needs none of this.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		return w, r
	}
	e := &early{ResponseWriter: w, body: &watchedBody{ReadCloser: r.Body}}
	// The request itself stays: by its body net/http sees whether a client was asked for it.
	r = r.WithContext(r.Context())
	r.Body = e.body
	return e, r
}

// WriteHeader says so before the answer, which is when it is known.
func (e *early) WriteHeader(status int) {
	if status >= http.StatusOK && !e.body.ended.Load() {
		e.Header().Set("Connection", "close")
	}
	e.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (e *early) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// watchedBody notes that it was read to its end.
type watchedBody struct {
	io.ReadCloser
	ended atomic.Bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}
