package server

import (
	"testing"
	"time"
)

// workerd's failure page is passed on where the Worker is to blame, and is a 503 where
// the store is, whichever way the request takes.
func TestTheStoreIsToBlame(t *testing.T) {
	t.Parallel()
	const head = "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\nContent-Length: 21\r\n\r\n"
	const page = "Internal Server Error"
	for name, c := range map[string]struct {
		durable bool
		trouble time.Duration // ago; 0: never
		body    string
		status  int
	}{
		"the store fails":        {true, time.Second, page, 503},
		"it failed long ago":     {true, time.Minute, page, 500},
		"it never failed":        {true, 0, page, 500},
		"a page of the Worker's": {true, time.Second, "Another Server Error.", 500},
		"without a store":        {false, time.Second, page, 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &script{answer: head + c.body}
			w := newWays(t, Options{}, c.durable, s.serve)
			if c.trouble > 0 {
				w.p.fakeProcess.mu.Lock()
				w.p.trouble = time.Now().Add(-c.trouble)
				w.p.fakeProcess.mu.Unlock()
			}
			for way, addr := range map[string]string{"short": w.fast, "long": w.slow} {
				got := w.ask(addr, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
				if got.status != c.status || c.status == 500 && got.body != c.body || c.status == 503 && got.header.Get("Retry-After") != "1" {
					t.Errorf("the %s way: %+v", way, got)
				}
			}
		})
	}
}
