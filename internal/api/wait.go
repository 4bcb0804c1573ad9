package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxWait bounds how long a poll may ask to wait for news.
const MaxWait = 30 * time.Second

// await waits for news as long as the request prefers to, at most until its caller
// has left or this node stops.
func (s *server) await(ctx context.Context, r *http.Request, news <-chan struct{}) {
	wait := preferredWait(r.Header)
	if wait <= 0 {
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-news:
	case <-t.C:
	case <-ctx.Done():
	case <-s.Closing:
	}
}

// preferredWait is the wait preference of a request (RFC 7240, section 4.3); 0 where
// it has none that reads.
func preferredWait(h http.Header) time.Duration {
	for _, line := range h.Values("Prefer") {
		for _, one := range strings.Split(line, ",") {
			one, _, _ = strings.Cut(one, ";")
			name, value, _ := strings.Cut(one, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 31)
			if err != nil {
				return 0
			}
			return min(time.Duration(n)*time.Second, MaxWait)
		}
	}
	return 0
}
