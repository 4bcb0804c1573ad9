// Command scafo is the node daemon and the command line of a fleet.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
)

// Exit codes: 0, the operation failed, the command line is wrong.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out := &answered{w: stdout}
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var silent silentError
	if !errors.As(err, &silent) {
		fmt.Fprintln(stderr, "scafo: "+explain(err))
	}
	if wantsJSON(args) && !out.any {
		_ = printJSON(out, failureOf(err)) // standard output may be closed
	}
	if isUsage(err) {
		return exitUsage
	}
	return exitFailed
}

// isUsage reports whether the command line was wrong. Cobra's own refusals of unknown
// commands and of missing flags are plain errors.
func isUsage(err error) bool {
	if errors.As(err, new(usageError)) {
		return true
	}
	for _, begins := range []string{"required flag(s) ", "unknown command ", "if any flags in the group ", "at least one of the flags in the group "} {
		if err != nil && strings.HasPrefix(err.Error(), begins) {
			return true
		}
	}
	return false
}

// silentError ends a command whose output has said what failed.
type silentError struct{ error }

// explain is an error as a person should read it: what was refused, and what to
// do where that is known.
func explain(err error) string {
	var known advised
	if errors.As(err, &known) {
		return explain(known.error) + "\n" + printable(known.advice)
	}
	var e *scafo.Error
	if !errors.As(err, &e) {
		return printable(err.Error())
	}
	text := printable(e.Detail)
	if text == "" {
		text = e.Title
	}
	if text == "" {
		text = "refused"
	}
	text += " (" + string(e.Code) + ")"
	if a, ok := client.AnswerOf(err); ok {
		if a.Reference != "" {
			text += "; the node's log has reference " + a.Reference
		}
		if e.Code == scafo.CodeAuthInvalid && a.Clock.Abs().Seconds() > maxClockNote {
			text += fmt.Sprintf("; this machine's clock and the node's differ by %s", a.Clock.Abs().Round(1e9))
		}
	}
	return text
}

// maxClockNote is the difference of clocks, in seconds, beyond which a refused
// token may be the clock's fault: the skew that a node tolerates.
const maxClockNote = 25

func newRoot() *cobra.Command {
	g := &globals{}
	root := &cobra.Command{
		Use:           "scafo",
		Short:         "Run Workers and Durable Objects on your own machines, with a bucket between them",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.Version = scafo.Version
	root.SetVersionTemplate("scafo {{.Version}}\n") // as `scafo version` has it
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().BoolVar(&g.json, "json", false, "print one JSON object")
	root.AddCommand(
		newUp(g), newSail(), newInit(g), newDeploy(g), newStatus(g), newApps(g), newDomains(g), newDeploys(g), newLogs(g),
		newOperators(g), newFreeze(g), newTrust(g), newNodes(g, openConfigured), newHealth(g), newRoutes(g), newStorage(g),
		newToken(g), newBucket(), newDoctor(g), newConfig(g), newOpenAPI(g), newVersion(g), newCompletion(root),
	)
	root.SetHelpCommand(newHelp(root))
	wrapArgs(root)
	return root
}

// newHelp is the help for a command that is named; one that there is not is a mistake.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Say what a command does", Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil {
				return usageError{err}
			}
			if len(rest) > 0 && c.HasSubCommands() {
				return noCommand(c, rest[0])
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	}
}

// noCommand says that a group has no command of a name, and which it may have been.
func noCommand(group *cobra.Command, name string) error {
	group.SuggestionsMinimumDistance = 2
	meant := ""
	if near := group.SuggestionsFor(name); len(near) > 0 {
		meant = "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usagef("%s has no command %q%s\n`%s --help` lists them", group.CommandPath(), name, meant, group.CommandPath())
}

// wrapArgs makes mistakes in a command's arguments usage errors.
func wrapArgs(c *cobra.Command) {
	if c.HasSubCommands() {
		c.Args = func(c *cobra.Command, args []string) error {
			if len(args) > 0 && args[0] != "help" {
				return noCommand(c, args[0])
			}
			return nil // its own help
		}
	} else if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usageError{fmt.Errorf("%w\nusage: %s", err, c.UseLine())}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}
