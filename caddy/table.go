package caddy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/scafo/scafo"
)

// entry is what one host leads to.
type entry struct {
	application string
	dials       []string // host:port of each upstream, in the document's order
	unserved    string   // why nobody serves the host; empty where somebody does
	api         bool
}

// table answers which entry a host leads to. It is built whole and never changed.
type table struct {
	exact map[string]*entry
	// wildcards hold the single label below a base.
	wildcards map[string]*entry
	// leftOut is how much of the document was malformed.
	leftOut int
}

// lookup finds the entry of a host: exact first, then a wildcard of its parent.
// The host is lower-case and has no port.
func (t *table) lookup(host string) *entry {
	if e, ok := t.exact[host]; ok {
		return e
	}
	if _, base, ok := strings.Cut(host, "."); ok {
		return t.wildcards[base]
	}
	return nil
}

// issuable reports whether a host may get a certificate: it is named exactly, as a
// route or as a host of the API.
func (t *table) issuable(host string) bool {
	e, ok := t.exact[host]
	return ok && e.unserved == ""
}

// waits reports whether a host is named exactly and served by nobody.
func (t *table) waits(host string) bool {
	e, ok := t.exact[host]
	return ok && e.unserved != ""
}

// document is the routing document with its routes undecoded, so that one
// malformed route costs that route alone.
type document struct {
	V         int               `json:"v"`
	Fleet     string            `json:"fleet"`
	Routes    []json.RawMessage `json:"routes"`
	Wildcards []json.RawMessage `json:"wildcards"`
	API       []json.RawMessage `json:"api"`
	Unserved  []json.RawMessage `json:"unserved"`
}

// parseDocument builds a table. Routes that are malformed are left out and
// reported in skipped, and so is a host that is named again: the first one has it, and
// who serves it before one that does not. An error means that the document as a whole
// is none.
func parseDocument(b []byte) (t *table, skipped []error, err error) {
	var d document
	dec := json.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&d); err != nil {
		return nil, nil, fmt.Errorf("not a routing document: %w", err)
	}
	if d.V != scafo.FormatVersion {
		return nil, nil, fmt.Errorf("a routing document of version %d, which this release does not read", d.V)
	}
	if d.Routes == nil {
		return nil, nil, errors.New("not a routing document: it has no routes")
	}
	t = &table{exact: make(map[string]*entry, len(d.Routes)), wildcards: map[string]*entry{}}
	skip := func(what string, err error) { skipped = append(skipped, fmt.Errorf("%s: %w", what, err)) }
	for _, raw := range d.Unserved {
		var u scafo.UnservedHost
		if err := decodeHost(raw, &u, &u.Host); err != nil {
			skip("unserved", err)
			continue
		}
		t.exact[u.Host] = &entry{application: u.Application, unserved: orElse(u.Reason, "not ready")}
	}
	seen := make(map[string]bool, len(d.Routes))
	for _, raw := range d.Routes {
		var r scafo.Route
		if err := decodeHost(raw, &r, &r.Host); err != nil {
			skip("route", err)
			continue
		}
		if seen[r.Host] {
			skip("route", fmt.Errorf("%s is named twice; the first one has it", r.Host))
			continue
		}
		seen[r.Host] = true
		t.add(t.exact, r.Host, &entry{application: r.Application}, r.Upstreams, skip)
	}
	for _, raw := range d.API {
		var a scafo.APIHost
		if err := decodeHost(raw, &a, &a.Host); err != nil {
			skip("API host", err)
			continue
		}
		if seen[a.Host] {
			skip("API host", fmt.Errorf("%s is named twice; the first one has it", a.Host))
			continue
		}
		seen[a.Host] = true
		t.add(t.exact, a.Host, &entry{api: true}, a.Upstreams, skip)
	}
	for _, raw := range d.Wildcards {
		var w scafo.WildcardRoute
		if err := decodeHost(raw, &w, &w.Base); err != nil {
			skip("wildcard", err)
			continue
		}
		if t.wildcards[w.Base] != nil {
			skip("wildcard", fmt.Errorf("%s is named twice; the first one has it", w.Base))
			continue
		}
		t.add(t.wildcards, w.Base, &entry{application: w.Application}, w.Upstreams, skip)
	}
	t.leftOut = len(skipped)
	return t, skipped, nil
}

func decodeHost(raw json.RawMessage, into any, host *string) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return err
	}
	*host = strings.ToLower(*host)
	if *host == "" || strings.ContainsAny(*host, "*/: ") {
		return fmt.Errorf("%q is no host", *host)
	}
	return nil
}

// add keeps the upstreams that are URLs. An entry with none of them counts as
// unserved, so that visitors get 503 and not 404.
func (t *table) add(into map[string]*entry, host string, e *entry, ups []scafo.Upstream, skip func(string, error)) {
	for _, u := range ups {
		dial, err := dialAddress(u.URL)
		if err != nil {
			skip("upstream of "+host, err)
			continue
		}
		e.dials = append(e.dials, dial)
	}
	if len(e.dials) == 0 {
		e.unserved = "no upstream"
	}
	into[host] = e
}

func dialAddress(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" {
		return "", fmt.Errorf("%q is no http:// URL", raw)
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// hostOf is the host of a request without its port, lower-case, without a
// trailing dot.
func hostOf(hostport string) string {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}
