package storage

import (
	"net/url"
	"strings"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// Where the ingress's objects and locks are in the bucket.
const (
	ObjectPrefix = registry.StoragePrefix + "objects/"
	LockPrefix   = registry.StoragePrefix + "locks/"
)

// MaxEncodedKey bounds a key as it stands in the bucket, behind its prefix. It
// leaves a bucket's own prefix some hundred bytes of the 1,024 that a store takes.
const MaxEncodedKey = 880

// The form of a key in the bucket. Its segments are segments there too. Letters,
// digits, "_", "-" and "." stand for themselves; every other byte, and a "." that
// would begin a segment, is an escape sign and two hex digits. A segment longer
// than maxPiece goes on in the next one, and says so by its end. The last one ends
// with a suffix that no other can have, so that the object of a key and the folder
// of what is beneath it have different names: some stores keep both as files.
const (
	escapeSign = '!'
	continued  = "!-"
	suffix     = "!.json"
	maxPiece   = 180
	hexDigits  = "0123456789ABCDEF"
)

// Key is the name of an object or of a lock. The zero value is the root, beneath
// which all others are; it names no object itself.
type Key struct {
	text    string
	encoded string // without suffix; empty for the root
}

func (k Key) String() string { return k.text }

// ParseKey reads a key: segments of printable ASCII with a slash between them,
// none empty, "." or "..".
func ParseKey(s string) (Key, error) {
	segments := strings.Split(s, "/")
	if err := checkSegments(segments); err != nil {
		return Key{}, err
	}
	return newKey(s, segments)
}

// ParsePath reads a key from the part of an escaped URL path that names it. Each
// segment is decoded for itself, and a slash that was escaped is refused: who
// passes it on might take it for one that divides.
func ParsePath(escaped string) (Key, error) {
	segments := strings.Split(escaped, "/")
	for i, s := range segments {
		decoded, err := url.PathUnescape(s)
		if err != nil {
			return Key{}, scafo.Wrap(err, scafo.CodeInvalidInput, "the key is not a URL path")
		}
		if strings.Contains(decoded, "/") {
			return Key{}, invalid("a slash within a segment cannot be escaped")
		}
		segments[i] = decoded
	}
	if err := checkSegments(segments); err != nil {
		return Key{}, err
	}
	return newKey(strings.Join(segments, "/"), segments)
}

// ParsePrefix reads what keys are to be beneath of: a key, with or without a slash
// behind it, or nothing for the root.
func ParsePrefix(s string) (Key, error) {
	if s == "" {
		return Key{}, nil
	}
	return ParseKey(strings.TrimSuffix(s, "/"))
}

func invalid(format string, args ...any) error {
	return scafo.Errorf(scafo.CodeInvalidInput, "not a key: "+format, args...)
}

func checkSegments(segments []string) error {
	if len(segments) == 1 && segments[0] == "" {
		return invalid("it is empty")
	}
	if segments[0] == "" {
		return invalid("it begins with a slash, and keys are relative")
	}
	for _, s := range segments {
		switch s {
		case "":
			return invalid("it has an empty segment")
		case ".", "..":
			return invalid("it has a segment %q", s)
		}
		for i := range len(s) {
			if s[i] < ' ' || s[i] > '~' {
				return invalid("it has a character that is not printable ASCII")
			}
		}
	}
	return nil
}

func newKey(text string, segments []string) (Key, error) {
	k := Key{text: text, encoded: encode(segments)}
	if len(k.encoded)+len(suffix) > MaxEncodedKey {
		return Key{}, invalid("it is longer than the %d bytes that can be kept (a character other than a letter, a digit, \".\", \"_\" or \"-\" counts as three)", MaxEncodedKey-len(suffix))
	}
	return k, nil
}

func encode(segments []string) string {
	var b []byte
	for i, s := range segments {
		if i > 0 {
			b = append(b, '/')
		}
		b = appendSegment(b, s)
	}
	return string(b)
}

func appendSegment(b []byte, segment string) []byte {
	n := 0 // bytes of this piece
	for i := range len(segment) {
		c := segment[i]
		if w := width(c, n); n+w > maxPiece {
			b = append(b, continued...)
			b = append(b, '/')
			n = 0
		}
		if w := width(c, n); w == 1 {
			b = append(b, c)
			n++
		} else {
			b = append(b, escapeSign, hexDigits[c>>4], hexDigits[c&15])
			n += w
		}
	}
	return b
}

// width is how many bytes a character takes when so many of its piece are before it.
func width(c byte, before int) int {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', c == '.' && before > 0:
		return 1
	}
	return 3
}

// decode is the key of an object in the bucket, given behind its prefix; ok is
// false for what no key is written as.
func decode(object string) (text string, ok bool) {
	encoded, ok := strings.CutSuffix(object, suffix)
	if !ok {
		return "", false
	}
	plain := strings.ReplaceAll(encoded, continued+"/", "")
	b := make([]byte, 0, len(plain))
	for i := 0; i < len(plain); i++ {
		if plain[i] != escapeSign {
			b = append(b, plain[i])
			continue
		}
		if i+2 >= len(plain) {
			return "", false
		}
		hi, lo := strings.IndexByte(hexDigits, plain[i+1]), strings.IndexByte(hexDigits, plain[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		b = append(b, byte(hi<<4|lo)) //nolint:gosec // both are below 16
		i += 2
	}
	k, err := ParseKey(string(b))
	if err != nil || k.encoded != encoded {
		return "", false
	}
	return k.text, true
}

// object is where the key's own value is, and lock where its lock is.
func (k Key) object() string { return ObjectPrefix + k.encoded + suffix }

func (k Key) lock() string { return LockPrefix + k.encoded + suffix }

// beneath is the prefix of the objects beneath the key.
func (k Key) beneath() string {
	if k.encoded == "" {
		return ObjectPrefix
	}
	return ObjectPrefix + k.encoded + "/"
}
