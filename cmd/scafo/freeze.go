package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
)

func newFreeze(g *globals) *cobra.Command {
	freeze := &cobra.Command{Use: "freeze", Short: "Stop deploys for the whole fleet", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	var reason string
	on := &cobra.Command{
		Use: "on", Short: "Freeze deploys: every node refuses them until the freeze is lifted", Args: cobra.NoArgs,
		Long: "Freeze deploys: every node refuses them, with the reason, until the freeze is lifted. What is\nserved goes on. Freezing twice is one freeze: the first one stays as it is.",
		RunE: func(c *cobra.Command, _ []string) error {
			reason, err := scafo.ParseFreezeReason(reason)
			if err != nil {
				return usageError{err}
			}
			return g.with(func(cl *client.Client) error {
				a, err := cl.FreezeDeploys(c.Context(), reason)
				if err != nil {
					return err
				}
				if g.json {
					return printJSON(c.OutOrStdout(), a)
				}
				if !a.Created {
					fmt.Fprintln(c.OutOrStdout(), "deploys were frozen already; that freeze stays as it is")
				}
				showFreeze(c.OutOrStdout(), a.Freeze)
				return nil
			})
		},
	}
	on.Flags().StringVar(&reason, "reason", "", fmt.Sprintf("why, in one line of at most %d characters: every refused deploy says it", scafo.MaxFreezeReason))
	off := &cobra.Command{
		Use: "off", Short: "Lift the freeze: deploys are taken again", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.with(func(cl *client.Client) error {
				lifted, err := cl.LiftFreeze(c.Context())
				if err != nil {
					return err
				}
				if g.json {
					return printJSON(c.OutOrStdout(), map[string]bool{"lifted": lifted})
				}
				if lifted {
					fmt.Fprintln(c.OutOrStdout(), "deploys are taken again")
				} else {
					fmt.Fprintln(c.OutOrStdout(), "deploys were not frozen")
				}
				return nil
			})
		},
	}
	show := &cobra.Command{
		Use: "show", Short: "Show whether deploys are frozen, by whom and why", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.with(func(cl *client.Client) error {
				f, err := cl.Freeze(c.Context())
				frozen := err == nil
				if err != nil && scafo.CodeOf(err) != scafo.CodeNotFound {
					return err
				}
				switch {
				case g.json && frozen:
					return printJSON(c.OutOrStdout(), map[string]any{"freeze": f})
				case g.json:
					return printJSON(c.OutOrStdout(), map[string]any{"freeze": nil})
				case frozen:
					showFreeze(c.OutOrStdout(), f)
				default:
					fmt.Fprintln(c.OutOrStdout(), "deploys are not frozen")
				}
				return nil
			})
		},
	}
	for _, c := range []*cobra.Command{on, off, show} {
		g.addTarget(c)
		freeze.AddCommand(c)
	}
	return freeze
}

func showFreeze(w io.Writer, f scafo.Freeze) {
	fmt.Fprintf(w, "frozen  %s by %s\n", f.FrozenAt.UTC().Format(time.RFC3339), f.By)
	if f.Reason != "" {
		fmt.Fprintf(w, "reason  %s\n", f.Reason)
	}
}
