package celld

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// The health routes of the public listener.
const (
	HealthPath    = "/.well-known/celld/health"
	OldHealthPath = "/__celld/health" // up to 0.3
)

// HealthTimeout bounds one look at a runtime's health: the ports are bound
// before anything is served, so a connection may succeed and then hang.
const HealthTimeout = 2 * time.Second

const maxAnswer = 1 << 20

// HealthPathOf is the health route of the release with that --version line.
func HealthPathOf(version string) string {
	r, err := ParseVersion(version)
	if err != nil || r.Product != ProductCelld {
		return HealthPath
	}
	for _, old := range []string{"0.0.", "0.1.", "0.2.", "0.3."} {
		if strings.HasPrefix(r.Version, old) {
			return OldHealthPath
		}
	}
	return HealthPath
}

// Healthy asks the runtime behind publicURL for its health: nil for 200,
// ErrUnhealthy for any other answer, ErrUnanswered for none.
func Healthy(ctx context.Context, publicURL string) error {
	ctx, cancel := context.WithTimeout(ctx, HealthTimeout)
	defer cancel()
	return HealthyAt(ctx, probeClient, publicURL, HealthPath)
}

// probeClient keeps no connection: who asks now and then must not leave one open
// to a process that drains.
var probeClient = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: noRedirect,
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// HealthyAt is Healthy with a client and path of one's own; the caller's ctx
// bounds it.
func HealthyAt(ctx context.Context, c *http.Client, publicURL, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(publicURL, "/")+path, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnanswered, err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnanswered, err)
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is left to do with it
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer)); err != nil {
		return fmt.Errorf("%w: %w", ErrUnanswered, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: status %d", ErrUnhealthy, resp.StatusCode)
	}
	return nil
}
