package scafo_test

import (
	"strings"
	"testing"

	"github.com/scafo/scafo"
)

func TestParseFreezeReason(t *testing.T) {
	for s, want := range map[string]string{
		"": "", " \t\n": "", "  a new release\n": "a new release", "ü → 日本": "ü → 日本",
		strings.Repeat("日", scafo.MaxFreezeReason): strings.Repeat("日", scafo.MaxFreezeReason),
		strings.Repeat(" ", 300) + "x":             "x",
	} {
		if got, err := scafo.ParseFreezeReason(s); err != nil || got != want {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
	for _, bad := range []string{"a\nb", "a\tb", "a\x00", "a\u009fb", "a\u2028b", "a\xffb", strings.Repeat("日", scafo.MaxFreezeReason+1)} {
		if _, err := scafo.ParseFreezeReason(bad); scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
