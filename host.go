package scafo

import (
	"strings"
	"unicode/utf8"
)

// MaxHostLength bounds a claimed host, in characters (RFC 1035, section 2.3.4,
// in its textual form without the trailing dot).
const MaxHostLength = 253

// ParseHost lower-cases s and holds it to the rule for hosts that an application
// may claim: at least two labels of 1 to 63 characters from a-z, 0-9 and inner
// hyphens, a last label that is not all digits, at most 253 characters; no
// wildcard, port, scheme, path, trailing dot or underscore. The refusal,
// invalid-input, names the rule that s breaks.
func ParseHost(s string) (string, error) {
	refuse := func(rule string) (string, error) {
		return "", Errorf(CodeInvalidInput, "not a host to claim: %s", rule)
	}
	if s == "" {
		return refuse("it is empty")
	}
	if len(s) > MaxHostLength {
		return refuse("it is longer than 253 characters")
	}
	// Lower-casing only ASCII keeps look-alikes (K, U+212A) from becoming letters.
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	h := string(b)
	switch {
	case strings.Contains(h, "*"):
		return refuse("it has a wildcard; ask for the subdomains with ?wildcard=1")
	case strings.Contains(h, "://"):
		return refuse("it has a scheme")
	case strings.Contains(h, "/"):
		return refuse("it has a path")
	case strings.Contains(h, ":"):
		return refuse("it has a port")
	case strings.Contains(h, "_"):
		return refuse("it has an underscore")
	case strings.HasSuffix(h, "."):
		return refuse("it ends with a dot")
	}
	labels := strings.Split(h, ".")
	if len(labels) < 2 {
		return refuse("it has fewer than two labels")
	}
	for _, l := range labels {
		switch {
		case l == "":
			return refuse("it has an empty label")
		case len(l) > 63:
			return refuse("it has a label longer than 63 characters")
		case l[0] == '-' || l[len(l)-1] == '-':
			return refuse("it has a label that starts or ends with a hyphen")
		}
		for i := range len(l) {
			c := l[i]
			if c >= utf8.RuneSelf {
				return refuse("it has a character other than a-z, 0-9 and hyphen; an international name is claimed in its xn-- form")
			}
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return refuse("it has a character other than a-z, 0-9 and hyphen")
			}
		}
	}
	if strings.Trim(labels[len(labels)-1], "0123456789") == "" {
		return refuse("its last label is all digits")
	}
	return h, nil
}
