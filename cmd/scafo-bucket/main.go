// Command scafo-bucket serves the embedded store of a state directory as S3, on
// loopback. It is what `scafo bucket` becomes, and a program of its own because the
// server's libraries alone would double the time that `scafo` takes to start.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/scafo/scafo/internal/bucket/embedded/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

// run returns the exit code: 1 when it failed, 2 when the command line is wrong.
func run(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("scafo-bucket", flag.ContinueOnError)
	state := flags.String("state", "", "the state directory")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *state == "" || flags.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "scafo-bucket: --state is required, and nothing beside it is taken")
		return 2
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := server.Serve(ctx, *state, server.Options{Log: log}); err != nil {
		fmt.Fprintln(os.Stderr, "scafo: "+err.Error())
		return 1
	}
	return 0
}
