// Package embeddedtest runs the embedded store for tests: the test binary, started once
// more, is its process.
package embeddedtest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/embedded/server"
)

const (
	// stateVariable makes a test binary the store over that directory.
	stateVariable = "SCAFO_TEST_STATE"
	// killTime bounds how long the store may take to be gone after a test.
	killTime = 20 * time.Second
)

// Main is what TestMain calls before anything else: in a process that Start started it
// serves the store and ends the process, and elsewhere it does nothing.
func Main() {
	dir := os.Getenv(stateVariable)
	if dir == "" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := server.Serve(ctx, dir, server.Options{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Start runs a store over a directory until the test ends.
func Start(t testing.TB, dir string) embedded.Endpoint {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e, h, err := embedded.Ensure(t.Context(), dir, self, embedded.Options{
		Args: []string{"-test.run=^$"}, Env: []string{stateVariable + "=" + dir},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), killTime)
		defer cancel()
		if err := h.Kill(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}
