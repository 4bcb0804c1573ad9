// Package artifact receives what a deploy uploads and unpacks it: bounded in
// bytes and entries, and confined to one fresh directory.
package artifact

import (
	"context"
	"io"

	"github.com/scafo/scafo"
)

// Received is a body that was written to disk.
type Received struct {
	Size   int64
	SHA256 string // lower-case hex
}

// Limits bound an archive.
type Limits struct {
	Bytes   int64 // compressed, and unpacked
	Entries int
}

// Receive writes body to dst and hashes it on the way.
func Receive(ctx context.Context, dst io.Writer, body io.Reader, l Limits) (Received, error) {
	return Received{}, scafo.Errorf(scafo.CodeInternal, "not yet")
}
