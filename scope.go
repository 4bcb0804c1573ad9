package scafo

import (
	"slices"
	"strings"
)

// Scope says which applications an operator's key reaches: exact names, prefix
// globs such as "shop-*", or ["*"] alone for all of them.
type Scope []string

// ParseScope checks every entry. It refuses an empty list, a "*" beside other
// entries, and a "*" anywhere but as the one trailing character of an entry.
func ParseScope(entries []string) (Scope, error) {
	if len(entries) == 0 {
		return nil, Errorf(CodeInvalidInput, "applications must not be empty")
	}
	for _, e := range entries {
		if e == "*" {
			if len(entries) != 1 {
				return nil, Errorf(CodeInvalidInput, `"*" stands alone in applications, beside no names`)
			}
			continue
		}
		prefix, glob := strings.CutSuffix(e, "*")
		if strings.Contains(prefix, "*") {
			return nil, Errorf(CodeInvalidInput, "applications: a * may only be the last character of an entry")
		}
		if !glob && !ValidName(e) {
			return nil, Errorf(CodeInvalidInput, "applications: %q is no application name", clip(e))
		}
		// A prefix is what a name could begin with: it may end with a hyphen.
		if glob && (len(prefix) > MaxNameLength || !ValidName(strings.TrimRight(prefix, "-"))) {
			return nil, Errorf(CodeInvalidInput, "applications: %q is no prefix of an application name", clip(e))
		}
	}
	return slices.Clone(Scope(entries)), nil
}

// All reports whether the scope is ["*"].
func (s Scope) All() bool { return len(s) == 1 && s[0] == "*" }

// Reaches reports whether the scope reaches the application of that name.
func (s Scope) Reaches(name string) bool {
	for _, e := range s {
		if prefix, glob := strings.CutSuffix(e, "*"); glob {
			if strings.HasPrefix(name, prefix) {
				return true
			}
		} else if e == name {
			return true
		}
	}
	return false
}

// Covers reports whether every application that other reaches is reached by s:
// what a key may grant is covered by its own scope. Only what a single entry of s
// covers counts, so that the answer never depends on which names exist.
func (s Scope) Covers(other Scope) bool {
	for _, o := range other {
		if !s.coversEntry(o) {
			return false
		}
	}
	return true
}

func (s Scope) coversEntry(o string) bool {
	oprefix, oglob := strings.CutSuffix(o, "*")
	for _, e := range s {
		prefix, glob := strings.CutSuffix(e, "*")
		switch {
		case glob && strings.HasPrefix(oprefix, prefix):
			return true
		case !glob && !oglob && e == o:
			return true
		}
	}
	return false
}

func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
