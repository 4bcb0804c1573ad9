package artifact

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/scafo/scafo"
)

// Format is how an archive is compressed.
type Format string

// The formats of an artifact.
const (
	Tar  Format = "tar"
	Gzip Format = "gzip"
	Zstd Format = "zstd"
)

// maxWindow bounds the memory that a zstd stream may ask for. What zstd writes
// without --ultra or --long stays within it.
const maxWindow = 8 << 20

var magics = []struct {
	format Format
	bytes  []byte
}{
	{Gzip, []byte{0x1f, 0x8b}},
	{Zstd, []byte{0x28, 0xb5, 0x2f, 0xfd}},
}

// Detect tells the format from an archive's first bytes.
func Detect(head []byte) Format {
	for _, m := range magics {
		if bytes.HasPrefix(head, m.bytes) {
			return m.format
		}
	}
	return Tar
}

// open returns the tar stream inside of r, bounded, and what closes it.
func open(r io.Reader, l Limits) (*boundedReader, func(), error) {
	buffered := bufio.NewReaderSize(r, copyBuffer)
	head, err := buffered.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, scafo.Wrap(err, scafo.CodeInternal, "the staged artifact could not be read")
	}
	if bytes.HasPrefix(head, []byte("PK\x03\x04")) {
		return nil, nil, scafo.Errorf(scafo.CodeInvalidInput, "the artifact is a zip archive; it is to be a tar archive, plain or compressed with gzip or zstd")
	}
	expanded := func(r io.Reader) *boundedReader { return &boundedReader{r: r, left: l.Bytes, limits: l} }
	switch Detect(head) {
	case Gzip:
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, nil, broken(err)
		}
		return expanded(z), func() { _ = z.Close() }, nil
	case Zstd:
		z, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, broken(err)
		}
		return expanded(z), z.Close, nil
	default:
		return expanded(buffered), func() {}, nil
	}
}

// broken says that the archive is not what it claims to be. Errors that already
// say what is wrong pass.
func broken(err error) error {
	var e *scafo.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return scafo.Wrap(err, scafo.CodeInvalidInput, "the artifact was compressed with a zstd window of more than %d MiB", maxWindow>>20)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return scafo.Wrap(err, scafo.CodeInvalidInput, "the artifact is truncated")
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong):
		return scafo.Wrap(err, scafo.CodeInvalidInput, "the artifact is no tar archive, plain or compressed with gzip or zstd, or one of its headers is malformed")
	}
	return scafo.Wrap(err, scafo.CodeInvalidInput, "the artifact is no tar archive, plain or compressed with gzip or zstd")
}

// boundedReader refuses the byte behind its bound, and knows how many zeros came
// last: at the end of an archive there is a block of them at least, and archive/tar
// takes one that was cut off between two entries for whole.
type boundedReader struct {
	r      io.Reader
	left   int64
	limits Limits
	zeros  int64
	at     string // the entry that is being read, quoted; empty before the first
}

const tarBlock = 512

// ended says whether what was read last may be the end of a tar archive.
func (b *boundedReader) ended() bool { return b.zeros >= tarBlock }

// where says how far the archive was read, for a refusal of what cannot be named.
func (b *boundedReader) where() string {
	if b.at == "" {
		return ""
	}
	return " (in or behind archive entry " + b.at + ")"
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	if b.left < 0 {
		return 0, scafo.Errorf(scafo.CodeResourceLimit, "the artifact is larger than %d bytes once it is decompressed%s", b.limits.Bytes, b.where())
	}
	zeros := int64(n - len(bytes.TrimRight(p[:n], "\x00")))
	if zeros == int64(n) {
		zeros += b.zeros
	}
	b.zeros = zeros
	return n, err
}
