package caddy

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
)

const shopDocument = `{"v":1,"routes":[{"host":"shop.example","application":"shop","upstreams":[{"node":"a","url":"http://127.0.0.1:1"}]}]}`

func startPoller(t *testing.T, h http.HandlerFunc) *poller {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	p := newPoller(Fleet{Name: "main", Nodes: []string{s.URL}, Token: token}, zap.NewNop())
	t.Cleanup(func() { _ = p.Destruct() }) // before the server, which waits for its requests
	return p
}

// A node that keeps its answer back is heard as soon as something changes, and is
// otherwise asked no more often than it answers.
func TestAChangeComesWithoutADelay(t *testing.T) {
	change := make(chan struct{})
	var polls atomic.Int64
	p := startPoller(t, func(w http.ResponseWriter, r *http.Request) {
		polls.Add(1)
		if r.Header.Get("Prefer") != "wait=5" {
			t.Errorf("Prefer: %q", r.Header.Get("Prefer"))
		}
		switch r.Header.Get("If-None-Match") {
		case "":
			w.Header().Set("ETag", `"1"`)
			_, _ = w.Write([]byte(`{"v":1,"routes":[]}`))
		case `"1"`:
			select {
			case <-change:
			case <-r.Context().Done():
				return
			}
			w.Header().Set("ETag", `"2"`)
			_, _ = w.Write([]byte(shopDocument))
		default:
			<-r.Context().Done()
		}
	})
	<-p.first
	time.Sleep(2 * pollPause) // into the long poll
	began := time.Now()
	close(change)
	for p.table.Load().lookup("shop.example") == nil {
		if time.Since(began) > pollEvery/2 {
			t.Fatal("the change did not come at once")
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond)
	if n := polls.Load(); n != 3 {
		t.Errorf("%d polls for one change, want 3: the first, the change, and one that waits", n)
	}
}

// A node that answers at once, whatever it is asked, is asked once a second.
func TestANodeThatDoesNotWaitIsNotRushed(t *testing.T) {
	for name, status := range map[string]int{"not modified": http.StatusNotModified, "not ready": http.StatusServiceUnavailable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var polls atomic.Int64
			startPoller(t, func(w http.ResponseWriter, r *http.Request) {
				if polls.Add(1) > 1 {
					w.WriteHeader(status)
					return
				}
				w.Header().Set("ETag", `"1"`)
				_, _ = w.Write([]byte(shopDocument))
			})
			time.Sleep(3*pollEvery - pollEvery/2)
			if n := polls.Load(); n < 3 || n > 4 {
				t.Errorf("%d polls in two and a half seconds", n)
			}
		})
	}
}

// A document that never rests does not make the ingress spin.
func TestADocumentThatNeverRests(t *testing.T) {
	var polls atomic.Int64
	startPoller(t, func(w http.ResponseWriter, _ *http.Request) {
		polls.Add(1)
		_, _ = w.Write([]byte(shopDocument))
	})
	time.Sleep(10 * pollPause)
	if n := polls.Load(); n > 11 {
		t.Errorf("%d polls within ten pauses", n)
	}
}
