package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/scafo/scafo"
)

// None is the word that turns node.key and celld.command off.
const None = "none"

// resolve derives what is unset and refuses what cannot work.
func (l *Loaded) resolve() error {
	c := &l.Config
	derive := func(key string, field *string, value string) {
		if *field == "" && value != "" {
			*field = value
			l.Origins[key] = OriginDerived
		}
	}
	derive("node.id", &c.Node.ID, hostID())
	if !scafo.ValidName(c.Node.ID) {
		return fmt.Errorf("node.id %q is not 1 to %d characters of a-z, 0-9 and inner hyphens; set it", c.Node.ID, scafo.MaxNameLength)
	}
	host, _, err := splitListen("node.listen", c.Node.Listen)
	if err != nil {
		return err
	}
	derive("node.state", &c.Node.State, defaultState())
	if c.Node.State == "" {
		return errors.New("node.state has no default here (no home directory); set it")
	}
	if c.Node.State, err = filepath.Abs(c.Node.State); err != nil {
		return fmt.Errorf("node.state: %w", err)
	}
	derive("node.advertise", &c.Node.Advertise, "http://"+c.Node.Listen)
	adv, err := url.Parse(c.Node.Advertise)
	if err != nil || (adv.Scheme != "http" && adv.Scheme != "https") || adv.Hostname() == "" || adv.RawQuery != "" || adv.Fragment != "" || adv.User != nil {
		return fmt.Errorf("node.advertise %q is no base URL (http:// or https://, a host, and a port)", c.Node.Advertise)
	}
	if ip, err := netip.ParseAddr(adv.Hostname()); err == nil && ip.IsUnspecified() {
		return fmt.Errorf("node.listen is %s, which no other machine can call: set node.advertise", host)
	}
	c.Node.Advertise = strings.TrimRight(c.Node.Advertise, "/")
	derive("node.address", &c.Node.Address, adv.Hostname())
	derive("node.internal", &c.Node.Internal, c.Node.Address)
	if _, err := netip.ParseAddr(c.Node.Address); err == nil {
		derive("node.bind", &c.Node.Bind, c.Node.Address)
	}
	if c.Node.Bind == "" {
		return fmt.Errorf("node.address %q is a name: set node.bind to the IP on which runtimes listen", c.Node.Address)
	}
	if _, err := netip.ParseAddr(c.Node.Bind); err != nil {
		return fmt.Errorf("node.bind %q is no IP address", c.Node.Bind)
	}
	if ip, err := netip.ParseAddr(c.Node.Internal); err == nil && !private(ip) {
		return fmt.Errorf("node.internal %s is a public address: the runtimes' internal listeners ask for no authentication; give a private one", ip)
	}
	derive("node.key", &c.Node.Key, filepath.Join(c.Node.State, "node.key"))
	if c.Bucket.Endpoint != "" && l.Origins["bucket.pathStyle"] == OriginDefault {
		c.Bucket.PathStyle = true
		l.Origins["bucket.pathStyle"] = OriginDerived
	}
	return l.check()
}

func (l *Loaded) check() error {
	c := &l.Config
	if c.Bucket.URL != "" {
		if _, _, err := c.Bucket.Parse(); err != nil {
			return err
		}
	}
	if _, err := c.Celld.PortRange(); err != nil {
		return err
	}
	for i, d := range c.Platform.Domains {
		h, err := scafo.ParseHost(d)
		if err != nil && d != "localhost" {
			return fmt.Errorf("platform.domains: %q is no domain", d)
		}
		if err == nil {
			c.Platform.Domains[i] = h
		}
	}
	switch c.Log.Level {
	case "debug", "info", "warn", "error":
	default:
		return fmt.Errorf("log.level is debug, info, warn or error, not %q", c.Log.Level)
	}
	switch c.Log.Format {
	case "", "text", "json":
	default:
		return fmt.Errorf("log.format is text or json, not %q", c.Log.Format)
	}
	if c.Metrics.Listen != "" {
		if _, _, err := splitListen("metrics.listen", c.Metrics.Listen); err != nil {
			return err
		}
	}
	if c.Heartbeat.StaleSeconds <= c.Heartbeat.Seconds {
		return fmt.Errorf("heartbeat.staleSeconds (%d) must be greater than heartbeat.seconds (%d)", c.Heartbeat.StaleSeconds, c.Heartbeat.Seconds)
	}
	for _, t := range c.Ingress.Token {
		if len(t) < MinIngressToken {
			return fmt.Errorf("ingress.token: a token of fewer than %d characters is guessable", MinIngressToken)
		}
	}
	return nil
}

// MinIngressToken is the least length of an ingress token.
const MinIngressToken = 16

// Parse splits bucket.url into the bucket's name and the prefix of its keys,
// which ends with a slash where it is not empty.
func (b Bucket) Parse() (name, prefix string, err error) {
	rest, ok := strings.CutPrefix(b.URL, "s3://")
	if !ok {
		return "", "", fmt.Errorf("bucket.url %q is not of the form s3://name or s3://name/prefix", b.URL)
	}
	name, prefix, _ = strings.Cut(rest, "/")
	prefix = strings.Trim(prefix, "/")
	if name == "" || strings.ContainsAny(name, "?#@: ") || strings.ContainsAny(prefix, "?# ") || strings.Contains(prefix, "//") {
		return "", "", fmt.Errorf("bucket.url %q is not of the form s3://name or s3://name/prefix", b.URL)
	}
	if prefix != "" {
		prefix += "/"
	}
	return name, prefix, nil
}

// PortRange is the lowest and the highest port of celld.ports.
func (c Celld) PortRange() (r [2]int, err error) {
	lo, hi, ok := strings.Cut(c.Ports, "-")
	if r[0], err = strconv.Atoi(strings.TrimSpace(lo)); err == nil && ok {
		r[1], err = strconv.Atoi(strings.TrimSpace(hi))
	}
	if err != nil || !ok || r[0] < 1 || r[1] > 65535 || r[1] < r[0]+1 {
		return r, fmt.Errorf("celld.ports %q is no range of at least two ports, such as 20000-29999", c.Ports)
	}
	return r, nil
}

func splitListen(key, s string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(s)
	if err != nil {
		return "", "", fmt.Errorf("%s %q is not of the form address:port", key, s)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "", "", fmt.Errorf("%s %q has no port between 0 and 65535", key, s)
	}
	return host, port, nil
}

// private reports whether only machines nearby can reach the address: loopback,
// RFC 1918 and 4193, link-local, and the range of RFC 6598 that overlay networks use.
func private(ip netip.Addr) bool {
	return ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast() || netip.MustParsePrefix("100.64.0.0/10").Contains(ip.Unmap())
}

// hostID is the host name's first label, made to fit a node id.
func hostID() string {
	h, err := os.Hostname()
	if err != nil {
		return ""
	}
	h, _, _ = strings.Cut(strings.ToLower(h), ".")
	h = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, h)
	if len(h) > scafo.MaxNameLength {
		h = h[:scafo.MaxNameLength]
	}
	return strings.Trim(h, "-")
}

// defaultState is where a node keeps its files unless told.
func defaultState() string {
	if os.Geteuid() == 0 {
		return "/var/lib/scafo"
	}
	if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "scafo")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "scafo")
	}
	return ""
}
