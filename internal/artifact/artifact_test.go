package artifact

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/scafo/scafo"
)

var wide = Limits{Bytes: 1 << 20, Entries: 100}

func TestReceive(t *testing.T) {
	var got bytes.Buffer
	r, err := Receive(t.Context(), &got, iotest.OneByteReader(strings.NewReader("abc")), wide)
	if err != nil {
		t.Fatal(err)
	}
	// FIPS 180-2, appendix B.1.
	if r.Size != 3 || r.SHA256 != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" || got.String() != "abc" {
		t.Errorf("got %+v, %q", r, got.String())
	}
}

func TestReceiveBounds(t *testing.T) {
	l := Limits{Bytes: 3 * copyBuffer}
	if r, err := Receive(t.Context(), io.Discard, bytes.NewReader(make([]byte, l.Bytes)), l); err != nil || r.Size != l.Bytes {
		t.Errorf("exactly the bound: %+v, %v", r, err)
	}
	var dst bytes.Buffer
	_, err := Receive(t.Context(), &dst, bytes.NewReader(make([]byte, l.Bytes+1)), l)
	if scafo.CodeOf(err) != scafo.CodeResourceLimit {
		t.Errorf("one byte more: %v", err)
	}
	if int64(dst.Len()) > l.Bytes {
		t.Errorf("%d bytes were written", dst.Len())
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestReceiveFailures(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	full := &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	overloaded := scafo.Errorf(scafo.CodeDeployOverloaded, "no room")
	for name, c := range map[string]struct {
		ctx  context.Context
		dst  io.Writer
		body io.Reader
		l    Limits
		code scafo.Code
		is   error
	}{
		"no byte":                  {t.Context(), io.Discard, strings.NewReader(""), wide, scafo.CodeInvalidInput, nil},
		"cut off":                  {t.Context(), io.Discard, io.MultiReader(strings.NewReader("a"), iotest.ErrReader(io.ErrUnexpectedEOF)), wide, scafo.CodeInvalidInput, io.ErrUnexpectedEOF},
		"cut by a caller who left": {ended, io.Discard, iotest.ErrReader(io.ErrUnexpectedEOF), wide, scafo.CodeInvalidInput, io.ErrUnexpectedEOF},
		"ended, and late":          {ended, io.Discard, iotest.ErrReader(os.ErrDeadlineExceeded), wide, scafo.CodeInternal, context.Canceled},
		"late":                     {t.Context(), io.Discard, iotest.ErrReader(os.ErrDeadlineExceeded), wide, scafo.CodeInternal, context.DeadlineExceeded},
		"ended":                    {ended, io.Discard, strings.NewReader("a"), wide, scafo.CodeInternal, context.Canceled},
		"full disk":                {t.Context(), failingWriter{full}, strings.NewReader("a"), wide, scafo.CodeDeployOverloaded, syscall.ENOSPC},
		"full quota":               {t.Context(), failingWriter{syscall.EDQUOT}, strings.NewReader("a"), wide, scafo.CodeDeployOverloaded, syscall.EDQUOT},
		"broken disk":              {t.Context(), failingWriter{syscall.EIO}, strings.NewReader("a"), wide, scafo.CodeInternal, syscall.EIO},
		"nothing taken":            {t.Context(), io.Discard, strings.NewReader("a"), Limits{Bytes: 9, Take: func(int64) error { return overloaded }}, scafo.CodeDeployOverloaded, overloaded},
	} {
		_, err := Receive(c.ctx, c.dst, c.body, c.l)
		if scafo.CodeOf(err) != c.code || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFindConfig(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		want  string
		code  scafo.Code
		says  string
	}{
		"jsonc":     {files: []string{"wrangler.jsonc"}, want: "wrangler.jsonc"},
		"json":      {files: []string{"wrangler.json", "sub/wrangler.jsonc"}, want: "wrangler.json"},
		"both":      {files: []string{"wrangler.json", "wrangler.jsonc"}, want: "wrangler.jsonc"},
		"neither":   {files: []string{"sub/wrangler.json"}, code: scafo.CodeInvalidInput, says: "neither"},
		"toml":      {files: []string{"wrangler.toml"}, code: scafo.CodeInvalidInput, says: "wrangler.toml"},
		"directory": {files: []string{"wrangler.jsonc/x", "wrangler.json"}, code: scafo.CodeInvalidInput, says: "no file"},
	} {
		dir := t.TempDir()
		for _, f := range c.files {
			writeFile(t, dir, f, "{}")
		}
		got, err := FindConfig(dir)
		if got != c.want || scafo.CodeOf(err) != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
