package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3api"

	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/embedded/server"
	"github.com/scafo/scafo/internal/bucket/s3"
)

// The test binary is also the programs that the tests start: the environment
// says which.
const (
	roleVariable  = "SCAFO_TEST_ROLE"
	stateVariable = "SCAFO_TEST_STATE"

	roleServe  = "serve"  // what `scafo bucket` does
	roleEnsure = "ensure" // a node: ensures the bucket, says so, and waits
	rolePlain  = "plain"  // versitygw without our wrapper
)

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	dir := os.Getenv(stateVariable)
	var err error
	switch role := os.Getenv(roleVariable); role {
	case "":
		os.Exit(m.Run())
	case roleServe:
		err = server.Serve(ctx, dir, server.Options{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	case roleEnsure:
		err = ensureAndWait(ctx, dir)
	case rolePlain:
		err = servePlain(ctx, dir)
	default:
		err = fmt.Errorf("no role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func ensureAndWait(ctx context.Context, dir string) error {
	_, h, err := embedded.Ensure(ctx, dir, os.Args[0], ensureOptions(dir))
	if err != nil {
		return err
	}
	fmt.Println(h.PID(), h.Started())
	<-ctx.Done()
	return nil
}

func ensureOptions(dir string) embedded.Options {
	return embedded.Options{
		Args: []string{"-test.run=^$"},
		Env:  []string{roleVariable + "=" + roleServe, stateVariable + "=" + dir},
	}
}

// The plain server's credential.
const plainAccess, plainSecret, plainBucket = "plain", "plain-secret", "plain"

// listening begins the line that says where it listens.
const listening = "listening at "

func servePlain(ctx context.Context, dir string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	if err := os.Mkdir(dir+"/"+plainBucket, 0o700); err != nil {
		return err
	}
	be, err := posix.New(dir, meta.XattrMeta{}, posix.PosixOpts{Concurrency: 64, ForceNoTmpFile: true})
	if err != nil {
		return err
	}
	return embedgw.RunVersityGW(ctx, be, &embedgw.Config{
		RootUserAccess: plainAccess, RootUserSecret: plainSecret, Ports: []string{address},
		MaxConnections: 1024, MaxRequests: 512, MultipartMaxParts: 10000, KeepAlive: true, Quiet: true,
		S3Options: []s3api.Option{s3api.WithOnListen(func() { fmt.Println(listening + address) })},
	})
}

// program starts the test binary in a role, and kills it at the end.
func program(t *testing.T, role, dir string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command(self(t), "-test.run=^$") //nolint:gosec // this very program
	cmd.Env = append(os.Environ(), roleVariable+"="+role, stateVariable+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, out
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// ensure runs the bucket of a state directory, and ends it with the test.
func ensure(t *testing.T, dir string) (embedded.Endpoint, *embedded.Handle) {
	t.Helper()
	e, h, err := embedded.Ensure(t.Context(), dir, self(t), ensureOptions(dir))
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
	return e, h
}

var prefixes atomic.Int64

// open opens the store under a prefix of its own.
func open(t *testing.T, e embedded.Endpoint) *s3.Store {
	t.Helper()
	s, err := s3.Open(t.Context(), s3.Config{
		Bucket: e.Bucket, Prefix: fmt.Sprintf("test/%d", prefixes.Add(1)), Endpoint: e.URL, Region: e.Region,
		Credentials: credentials.NewStaticCredentialsProvider(e.AccessKey, e.SecretKey, ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// raw is the SDK's own client, for what the driver does not do.
func raw(e embedded.Endpoint) *awss3.Client {
	return awss3.New(awss3.Options{
		Region: e.Region, BaseEndpoint: aws.String(e.URL), UsePathStyle: true, Retryer: aws.NopRetryer{},
		Credentials:                credentials.NewStaticCredentialsProvider(e.AccessKey, e.SecretKey, ""),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
	})
}

// plain runs versitygw without our wrapper, as a stranger's store.
func plain(t *testing.T) embedded.Endpoint {
	t.Helper()
	_, out := program(t, rolePlain, t.TempDir())
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if address, ok := strings.CutPrefix(lines.Text(), listening); ok {
			return embedded.Endpoint{
				URL: "http://" + address, Bucket: plainBucket, Region: "us-east-1",
				AccessKey: plainAccess, SecretKey: plainSecret,
			}
		}
	}
	t.Fatalf("the server does not listen: %v", lines.Err())
	return embedded.Endpoint{}
}
