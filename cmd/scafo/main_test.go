package main

import (
	"context"
	"os"
	"strings"
	"testing"
)

// Commands start the program that they are a part of, to serve the embedded store for
// one. In a test that is the test's own binary, which then has to be that program: it
// would run the tests again, and they would start it again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(execute(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}
