package history

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/embedded/embeddedtest"
	"github.com/scafo/scafo/internal/bucket/s3"
)

var (
	histories = flag.Int("histories", 32, "how many histories are recorded and checked")
	only      = flag.String("subject", "", "the one subject of the histories; empty: all in turns")
	firstSeed = flag.Uint64("seed", 1, "seed of the first history; each has the next one")
)

func TestMain(m *testing.M) {
	embeddedtest.Main()
	os.Exit(m.Run())
}

// open opens the store under a prefix, with connections of its own.
func open(ctx context.Context, e embedded.Endpoint, prefix string) (*s3.Store, error) {
	return s3.Open(ctx, s3.Config{
		Bucket: e.Bucket, Prefix: prefix, Endpoint: e.URL, Region: e.Region,
		Credentials: credentials.NewStaticCredentialsProvider(e.AccessKey, e.SecretKey, ""),
	})
}
