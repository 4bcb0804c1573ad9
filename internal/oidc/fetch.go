package oidc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/scafo/scafo"
)

const (
	// defaultTimeout bounds one request to an issuer, its body included.
	defaultTimeout = 5 * time.Second
	// maxBody bounds what an issuer may answer.
	maxBody = 1 << 20
	// maxKeys bounds the keys of one set that are looked at.
	maxKeys = 100
	// maxRedirects bounds how often an issuer may send on, within its own host.
	maxRedirects = 3

	discoveryPath = "/.well-known/openid-configuration"
)

// fetcher reads the keys of issuers.
type fetcher struct {
	http          *http.Client
	most          time.Duration // of one look at an issuer: two requests
	allowLoopback bool
}

func newFetcher(o Options) *fetcher {
	timeout := o.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	dialer := &net.Dialer{
		Timeout: timeout,
		// After the name was resolved, so that no name leads where no address may.
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error { return o.mayDial(address) },
	}
	return &fetcher{
		allowLoopback: o.AllowLoopback,
		most:          2 * timeout,
		http: &http.Client{
			Timeout: timeout,
			Transport: &http.Transport{
				// No proxy: it would be asked for addresses that are refused here.
				DialContext:            dialer.DialContext,
				TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots},
				TLSHandshakeTimeout:    timeout,
				ResponseHeaderTimeout:  timeout,
				MaxResponseHeaderBytes: 64 << 10,
				ForceAttemptHTTP2:      true,
				MaxIdleConns:           8,
				IdleConnTimeout:        30 * time.Second,
			},
			CheckRedirect: func(r *http.Request, via []*http.Request) error {
				if r.URL.Scheme != via[0].URL.Scheme || r.URL.Host != via[0].URL.Host {
					return errors.New("it redirects to another host")
				}
				if len(via) > maxRedirects {
					return errors.New("it redirects too often")
				}
				return nil
			},
		},
	}
}

// Options are how issuers are reached.
type Options struct {
	// AllowLoopback admits issuers at loopback addresses, also over plain http: for
	// tests.
	AllowLoopback bool
	// AllowPrivate admits issuers at private addresses: a provider of one's own.
	AllowPrivate bool
	Roots        *x509.CertPool   // nil: the system's
	Now          func() time.Time // nil: time.Now
	Timeout      time.Duration    // of one request; 0: 5 s
}

// shared is the address space of carriers (RFC 6598), which is private to them.
var shared = netip.MustParsePrefix("100.64.0.0/10")

// mayDial refuses addresses that no public issuer has: those of this machine, its
// network and the cloud's metadata services.
func (o Options) mayDial(address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%q is no address", address)
	}
	a := ap.Addr().Unmap().WithZone("")
	if embedded, ok := embeddedIPv4(a); ok {
		a = embedded
	}
	allowed := a.IsGlobalUnicast() && !a.IsPrivate() && !shared.Contains(a) && !special(a)
	switch {
	case allowed:
		return nil
	case o.AllowLoopback && a.IsLoopback():
		return nil
	case o.AllowPrivate && (a.IsPrivate() || shared.Contains(a)):
		return nil
	}
	return fmt.Errorf("%s is no public address", a)
}

// embeddedIPv4 is the IPv4 address that an IPv6 one leads to through a translator: the
// well-known prefix of RFC 6052, and 6to4 of RFC 3056.
func embeddedIPv4(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return a, false
	}
	b := a.As16()
	switch {
	case netip.MustParsePrefix("64:ff9b::/96").Contains(a):
		return netip.AddrFrom4([4]byte(b[12:])), true
	case netip.MustParsePrefix("2002::/16").Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return a, false
}

// special are addresses that look global and are not (the registries of RFC 6890).
func special(a netip.Addr) bool {
	for _, p := range specialPrefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

var specialPrefixes = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("100::/64"), netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("fec0::/10"),
}

// keys discovers an issuer (OpenID Connect Discovery 1.0, section 4) and reads its
// keys.
func (f *fetcher) keys(ctx context.Context, issuer string) ([]key, error) {
	if err := scafo.ValidIssuer(issuer, f.allowLoopback); err != nil {
		return nil, err
	}
	var found struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	// An issuer that ends with a slash has one slash there, not two; the comparison
	// is exact all the same.
	if err := f.get(ctx, strings.TrimSuffix(issuer, "/")+discoveryPath, &found); err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	if found.Issuer != issuer {
		return nil, fmt.Errorf("discovery: it calls itself %.200q", found.Issuer)
	}
	if err := f.mayRead(found.JWKSURI); err != nil {
		return nil, err
	}
	var set keySet
	if err := f.get(ctx, found.JWKSURI, &set); err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	keys := set.usable()
	if len(keys) == 0 {
		return nil, errors.New("keys: none of them verifies signatures")
	}
	return keys, nil
}

// keySet is what an issuer publishes as its keys (RFC 7517, section 5).
type keySet struct {
	Keys []json.RawMessage `json:"keys"`
}

// usable are the keys that verify signatures, of the first maxKeys that are there.
func (s keySet) usable() []key {
	var keys []key
	for _, raw := range s.Keys[:min(len(s.Keys), maxKeys)] {
		if k, ok := parseKey(raw); ok {
			keys = append(keys, k)
		}
	}
	return keys
}

// mayRead refuses an address of keys that an issuer itself could not have, but for a
// query.
func (f *fetcher) mayRead(address string) error {
	base, _, _ := strings.Cut(address, "?")
	if err := scafo.ValidIssuer(base, f.allowLoopback); err != nil {
		return fmt.Errorf("discovery: jwks_uri: %w", err)
	}
	return nil
}

// get reads one JSON document. What the answer calls itself does not matter: some
// issuers keep their documents in object stores.
func (f *fetcher) get(ctx context.Context, address string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "scafo/"+scafo.Version)
	res, err := f.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered %d", res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	if err != nil {
		return err
	}
	if len(body) > maxBody {
		return fmt.Errorf("it answered more than %d bytes", maxBody)
	}
	if err := json.Unmarshal(body, to); err != nil {
		return errors.New("it answered no such JSON document")
	}
	return nil
}
