package scafo

import "strings"

// ParentHost is the host one label above; ok is false where that is none that could
// be claimed.
func ParentHost(host string) (parent string, ok bool) {
	_, parent, _ = strings.Cut(host, ".")
	return parent, strings.Contains(parent, ".")
}

// UnderPlatform is the platform domain that a host equals or is under; empty for
// none. Hosts there follow from the names of applications, and nobody claims them.
func UnderPlatform(host string, platforms []string) string {
	for _, p := range platforms {
		if host == p || strings.HasSuffix(host, "."+p) {
			return p
		}
	}
	return ""
}

// PlatformHosts are the hosts at which an application answers under the platform
// domains, in their order; never nil.
func PlatformHosts(name string, platforms []string) []string {
	hosts := make([]string, 0, len(platforms))
	for _, p := range platforms {
		if h := name + "." + p; len(h) <= MaxHostLength {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// Active reports whether the claim keeps others from its host: it is held, or about
// to be.
func (c Claim) Active() bool { return c.State == ClaimPending || c.State == ClaimHeld }

// Covers reports whether the claim extends, or is about to extend, to the hosts one
// label under its own.
func (c Claim) Covers() bool { return c.Wildcard || c.PendingWildcard }

// Of reports whether the claim is of that life of an application.
func (c Claim) Of(application, uid string) bool {
	return c.Application == application && c.UID == uid
}

// Conflicts reports whether two claims exclude each other: both are active, of
// different lives of applications, and one host would be answered by both. That is
// so when their hosts are the same, and when one is a label under the other, which
// covers its subdomains.
func (c Claim) Conflicts(d Claim) bool {
	if !c.Active() || !d.Active() || c.Of(d.Application, d.UID) {
		return false
	}
	under := func(child, base Claim) bool {
		label, ok := strings.CutSuffix(child.Host, "."+base.Host)
		return ok && base.Covers() && !strings.Contains(label, ".")
	}
	return c.Host == d.Host || under(c, d) || under(d, c)
}
