package caddy

import (
	"context"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddytls"
)

func init() {
	caddy.RegisterModule(Permission{})
}

// Permission allows a certificate on demand for a name that some fleet's current
// document names as an exact host of a route or of the API. A name that a document
// lists as one that nobody serves at the moment keeps, and renews, the certificate
// that it has; every other name has none. It answers from memory.
type Permission struct {
	app *App
}

// CaddyModule returns the module's information.
func (Permission) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "tls.permission.scafo", New: func() caddy.Module { return new(Permission) }}
}

// Provision finds the app.
func (p *Permission) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return fmt.Errorf("scafo: %w", err)
	}
	p.app = app
	if app.renewals == nil {
		app.renewals = newRenewals(ctx.Storage(), ctx.Logger())
	}
	return nil
}

// CertificateAllowed returns nil for names that may get a certificate.
func (p *Permission) CertificateAllowed(_ context.Context, name string) error {
	host := hostOf(name)
	if p.app.issuable(host) {
		p.app.counted.allowed.Inc()
		p.app.renewals.allowed(host)
		return nil
	}
	if !p.app.unserved(host) {
		p.app.counted.denied.Inc()
		return fmt.Errorf("%s: %w: no fleet's routing document names it", name, caddytls.ErrPermissionDenied)
	}
	if !p.app.renewals.renewable(host) {
		p.app.counted.denied.Inc()
		return fmt.Errorf("%s: %w: nobody serves it, and it has no certificate yet", name, caddytls.ErrPermissionDenied)
	}
	p.app.counted.renewal.Inc()
	return nil
}

var (
	_ caddy.Provisioner           = (*Permission)(nil)
	_ caddytls.OnDemandPermission = (*Permission)(nil)
)
