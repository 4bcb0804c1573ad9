package openapitest

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"testing"
)

// maxKept bounds what is kept of a body, in bytes.
const maxKept = 8 << 20

// Handler is h with each of its exchanges held to the document. The test must
// outlive the requests.
func Handler(t testing.TB, h http.Handler) http.Handler {
	d, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method, path, query, header := r.Method, r.URL.EscapedPath(), r.URL.RawQuery, r.Header.Clone()
		body := &kept{ReadCloser: r.Body}
		hasBody := r.Body != nil && r.ContentLength != 0
		if hasBody {
			// A copy: net/http looks at the request's own body to see whether a client still
			// waits for 100 Continue.
			r = r.WithContext(r.Context())
			r.Body = body
		}
		out := &answering{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(out, r)
		b, whole := body.read()
		x := &Exchange{
			Method: method, Path: path, Query: query, Header: header, Body: b, HasBody: hasBody, Partial: !whole,
			Status: out.status, AnswerHeader: w.Header().Clone(), Answer: out.body.Bytes(),
		}
		if err := d.Check(x); err != nil {
			t.Errorf("OpenAPI: %v", err)
		}
	})
}

// kept keeps what was read of a body.
type kept struct {
	io.ReadCloser
	mu    sync.Mutex
	b     bytes.Buffer // guarded by mu
	ended bool         // guarded by mu
}

func (k *kept) Read(p []byte) (int, error) {
	n, err := k.ReadCloser.Read(p)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.b.Len() < maxKept {
		k.b.Write(p[:n])
	}
	k.ended = k.ended || err == io.EOF
	return n, err
}

func (k *kept) read() (b []byte, whole bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return bytes.Clone(k.b.Bytes()), k.ended && k.b.Len() < maxKept
}

// answering keeps an answer on its way.
type answering struct {
	http.ResponseWriter
	status int
	wrote  bool
	body   bytes.Buffer
}

func (a *answering) WriteHeader(status int) {
	if !a.wrote && status >= http.StatusOK {
		a.status, a.wrote = status, true
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answering) Write(b []byte) (int, error) {
	a.wrote = true
	if a.body.Len() < maxKept {
		a.body.Write(b)
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Flush passes an answer on that comes in parts.
func (a *answering) Flush() { _ = http.NewResponseController(a.ResponseWriter).Flush() }
