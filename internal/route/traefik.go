package route

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/scafo/scafo"
)

// FormatTraefik is the rendering for the HTTP provider of Traefik 3.
const FormatTraefik = "traefik"

// Traefik says how the document is rendered for Traefik's HTTP provider.
type Traefik struct {
	// CertResolver obtains certificates; without one the routers say nothing of TLS,
	// and the entry points decide.
	CertResolver string
	// EntryPoints and Middlewares are those of every router; without entry points
	// Traefik takes its default ones.
	EntryPoints []string
	Middlewares []string
	// WildcardDomains have a certificate for *.<domain>, which covers the hosts that
	// are one label below.
	WildcardDomains []string
}

// The names that the rendering defines, beside one service for each application.
const (
	retryMiddleware   = "scafo-retry"
	headersMiddleware = "scafo-headers"
	transportName     = "scafo"
	apiService        = "api"
	unservedService   = "unserved"
)

// Priorities are explicit, since Traefik's own is the length of a rule, by which a
// long pattern beats an exact host.
const (
	exactPriority    = 2000
	wildcardPriority = 1000
)

// How Traefik finds out that an upstream is gone, before the document says so.
const (
	retryAttempts = 3
	retryInterval = "20ms"
	checkInterval = "2s"
	checkTimeout  = "1500ms"
	dialTimeout   = "2s"
	appHealth     = "/.well-known/celld/health"
)

// traefikConfig and what it is made of are Traefik's dynamic configuration. Nothing
// that may be empty is ever written as an empty map: Traefik refuses the whole
// document for one.
type traefikConfig struct {
	HTTP *traefikHTTP `json:"http,omitempty"`
}

type traefikHTTP struct {
	Routers     map[string]traefikRouter     `json:"routers,omitempty"`
	Services    map[string]traefikService    `json:"services,omitempty"`
	Middlewares map[string]traefikMiddleware `json:"middlewares,omitempty"`
	Transports  map[string]traefikTransport  `json:"serversTransports,omitempty"`
}

type traefikRouter struct {
	EntryPoints []string    `json:"entryPoints,omitempty"`
	Middlewares []string    `json:"middlewares,omitempty"`
	Service     string      `json:"service"`
	Rule        string      `json:"rule"`
	Priority    int         `json:"priority"`
	TLS         *traefikTLS `json:"tls,omitempty"`
}

type traefikTLS struct {
	Options      string          `json:"options,omitempty"`
	CertResolver string          `json:"certResolver,omitempty"`
	Domains      []traefikDomain `json:"domains,omitempty"`
}

type traefikDomain struct {
	Main string `json:"main"`
}

type traefikService struct {
	LoadBalancer traefikBalancer `json:"loadBalancer"`
}

type traefikBalancer struct {
	// Servers may be an empty list, which answers 503 at once, but never missing.
	Servers     []traefikServer `json:"servers"`
	HealthCheck *traefikHealth  `json:"healthCheck,omitempty"`
	Transport   string          `json:"serversTransport,omitempty"`
}

type traefikServer struct {
	URL string `json:"url"`
}

type traefikHealth struct {
	Path     string `json:"path"`
	Interval string `json:"interval"`
	Timeout  string `json:"timeout"`
}

type traefikMiddleware struct {
	Retry   *traefikRetry   `json:"retry,omitempty"`
	Headers *traefikHeaders `json:"headers,omitempty"`
}

type traefikRetry struct {
	Attempts        int    `json:"attempts"`
	InitialInterval string `json:"initialInterval"`
}

type traefikHeaders struct {
	CustomRequestHeaders map[string]string `json:"customRequestHeaders"`
}

type traefikTransport struct {
	ForwardingTimeouts traefikTimeouts `json:"forwardingTimeouts"`
}

type traefikTimeouts struct {
	DialTimeout string `json:"dialTimeout"`
}

// Render makes the configuration. The same content is the same bytes, whatever its
// time. A host or an upstream that would spoil it is left out and reported. Without
// any route it is {}, the one form in which Traefik hears that there are none.
func (t Traefik) Render(doc scafo.FleetRouting) (body []byte, problems []Problem, err error) {
	r := &traefikRendering{Traefik: t, wildcards: map[string]bool{}, http: traefikHTTP{
		Routers: make(map[string]traefikRouter, len(doc.Routes)), Services: map[string]traefikService{},
	}}
	for _, d := range t.WildcardDomains {
		r.wildcards[strings.TrimPrefix(strings.ToLower(d), "*.")] = true
	}
	r.chain = append(slices.Clone(t.Middlewares), headersMiddleware, retryMiddleware)
	for _, x := range doc.Routes {
		r.exact(x.Host, x.Application, r.application(x.Application, x.Host, x.Upstreams), true)
	}
	for _, x := range doc.API {
		r.exact(x.Host, "", r.service(apiService, x.Host, scafo.HealthPath, "", x.Upstreams), true)
	}
	for _, x := range doc.Unserved {
		r.exact(x.Host, x.Application, unservedService, false)
	}
	for _, x := range doc.Wildcards {
		r.below(x.Base, x.Application, r.application(x.Application, x.Base, x.Upstreams))
	}
	if len(r.http.Routers) == 0 {
		return []byte("{}"), r.problems, nil
	}
	r.shared()
	body, err = json.Marshal(traefikConfig{HTTP: &r.http})
	return body, r.problems, err
}

type traefikRendering struct {
	Traefik
	wildcards map[string]bool // domains that have a wildcard certificate
	chain     []string        // middlewares of every router
	http      traefikHTTP
	problems  []Problem
}

func (r *traefikRendering) problem(app, host, format string, args ...any) {
	r.problems = append(r.problems, Problem{Application: app, Host: host, Detail: fmt.Sprintf(format, args...)})
}

// application is the service of an application. All of its hosts have the same
// upstreams, and share it.
func (r *traefikRendering) application(name, host string, ups []scafo.Upstream) string {
	return r.service("app-"+name, host, appHealth, name, ups)
}

// service adds a service, and says by which name it goes.
func (r *traefikRendering) service(name, host, health, app string, ups []scafo.Upstream) string {
	s := traefikService{LoadBalancer: traefikBalancer{Servers: make([]traefikServer, 0, len(ups)), Transport: transportName}}
	for _, u := range ups {
		if err := checkURL(u.URL); err != nil {
			r.problem(app, host, "node %s names an upstream that is none: %v", u.Node, err)
			continue
		}
		s.LoadBalancer.Servers = append(s.LoadBalancer.Servers, traefikServer{URL: u.URL})
	}
	switch len(s.LoadBalancer.Servers) {
	case 0:
		return unservedService
	case 1:
		// There is nobody else to ask, and asking would cost a request every few seconds
		// for each of thousands of applications.
	default:
		s.LoadBalancer.HealthCheck = &traefikHealth{Path: health, Interval: checkInterval, Timeout: checkTimeout}
	}
	if other, ok := r.http.Services[name]; ok && !slices.Equal(other.LoadBalancer.Servers, s.LoadBalancer.Servers) {
		name += "-at-" + host
	}
	r.http.Services[name] = s
	return name
}

// exact adds the router of a host. It orders a certificate where it may.
func (r *traefikRendering) exact(host, app, service string, certificate bool) {
	if !plainHost(host) {
		r.problem(app, host, "%q is not a host that a rule can name", host)
		return
	}
	_, parent, _ := strings.Cut(host, ".")
	r.http.Routers["host-"+host] = traefikRouter{
		EntryPoints: r.EntryPoints, Middlewares: r.chain, Service: service,
		Rule: "Host(`" + host + "`)", Priority: exactPriority, TLS: r.tls(parent, certificate),
	}
}

// below adds the router of what is one label below a base. It is for routing alone:
// the names there are chosen by whoever asks, so none of them orders a certificate.
func (r *traefikRendering) below(base, app, service string) {
	if !plainHost(base) {
		r.problem(app, base, "%q is not a host that a rule can name", base)
		return
	}
	r.http.Routers["below-"+base] = traefikRouter{
		EntryPoints: r.EntryPoints, Middlewares: r.chain, Service: service,
		Rule: "HostRegexp(`^[^.]+\\." + regexp.QuoteMeta(base) + "$`)", Priority: wildcardPriority, TLS: r.tls(base, false),
	}
}

// tls is how a router has TLS: by the wildcard certificate of its parent, by a
// certificate of its own, or by what Traefik happens to have.
func (r *traefikRendering) tls(parent string, certificate bool) *traefikTLS {
	switch {
	case r.CertResolver == "":
		return nil
	case r.wildcards[parent]:
		return &traefikTLS{CertResolver: r.CertResolver, Domains: []traefikDomain{{Main: "*." + parent}}}
	case certificate:
		return &traefikTLS{CertResolver: r.CertResolver}
	}
	// TLS without a resolver would be an empty map; these are the options that it has
	// anyway.
	return &traefikTLS{Options: "default"}
}

// shared adds what the routers and services refer to, and nothing else.
func (r *traefikRendering) shared() {
	r.http.Middlewares = map[string]traefikMiddleware{
		retryMiddleware: {Retry: &traefikRetry{Attempts: retryAttempts, InitialInterval: retryInterval}},
		// Traefik overwrites the other forwarding headers; this one it would pass on as
		// the visitor wrote it. An empty value removes it.
		headersMiddleware: {Headers: &traefikHeaders{CustomRequestHeaders: map[string]string{"Forwarded": ""}}},
	}
	r.http.Transports = map[string]traefikTransport{transportName: {ForwardingTimeouts: traefikTimeouts{DialTimeout: dialTimeout}}}
	used := map[string]bool{}
	for _, router := range r.http.Routers {
		used[router.Service] = true
	}
	for name := range r.http.Services {
		if !used[name] {
			delete(r.http.Services, name) // its one host was left out
		}
	}
	if used[unservedService] {
		r.http.Services[unservedService] = traefikService{LoadBalancer: traefikBalancer{Servers: []traefikServer{}}}
	}
}

// plainHost reports whether a host can stand in a rule: labels of lower-case
// letters, digits and hyphens.
func plainHost(host string) bool {
	if len(host) > scafo.MaxHostLength {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			c := label[i]
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
	}
	return true
}

// maxLabel is the most characters that DNS lets a label have.
const maxLabel = 63
