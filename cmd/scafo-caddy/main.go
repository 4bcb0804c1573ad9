// Command scafo-caddy is Caddy with scafo's modules. `scafo-caddy run --node URL`
// serves a fleet without a Caddyfile; every command of Caddy's works beside it.
package main

import (
	"os"
	"slices"
	"strings"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "run" && slices.ContainsFunc(os.Args[2:], ours) {
		os.Exit(run(os.Args[2:]))
	}
	caddycmd.Main()
}

// ours reports whether an argument of run asks for a fleet instead of a Caddyfile.
func ours(arg string) bool {
	return arg == "--node" || strings.HasPrefix(arg, "--node=")
}
