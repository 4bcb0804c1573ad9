package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/pipeline"
)

// Commands start the program that they are a part of, to serve the embedded store for
// one. In a test that is the test's own binary, which then has to be that program: it
// would run the tests again, and they would start it again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(execute(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	// These tests deploy to nodes of their own: not with the token of the job they run in.
	for _, name := range []string{"ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", pipeline.TokenVariable, pipeline.FileVariable, "GITLAB_CI"} {
		if err := os.Unsetenv(name); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
