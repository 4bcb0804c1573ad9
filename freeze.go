package scafo

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxFreezeReason bounds the reason of a freeze, in characters: it stands in every
// refusal of a deploy.
const MaxFreezeReason = 200

// ParseFreezeReason trims the reason of a freeze, which may be empty, and holds it
// to one line of at most [MaxFreezeReason] characters. The refusal is
// invalid-input.
func ParseFreezeReason(s string) (string, error) {
	s = strings.TrimSpace(s)
	if !utf8.ValidString(s) {
		return "", Errorf(CodeInvalidInput, "the reason is not UTF-8")
	}
	if utf8.RuneCountInString(s) > MaxFreezeReason {
		return "", Errorf(CodeInvalidInput, "the reason is longer than %d characters", MaxFreezeReason)
	}
	for _, c := range s {
		// The separators of lines and paragraphs are no control characters to Unicode.
		if unicode.In(c, unicode.Cc, unicode.Zl, unicode.Zp) {
			return "", Errorf(CodeInvalidInput, "the reason is one line: it may have no line break and no control character")
		}
	}
	return s, nil
}
