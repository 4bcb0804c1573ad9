// Package server is the body of `scafo bucket`: an S3 server over a directory.
package server

import (
	"context"
	"errors"
	"log/slog"
)

// Options for Serve.
type Options struct {
	Log *slog.Logger
}

// Serve serves the store of the state directory until the context ends.
func Serve(ctx context.Context, stateDir string, o Options) error {
	return errors.New("not written yet")
}
