package scafo

import (
	"encoding/hex"
	"regexp"
	"strings"
)

// MaxNameLength bounds the names of applications, nodes and operators: one DNS
// label (RFC 1035, section 2.3.4).
const MaxNameLength = 63

var nameRule = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// ValidName reports whether s may name an application, a node or an operator:
// one DNS label of lower-case letters, digits and inner hyphens.
func ValidName(s string) bool {
	return len(s) >= 1 && len(s) <= MaxNameLength && nameRule.MatchString(s)
}

// ParseApplicationName returns s, or an invalid-slug refusal.
func ParseApplicationName(s string) (string, error) {
	if !ValidName(s) {
		return "", Errorf(CodeInvalidSlug, "an application name is 1 to %d characters of a-z, 0-9 and inner hyphens", MaxNameLength)
	}
	return s, nil
}

// ParseID returns s, or an invalid-input refusal. kind is "node" or "operator".
func ParseID(kind, s string) (string, error) {
	if !ValidName(s) {
		return "", Errorf(CodeInvalidInput, "the %s id is not 1 to %d characters of a-z, 0-9 and inner hyphens", kind, MaxNameLength)
	}
	return s, nil
}

// DeployID is `<application>.<16 hex>`.
type DeployID struct {
	Application string
	Hex         string // 16 lower-case hex digits
}

func (d DeployID) String() string { return d.Application + "." + d.Hex }

// ParseDeployID parses a deploy id; ok is false when s is none.
func ParseDeployID(s string) (d DeployID, ok bool) {
	name, h, found := strings.Cut(s, ".")
	if !found || !ValidName(name) || len(h) != 16 || strings.ToLower(h) != h {
		return DeployID{}, false
	}
	if _, err := hex.DecodeString(h); err != nil {
		return DeployID{}, false
	}
	return DeployID{Application: name, Hex: h}, true
}
