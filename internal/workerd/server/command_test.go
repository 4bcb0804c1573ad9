package server

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCommandLines(t *testing.T) {
	c, err := ParseCommand(strings.Fields("--bucket s3://name/a/b/ --endpoint http://127.0.0.1:9000 --region eu --listen 127.0.0.1:1 --internal-listen [::1]:2 --advertise node-a:3 --trust-forwarded-headers"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Verb != Serve || c.Bucket != "name" || c.Prefix != "a/b" || c.Endpoint != "http://127.0.0.1:9000" || c.Region != "eu" ||
		c.Listen.String() != "127.0.0.1:1" || c.InternalListen.String() != "[::1]:2" || c.Advertise != "node-a:3" || !c.TrustForwarded || c.UnsafePublic {
		t.Errorf("%+v", c)
	}
	c, err = ParseCommand([]string{"--bucket", "name"})
	if err != nil || c.Listen.String() != DefaultListen || c.InternalListen.String() != DefaultInternalListen || c.Prefix != "" {
		t.Errorf("%+v %v", c, err)
	}
	c, err = ParseCommand(strings.Fields("diagnose --json --bucket b --listen 127.0.0.1:0"))
	if err != nil || c.Verb != Diagnose || !c.JSON {
		t.Errorf("%+v %v", c, err)
	}
	c, err = ParseCommand(strings.Fields("deploy dir --bucket b --json"))
	if err != nil || c.Verb != Deploy || strings.Join(c.Rest, " ") != "dir --bucket b --json" {
		t.Errorf("%+v %v", c, err)
	}
	if c, err = ParseCommand([]string{"--version"}); err != nil || c.Verb != Version {
		t.Errorf("%+v %v", c, err)
	}
}

func TestRefusedCommandLines(t *testing.T) {
	for line, part := range map[string]string{
		"":                                    "--bucket is missing",
		"--bucket":                            "--bucket needs a value",
		"--bucket --listen":                   "--bucket needs a value",
		"--bucket=b":                          "unexpected argument",
		"--bucket b --nope":                   `unexpected argument "--nope"`,
		"--bucket b extra":                    `unexpected argument "extra"`,
		"serve --bucket b":                    `unexpected argument "serve"`,
		"--bucket b --bucket c":               "twice",
		"--bucket b --json":                   `unexpected argument "--json"`,
		"--bucket gs://b":                     "only s3://",
		"--bucket s3:///x":                    "no bucket's name",
		"--bucket b/x/../y":                   "segment",
		"--bucket b --endpoint store:9":       "http",
		"--bucket b --listen :8080":           "literal IP:PORT",
		"--bucket b --listen localhost:1":     "literal IP:PORT",
		"--bucket b --listen 127.0.0.1":       "literal IP:PORT",
		"--bucket b --listen 127.0.0.1:70000": "literal IP:PORT",
		"--bucket b --listen 0.0.0.0:1":       "--internal-listen",
		"--bucket b --listen 10.0.0.1:1":      "--internal-listen",
		"--bucket b --advertise 10.0.0.1:1":   "--internal-listen",
		"--bucket b --internal-listen 10.0.0.1:1 --advertise 8.8.8.8:1":        "public address",
		"--bucket b --internal-listen 10.0.0.1:1 --advertise [2001:4860::1]:1": "public address",
		"--bucket b --internal-listen 8.8.8.8:1":                               "public address",
		"--bucket b --internal-listen 10.0.0.1:1 --advertise 0.0.0.0:1":        "nobody can reach",
		"--bucket b --internal-listen 10.0.0.1:1 --advertise host":             "HOST:PORT",
		"--bucket b --internal-listen 10.0.0.1:1 --advertise host:0":           "HOST:PORT",
		"--bucket b --internal-listen 10.0.0.1:1 --advertise http://host:1":    "HOST:PORT",
		"--version now": "unexpected argument",
	} {
		if _, err := ParseCommand(strings.Fields(line)); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %q", line, err, part)
		}
	}
	for _, line := range []string{
		"--bucket b --internal-listen 10.0.0.1:1 --advertise 8.8.8.8:1 --unsafe-public-advertise",
		"--bucket b --internal-listen 10.0.0.1:1 --advertise 100.64.0.1:1",
		"--bucket b --internal-listen 10.0.0.1:1 --advertise [fd00::1]:1",
		"--bucket b --listen 0.0.0.0:1 --internal-listen 127.0.0.1:0",
		"--bucket b --listen [::1]:1",
	} {
		if _, err := ParseCommand(strings.Fields(line)); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestAnyCommandLineIsAnswered(t *testing.T) {
	words := append(strings.Fields("--bucket --endpoint --listen --internal-listen --advertise --region b s3://b/c 127.0.0.1:0 0.0.0.0:0 host:1 diagnose deploy --json --version"), "", "--", "[", "s3://")
	rapid.Check(t, func(t *rapid.T) {
		args := rapid.SliceOf(rapid.OneOf(rapid.SampledFrom(words), rapid.String())).Draw(t, "args")
		if c, err := ParseCommand(args); err == nil && (c.Verb == Serve || c.Verb == Diagnose) && (c.Bucket == "" || !c.Listen.IsValid() || !c.InternalListen.IsValid()) {
			t.Fatalf("%q was taken: %+v", args, c)
		}
	})
}

func TestEnvironment(t *testing.T) {
	e, err := ParseEnv([]string{
		"CELLD_NODE=n", "CELLD_WATCH=/w", "CELLD_ASSET_CACHE_DIR=/a", "CELLD_DURABILITY=bucket", "CELLD_TTL_MS=10000",
		"CELLD_DEPLOY_POLL_S=3600", "CELLD_DEPLOY_MAX_AGE_S=5", "CELLD_READY_FLEET_GATE_MS=0", "CELLD_SHUTDOWN_TOTAL_MS=1500",
		"CELLD_MAX_RSS_MB=256", "CELLD_ESBUILD=/x", "AWS_REGION=eu", "PATH=/bin", "CELLD_LATER=1",
	})
	if err != nil {
		t.Fatal(err)
	}
	if e.Node != "n" || e.Watch != "/w" || e.AssetCache != "/a" || e.DeployPoll != time.Hour || e.DeployMaxAge != 5*time.Second ||
		e.ShutdownTotal != 1500*time.Millisecond || e.MaxRSS != 256<<20 || e.Region != "eu" {
		t.Errorf("%+v", e)
	}
	if e, err := ParseEnv(nil); err != nil || e.DeployPoll != 30*time.Second || e.DeployMaxAge != time.Minute || e.ShutdownTotal != 40*time.Second || e.MaxRSS != 0 {
		t.Errorf("%+v %v", e, err)
	}
	for _, bad := range []string{
		"CELLD_VAR_X=1", "CELLD_VARS_FILE=", "CELLD_STORAGE_PROBE=0", "CELLD_SHUTDOWN_DRAIN_MS=1", "CELLD_DRAIN_TOKEN_WAIT_MS=1", "CELLD_LOG_LEVEL=x",
		"CELLD_TTL_MS=ten", "CELLD_DEPLOY_POLL_S=-1", "CELLD_DEPLOY_POLL_S=1.5", "CELLD_MAX_RSS_MB=9999999999999999999", "CELLD_DURABILITY=none",
	} {
		name, _, _ := strings.Cut(bad, "=")
		if _, err := ParseEnv([]string{bad}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestTheEnvironmentComesFirst(t *testing.T) {
	deploy := func(context.Context, []string, []string, io.Writer, io.Writer) int { t.Error("it deployed"); return 0 }
	for _, args := range [][]string{{"deploy"}, {"--version"}, {"diagnose"}, {"--bucket", "b"}, {"--help"}} {
		var out, errs bytes.Buffer
		if code := Main(t.Context(), args, []string{"CELLD_VAR_A=1"}, &out, &errs, deploy); code != 1 || !strings.Contains(errs.String(), "CELLD_VAR_A") || out.Len() > 0 {
			t.Errorf("%v: %d %q %q", args, code, &out, &errs)
		}
	}
}

func TestDeployIsDispatched(t *testing.T) {
	var out, errs bytes.Buffer
	code := Main(t.Context(), []string{"deploy", "x"}, []string{"A=b"}, &out, &errs, func(_ context.Context, args, env []string, _, _ io.Writer) int {
		if len(args) != 1 || args[0] != "x" || len(env) != 1 {
			t.Errorf("%v %v", args, env)
		}
		return 7
	})
	if code != 7 {
		t.Error(code)
	}
}
