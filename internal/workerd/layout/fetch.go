package layout

import (
	"context"
	"errors"

	"github.com/scafo/scafo/internal/bucket"
)

// ErrDigest: what lies in the bucket is not what the manifest, or the version,
// says.
var ErrDigest = errors.New("digest mismatch")

// ErrNoPointer: nothing was deployed yet.
var ErrNoPointer = errors.New("no deployment")

// Load reads the pointer with its ETag; ErrNoPointer when there is none.
func Load(ctx context.Context, b bucket.Bucket) (Pointer, string, error) {
	return Pointer{}, "", errors.New("not yet")
}

// Deployment is a fetched deployment: its manifest, and a directory with
// modules/ and assets/ in it.
type Deployment struct {
	*Manifest
	Dir string
}

// FetchOptions say where a deployment is put.
type FetchOptions struct {
	Root   string // deployments are put in directories below it, one a version
	Assets string // the cache of assets by digest; empty: below Root
}

// Fetch brings a deployment to the local disk and verifies every byte of it. It
// may be called again for the same version; nothing half-done is ever used.
func Fetch(ctx context.Context, b bucket.Bucket, p Pointer, o FetchOptions) (*Deployment, error) {
	return nil, errors.New("not yet")
}
