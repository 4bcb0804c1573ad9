package token

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// member is one member of a flat JSON object; raw is its value as it was spelled.
type member struct {
	name string
	raw  string
}

// members is a flat JSON object, in the order it was written. Names differ from
// each other by more than case.
type members []member

// maxMembers bounds the members of one object.
const maxMembers = 16

var (
	errSyntax    = errors.New("syntax")
	errObject    = errors.New("no-object")
	errNested    = errors.New("nested")
	errDuplicate = errors.New("duplicate")
	errCase      = errors.New("case-variant")
	errMembers   = errors.New("too-many-members")
)

// parseObject reads one JSON object whose values are strings, numbers, booleans
// or null. encoding/json would match names without case and let the last of two
// duplicates win; here both are refused.
func parseObject(b []byte) (members, error) {
	if !utf8.Valid(b) || !json.Valid(b) {
		return nil, errSyntax
	}
	// From here on the text is known to be one valid JSON value: the walk below
	// has no syntax to check.
	s := skipSpace(string(b))
	if s[0] != '{' {
		return nil, errObject
	}
	s = skipSpace(s[1:])
	var m members
	for s[0] != '}' {
		end := stringEnd(s)
		name, err := unquote(s[:end])
		if err != nil {
			return nil, err
		}
		for _, other := range m {
			if strings.EqualFold(other.name, name) {
				return nil, errDuplicate
			}
		}
		if len(m) == maxMembers {
			return nil, errMembers
		}
		s = skipSpace(s[end:])
		s = skipSpace(s[1:]) // the colon
		switch s[0] {
		case '{', '[':
			return nil, errNested
		case '"':
			end = stringEnd(s)
		default:
			end = strings.IndexAny(s, " \t\r\n,}")
		}
		m = append(m, member{name: name, raw: s[:end]})
		s = skipSpace(s[end:])
		if s[0] == ',' {
			s = skipSpace(s[1:])
		}
	}
	// A name that only looks like one of ours, once case is folded, is a trap set
	// for some other reader.
	for _, e := range m {
		for _, name := range known {
			if e.name != name && strings.EqualFold(e.name, name) {
				return nil, errCase
			}
		}
	}
	return m, nil
}

// known are the names that have a meaning, here or to other readers of JWS.
var known = []string{"alg", "kid", "typ", "crit", "sub", "aud", "iat", "exp", "nbf", "jti", "iss"}

func skipSpace(s string) string { return strings.TrimLeft(s, " \t\r\n") }

// stringEnd is the index behind the closing quote of the string that s begins with.
func stringEnd(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(s)
}

func unquote(raw string) (string, error) {
	if !strings.Contains(raw, `\`) {
		return raw[1 : len(raw)-1], nil
	}
	var s string
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		return "", errSyntax
	}
	return s, nil
}

func (m members) find(name string) (member, bool) {
	for _, e := range m {
		if e.name == name {
			return e, true
		}
	}
	return member{}, false
}

func (m members) has(name string) bool {
	_, ok := m.find(name)
	return ok
}

// text is the value of a member that is a string.
func (m members) text(name string) (string, bool) {
	e, ok := m.find(name)
	if !ok {
		return "", false
	}
	return e.text()
}

func (e member) text() (string, bool) {
	if e.raw[0] != '"' {
		return "", false
	}
	s, err := unquote(e.raw)
	return s, err == nil
}

// seconds is the value of a member that is a whole number of seconds, written as
// plain digits: no sign, no fraction, no exponent.
func (m members) seconds(name string) (int64, bool) {
	e, ok := m.find(name)
	if !ok {
		return 0, false
	}
	if strings.Trim(e.raw, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(e.raw, 10, 64)
	return n, err == nil && n > 0 && n <= maxTime
}
