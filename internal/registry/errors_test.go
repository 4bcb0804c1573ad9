package registry

import (
	"errors"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
)

// A full bucket is said to be full: waiting does not cure it.
func TestUnavailableSaysWhy(t *testing.T) {
	for want, cause := range map[string]error{
		"the bucket is full: writing x":                     bucket.ErrFull,
		"the bucket did not answer as it should: writing x": errors.New("connection refused"),
	} {
		e := unavailable(&bucket.Error{Op: "put", Key: "x", Kind: bucket.ErrUnavailable, Err: cause}, "writing x")
		if e.Code != scafo.CodeStoreUnavailable || e.Detail != want || !errors.Is(e, cause) {
			t.Errorf("%v: %s %q, want %q", cause, e.Code, e.Detail, want)
		}
	}
}
