package history

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/embedded/server"
	"github.com/scafo/scafo/internal/bucket/s3"
)

var (
	histories = flag.Int("histories", 32, "how many histories are recorded and checked")
	only      = flag.String("subject", "", "the one subject of the histories; empty: all in turns")
	firstSeed = flag.Uint64("seed", 1, "seed of the first history; each has the next one")
)

// The test binary is the store's server too: the environment says so.
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
	os.Exit(0)
}

// startStore runs an S3 server until the test ends.
func startStore(t *testing.T) embedded.Endpoint {
	t.Helper()
	dir := t.TempDir()
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
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := h.Kill(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

// open opens the store under a prefix, with connections of its own.
func open(ctx context.Context, e embedded.Endpoint, prefix string) (*s3.Store, error) {
	return s3.Open(ctx, s3.Config{
		Bucket: e.Bucket, Prefix: prefix, Endpoint: e.URL, Region: e.Region,
		Credentials: credentials.NewStaticCredentialsProvider(e.AccessKey, e.SecretKey, ""),
	})
}
