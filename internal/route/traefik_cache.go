package route

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/scafo/scafo"
)

// Source is the routing document in force with one node's upstreams first, and its
// ETag; ready is false before the first one.
type Source func(prefer string) (doc scafo.FleetRouting, etag string, ready bool)

// Renderings are the document in force in the formats that ingresses read
// natively. Each is rendered once for each change, whatever the number of polls. It
// is safe for concurrent use.
type Renderings struct {
	source  Source
	traefik Traefik
	report  func([]Problem)

	mu   sync.Mutex
	at   time.Time            // guarded by mu; of the content that made is from
	made map[string]*rendered // guarded by mu; by the document's ETag
}

type rendered struct {
	body []byte
	etag string
	err  error
}

// NewRenderings renders what source has in force. report, when given, hears of what
// was left out, once for each content.
func NewRenderings(source Source, t Traefik, report func([]Problem)) *Renderings {
	return &Renderings{source: source, traefik: t, report: report, made: map[string]*rendered{}}
}

// Formats are the names of the formats.
func (r *Renderings) Formats() []string { return []string{FormatTraefik} }

// Render is the document in a format. Nobody may change the body.
func (r *Renderings) Render(format, prefer string) (body []byte, etag string, ready bool, err error) {
	if format != FormatTraefik {
		return nil, "", false, fmt.Errorf("there is no format %q", format)
	}
	doc, source, ready := r.source(prefer)
	if !ready {
		return nil, "", false, nil
	}
	m := r.of(doc, source)
	return m.body, m.etag, true, m.err
}

func (r *Renderings) of(doc scafo.FleetRouting, source string) *rendered {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m, ok := r.made[source]; ok {
		return m
	}
	// One content has as many orders as nodes; what is of another one goes.
	news := !r.at.Equal(doc.GeneratedAt)
	if news {
		clear(r.made)
		r.at = doc.GeneratedAt
	}
	body, problems, err := r.traefik.Render(doc)
	sum := sha256.Sum256(body)
	m := &rendered{body: body, etag: `"` + hex.EncodeToString(sum[:16]) + `"`, err: err}
	r.made[source] = m
	if news && len(problems) > 0 && r.report != nil {
		r.report(problems)
	}
	return m
}
