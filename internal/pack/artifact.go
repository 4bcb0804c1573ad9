package pack

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"
)

// window is the memory that unpacking takes; nodes take up to 8 MiB.
const window = 1 << 20

// epoch is when every file of an artifact was made: the same tree is the same bytes.
var epoch = time.Unix(0, 0).UTC()

// File is one file of an artifact.
type File struct {
	Path   string // in the artifact, with slashes
	Size   int64
	Source string // where it is; empty for one that was made here
	body   []byte
}

func (f *File) open() (io.ReadCloser, error) {
	if f.Source == "" {
		return io.NopCloser(bytes.NewReader(f.body)), nil
	}
	return os.Open(f.Source)
}

// WriteTo writes the artifact: a tar archive under zstd, of nothing but paths and
// contents. It returns how many bytes it wrote.
func (p *Package) WriteTo(w io.Writer) (int64, error) {
	counted := &counter{w: w}
	z, err := zstd.NewWriter(counted, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window))
	if err != nil {
		return 0, err
	}
	t := tar.NewWriter(z)
	for _, d := range p.dirs {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755, ModTime: epoch, Format: tar.FormatPAX}); err != nil {
			_ = z.Close()
			return counted.n, fmt.Errorf("%s: %w", d, err)
		}
	}
	for i := range p.Files {
		if err := p.Files[i].write(t); err != nil {
			_ = z.Close() // gives its memory back
			return counted.n, err
		}
	}
	if err := t.Close(); err != nil {
		_ = z.Close()
		return counted.n, err
	}
	return counted.n, z.Close()
}

func (f *File) write(t *tar.Writer) error {
	r, err := f.open()
	if err != nil {
		return err
	}
	defer r.Close()
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Size: f.Size, Mode: 0o644, ModTime: epoch, Format: tar.FormatPAX}
	if err := t.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	// One byte more shows a file that grew.
	n, err := io.Copy(t, io.LimitReader(r, f.Size))
	if err == nil {
		var more [1]byte
		if m, _ := r.Read(more[:]); n != f.Size || m > 0 {
			err = fmt.Errorf("it changed while it was packed")
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	return nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
