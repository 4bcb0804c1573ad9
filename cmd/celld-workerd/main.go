// Command celld-workerd runs one application: celld's command line over
// Cloudflare's workerd.
package main

import (
	"context"
	"os"

	"github.com/scafo/scafo/internal/workerd/publish"
	"github.com/scafo/scafo/internal/workerd/server"
)

func main() {
	os.Exit(server.Main(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr, publish.Main))
}
