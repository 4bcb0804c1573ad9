// Package artifact receives what a deploy uploads and unpacks it: bounded in
// bytes and entries, in constant memory, and confined to one fresh directory.
//
// An artifact is a tar archive, plain or compressed with gzip or zstd, told apart
// by its first bytes. Whoever sent it is not trusted: docs/reference/artifact.md
// says what an archive may hold.
package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"syscall"

	"github.com/scafo/scafo"
)

// Limits bound an artifact.
type Limits struct {
	// Bytes bounds the artifact as it was sent, the archive after decompression,
	// and the files that it holds, each for itself.
	Bytes int64
	// Entries bounds the archive's entries; directories that an entry only implies
	// count too.
	Entries int
	// Take, where it is not nil, is asked before more bytes go to the disk; its
	// refusal ends the work.
	Take func(bytes int64) error
}

func (l Limits) take(n int64) error {
	if l.Take == nil {
		return nil
	}
	return l.Take(n)
}

// Received is a body that was written to the disk.
type Received struct {
	Size   int64
	SHA256 string // lower-case hex
}

// copyBuffer is how much of a stream is in memory at a time.
const copyBuffer = 64 << 10

// Receive writes body to dst and hashes it on the way. A body without a byte is
// refused. It returns ctx's error where a read failed because ctx ended.
func Receive(ctx context.Context, dst io.Writer, body io.Reader, l Limits) (Received, error) {
	hash := sha256.New()
	buf := make([]byte, copyBuffer)
	var size int64
	for {
		n, readErr := body.Read(buf)
		// Whose body is cut is gone, and the context of a request ends with its caller: what
		// the read says is the better reason.
		cut := readErr != nil && !errors.Is(readErr, io.EOF) && !errors.Is(readErr, os.ErrDeadlineExceeded)
		if err := ctx.Err(); err != nil && !cut {
			return Received{}, err
		}
		size += int64(n)
		if size > l.Bytes {
			return Received{}, tooLarge(l)
		}
		if n > 0 {
			if err := write(dst, buf[:n], l); err != nil {
				return Received{}, err
			}
			hash.Write(buf[:n])
		}
		switch {
		case readErr == nil:
			continue
		case errors.Is(readErr, os.ErrDeadlineExceeded):
			return Received{}, context.DeadlineExceeded
		case cut:
			return Received{}, scafo.Wrap(readErr, scafo.CodeInvalidInput, "the request body ended before it was whole")
		case size == 0:
			return Received{}, scafo.Malformed("the request has no body: it is to be the artifact")
		}
		return Received{Size: size, SHA256: hex.EncodeToString(hash.Sum(nil))}, nil
	}
}

func tooLarge(l Limits) error {
	return scafo.Errorf(scafo.CodeResourceLimit, "the artifact is larger than %d bytes", l.Bytes)
}

func write(dst io.Writer, b []byte, l Limits) error {
	if err := l.take(int64(len(b))); err != nil {
		return err
	}
	if _, err := dst.Write(b); err != nil {
		return DiskError(err)
	}
	return nil
}

// DiskError is what a caller is told of a failed write to the staging directory:
// a disk that is full is a node without room for the deploy, not a broken one.
func DiskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return scafo.Wrap(err, scafo.CodeDeployOverloaded, "the disk that holds this node's staging directory is full")
	}
	return scafo.Wrap(err, scafo.CodeInternal, "the artifact could not be staged")
}
