package celld

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// The time-outs of the internal listener's routes. A reload builds the new
// generation before it answers.
const (
	StateTimeout    = 3 * time.Second
	ReloadTimeout   = 120 * time.Second
	ShutdownTimeout = 5 * time.Second
)

// Outcome is what a reload came to.
type Outcome string

// The outcomes of a reload.
const (
	ReloadAdopted     Outcome = "adopted"
	ReloadUnchanged   Outcome = "unchanged"
	ReloadFailed      Outcome = "failed"      // the old generation goes on
	ReloadUnavailable Outcome = "unavailable" // it could not look: ask again
)

// Reload is a runtime's answer to POST /reload.
type Reload struct {
	OK         bool    `json:"ok"`
	Outcome    Outcome `json:"outcome"`
	Generation int64   `json:"generation,omitempty"`
	Version    string  `json:"version,omitempty"`
	Prefix     string  `json:"prefix,omitempty"`
	Error      string  `json:"error,omitempty"`
}

// State is the part of GET /state that scafo reads.
type State struct {
	Version    string // of the deployment that it serves; empty when it has none
	Prefix     string
	Generation int64
	Swapping   bool
	Draining   bool
	RSS        int64
}

// Internal is the client of a runtime's internal listener.
type Internal struct {
	URL  string
	HTTP *http.Client // nil takes one that keeps no connections
}

// Reload makes the runtime look at its pointer now and tells what came of it.
// The error is ErrUnanswered, or one for an answer that is none of the four.
func (i Internal) Reload(ctx context.Context) (Reload, error) {
	status, body, err := i.call(ctx, http.MethodPost, "/reload", ReloadTimeout)
	if err != nil {
		return Reload{}, err
	}
	var r Reload
	if err := json.Unmarshal(body, &r); err != nil && status != http.StatusServiceUnavailable {
		return Reload{}, fmt.Errorf("reload: status %d: %w", status, err)
	}
	// The status decides: a body that claims otherwise is not believed.
	switch {
	case status == http.StatusServiceUnavailable:
		r.OK, r.Outcome = false, ReloadUnavailable
	case status == http.StatusUnprocessableEntity:
		r.OK, r.Outcome = false, ReloadFailed
		r.Error = clip(r.Error, maxSentence)
	case status == http.StatusOK && (r.Outcome == ReloadAdopted || r.Outcome == ReloadUnchanged):
	default:
		return Reload{}, fmt.Errorf("reload: status %d, outcome %q", status, clip(string(r.Outcome), 40))
	}
	return r, nil
}

// State asks the runtime what it serves.
func (i Internal) State(ctx context.Context) (State, error) {
	status, body, err := i.call(ctx, http.MethodGet, "/state", StateTimeout)
	if err != nil {
		return State{}, err
	}
	if status != http.StatusOK {
		return State{}, fmt.Errorf("state: status %d", status)
	}
	var doc struct {
		Deployment *struct {
			Version    string          `json:"version"`
			Prefix     string          `json:"prefix"`
			Generation int64           `json:"generation"`
			Swapping   bool            `json:"swapping"`
			Draining   json.RawMessage `json:"draining"`
		} `json:"deployment"`
		RSS int64 `json:"rss_bytes"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return State{}, fmt.Errorf("state: %w", err)
	}
	s := State{RSS: doc.RSS}
	if d := doc.Deployment; d != nil {
		s.Version, s.Prefix, s.Generation, s.Swapping = d.Version, d.Prefix, d.Generation, d.Swapping
		// A flag or a count of what still drains, by release.
		switch strings.TrimSpace(string(d.Draining)) {
		case "", "null", "false", "0", "[]", "{}":
		default:
			s.Draining = true
		}
	}
	return s, nil
}

// Shutdown asks the runtime to drain and leave, as SIGTERM does.
func (i Internal) Shutdown(ctx context.Context) error {
	status, _, err := i.call(ctx, http.MethodPost, "/shutdown", ShutdownTimeout)
	if err != nil {
		return err
	}
	if status < 200 || status > 299 {
		return fmt.Errorf("shutdown: status %d", status)
	}
	return nil
}

func (i Internal) call(ctx context.Context, method, path string, within time.Duration) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(i.URL, "/")+path, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", ErrUnanswered, err)
	}
	c := i.HTTP
	if c == nil {
		c = probeClient
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", ErrUnanswered, err)
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is left to do with it
	var b bytes.Buffer
	switch _, err := io.Copy(&b, io.LimitReader(resp.Body, maxAnswer+1)); {
	case err != nil:
		return 0, nil, fmt.Errorf("%w: %w", ErrUnanswered, err)
	case b.Len() > maxAnswer:
		return 0, nil, errors.New("the runtime's answer is too long")
	}
	return resp.StatusCode, b.Bytes(), nil
}
