// Package workerdtest finds the real workerd for tests.
package workerdtest

import (
	"os"
	"path/filepath"
	"testing"
)

const program = "node_modules/@cloudflare/workerd-linux-64/bin/workerd"

// Path is the workerd to test with: SCAFO_WORKERD, or what `make setup` installed
// in the module's root. A test without one fails: it is never skipped in silence.
func Path(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("SCAFO_WORKERD"); p != "" {
		return p
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = parent
	}
	p := filepath.Join(dir, program)
	if _, err := os.Stat(p); err != nil {
		t.Fatal("no workerd: run make setup")
	}
	return p
}
