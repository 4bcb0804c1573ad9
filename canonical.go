package scafo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// CanonicalJSON is the canonical form of a JSON document as RFC 8785 has it:
// no white space, members in the order of their names' UTF-16 code units, numbers
// as ECMAScript prints a double, strings with the fewest escapes. Of members that
// repeat a name the last one stays, and what stands for no character (a lone
// surrogate) becomes U+FFFD: a caller who asks whether bytes *are* canonical
// compares them with the result, and sees a difference then.
func CanonicalJSON(doc []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return appendCanonical(make([]byte, 0, len(doc)), v)
}

func appendCanonical(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case string:
		return appendCanonicalString(b, v), nil
	case json.Number:
		return appendCanonicalNumber(b, v)
	case []any:
		var err error
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendCanonical(b, e); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case map[string]any:
		return appendCanonicalObject(b, v)
	}
	return nil, fmt.Errorf("no JSON value: %T", v)
}

func appendCanonicalObject(b []byte, v map[string]any) ([]byte, error) {
	type member struct {
		name  string
		units []uint16
	}
	members := make([]member, 0, len(v))
	for name := range v {
		members = append(members, member{name, utf16.Encode([]rune(name))})
	}
	slices.SortFunc(members, func(a, b member) int { return slices.Compare(a.units, b.units) })
	var err error
	b = append(b, '{')
	for i, m := range members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendCanonicalString(b, m.name), ':')
		if b, err = appendCanonical(b, v[m.name]); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendCanonicalString(b []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= 0x20:
			b = append(b, c)
		case strings.IndexByte("\b\t\n\f\r", c) >= 0:
			b = append(b, '\\', "btn\x00fr"[c-'\b'])
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(b, '"')
}

// appendCanonicalNumber prints a number as ECMAScript's Number::toString does.
func appendCanonicalNumber(b []byte, n json.Number) ([]byte, error) {
	f, err := strconv.ParseFloat(string(n), 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return nil, fmt.Errorf("a number that no double holds: %s", clip(string(n)))
	}
	if f == 0 { // also the negative one
		return append(b, '0'), nil
	}
	// The bounds between which no exponent is written.
	const least, most = 1e-6, 1e21
	if a := math.Abs(f); a >= least && a < most {
		return strconv.AppendFloat(b, f, 'f', -1, 64), nil
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	mantissa, exponent, _ := strings.Cut(s, "e")
	sign, digits := exponent[:1], strings.TrimLeft(exponent[1:], "0")
	return append(b, mantissa+"e"+sign+digits...), nil
}
