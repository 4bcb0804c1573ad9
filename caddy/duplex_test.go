package caddy

import (
	"bytes"
	"io"
	"net/http"
	"testing"
)

// An application may answer while it still reads: what it echoes comes back whole,
// however much of it is on the way.
func TestAnAnswerBesideItsRequest(t *testing.T) {
	asked := serving(t, upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // the answer begins before anything was read
		_, _ = io.Copy(w, r.Body)
	}))
	for range 5 {
		sent := bytes.Repeat([]byte("z"), 3<<20)
		status, got, _ := asked(http.MethodPost, bytes.NewReader(sent))
		if status != http.StatusOK || got != string(sent) {
			t.Fatalf("%d, %d of %d bytes", status, len(got), len(sent))
		}
	}
}
