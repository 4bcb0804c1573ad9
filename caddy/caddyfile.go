package caddy

import (
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("scafo", parseOption)
	httpcaddyfile.RegisterHandlerDirective("scafo", parseDirective)
	httpcaddyfile.RegisterDirectiveOrder("scafo", httpcaddyfile.Before, "reverse_proxy")
}

// parseOption reads the global option:
//
//	scafo {
//		fleet <name> {
//			node   <url> [<url>...]
//			token  <ingress token>
//			prefer <node>|self
//			cache  <file>
//		}
//	}
func parseOption(d *caddyfile.Dispenser, existing any) (any, error) {
	app := new(App)
	if existing != nil {
		return nil, d.Err("scafo is given twice")
	}
	d.Next()
	for d.NextBlock(0) {
		if d.Val() != "fleet" {
			return nil, d.Errf("unrecognized subdirective %q", d.Val())
		}
		var f Fleet
		if !d.Args(&f.Name) {
			return nil, d.ArgErr()
		}
		for nesting := d.Nesting(); d.NextBlock(nesting); {
			switch d.Val() {
			case "node":
				nodes := d.RemainingArgs()
				if len(nodes) == 0 {
					return nil, d.ArgErr()
				}
				f.Nodes = append(f.Nodes, nodes...)
			case "token":
				if !d.Args(&f.Token) {
					return nil, d.ArgErr()
				}
			case "prefer":
				if !d.Args(&f.Prefer) {
					return nil, d.ArgErr()
				}
			case "cache":
				if !d.Args(&f.Cache) {
					return nil, d.ArgErr()
				}
			default:
				return nil, d.Errf("unrecognized subdirective %q", d.Val())
			}
		}
		app.Fleets = append(app.Fleets, f)
	}
	return httpcaddyfile.App{Name: "scafo", Value: caddyconfig.JSON(app, nil)}, nil
}

// parseDirective reads `scafo` in a site: the gate and the proxy behind it. In its
// braces the subdirectives of reverse_proxy are taken.
func parseDirective(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	rp := new(reverseproxy.Handler)
	if err := rp.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	if err := rp.FinalizeUnmarshalCaddyfile(h); err != nil {
		return nil, err
	}
	complete(rp)
	return &caddyhttp.Subroute{Routes: caddyhttp.RouteList{routeWith(rp)}}, nil
}

// UnmarshalCaddyfile reads `permission scafo`, which has nothing to configure.
func (p *Permission) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("unrecognized subdirective %q", d.Val())
	}
	return nil
}

var _ caddyfile.Unmarshaler = (*Permission)(nil)
