package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/scafo/scafo/internal/workerd/workerdtest"
)

func TestLocate(t *testing.T) {
	root := t.TempDir()
	program := func(path string) string {
		t.Helper()
		p := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	want := func(e Env, path string) {
		t.Helper()
		got, err := Locate(e, filepath.Join(root, "bin/celld-workerd"))
		if (err == nil) != (path != "") || got != path {
			t.Errorf("%q %v, want %q", got, err, path)
		}
	}
	t.Setenv("PATH", filepath.Join(root, "path"))
	want(Env{}, "")
	onPath := program("path/workerd")
	want(Env{}, onPath)
	npm := program("node_modules/@cloudflare/workerd-linux-64/bin/workerd")
	want(Env{}, npm)
	beside := program("bin/workerd")
	want(Env{}, beside)
	named := program("elsewhere")
	want(Env{WorkerdBin: named}, named)
	want(Env{WorkerdBin: root}, "")
	want(Env{WorkerdBin: filepath.Join(root, "none")}, "")
}

func TestWorkerdVersion(t *testing.T) {
	real, err := WorkerdVersion(t.Context(), workerdtest.Path(t))
	if err != nil || len(real) < len("1.20261117") || real[:2] != "1." {
		t.Fatalf("%q %v", real, err)
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "bin/workerd")
	for _, c := range []struct{ prints, pkg, want string }{
		{"workerd 2026-11-17", "", "1.20261117"},
		{"workerd 2026-11-17", `{"name":"@cloudflare/workerd-linux-64","version":"1.20261117.1"}`, "1.20261117.1"},
		{"workerd 2026-11-17", `{"name":"@cloudflare/workerd-linux-64","version":"1.20261118.1"}`, "1.20261117"},
		{"workerd 2026-11-17", `{"name":"other","version":"1.20261117.1"}`, "1.20261117"},
		{"node v22", "", ""},
	} {
		if err := os.MkdirAll(filepath.Dir(script), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(script, []byte("#!/bin/sh\necho '"+c.prints+"'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		pkg := filepath.Join(dir, "package.json")
		_ = os.Remove(pkg)
		if c.pkg != "" {
			if err := os.WriteFile(pkg, []byte(c.pkg), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := WorkerdVersion(t.Context(), script)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q %v", c, got, err)
		}
	}
}
