package server

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestParseNetworks(t *testing.T) {
	got, err := parseNetworks(" 10.20.0.0/16, 192.168.1.7,fd12::/16,,100.64.1.0/24 ")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range got {
		names = append(names, p.String())
	}
	if want := []string{"10.20.0.0/16", "192.168.1.7/32", "fd12::/16", "100.64.1.0/24"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
	for value, words := range map[string]string{
		"127.0.0.1": "never open", "127.0.0.0/16": "never open", "169.254.169.254": "never open", "::1": "never open", "fe80::/64": "never open",
		"0.0.0.0/0": "no private network", "::/0": "no private network", "8.8.8.8": "no private network", "10.0.0.0/7": "no private network", "::ffff:10.0.0.1": "", "fd00:ec2::254": "never open",
		"db.internal": "no network such as", "10.0.0.0/33": "no network such as", "fe80::1%eth0": "no network such as",
	} {
		if _, err := parseNetworks(value); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", value, err, words)
		}
		if _, err := ParseEnv([]string{"CELLD_WORKERD_PRIVATE_NETWORKS=" + value}); err == nil {
			t.Errorf("%s is taken from the environment", value)
		}
	}
}

func TestTheFleetStaysClosed(t *testing.T) {
	w := &workerdRuntime{
		c: Command{
			Endpoint: "http://10.0.0.9:9000", Listen: netip.MustParseAddrPort("10.0.0.1:20000"),
			InternalListen: netip.MustParseAddrPort("10.0.0.2:20001"), Advertise: "10.0.0.3:20001",
		},
	}
	if n, err := w.network(t.Context()); n != nil || err != nil {
		t.Errorf("without the switch: %+v, %v", n, err)
	}
	var err error
	if w.env, err = ParseEnv([]string{"CELLD_WORKERD_PRIVATE_NETWORKS=10.0.0.0/8", "CELLD_WORKERD_DENY=10.0.0.4,10.0.5.0/24, localhost"}); err != nil {
		t.Fatal(err)
	}
	n, err := w.network(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"public", "10.0.0.0/8"}; !slices.Equal(n.Allow, want) {
		t.Errorf("allow %q", n.Allow)
	}
	for _, want := range []string{"10.0.0.9/32", "10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", "10.0.0.4/32", "10.0.5.0/24", "127.0.0.1/32", "127.0.0.0/8", "169.254.0.0/16", "::1/128", "fe80::/10"} {
		if !slices.Contains(n.Deny, want) {
			t.Errorf("%s is not denied: %q", want, n.Deny)
		}
	}
}
