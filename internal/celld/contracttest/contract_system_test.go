//go:build system

package contracttest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/scafo/scafo/internal/bucket/embedded/embeddedtest"
	"github.com/scafo/scafo/internal/celld/contracttest"
	"github.com/scafo/scafo/internal/workerd/workerdtest"
)

func TestMain(m *testing.M) {
	embeddedtest.Main()
	os.Exit(m.Run())
}

// TestContract drives celld-workerd, or the program that CELLD names.
func TestContract(t *testing.T) {
	contracttest.Suite(t, program(t), store(t))
}

func program(t *testing.T) contracttest.Program {
	t.Helper()
	if path := os.Getenv("CELLD"); path != "" {
		p := contracttest.Program{Path: path, Env: map[string]string{}, ShortLease: map[string]string{"CELLD_TTL_MS": "3000"}}
		if esbuild := os.Getenv("CELLD_ESBUILD"); esbuild != "" {
			p.Env["CELLD_ESBUILD"] = esbuild
		}
		return p
	}
	path := filepath.Join(t.TempDir(), "celld-workerd")
	build := exec.Command("go", "build", "-o", path, "github.com/scafo/scafo/cmd/celld-workerd")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return contracttest.Program{Path: path, Env: map[string]string{"CELLD_WORKERD_BIN": workerdtest.Path(t)}}
}

func store(t *testing.T) contracttest.Store {
	t.Helper()
	e := embeddedtest.Start(t, t.TempDir())
	return contracttest.Store{URL: e.URL, Bucket: e.Bucket, Region: e.Region, AccessKey: e.AccessKey, SecretKey: e.SecretKey}
}
