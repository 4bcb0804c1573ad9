package registry

import (
	"errors"
	"fmt"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
)

// NewerError says that a document was written by a newer release. It is left
// alone.
type NewerError struct {
	Key string
	V   int
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("%s has format %d, and this release knows %d", e.Key, e.V, scafo.FormatVersion)
}

// CorruptError says that an object is no document of the registry. It is left
// alone.
type CorruptError struct {
	Key string
	Err error
}

func (e *CorruptError) Error() string { return fmt.Sprintf("%s is no document: %v", e.Key, e.Err) }

func (e *CorruptError) Unwrap() error { return e.Err }

// ErrFenced says that a coordinator's write met a higher fence: another one has
// taken over.
var ErrFenced = errors.New("another coordinator has taken over")

// ErrTerminal says that a deploy has ended, and does not move any more.
var ErrTerminal = errors.New("the deploy has ended")

// unavailable is the one form in which a failure of the bucket leaves the
// registry. The outcome stays in the chain, except a refusal: a caller must not
// take a failed request for a condition that did not hold.
func unavailable(err error, what string) *scafo.Error {
	var e *scafo.Error
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, bucket.ErrRefused) {
		err = fmt.Errorf("%s: it changed at every try", what)
	}
	if errors.Is(err, bucket.ErrFull) {
		return scafo.Wrap(err, scafo.CodeStoreUnavailable, "the bucket is full: %s", what)
	}
	return scafo.Wrap(err, scafo.CodeStoreUnavailable, "the bucket did not answer as it should: %s", what)
}

// unreadable reports a document that is left alone.
func unreadable(err error) *scafo.Error {
	var newer *NewerError
	if errors.As(err, &newer) {
		return scafo.Wrap(err, scafo.CodeInternal, "%s was written by a newer release (format %d): upgrade this one", newer.Key, newer.V)
	}
	var corrupt *CorruptError
	if errors.As(err, &corrupt) {
		return scafo.Wrap(err, scafo.CodeInternal, "%s is not a document that this release can read", corrupt.Key)
	}
	return scafo.Wrap(err, scafo.CodeInternal, "a document cannot be read")
}
