package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo/internal/workerd/instance"
)

// What Workers may connect to. Without a switch that is the Internet alone: workerd
// refuses private, loopback and link-local addresses. The switch opens private networks
// by name, and never what belongs to the fleet.

// never are networks that no switch opens: this machine itself, and what answers on a
// link, metadata services among it.
var never = func() []netip.Prefix {
	var out []netip.Prefix
	for _, s := range []string{
		"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32",
		"::/128", "::1/128", "fe80::/10", "ff00::/8", "::ffff:0:0/96", "64:ff9b::/96", "fd00:ec2::254/128",
	} {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}()

// openable are the networks that the switch may name, or parts of them.
var openable = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	shared, netip.MustParsePrefix("fc00::/7"),
}

// parseNetworks reads CELLD_WORKERD_PRIVATE_NETWORKS: networks or single addresses,
// separated by commas.
func parseNetworks(value string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		p, err := prefixOf(item)
		if err != nil {
			return nil, fmt.Errorf("CELLD_WORKERD_PRIVATE_NETWORKS: %q is no network such as 10.20.0.0/16", item)
		}
		inside := func(n netip.Prefix) bool { return n.Bits() <= p.Bits() && n.Contains(p.Addr()) }
		if slices.ContainsFunc(never, inside) {
			return nil, fmt.Errorf("CELLD_WORKERD_PRIVATE_NETWORKS: %s is never open to Workers", p)
		}
		if !slices.ContainsFunc(openable, inside) {
			return nil, fmt.Errorf("CELLD_WORKERD_PRIVATE_NETWORKS: %s is no private network", p)
		}
		out = append(out, p)
	}
	return out, nil
}

func prefixOf(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		if a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("a zone")
		}
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err
}

// resolveTimeout bounds the look-up of the fleet's own names.
const resolveTimeout = 5 * time.Second

// network is what Workers may connect to, anew for each start of a workerd: names of
// the fleet may lead elsewhere by then. Nil is workerd's own rule.
func (w *workerdRuntime) network(ctx context.Context) (*instance.Network, error) {
	if len(w.env.PrivateNetworks) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	hosts := slices.Clone(w.env.Deny)
	hosts = append(hosts, w.c.Listen.Addr().String(), w.c.InternalListen.Addr().String())
	if w.c.Advertise != "" {
		hosts = append(hosts, w.advertisedHost())
	}
	if u, err := url.Parse(w.c.Endpoint); err == nil && u.Hostname() != "" {
		hosts = append(hosts, u.Hostname())
	}
	deny, err := addressesOf(ctx, hosts)
	if err != nil {
		return nil, err
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("this machine's addresses: %w", err)
	}
	for _, a := range own {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			deny = append(deny, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
		}
	}
	return networkOf(w.env.PrivateNetworks, deny), nil
}

// addressesOf resolves what may be an address, a network or a name. That nobody says
// where a name leads is an error: it must not become reachable for that.
func addressesOf(ctx context.Context, hosts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, h := range hosts {
		if p, err := prefixOf(h); err == nil {
			out = append(out, netip.PrefixFrom(p.Addr().Unmap(), min(p.Bits(), p.Addr().Unmap().BitLen())))
			continue
		}
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", h)
		var nowhere *net.DNSError
		if errors.As(err, &nowhere) && nowhere.IsNotFound {
			continue // it leads nowhere, for Workers as well
		}
		if err != nil {
			return nil, fmt.Errorf("%s, which Workers must not reach, cannot be resolved: %w", h, err)
		}
		for _, ip := range ips {
			ip = ip.Unmap()
			out = append(out, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	return out, nil
}

// networkOf allows the Internet and those networks, less what is denied.
func networkOf(open, deny []netip.Prefix) *instance.Network {
	n := &instance.Network{Allow: []string{"public"}}
	for _, p := range open {
		n.Allow = append(n.Allow, p.String())
	}
	for _, p := range slices.Concat(never, deny) {
		if s := p.String(); !slices.Contains(n.Deny, s) {
			n.Deny = append(n.Deny, s)
		}
	}
	return n
}
