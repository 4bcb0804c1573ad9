package caddy

import (
	"encoding/json"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// How the proxy behind the gate tries upstreams.
const (
	tryDuration = 2 * time.Second
	tryInterval = 20 * time.Millisecond
	dialTimeout = 2 * time.Second
	// streamCloseDelay lets WebSockets outlive a reload of Caddy's configuration.
	streamCloseDelay = 24 * time.Hour
)

// complete fills what the user left open of the proxy behind the gate.
func complete(rp *reverseproxy.Handler) {
	if rp.DynamicUpstreamsRaw == nil && len(rp.Upstreams) == 0 {
		rp.DynamicUpstreamsRaw = caddyconfig.JSONModuleObject(struct{}{}, "source", "scafo", nil)
	}
	if rp.LoadBalancing == nil {
		rp.LoadBalancing = new(reverseproxy.LoadBalancing)
	}
	lb := rp.LoadBalancing
	if lb.SelectionPolicyRaw == nil {
		// The source has put them in order.
		lb.SelectionPolicyRaw = json.RawMessage(`{"policy":"first"}`)
	}
	if lb.TryDuration == 0 && lb.Retries == 0 {
		lb.TryDuration = caddy.Duration(tryDuration)
		lb.TryInterval = caddy.Duration(tryInterval)
	}
	if rp.TransportRaw == nil {
		t := reverseproxy.HTTPTransport{DialTimeout: caddy.Duration(dialTimeout)}
		rp.TransportRaw = caddyconfig.JSONModuleObject(t, "protocol", "http", nil)
	}
	rp.TransportRaw = ours(rp.TransportRaw)
	if rp.StreamCloseDelay == 0 {
		rp.StreamCloseDelay = caddy.Duration(streamCloseDelay)
	}
}

// ours is Caddy's HTTP transport, however it is configured, as the one that tries
// another upstream when a process refuses; any other transport stays what it is.
func ours(raw json.RawMessage) json.RawMessage {
	var t map[string]json.RawMessage
	if json.Unmarshal(raw, &t) != nil || string(t["protocol"]) != `"http"` {
		return raw
	}
	t["protocol"] = json.RawMessage(`"scafo"`)
	return caddyconfig.JSON(t, nil)
}

// Route is the gate with the proxy behind it, as one route of a server.
func Route() caddyhttp.Route {
	rp := new(reverseproxy.Handler)
	complete(rp)
	return routeWith(rp)
}

func routeWith(rp *reverseproxy.Handler) caddyhttp.Route {
	return caddyhttp.Route{HandlersRaw: []json.RawMessage{
		caddyconfig.JSONModuleObject(Gate{}, "handler", "scafo", nil),
		caddyconfig.JSONModuleObject(rp, "handler", "reverse_proxy", nil),
	}}
}
