package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/config"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func newVersion(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the release", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if g.json {
				return printJSON(c.OutOrStdout(), map[string]string{"version": scafo.Version})
			}
			fmt.Fprintln(c.OutOrStdout(), "scafo "+scafo.Version)
			return nil
		},
	}
}

func newCompletion(root *cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Print a completion script for a shell",
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(c.OutOrStdout(), true)
			case "zsh":
				return root.GenZshCompletion(c.OutOrStdout())
			default:
				return root.GenFishCompletion(c.OutOrStdout(), true)
			}
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	return c
}

func newToken(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use: "token", Short: "Print one fresh token, for one request",
		Long: "Print one fresh token. It is good for one request within a minute:\n\n  curl -H \"Authorization: Bearer $(scafo token)\" http://127.0.0.1:7420/v1/state",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := g.target()
			if err != nil && g.keyFile == "" {
				return err
			}
			k, err := loadKey(f.Key)
			if err != nil {
				return err
			}
			t, err := k.Token(time.Now())
			if err != nil {
				return err
			}
			if g.json {
				return printJSON(c.OutOrStdout(), map[string]string{"token": t})
			}
			fmt.Fprintln(c.OutOrStdout(), t)
			return nil
		},
	}
	g.addTarget(c)
	return c
}

func newConfig(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use: "config", Short: "Print a node's effective configuration and where each value came from", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := loadConfig(c, nil)
			if err != nil {
				return err
			}
			if g.json {
				return printJSON(c.OutOrStdout(), map[string]any{"file": l.File, "settings": l.Settings()})
			}
			return table(c.OutOrStdout(), "KEY\tVALUE\tFROM", func(row func(string, ...any)) {
				for _, s := range l.Settings() {
					row("%s\t%s\t%s", s.Key, orDash(s.Value), s.Origin)
				}
			})
		},
	}
	addConfig(c)
	return c
}

// addConfig adds a flag for each key of a node's configuration.
func addConfig(c *cobra.Command) {
	c.Flags().String("config", "", "configuration file (default: SCAFO_CONFIG)")
	config.AddFlags(c.Flags())
}

// loadConfig reads a node's configuration as the command's flags and the
// environment have it.
func loadConfig(c *cobra.Command, presets map[string]string) (*config.Loaded, error) {
	file, err := c.Flags().GetString("config")
	if err != nil {
		return nil, err
	}
	l, err := config.Load(config.Sources{Flags: c.Flags(), Env: os.LookupEnv, File: file, Presets: presets})
	if err != nil {
		return nil, usageError{err}
	}
	return l, nil
}
