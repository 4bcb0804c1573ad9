// Package publish is `celld-workerd deploy`: it reads a Wrangler project, builds
// it, tries the result, and publishes it in the bucket.
package publish

import (
	"context"
	"io"
)

// Main runs `celld-workerd deploy` with the arguments after `deploy` and returns
// the exit code, 0 or 1. Prose and errors go to stderr; with --json, one object
// goes to stdout.
func Main(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	return 1
}
