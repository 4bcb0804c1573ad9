package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/wrangler/bundle"
)

// A Worker is bundled where it is deployed, and its exceptions say where in the bundle
// they come from. The bundle's source map leads to the developer's own files. It is read
// when the first stack is seen: most Workers never need it.
type stacks struct {
	read func(context.Context) ([]byte, error) // the source map
	main string                                // the module that it is of
	log  *slog.Logger
	now  func() time.Time

	// The goroutine that writes the log has these alone.
	known *bundle.SourceMap
	none  bool      // there is no map, or none that can be read
	next  time.Time // before then it is not tried again
}

const (
	// stackFrame begins a line of a stack.
	stackFrame = "\n    at "
	// mapTimeout bounds the reading of a map: the log waits for it.
	mapTimeout = 2 * time.Second
	// mapAgain is when it is tried again after the store did not answer.
	mapAgain = time.Minute
	// maxMapLines bounds what a map of few bytes takes once it is read.
	maxMapLines = 1 << 20
)

// stacksOf knows the places in the code of a deployment.
func (w *workerdRuntime) stacksOf(m *layout.Manifest) *stacks {
	return &stacks{
		read: func(ctx context.Context) ([]byte, error) {
			o, err := w.store.Get(ctx, m.SourceMapKey())
			if err != nil {
				return nil, err
			}
			return o.Body, nil
		},
		main: m.Main, log: w.log, now: time.Now,
	}
}

// rewrite replaces the places in the stacks of a text. A nil stacks replaces none.
func (s *stacks) rewrite(text string) string {
	if s == nil || !strings.Contains(text, stackFrame) {
		return text
	}
	s.learn()
	at := strings.Index(text, stackFrame) // what is before it is the Worker's own words
	return text[:at] + s.known.Rewrite(text[at:])
}

// learn reads the map, unless that is done or in vain.
func (s *stacks) learn() {
	if s.known != nil || s.none || s.now().Before(s.next) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), mapTimeout)
	defer cancel()
	text, err := s.read(ctx)
	switch {
	case errors.Is(err, bucket.ErrNotFound):
		s.none = true
		return
	case err != nil:
		s.next = s.now().Add(mapAgain)
		return
	case len(text) > layout.MaxSourceMap || bytes.Count(text, []byte(";")) > maxMapLines:
		s.none = true
		return
	}
	known, err := bundle.ParseSourceMap(s.main, text)
	if err != nil {
		s.none = true
		s.log.Debug("the source map of the deployment cannot be read", "err", err)
		return
	}
	known.Text = nil // it has what it needs
	s.known = known
}
