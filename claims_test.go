package scafo_test

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
)

// The rule for hosts in a second form: one expression for the shape, and the rest.
var hostShape = regexp.MustCompile(`^([a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]{0,61}[a-zA-Z0-9])(\.([a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]{0,61}[a-zA-Z0-9]))+$`)

var digitsLast = regexp.MustCompile(`\.[0-9]+$`)

func isHost(s string) bool {
	return len(s) <= 253 && hostShape.MatchString(s) && !digitsLast.MatchString(s)
}

func checkHost(t interface {
	Errorf(format string, args ...any)
}, s string,
) {
	h, err := scafo.ParseHost(s)
	if (err == nil) != isHost(s) {
		t.Errorf("%q: %v, and the other form says %v", s, err, isHost(s))
		return
	}
	if err != nil {
		if scafo.CodeOf(err) != scafo.CodeInvalidInput || !strings.Contains(err.Error(), "not a host to claim: it") {
			t.Errorf("%q: %v names no rule", s, err)
		}
		return
	}
	if again, err := scafo.ParseHost(h); err != nil || again != h || !strings.EqualFold(h, s) || h != strings.ToLower(s) {
		t.Errorf("%q became %q, and that %q, %v", s, h, again, err)
	}
}

func TestHostsAgainstASecondForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		label := rapid.OneOf(
			rapid.StringMatching(`[a-zA-Z0-9-]{0,5}`), rapid.StringMatching(`[0-9]{1,3}`), rapid.SampledFrom([]string{
				"", "*", "_x", "a_b", "ü", "xn--bcher-kva", "a:1", "a/b", "https://a", "K", "com", "a b", "é.", strings.Repeat("a", 62), strings.Repeat("b", 63), strings.Repeat("c", 64),
			}),
		)
		labels := rapid.SliceOfN(label, 0, 6).Draw(t, "labels")
		checkHost(t, strings.Join(labels, "."))
	})
}

func TestHostLength(t *testing.T) {
	label := strings.Repeat("a", 63)
	long := label + "." + label + "." + label + "." + label[:61]
	for n, want := range map[int]bool{253: true, 254: false} {
		s := long + strings.Repeat("b", n-253)
		if _, err := scafo.ParseHost(s); len(s) != n || (err == nil) != want {
			t.Errorf("%d characters: %v", len(s), err)
		}
	}
	if _, err := scafo.ParseHost(strings.Repeat("a.", 126) + "a"); err != nil {
		t.Errorf("127 labels: %v", err)
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{
		"shop.example", "SHOP.Example", "a.b.c.d.example.com", "xn--bcher-kva.example", "bücher.example", "*.example.com", "example", "example.", ".example",
		"a..b", "1.2.3.4", "1.example", "a-.example", "-a.example", "a_b.example", "a:80.example", "https://a.example", "a/b.example", "a.example:443", "[::1]",
		"\u212aelvin.example", "a.example\n", "a\x00.example", strings.Repeat("a", 63) + ".example", strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 127) + "a",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { checkHost(t, s) })
}

// answers are the hosts, of a small world, that a claim decides on.
func answers(c scafo.Claim, labels []string) map[string]bool {
	set := map[string]bool{}
	if c.State == scafo.ClaimReleased {
		return set
	}
	set[c.Host] = true
	if c.Wildcard || c.PendingWildcard {
		for _, l := range labels {
			set[l+"."+c.Host] = true
		}
	}
	return set
}

// Two claims of different owners exclude each other exactly when there is a host that
// both would answer.
func TestClaimsExcludeWhatBothWouldAnswer(t *testing.T) {
	labels := []string{"a", "b", "ab", "a-b"}
	rapid.Check(t, func(t *rapid.T) {
		claim := func(name string) scafo.Claim {
			path := rapid.SliceOfN(rapid.SampledFrom(labels), 1, 4).Draw(t, name+" labels")
			return scafo.Claim{
				Host:        strings.Join(append(path, "x"), "."),
				Application: rapid.SampledFrom([]string{"one", "two"}).Draw(t, name+" application"),
				UID:         rapid.SampledFrom([]string{"u1", "u2"}).Draw(t, name+" uid"),
				Wildcard:    rapid.Bool().Draw(t, name+" wildcard"), PendingWildcard: rapid.Bool().Draw(t, name+" pending"),
				State: rapid.SampledFrom([]scafo.ClaimState{scafo.ClaimPending, scafo.ClaimHeld, scafo.ClaimReleased}).Draw(t, name+" state"),
			}
		}
		c, d := claim("c"), claim("d")
		both := false
		theirs := answers(d, labels)
		for h := range answers(c, labels) {
			both = both || theirs[h]
		}
		want := both && (c.Application != d.Application || c.UID != d.UID)
		if got := c.Conflicts(d); got != want || d.Conflicts(c) != want {
			t.Errorf("%+v and %+v: %v and %v, want %v", c, d, got, d.Conflicts(c), want)
		}
	})
}

func TestPlatformHosts(t *testing.T) {
	long := strings.Repeat("a", 63) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("c", 63) + "." + strings.Repeat("d", 61) // 253
	if got := scafo.PlatformHosts("shop", []string{"apps.example", long, "localhost"}); len(got) != 2 || got[0] != "shop.apps.example" || got[1] != "shop.localhost" {
		t.Errorf("%v", got)
	}
	if got := scafo.PlatformHosts("shop", nil); got == nil || len(got) != 0 {
		t.Errorf("%#v", got)
	}
	for host, want := range map[string]string{"apps.example": "apps.example", "x.y.apps.example": "apps.example", "xapps.example": "", "example": "", "a.localhost": "localhost"} {
		if got := scafo.UnderPlatform(host, []string{"apps.example", "localhost"}); got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
	for host, want := range map[string]string{"a.b.example": "b.example", "b.example": "", "x.y.z.example": "y.z.example"} {
		parent, ok := scafo.ParentHost(host)
		if ok != (want != "") || ok && parent != want {
			t.Errorf("%s: %q %v", host, parent, ok)
		}
	}
}
