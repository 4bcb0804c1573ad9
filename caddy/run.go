package caddy

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddytls"
)

// Options describe an ingress without a Caddyfile.
type Options struct {
	Fleet Fleet
	// Listen is the address to listen on; empty is all of them.
	Listen              string
	HTTPPort, HTTPSPort int
	// HTTPSocket and HTTPSSocket are the file descriptors of listening sockets that this
	// process was started with; 0 listens on the ports. HTTP/3 has no listener then.
	HTTPSocket, HTTPSSocket int
	// HTTPOnly serves plain HTTP and needs no certificate.
	HTTPOnly bool
	// State is the directory for the kept routing document.
	State string
	// EncryptionKeys encrypt what is stored, as Storage has it.
	EncryptionKeys []string
	// Email, ACMEDirectory and ACMERoot say which authority issues certificates; the
	// authority's own defaults where they are empty. ACMERoot is a PEM file.
	Email, ACMEDirectory, ACMERoot string
	// GracePeriod is how long requests that are open at a stop go on; 0 is to their end.
	GracePeriod time.Duration
	// MetricsListen is the address on which Prometheus finds the metrics, at /metrics,
	// unguarded; empty is nowhere.
	MetricsListen string
	// LogLevel is Caddy's least level; empty takes its own.
	LogLevel string
}

// Config is the Caddy configuration of such an ingress.
func (o Options) Config() *caddy.Config {
	f := o.Fleet
	if f.Cache == "" && o.State != "" {
		f.Cache = filepath.Join(o.State, "routes-"+f.Name+".json")
	}
	apps := caddy.ModuleMap{"scafo": caddyconfig.JSON(App{Fleets: []Fleet{f}}, nil)}
	web := caddyhttp.App{HTTPPort: o.HTTPPort, HTTPSPort: o.HTTPSPort, GracePeriod: caddy.Duration(o.GracePeriod), Servers: map[string]*caddyhttp.Server{}}
	plain := &caddyhttp.Server{
		Routes:    caddyhttp.RouteList{Route()},
		AutoHTTPS: &caddyhttp.AutoHTTPSConfig{Disabled: true},
	}
	o.listen(plain, o.HTTPPort, o.HTTPSocket)
	if o.HTTPOnly {
		web.Servers["http"] = plain
	} else {
		// Plain HTTP answers the authority's challenges and redirects; hosts that the
		// fleet does not know get their 404 there without a redirect.
		plain.Routes = caddyhttp.RouteList{redirect()}
		web.Servers["http"] = plain
		secure := &caddyhttp.Server{
			Routes:          caddyhttp.RouteList{Route()},
			TLSConnPolicies: caddytls.ConnectionPolicies{&caddytls.ConnectionPolicy{}},
			AutoHTTPS:       &caddyhttp.AutoHTTPSConfig{Disabled: true},
		}
		o.listen(secure, o.HTTPSPort, o.HTTPSSocket)
		web.Servers["https"] = secure
		apps["tls"] = caddyconfig.JSON(o.tls(), nil)
	}
	if o.MetricsListen != "" {
		web.Metrics = new(caddyhttp.Metrics)
		web.Servers["metrics"] = &caddyhttp.Server{
			Listen: []string{o.MetricsListen}, Routes: caddyhttp.RouteList{metricsRoute()},
			AutoHTTPS: &caddyhttp.AutoHTTPSConfig{Disabled: true},
		}
	}
	apps["http"] = caddyconfig.JSON(web, nil)
	c := &caddy.Config{Admin: &caddy.AdminConfig{Disabled: true, Config: &caddy.ConfigSettings{Persist: new(bool)}}, AppsRaw: apps}
	c.StorageRaw = o.storage()
	if o.LogLevel != "" {
		c.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{Level: o.LogLevel}}}}
	}
	return c
}

// listen lets a server listen on a port, or on a socket if there is one.
func (o Options) listen(s *caddyhttp.Server, port, socket int) {
	if socket == 0 {
		s.Listen = []string{net.JoinHostPort(o.Listen, strconv.Itoa(port))}
		return
	}
	s.Listen = []string{"fd/" + strconv.Itoa(socket)}
	s.Protocols = []string{"h1", "h2"}
}

// storage is the fleet's, so that all of its ingresses share their certificates;
// without certificates there is nothing to share.
func (o Options) storage() json.RawMessage {
	if !o.HTTPOnly {
		s := Storage{Nodes: o.Fleet.Nodes, Token: o.Fleet.Token, EncryptionKeys: o.EncryptionKeys}
		return caddyconfig.JSONModuleObject(s, "module", "scafo", nil)
	}
	if o.State == "" {
		return nil
	}
	return caddyconfig.JSON(map[string]string{"module": "file_system", "root": filepath.Join(o.State, "certificates")}, nil)
}

func (o Options) tls() *caddytls.TLS {
	// Where the authority's questions arrive; without them an issuance would listen on 80
	// and 443, for which an ingress on other ports may have no right.
	challenges := caddytls.ChallengesConfig{
		HTTP:     &caddytls.HTTPChallengeConfig{AlternatePort: o.HTTPPort},
		TLSALPN:  &caddytls.TLSALPNChallengeConfig{AlternatePort: o.HTTPSPort},
		BindHost: o.Listen,
	}
	issuer := map[string]any{"module": "acme", "challenges": challenges}
	if o.Email != "" {
		issuer["email"] = o.Email
	}
	if o.ACMEDirectory != "" {
		issuer["ca"] = o.ACMEDirectory
	}
	if o.ACMERoot != "" {
		issuer["trusted_roots_pem_files"] = []string{o.ACMERoot}
	}
	// The storage check writes and removes a key of a random name at each issuance, and
	// a removed key leaves a trace in the bucket for good.
	return &caddytls.TLS{DisableStorageCheck: true, Automation: &caddytls.AutomationConfig{
		OnDemand: &caddytls.OnDemandConfig{PermissionRaw: json.RawMessage(`{"module":"scafo"}`)},
		Policies: []*caddytls.AutomationPolicy{{OnDemand: true, IssuersRaw: []json.RawMessage{caddyconfig.JSON(issuer, nil)}}},
	}}
}

func metricsRoute() caddyhttp.Route {
	return caddyhttp.Route{
		MatcherSetsRaw: caddyhttp.RawMatcherSets{{"path": json.RawMessage(`["/metrics"]`)}},
		HandlersRaw:    []json.RawMessage{json.RawMessage(`{"handler":"metrics"}`)},
	}
}

func redirect() caddyhttp.Route {
	return caddyhttp.Route{HandlersRaw: []json.RawMessage{
		caddyconfig.JSONModuleObject(Gate{}, "handler", "scafo", nil),
		json.RawMessage(`{"handler":"static_response","status_code":308,"headers":{"Location":["https://{http.request.host}{http.request.uri}"]}}`),
	}}
}
