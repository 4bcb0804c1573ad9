//go:build system

package system

import (
	"fmt"
	"os"
	"testing"

	"github.com/scafo/scafo/internal/paralleltest"
)

func TestMain(m *testing.M) {
	if where := os.Getenv(forwardVariable); where != "" {
		fmt.Fprintln(os.Stderr, forward(where))
		os.Exit(1)
	}
	code := paralleltest.Main(m)
	if dir := esbuildDir.Load(); dir != nil {
		_ = os.RemoveAll(*dir)
	}
	os.Exit(code)
}
