package scafo_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
)

// A pattern means what the same regular expression means.
func TestSubjectPatternsAgainstRegexp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringOfN(rapid.RuneFrom([]rune("ab*:.")), 0, 12, -1).Draw(t, "pattern")
		subject := rapid.StringOfN(rapid.RuneFrom([]rune("ab:.")), 0, 16, -1).Draw(t, "subject")
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		want := regexp.MustCompile(`(?s)\A` + strings.Join(parts, ".*") + `\z`).MatchString(subject)
		if got := (scafo.TrustRule{Subjects: []string{pattern}}).AdmitsSubject(subject); got != want {
			t.Fatalf("%q admits %q: %v, want %v", pattern, subject, got, want)
		}
	})
}

func FuzzSubjectPattern(f *testing.F) {
	f.Add("repo:a/b:*", "repo:a/b:ref:refs/heads/main")
	f.Add("*a*", "aa")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, pattern, subject string) {
		rule := scafo.TrustRule{Subjects: []string{pattern}}
		if !strings.Contains(pattern, "*") && rule.AdmitsSubject(subject) != (pattern == subject) {
			t.Errorf("%q and %q", pattern, subject)
		}
		if !(scafo.TrustRule{Subjects: []string{strings.ReplaceAll(subject, "*", "") + "*"}}).AdmitsSubject(strings.ReplaceAll(subject, "*", "")) {
			t.Errorf("%q with an empty run does not admit itself", subject)
		}
	})
}

func TestIssuers(t *testing.T) {
	for issuer, want := range map[string]bool{
		"https://token.actions.githubusercontent.com": true,
		"https://gitlab.example.com:8443/sub/path/":   true,
		"https://issuer.example/":                     true,
		"http://issuer.example":                       false,
		"http://127.0.0.1:1234":                       false,
		"https://":                                    false,
		"https://user@issuer.example":                 false,
		"https://issuer.example?x=1":                  false,
		"https://issuer.example?":                     false,
		"https://issuer.example#x":                    false,
		"https://issuer.example#":                     false,
		"https:issuer.example":                        false,
		"//issuer.example":                            false,
		"issuer.example":                              false,
		"ftp://issuer.example":                        false,
		"":                                            false,
		"https://" + strings.Repeat("a", 2000):        false,
	} {
		if err := scafo.ValidIssuer(issuer, false); (err == nil) != want {
			t.Errorf("%.80q: %v", issuer, err)
		}
	}
	for issuer, want := range map[string]bool{"http://127.0.0.1:1": true, "http://[::1]:1": true, "http://localhost:1": false, "http://10.0.0.1": false, "http://127.0.0.1.example": false} {
		if err := scafo.ValidIssuer(issuer, true); (err == nil) != want {
			t.Errorf("with loopback, %q: %v", issuer, err)
		}
	}
}

// What the shorthands stand for, and what they keep out.
func TestShorthands(t *testing.T) {
	const hub, lab = "https://token.actions.githubusercontent.com", "https://gitlab.com"
	github := func(spec string) (scafo.TrustRule, error) { return scafo.GitHubRule(spec) }
	gitlab := func(spec string) (scafo.TrustRule, error) { return scafo.GitLabRule(spec, "") }
	cases := []struct {
		make            func(string) (scafo.TrustRule, error)
		spec, issuer    string
		admits, refuses []string
	}{
		{github, "acme/shop", hub,
			[]string{"repo:acme/shop:ref:refs/heads/main", "repo:acme/shop:ref:refs/heads/a/b", "repo:acme/shop:ref:refs/tags/v1"},
			[]string{"repo:acme/shop:pull_request", "repo:acme/shop:environment:production", "repo:acme/shop-2:ref:refs/heads/main", "repo:evil/acme/shop:ref:refs/heads/main", "repo:acme/shop:ref:refs/pull/1/merge"}},
		{github, "acme/shop@main", hub, []string{"repo:acme/shop:ref:refs/heads/main"}, []string{"repo:acme/shop:ref:refs/heads/main2", "repo:acme/shop:ref:refs/tags/main"}},
		{github, "acme/shop@release/*", hub, []string{"repo:acme/shop:ref:refs/heads/release/1"}, []string{"repo:acme/shop:ref:refs/heads/main"}},
		{github, "acme/shop@refs/tags/v*", hub, []string{"repo:acme/shop:ref:refs/tags/v1"}, []string{"repo:acme/shop:ref:refs/heads/v1"}},
		{gitlab, "acme/web/shop", lab,
			[]string{"project_path:acme/web/shop:ref_type:branch:ref:main", "project_path:acme/web/shop:ref_type:tag:ref:v1"},
			[]string{"project_path:acme/web/shop2:ref_type:branch:ref:main", "project_path:evil/acme/web/shop:ref_type:branch:ref:main"}},
		{gitlab, "acme/shop@main", lab, []string{"project_path:acme/shop:ref_type:branch:ref:main"}, []string{"project_path:acme/shop:ref_type:tag:ref:main", "project_path:acme/shop:ref_type:branch:ref:main2"}},
		{gitlab, "acme/shop@refs/tags/v1", lab, []string{"project_path:acme/shop:ref_type:tag:ref:v1"}, []string{"project_path:acme/shop:ref_type:branch:ref:v1"}},
	}
	for _, c := range cases {
		rule, err := c.make(c.spec)
		if err != nil || rule.Issuer != c.issuer || rule.EffectiveAudience() != "scafo-node" {
			t.Errorf("%s: %+v %v", c.spec, rule, err)
		}
		for _, s := range c.admits {
			if !rule.AdmitsSubject(s) {
				t.Errorf("%s does not admit %s", c.spec, s)
			}
		}
		for _, s := range c.refuses {
			if rule.AdmitsSubject(s) {
				t.Errorf("%s admits %s", c.spec, s)
			}
		}
	}
	for _, bad := range []string{"", "acme", "acme/", "/shop", "acme/*", "acme/shop@", "acme/shop:ref", "acme/sh op", "acme/shop/more"} {
		if _, err := scafo.GitHubRule(bad); scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("GitHub %q: %v", bad, err)
		}
	}
	for _, bad := range []string{"", "acme", "acme/", "acme/*", "acme/shop@", "acme//shop"} {
		if _, err := scafo.GitLabRule(bad, ""); scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("GitLab %q: %v", bad, err)
		}
	}
	if r, err := scafo.GitLabRule("a/b", "https://gitlab.example.com"); err != nil || r.Issuer != "https://gitlab.example.com" {
		t.Errorf("%+v %v", r, err)
	}
}

func TestPolicyEdits(t *testing.T) {
	var p scafo.TrustPolicy
	add := func(issuer, audience string, subjects ...string) bool {
		return p.Add(scafo.TrustRule{Issuer: issuer, Audience: audience, Subjects: subjects})
	}
	if !add("https://a", "", "s1") || !add("https://a", "scafo-node", "s2") || add("https://a", "", "s1", "s2") || !add("https://a", "other", "s1") || !add("https://b", "", "s1") {
		t.Errorf("%+v", p)
	}
	if len(p.Rules) != 3 || !slices.Equal(p.Rules[0].Subjects, []string{"s1", "s2"}) {
		t.Errorf("%+v", p)
	}
	if p.Remove("https://c", "") || p.Remove("https://a", "s3") {
		t.Error("something was removed that was not there")
	}
	if !p.Remove("https://a", "s1") || len(p.Rules) != 2 || !slices.Equal(p.Rules[0].Subjects, []string{"s2"}) {
		t.Errorf("%+v", p)
	}
	if !p.Remove("", "") || len(p.Rules) != 0 {
		t.Errorf("%+v", p)
	}
}

func TestPolicyBounds(t *testing.T) {
	rule := func(issuer, audience string, subjects ...string) scafo.TrustPolicy {
		return scafo.TrustPolicy{Rules: []scafo.TrustRule{{Issuer: issuer, Audience: audience, Subjects: subjects}}}
	}
	many := scafo.TrustPolicy{Rules: make([]scafo.TrustRule, scafo.MaxTrustRules+1)}
	for i := range many.Rules {
		many.Rules[i] = scafo.TrustRule{Issuer: "https://a", Subjects: []string{"s"}}
	}
	for name, p := range map[string]scafo.TrustPolicy{
		"no subject": rule("https://a", ""), "empty subject": rule("https://a", "", ""), "long subject": rule("https://a", "", strings.Repeat("x", 1025)),
		"control character": rule("https://a", "", "a\x1b[31m"), "not UTF-8": rule("https://a", "", "a\xff"), "bad issuer": rule("a", "", "s"),
		"too many subjects": rule("https://a", "", make([]string, 65)...), "bad audience": rule("https://a", "\n", "s"), "too many rules": many,
	} {
		if err := p.Validate(false); scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := rule("https://a", "x", "s").Validate(false); err != nil {
		t.Error(err)
	}
}
