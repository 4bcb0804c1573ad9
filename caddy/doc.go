// Package caddy has the modules that make Caddy the front door of a scafo fleet:
//
//   - scafo: an app that follows the routing document of one or more fleets,
//   - http.handlers.scafo: a gate that answers 404 for hosts that no fleet knows
//     and 503 for hosts that nobody serves at the moment,
//   - http.reverse_proxy.upstreams.scafo: the processes that answer for a host,
//   - http.reverse_proxy.transport.scafo: Caddy's HTTP transport, which leaves a
//     process that is about to end for another one,
//   - caddy.storage.scafo: certificates in the fleet's bucket, shared by all of its
//     ingresses,
//   - tls.permission.scafo: allows a certificate on demand for names that a
//     document names exactly, and for no other.
//
// Documents are polled with If-None-Match and swapped in memory: a deploy never
// reloads Caddy's configuration.
package caddy
