//go:build system

package contracttest_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/embedded/server"
	"github.com/scafo/scafo/internal/celld/contracttest"
	"github.com/scafo/scafo/internal/workerd/workerdtest"
)

// The test binary is also the store's process.
const stateVariable = "SCAFO_TEST_STATE"

func TestMain(m *testing.M) {
	dir := os.Getenv(stateVariable)
	if dir == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := server.Serve(ctx, dir, server.Options{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
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
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	e, h, err := embedded.Ensure(t.Context(), dir, self, embedded.Options{
		Args: []string{"-test.run=^$"}, Env: []string{stateVariable + "=" + dir},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := h.Kill(ctx); err != nil {
			t.Error(err)
		}
	})
	return contracttest.Store{URL: e.URL, Bucket: e.Bucket, Region: e.Region, AccessKey: e.AccessKey, SecretKey: e.SecretKey}
}
