package main

import (
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/spf13/cobra"

	"github.com/scafo/scafo/docs"
)

func newOpenAPI(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "openapi", Short: "Print the OpenAPI description of the node API", Args: cobra.NoArgs,
		Long: "Print the OpenAPI 3.1 description of the node API, in YAML; with --json, in JSON. No node serves\nit: every route but health asks for a token.",
		RunE: func(c *cobra.Command, _ []string) error {
			if g.json {
				doc, err := yaml.Parser().Unmarshal(docs.OpenAPI)
				if err != nil {
					return err
				}
				return printJSON(c.OutOrStdout(), doc)
			}
			_, err := c.OutOrStdout().Write(docs.OpenAPI)
			return err
		},
	}
}
