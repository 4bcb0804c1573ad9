package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// skewed is a store whose clock is ahead of this machine's.
type skewed struct {
	bucket.Bucket
	by time.Duration
}

func (s skewed) Get(ctx context.Context, key string) (*bucket.Object, error) {
	o, err := s.Bucket.Get(ctx, key)
	if o != nil {
		o.Date = time.Now().Add(s.by).Truncate(time.Second) // as HTTP tells it
	}
	return o, err
}

// A clock far off is said, with how far: nobody finds that by a refused token.
func TestDoctorSaysThatTheClockIsOff(t *testing.T) {
	for by, want := range map[time.Duration]struct{ verdict, says string }{
		0:                          {"ok", "agrees"},
		3 * time.Second:            {"ok", "agrees"},
		-3 * time.Second:           {"ok", "agrees"},
		12 * time.Second:           {"warn", "differ by 1"},
		-12 * time.Second:          {"warn", "differ by 1"},
		40 * time.Second:           {"fail", "tokens"},
		-40 * time.Second:          {"fail", "tokens"},
		365 * 24 * time.Hour:       {"fail", "differ by 87"},
		-10 * 365 * 24 * time.Hour: {"fail", "tokens"},
	} {
		b := memory.New()
		f := diagnoseClock(t.Context(), skewed{b, by})
		if f.Check != "clock" || f.Verdict != want.verdict || !strings.Contains(f.Detail, want.says) {
			t.Errorf("%v ahead: %+v", by, f)
		}
		if p, err := b.List(t.Context(), "", bucket.ListOptions{}); err != nil || len(p.Objects) > 0 {
			t.Errorf("%v ahead: the probe is left: %+v %v", by, p, err)
		}
	}
}

// A key file that others can read is used, and said with the way to mend it.
func TestAKeyFileThatOthersCanReadIsSaid(t *testing.T) {
	said := func(mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "key.jwk")
		k, err := keyfile.New("op")
		if err != nil {
			t.Fatal(err)
		}
		if err := keyfile.Save(path, k); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		old := os.Stderr
		os.Stderr = w
		got, err := loadKey(path)
		os.Stderr = old
		w.Close()
		if err != nil || got.ID != "op" {
			t.Fatalf("%v, %+v", err, got)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), path) != strings.Contains(string(b), "chmod 600") {
			t.Errorf("half a warning: %q", b)
		}
		return string(b)
	}
	for _, mode := range []os.FileMode{0o644, 0o640, 0o604} {
		if s := said(mode); !strings.Contains(s, "others can read") {
			t.Errorf("mode %o: %q", mode, s)
		}
	}
	if s := said(0o600); s != "" {
		t.Errorf("a key of one's own: %q", s)
	}
}
