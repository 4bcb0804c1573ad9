package scafo

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of a trust policy.
const (
	// MaxTrustRules bounds the rules of one application.
	MaxTrustRules = 64
	// MaxTrustSubjects bounds the subjects of one rule.
	MaxTrustSubjects = 64
	// MaxTrustText bounds an issuer, a subject and an audience, in bytes.
	MaxTrustText = 1024
)

// DefaultAudience is the audience of a rule that names none, and the aud of every
// token of nodes and operators.
const DefaultAudience = "scafo-node"

// Issuers of well-known pipelines.
const (
	GitHubIssuer = "https://token.actions.githubusercontent.com"
	GitLabIssuer = "https://gitlab.com"
)

// EffectiveAudience is the audience that tokens under this rule must name.
func (r TrustRule) EffectiveAudience() string {
	if r.Audience == "" {
		return DefaultAudience
	}
	return r.Audience
}

// AdmitsSubject reports whether a subject is one of the rule's: byte for byte, where
// a * stands for any run of characters, also an empty one.
func (r TrustRule) AdmitsSubject(subject string) bool {
	return slices.ContainsFunc(r.Subjects, func(p string) bool { return matchRun(p, subject) })
}

// matchRun matches a pattern whose only special character is *. It takes time
// proportional to the two lengths' product at most, and no recursion.
func matchRun(pattern, s string) bool {
	head, rest, any := strings.Cut(pattern, "*")
	if !any {
		return pattern == s
	}
	s, ok := strings.CutPrefix(s, head)
	if !ok {
		return false
	}
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(s, part)
		}
		// The leftmost place leaves the most to what follows.
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s, rest = s[i+len(part):], after
	}
}

// Admits returns the rules of an issuer, compared byte for byte.
func (p TrustPolicy) Admits(issuer string) []TrustRule {
	var out []TrustRule
	for _, r := range p.Rules {
		if r.Issuer == issuer {
			out = append(out, r)
		}
	}
	return out
}

// Add puts a rule's subjects beside those of the same issuer and audience, or the
// rule beside the others. It reports whether that changed anything.
func (p *TrustPolicy) Add(rule TrustRule) (changed bool) {
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Issuer != rule.Issuer || r.EffectiveAudience() != rule.EffectiveAudience() {
			continue
		}
		for _, s := range rule.Subjects {
			if !slices.Contains(r.Subjects, s) {
				r.Subjects, changed = append(slices.Clone(r.Subjects), s), true
			}
		}
		return changed
	}
	p.Rules = append(slices.Clone(p.Rules), rule)
	return true
}

// Remove takes rules away: those of the issuer, or every rule where issuer is empty;
// of them only one subject, where that is given. Rules without subjects go. It
// reports whether there was anything to remove.
func (p *TrustPolicy) Remove(issuer, subject string) (changed bool) {
	var kept []TrustRule
	for _, r := range p.Rules {
		switch {
		case issuer != "" && r.Issuer != issuer:
			kept = append(kept, r)
		case subject == "":
			changed = true
		case !slices.Contains(r.Subjects, subject):
			kept = append(kept, r)
		default:
			changed = true
			r.Subjects = slices.DeleteFunc(slices.Clone(r.Subjects), func(s string) bool { return s == subject })
			if len(r.Subjects) > 0 {
				kept = append(kept, r)
			}
		}
	}
	p.Rules = kept
	return changed
}

// Validate refuses a policy that no token could meet, or that is too large.
// allowLoopback admits issuers at http://127.0.0.1.
func (p TrustPolicy) Validate(allowLoopback bool) error {
	if len(p.Rules) > MaxTrustRules {
		return Malformed("a trust policy has at most %d rules", MaxTrustRules)
	}
	for _, r := range p.Rules {
		if err := ValidIssuer(r.Issuer, allowLoopback); err != nil {
			return err
		}
		if len(r.Subjects) == 0 || len(r.Subjects) > MaxTrustSubjects {
			return Malformed("a rule has 1 to %d subjects", MaxTrustSubjects)
		}
		for _, s := range append(slices.Clone(r.Subjects), r.EffectiveAudience()) {
			if s == "" || len(s) > MaxTrustText || !utf8.ValidString(s) || strings.ContainsFunc(s, control) {
				return Malformed("subjects and audiences are 1 to %d bytes of text: %q", MaxTrustText, s)
			}
		}
	}
	return nil
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

// ValidIssuer refuses what is no issuer of OpenID Connect (Discovery 1.0, section 2):
// an https URL of a host and a path, or, where allowLoopback says so, an http one at
// a loopback address.
func ValidIssuer(issuer string, allowLoopback bool) error {
	u, err := url.Parse(issuer)
	switch {
	case err != nil, len(issuer) > MaxTrustText, u.Host == "", u.Hostname() == "", u.Opaque != "":
		return Malformed("%q is no issuer: want https://HOST[:PORT][/PATH]", issuer)
	case u.User != nil, u.RawQuery != "", u.ForceQuery, strings.Contains(issuer, "#"):
		return Malformed("the issuer %q has a user, a query or a fragment, which none has", issuer)
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && allowLoopback:
		if a, err := netip.ParseAddr(u.Hostname()); err == nil && a.IsLoopback() {
			return nil
		}
	}
	return Malformed("the issuer %q is not served over https", issuer)
}

// GitHubRule is the rule of a repository's GitHub Actions: "owner/repo" admits runs
// for its branches and tags, "owner/repo@ref" those for one of them. Runs for pull
// requests have other subjects and are not admitted.
func GitHubRule(spec string) (TrustRule, error) {
	repo, ref, named := strings.Cut(spec, "@")
	owner, name, ok := strings.Cut(repo, "/")
	if !ok || !plainPart(owner) || !plainPart(name) || (named && ref == "") {
		return TrustRule{}, Malformed("%q is no repository of GitHub: want OWNER/REPO or OWNER/REPO@REF", spec)
	}
	subject := "repo:" + repo + ":ref:"
	rule := TrustRule{Issuer: GitHubIssuer}
	switch {
	case !named:
		rule.Subjects = []string{subject + "refs/heads/*", subject + "refs/tags/*"}
	case strings.HasPrefix(ref, "refs/"):
		rule.Subjects = []string{subject + ref}
	default:
		rule.Subjects = []string{subject + "refs/heads/" + ref}
	}
	return rule, nil
}

// GitLabRule is the rule of a project's GitLab pipelines: "group/project" admits those
// of its branches and tags, "group/project@ref" those of one branch. issuer is the
// GitLab's own address; empty is gitlab.com.
func GitLabRule(spec, issuer string) (TrustRule, error) {
	project, ref, named := strings.Cut(spec, "@")
	parts := strings.Split(project, "/")
	if len(parts) < 2 || slices.ContainsFunc(parts, func(p string) bool { return !plainPart(p) }) || (named && ref == "") {
		return TrustRule{}, Malformed("%q is no project of GitLab: want GROUP/PROJECT or GROUP/PROJECT@REF", spec)
	}
	if issuer == "" {
		issuer = GitLabIssuer
	}
	subject := fmt.Sprintf("project_path:%s:ref_type:", project)
	rule := TrustRule{Issuer: issuer}
	tag, isTag := strings.CutPrefix(ref, "refs/tags/")
	branch := strings.TrimPrefix(ref, "refs/heads/")
	switch {
	case !named:
		rule.Subjects = []string{subject + "branch:ref:*", subject + "tag:ref:*"}
	case isTag:
		rule.Subjects = []string{subject + "tag:ref:" + tag}
	default:
		rule.Subjects = []string{subject + "branch:ref:" + branch}
	}
	return rule, nil
}

// plainPart reports whether s is one part of a repository's path: nothing in it could
// widen a subject or reach into what follows.
func plainPart(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-', r == '_', r == '.':
			return false
		}
		return true
	})
}
