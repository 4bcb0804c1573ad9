package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/scafo/scafo/internal/config"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md anew")

const reference = "../../docs/reference/cli.md"

func render(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(`# Command line

Standard output is a command's answer, standard error everything else. Exit codes:
0, 1 (the operation failed), 2 (the command line is wrong). Every command takes
` + "`--json`" + ` and then prints one JSON object: its answer, or, where it failed without
one, ` + "`detail`" + ` with the ` + "`code`" + ` of [errors](errors.md) where there is one. ` + "`logs`" + ` prints one a line. Commands
that call a node take the fleet from the profile (` + "`SCAFO_PROFILE`" + `, else
` + "`scafo/profile.json`" + ` in the user's configuration directory), which ` + "`init`" + ` and
` + "`up`" + ` leave there.

This page is made from the commands themselves.
`)
	node := map[string]bool{}
	for _, k := range config.Keys() {
		node[k.Flag()] = true
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" {
			return
		}
		if c.HasParent() && (c.Runnable() && !c.HasSubCommands()) {
			fmt.Fprintf(&b, "\n## `%s`\n\n%s.\n", strings.TrimSuffix(c.UseLine(), " [flags]"), strings.TrimSuffix(c.Short, "."))
			if c.Long != "" {
				fmt.Fprintf(&b, "\n```text\n%s\n```\n", c.Long)
			}
			var rows []string
			takesConfig := false
			c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
				if node[f.Name] {
					takesConfig = true
					return
				}
				if f.Name == "help" || f.Hidden {
					return
				}
				name := "--" + f.Name
				if f.Shorthand != "" {
					name = "-" + f.Shorthand + ", " + name
				}
				rows = append(rows, fmt.Sprintf("| `%s` | %s |", name, strings.ReplaceAll(f.Usage, "|", "\\|")))
			})
			if len(rows) > 0 {
				b.WriteString("\n| flag | |\n| --- | --- |\n" + strings.Join(rows, "\n") + "\n")
			}
			if takesConfig {
				b.WriteString("\nIt takes every flag of a node's [configuration](config.md) too.\n")
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	return b.String()
}

// The reference says what the commands say. Run with -update to write it anew.
func TestReferenceIsCurrent(t *testing.T) {
	want := render(newRoot())
	if *update {
		if err := os.WriteFile(reference, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the commands say: go test ./cmd/scafo -run Reference -update", reference)
	}
}
