package main

import (
	"github.com/spf13/cobra"
)

func newDeploy(g *globals) *cobra.Command {
	return &cobra.Command{Use: "deploy DIR", Hidden: true}
}
