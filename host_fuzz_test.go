package scafo_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/scafo/scafo"
)

// The rule for hosts, formulated a second time.
var (
	claimable = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	numeric   = regexp.MustCompile(`\.[0-9]+$`)
)

func FuzzHost(f *testing.F) {
	for _, s := range []string{
		"", "shop.example", "Shop.Example", "a.b", "localhost", "a..b", ".a.b", "a.b.", "-a.b", "a-.b", "a_b.c", "*.a.b", "a.b:80", "http://a.b", "a.b/c",
		"1.2.3.4", "a.123", "a.1b", "xn--nxasmq6b.example", "\u212a.example", "é.example", "a b.c", "[::1]",
		strings.Repeat("a", 63) + ".b", strings.Repeat("a", 64) + ".b", strings.Repeat("abcdefghi.", 25) + "abc", strings.Repeat("abcdefghi.", 25) + "abcd",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		lower := strings.Map(func(r rune) rune {
			if 'A' <= r && r <= 'Z' {
				return r + 'a' - 'A'
			}
			return r
		}, s)
		want := len(s) <= 253 && claimable.MatchString(lower) && !numeric.MatchString(lower)
		got, err := scafo.ParseHost(s)
		switch {
		case (err == nil) != want:
			t.Errorf("%q: %v, by the other formulation %v", s, err, want)
		case err == nil && got != lower:
			t.Errorf("%q became %q", s, got)
		case err != nil && scafo.CodeOf(err) != scafo.CodeInvalidInput:
			t.Errorf("%q: %v", s, err)
		}
		if err == nil {
			if again, err := scafo.ParseHost(got); err != nil || again != got {
				t.Errorf("%q is not stable: %q, %v", got, again, err)
			}
		}
	})
}
