// Package buckettest is the suite that every bucket driver passes.
package buckettest

import (
	"testing"

	"github.com/scafo/scafo/internal/bucket"
)

// Suite runs every test against buckets that open makes; each call of open gives
// an empty bucket.
func Suite(t *testing.T, open func(t *testing.T) bucket.Bucket) {}
