package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo/internal/bucket/embedded/server"
	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/node"
)

func newBucket() *cobra.Command {
	var state string
	c := &cobra.Command{
		Use: "bucket", Short: "Serve the embedded store of a state directory, on loopback",
		Long: "Serve a directory below the state directory as an S3 store on loopback. `scafo sail` and\n`scafo up` start this by themselves where no bucket is configured.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			log := node.Logger(config.Log{Level: "info", Format: "json"}, os.Stderr)
			return server.Serve(c.Context(), state, server.Options{Log: log})
		},
	}
	c.Flags().StringVar(&state, "state", "", "the state directory")
	if err := c.MarkFlagRequired("state"); err != nil {
		panic(err) // the flag is defined above
	}
	return c
}
