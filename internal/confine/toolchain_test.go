package confine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestToolchain(t *testing.T) {
	base := t.TempDir()
	program := func(name string) string {
		p := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	celld := program("opt/celld/bin/celld")
	esbuild := program("npm/node_modules/esbuild/bin/esbuild")
	workerd := program("elsewhere/node_modules/@cloudflare/workerd-linux-64/bin/workerd")
	for link, target := range map[string]string{"bin/celld": celld, "bin/esbuild": esbuild} {
		p := filepath.Join(base, link)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, p); err != nil {
			t.Fatal(err)
		}
	}
	got := Toolchain(filepath.Join(base, "bin/celld"), []string{
		"PATH=" + filepath.Join(base, "bin") + ":/missing", "CELLD_WORKERD_BIN=" + workerd, "SSL_CERT_FILE=/certs/ca.pem", "SECRET=/secret",
	})
	for _, want := range []string{
		filepath.Join(base, "bin/celld"), celld, filepath.Join(base, "opt/celld/node_modules/@cloudflare"),
		filepath.Join(base, "bin/esbuild"), esbuild, filepath.Join(base, "npm/node_modules"),
		workerd, filepath.Join(base, "elsewhere/node_modules"), "/certs/ca.pem", "/usr/lib", "/dev/urandom",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not in the toolchain", want)
		}
	}
	for _, p := range got {
		for _, never := range []string{"/", "/etc", "/etc/ssl", "/etc/ssl/private", "/proc", "/proc/self", "/sys", "/home", "/root", "/var", "/usr", "/usr/local", "/tmp", "/secret", base, filepath.Join(base, "bin"), filepath.Dir(celld)} {
			if filepath.Clean(p) == never {
				t.Errorf("%s is in the toolchain", p)
			}
		}
		if strings.HasPrefix(p, "/proc") {
			t.Errorf("%s is in the toolchain", p)
		}
	}
}
