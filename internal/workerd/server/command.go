package server

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Verb is what a command line asks for.
type Verb int

// The verbs. Serving has no word of its own.
const (
	Serve Verb = iota
	Deploy
	Diagnose
	Version
	Help
)

// The listeners when the command line names none.
const (
	DefaultListen         = "127.0.0.1:8080"
	DefaultInternalListen = "127.0.0.1:0"
)

// Command is a parsed command line.
type Command struct {
	Verb Verb
	Rest []string // what follows `deploy`
	JSON bool     // diagnose --json

	Bucket         string // the bucket's name
	Prefix         string // without slashes at its ends; may be empty
	Endpoint       string
	Region         string
	Listen         netip.AddrPort
	InternalListen netip.AddrPort
	Advertise      string // HOST:PORT, or empty
	UnsafePublic   bool
	TrustForwarded bool
}

// Usage is what --help prints.
const Usage = `celld-workerd serves one application from a bucket, on Cloudflare's workerd.

  celld-workerd --bucket [s3://]NAME[/PREFIX] [--endpoint URL] [--region R]
                [--listen IP:PORT] [--internal-listen IP:PORT]
                [--advertise HOST:PORT] [--unsafe-public-advertise]
                [--trust-forwarded-headers]
  celld-workerd deploy [PROJECT] --bucket … [--endpoint URL] [--region R] [--dry-run] [--json]
  celld-workerd diagnose --json --bucket … (the flags of serving)
  celld-workerd --version
`

// ParseCommand reads the arguments behind the program's name. A value is an
// argument of its own: --flag=value is not taken.
func ParseCommand(args []string) (Command, error) {
	c := Command{Verb: Serve}
	if len(args) > 0 {
		switch args[0] {
		case "deploy":
			return Command{Verb: Deploy, Rest: args[1:]}, nil
		case "diagnose":
			c.Verb = Diagnose
			args = args[1:]
		case "--version", "-V":
			if len(args) > 1 {
				return Command{}, fmt.Errorf("unexpected argument %q after --version", args[1])
			}
			return Command{Verb: Version}, nil
		case "--help", "-h":
			return Command{Verb: Help}, nil
		}
	}
	values, err := c.flags(args)
	if err != nil {
		return Command{}, err
	}
	if err := c.target(values); err != nil {
		return Command{}, err
	}
	if err := c.listeners(values); err != nil {
		return Command{}, err
	}
	return c, nil
}

// flags sets the switches and returns the values of the other flags.
func (c *Command) flags(args []string) (map[string]string, error) {
	values := map[string]string{}
	seen := map[string]bool{}
	for i := 0; i < len(args); i++ {
		a := args[i]
		if seen[a] {
			return nil, fmt.Errorf("%s is given twice", a)
		}
		switch a {
		case "--unsafe-public-advertise":
			c.UnsafePublic = true
		case "--trust-forwarded-headers":
			c.TrustForwarded = true
		case "--json":
			if c.Verb != Diagnose {
				return nil, fmt.Errorf("unexpected argument %q", a)
			}
			c.JSON = true
		case "--bucket", "--endpoint", "--region", "--listen", "--internal-listen", "--advertise":
			if i+1 == len(args) || strings.HasPrefix(args[i+1], "--") || args[i+1] == "" {
				return nil, fmt.Errorf("%s needs a value", a)
			}
			i++
			values[a] = args[i]
		default:
			if name, _, found := strings.Cut(a, "="); found && strings.HasPrefix(name, "--") {
				return nil, fmt.Errorf("unexpected argument %q: a value is an argument of its own", a)
			}
			return nil, fmt.Errorf("unexpected argument %q", a)
		}
		seen[a] = true
	}
	return values, nil
}

func (c *Command) target(values map[string]string) error {
	b, ok := values["--bucket"]
	if !ok {
		return errors.New("--bucket is missing")
	}
	b = strings.TrimPrefix(b, "s3://")
	if strings.Contains(b, "://") {
		return fmt.Errorf("--bucket %s: only s3:// buckets are served", values["--bucket"])
	}
	name, prefix, _ := strings.Cut(b, "/")
	prefix = strings.Trim(prefix, "/")
	if name == "" || strings.ContainsAny(name, " ?#") {
		return fmt.Errorf("--bucket %s: no bucket's name", values["--bucket"])
	}
	for _, segment := range strings.Split(prefix, "/") {
		if prefix != "" && (segment == "" || segment == "." || segment == "..") {
			return fmt.Errorf("--bucket %s: the prefix has an empty, . or .. segment", values["--bucket"])
		}
	}
	c.Bucket, c.Prefix, c.Region = name, prefix, values["--region"]
	if e, ok := values["--endpoint"]; ok {
		u, err := url.Parse(e)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("--endpoint %s: not an http:// or https:// address", e)
		}
		c.Endpoint = e
	}
	return nil
}

func (c *Command) listeners(values map[string]string) error {
	var err error
	read := func(flag, standard string) (netip.AddrPort, bool) {
		v, ok := values[flag]
		if !ok {
			v = standard
		}
		a, perr := netip.ParseAddrPort(v)
		if perr != nil && err == nil {
			err = fmt.Errorf("%s %s: not a literal IP:PORT", flag, v)
		}
		return a, ok
	}
	c.Listen, _ = read("--listen", DefaultListen)
	internal, explicit := read("--internal-listen", DefaultInternalListen)
	c.InternalListen = internal
	if err != nil {
		return err
	}
	advertise, advertised := values["--advertise"]
	if !explicit && !c.Listen.Addr().IsLoopback() {
		return fmt.Errorf("--listen %s is beyond loopback: give --internal-listen explicitly", c.Listen)
	}
	if !explicit && advertised {
		return errors.New("--advertise needs an explicit --internal-listen")
	}
	if advertised {
		if err := c.checkAdvertise(advertise); err != nil {
			return err
		}
		c.Advertise = advertise
	} else if err := c.checkReach(c.InternalListen.Addr(), "--internal-listen "+c.InternalListen.String()); err != nil {
		return err
	}
	return nil
}

func (c *Command) checkAdvertise(advertise string) error {
	host, port, err := splitHostPort(advertise)
	if err != nil || port == 0 {
		return fmt.Errorf("--advertise %s: not HOST:PORT", advertise)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil // a name: where it leads is not looked up
	}
	if ip.IsUnspecified() {
		return fmt.Errorf("--advertise %s: nobody can reach that address", advertise)
	}
	return c.checkReach(ip, "--advertise "+advertise)
}

// checkReach refuses an address that the whole Internet could reach: what
// listens there asks nobody who they are.
func (c *Command) checkReach(ip netip.Addr, what string) error {
	if c.UnsafePublic || !public(ip) {
		return nil
	}
	return fmt.Errorf("%s is a public address, and the internal listener has no authentication; --unsafe-public-advertise allows it", what)
}

// shared is the address block of carrier-grade NAT (RFC 6598), which overlay
// networks use too.
var shared = netip.MustParsePrefix("100.64.0.0/10")

func public(ip netip.Addr) bool {
	ip = ip.Unmap()
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !shared.Contains(ip)
}

func splitHostPort(s string) (host string, port uint16, err error) {
	i := strings.LastIndexByte(s, ':')
	if i <= 0 {
		return "", 0, errors.New("no port")
	}
	host = s[:i]
	if strings.HasPrefix(host, "[") != strings.HasSuffix(host, "]") {
		return "", 0, errors.New("brackets")
	}
	if strings.HasPrefix(host, "[") {
		host = host[1 : len(host)-1]
		if _, err := netip.ParseAddr(host); err != nil {
			return "", 0, err
		}
	} else if strings.ContainsAny(host, ": /@?#") {
		return "", 0, errors.New("not a host")
	}
	n, err := strconv.ParseUint(s[i+1:], 10, 16)
	return host, uint16(n), err
}
