package oidc

import "testing"

// Which addresses an issuer may have: none of this machine, its network, or the
// metadata services of clouds, however they are written.
func TestAddressesThatAreDialled(t *testing.T) {
	public := []string{"8.8.8.8:443", "140.82.112.22:443", "[2606:50c0:8000::153]:443", "[64:ff9b::808:808]:443"}
	loopback := []string{"127.0.0.1:443", "127.9.9.9:80", "[::1]:443", "[::ffff:127.0.0.1]:443"}
	private := []string{"10.0.0.1:443", "172.16.3.4:443", "192.168.1.1:443", "100.64.0.1:443", "[fd00::1]:443", "[::ffff:10.0.0.1]:443", "[64:ff9b::a00:1]:443", "[2002:a00:1::]:443"}
	never := []string{
		"169.254.169.254:80", "[fe80::1%eth0]:443", "0.0.0.0:443", "[::]:443", "224.0.0.1:443", "[ff02::1]:443", "255.255.255.255:443",
		"192.0.2.1:443", "198.18.0.1:443", "240.0.0.1:443", "[2001:db8::1]:443", "[64:ff9b::a9fe:a9fe]:80", "[2002:a9fe:a9fe::]:80", "[::ffff:169.254.169.254]:80", "localhost:443", "",
	}
	for _, o := range []Options{{}, {AllowLoopback: true}, {AllowPrivate: true}, {AllowLoopback: true, AllowPrivate: true}} {
		check := func(list []string, want bool) {
			for _, a := range list {
				if err := o.mayDial(a); (err == nil) != want {
					t.Errorf("%q with loopback %v, private %v: %v", a, o.AllowLoopback, o.AllowPrivate, err)
				}
			}
		}
		check(public, true)
		check(loopback, o.AllowLoopback)
		check(private, o.AllowPrivate)
		check(never, false)
	}
}
