package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

type domainAnswer struct {
	Application   application
	Host          string
	PlatformHosts []string
}

func (s *suite) claim(t *testing.T, method, name, host string, by any) answer {
	t.Helper()
	return s.do(t, request{method: method, target: "/v1/applications/" + name + "/domains/" + host, by: by})
}

func (d domainAnswer) holds(host string) (held, wildcard bool) {
	for _, h := range d.Application.Domains {
		if h.Host == host {
			return true, h.Wildcard
		}
	}
	return false, false
}

func (s *suite) domains(t *testing.T) {
	base := s.prefix + ".example"
	t.Run("claims", func(t *testing.T) { s.claims(t, "one."+base) })
	t.Run("conflicts", func(t *testing.T) { s.claimConflicts(t, "two."+base) })
	t.Run("hosts", func(t *testing.T) { s.claimedHosts(t, base) })
}

func (s *suite) claims(t *testing.T, host string) {
	for range 2 { // again is the same
		d := read[domainAnswer](t, s.claim(t, "POST", s.shop, strings.ToUpper(host[:1])+host[1:], s.tenant))
		if held, wildcard := d.holds(host); !held || wildcard || d.Host != host || len(d.Application.Domains) != 1 {
			t.Errorf("%+v", d)
		}
		for _, p := range d.PlatformHosts {
			if !strings.HasPrefix(p, s.shop+".") {
				t.Errorf("platform host %s", p)
			}
		}
	}
	for _, query := range []string{"?wildcard=true", "?wildcard=0", "?wildcard="} {
		if _, wildcard := read[domainAnswer](t, s.claim(t, "POST", s.shop, host+query, s.tenant)).holds(host); wildcard {
			t.Errorf("%s claims the subdomains", query)
		}
	}
	if _, wildcard := read[domainAnswer](t, s.claim(t, "POST", s.shop, host+"?wildcard=1", s.tenant)).holds(host); !wildcard {
		t.Error("wildcard=1 claims no subdomains")
	}
	// A later claim without it takes nothing away.
	if _, wildcard := read[domainAnswer](t, s.claim(t, "POST", s.shop, host, s.tenant)).holds(host); !wildcard {
		t.Error("a claim of the subdomains was lost")
	}
	if len(s.record(t, s.shop).Domains) != 1 {
		t.Errorf("%+v", s.record(t, s.shop).Domains)
	}
	a := s.claim(t, "DELETE", s.shop, host, s.tenant)
	if held, _ := read[domainAnswer](t, a).holds(host); held {
		t.Errorf("%s", a)
	}
	s.claim(t, "DELETE", s.shop, host, s.tenant).refused(t, 404, "not-found")
}

func (s *suite) claimConflicts(t *testing.T, host string) {
	s.claim(t, "POST", s.vault, host+"?wildcard=1", s.admin).want(t, 200)
	defer s.claim(t, "DELETE", s.vault, host, s.admin)
	for _, h := range []string{host, "below." + host} {
		p := s.claim(t, "POST", s.shop, h, s.tenant).refused(t, 409, "reference-held")
		if strings.Contains(p.Detail, s.vault) {
			t.Errorf("the detail tells a tenant who holds it: %s", p.Detail)
		}
		p = s.claim(t, "POST", s.shop, h, s.admin).refused(t, 409, "reference-held")
		if !strings.Contains(p.Detail, s.vault) {
			t.Errorf("the detail does not tell an admin who holds it: %s", p.Detail)
		}
	}
	// Who holds a host below keeps the base from being claimed with its subdomains.
	other := "other-" + host
	s.claim(t, "POST", s.vault, "x."+other, s.admin).want(t, 200)
	s.claim(t, "POST", s.shop, other+"?wildcard=1", s.tenant).refused(t, 409, "reference-held")
	s.claim(t, "POST", s.shop, other, s.tenant).want(t, 200)
	s.claim(t, "DELETE", s.shop, other, s.tenant).want(t, 200)
	// A release never takes another application's claim, in the same words either way.
	held := s.claim(t, "DELETE", s.shop, host, s.tenant)
	free := s.claim(t, "DELETE", s.shop, "free-"+host, s.tenant)
	if a, b := held.refused(t, 404, "not-found"), free.refused(t, 404, "not-found"); strings.ReplaceAll(a.Detail, host, "") != strings.ReplaceAll(b.Detail, "free-"+host, "") {
		t.Errorf("%q, and %q where nobody holds it", a.Detail, b.Detail)
	}
	s.claim(t, "DELETE", s.vault, "x."+other, s.admin).want(t, 200)
}

func (s *suite) claimedHosts(t *testing.T, base string) {
	for _, h := range []string{"localhost", "a..b", ".a.b", "a.b.", "-a.b", "a-.b", "a_b.c", "*.a.b", "a.b:80", "a.123", "a.b%2Fc", "%C3%A9.example", strings.Repeat("a", 64) + ".b", strings.Repeat("abcdefghi.", 25) + "abcd"} {
		s.claim(t, "POST", s.shop, h, s.tenant).refused(t, 400, "invalid-input")
	}
	s.claim(t, "POST", s.vault, "x."+base, s.tenant).refused(t, 403, "auth-scope")
	s.claim(t, "POST", s.prefix+"-none", "x."+base, s.admin).refused(t, 404, "not-found")
	s.claim(t, "DELETE", s.prefix+"-none", "x."+base, s.admin).refused(t, 404, "not-found")
	// Every host below a platform domain is rendered from an application's name.
	d := read[domainAnswer](t, s.claim(t, "POST", s.shop, "x."+base, s.tenant))
	for _, p := range d.PlatformHosts {
		s.claim(t, "POST", s.shop, "mine."+strings.TrimPrefix(p, s.shop+"."), s.tenant).refused(t, 400, "invalid-input")
		s.claim(t, "POST", s.shop, p, s.tenant).refused(t, 400, "invalid-input")
	}
	s.set(t, s.shop, "block", s.admin, "").want(t, 200)
	s.claim(t, "POST", s.shop, "y."+base, s.tenant).refused(t, 409, "application-blocked")
	s.claim(t, "DELETE", s.shop, "x."+base, s.tenant).want(t, 200)
	s.set(t, s.shop, "unblock", s.admin, "").want(t, 200)
	// A key for one name alone does not decide what its environments answer on.
	one := s.signer(t, "one")
	s.trust(t, one, "operator", s.shop)
	s.claim(t, "POST", s.shop, "z."+base+"?wildcard=1", one).refused(t, 403, "auth-scope")
	s.claim(t, "POST", s.shop, "z."+base, one).want(t, 200)
	s.claim(t, "DELETE", s.shop, "z."+base, one).want(t, 200)
	s.delete(t, "/v1/operators/"+one.ID, s.admin).want(t, http.StatusOK)
}

// deletion ends a life of a name, and begins another.
func (s *suite) deletion(t *testing.T) {
	target := "/v1/applications/" + s.shop
	uid := s.record(t, s.shop).UID
	s.delete(t, "/v1/applications/"+s.vault+"?force=1", s.tenant).refused(t, 403, "auth-scope")
	s.delete(t, "/v1/applications/"+s.prefix+"-none", s.admin).refused(t, 404, "not-found")
	s.delete(t, "/v1/applications/Not-A-Name", s.admin).refused(t, 400, "invalid-slug")
	for _, query := range []string{"", "?force=0", "?force=yes", "?force=TRUE", "?force="} {
		s.delete(t, target+query, s.tenant).refused(t, 409, "not-retired")
	}
	s.set(t, s.shop, "retire", s.tenant, "").want(t, 200)
	s.delete(t, target, s.tenant).refused(t, 409, "retire-grace")
	a := s.delete(t, target+"?force=true", s.tenant)
	gone := read[struct{ Deleted []string }](t, a).Deleted
	record := "_scafo/applications/" + s.shop + ".json"
	if !slices.Contains(gone, record) {
		t.Errorf("%d keys, and the record is not among them", len(gone))
	}
	for _, k := range gone {
		if !strings.Contains(k, s.shop) {
			t.Errorf("%s was removed", k)
		}
	}
	s.get(t, target, s.admin).refused(t, 404, "not-found")
	s.delete(t, target+"?force=1", s.tenant).refused(t, 404, "not-found")
	// The next life of the name is another application.
	d := s.follow(t, accepted(t, s.deploy(t, s.shop, s.tenant, "{}", worker(s.shop, "again"))).ID, s.tenant)
	if d.State != "deployed" {
		t.Errorf("%+v", d)
	}
	if next := s.record(t, s.shop); next.UID == uid || next.Retired != nil {
		t.Errorf("%s", fmt.Sprint(next))
	}
	s.delete(t, target+"?force=1", s.tenant).want(t, 200)
}
