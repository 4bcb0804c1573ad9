package caddy

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scafo/scafo"
)

// A client that asks before it sends gets the upstream's own answer: what is refused
// uploads nothing, and what is taken arrives whole. A body that may go to several
// upstreams is no exception.
func TestABodyThatIsHeldBack(t *testing.T) {
	const size = 1 << 20
	app := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Refuse") != "" {
			w.WriteHeader(http.StatusConflict)
			return
		}
		n, err := io.Copy(io.Discard, r.Body)
		if n != size || err != nil {
			http.Error(w, "cut", http.StatusBadRequest)
		}
	}
	for name, ups := range map[string][]scafo.Upstream{
		"one upstream":  {{URL: upstream(t, app)}},
		"two upstreams": {{URL: upstream(t, app)}, {URL: upstream(t, app)}},
	} {
		n := newNode(t, scafo.FleetRouting{Routes: []scafo.Route{{Host: "x.example", Upstreams: ups}}})
		ask := ingress(t, Options{Fleet: Fleet{Name: "main", Nodes: []string{n.URL}, Token: token, Prefer: "self"}})
		var base string
		eventually(t, "a document", func() bool {
			res := ask("x.example", "/")
			base = res.Request.URL.String()
			return res.StatusCode != http.StatusNotFound
		})
		transport := &http.Transport{ExpectContinueTimeout: 5 * time.Second}
		t.Cleanup(transport.CloseIdleConnections)
		send := func(refuse string) (status int, sent int64) {
			t.Helper()
			var read atomic.Int64
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base, io.TeeReader(bytes.NewReader(make([]byte, size)), counting{&read}))
			if err != nil {
				t.Fatal(err)
			}
			req.Host, req.ContentLength = "x.example", size
			req.Header.Set("Expect", "100-continue")
			req.Header.Set("X-Refuse", refuse)
			res, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			return res.StatusCode, read.Load()
		}
		if status, sent := send("yes"); status != http.StatusConflict || sent != 0 {
			t.Errorf("%s, refused: %d, %d bytes sent", name, status, sent)
		}
		if status, sent := send(""); status != http.StatusOK || sent != size {
			t.Errorf("%s, taken: %d, %d bytes sent", name, status, sent)
		}
	}
}

type counting struct{ n *atomic.Int64 }

func (c counting) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
