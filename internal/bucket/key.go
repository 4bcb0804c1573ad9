package bucket

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// Limits of a key, the narrowest of the stores that are known to be used: S3's
// own bound for the whole, and a file name's for a segment.
const (
	MaxKeyLength     = 1024
	MaxSegmentLength = 255
)

// CheckKey says why a key cannot be used in every store, or nil. Stores over a
// file system resolve "." and "..", lose empty segments, and take a key that
// ends with a slash for a folder; so such keys are refused before any store
// sees them.
func CheckKey(key string) error {
	switch {
	case key == "":
		return errors.New("the key is empty")
	case len(key) > MaxKeyLength:
		return errors.New("the key is longer than 1024 bytes")
	case !utf8.ValidString(key):
		return errors.New("the key is not valid UTF-8")
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] == 0x7f {
			return errors.New("the key has a control character")
		}
	}
	for segment := range strings.SplitSeq(key, "/") {
		switch {
		case segment == "":
			return errors.New("the key has an empty segment")
		case segment == "." || segment == "..":
			return errors.New("the key has a segment of dots")
		case len(segment) > MaxSegmentLength:
			return errors.New("the key has a segment longer than 255 bytes")
		}
	}
	return nil
}

// KindOf is the outcome that err wraps, or nil when it wraps none (and for a nil
// error).
func KindOf(err error) error {
	for _, kind := range []error{
		ErrNotFound, ErrNotModified, ErrRefused, ErrUnavailable, ErrUnknown, ErrDenied, ErrInvalid,
	} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return nil
}
