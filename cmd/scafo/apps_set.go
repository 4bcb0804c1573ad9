package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
)

// with calls the fleet that the flags name.
func (g *globals) with(do func(cl *client.Client) error) error {
	cl, _, err := g.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	return do(cl)
}

// setter is a command that changes one thing of an application, whose name is its
// first argument.
type setter struct {
	use, short, long string
	args             cobra.PositionalArgs
	// parse reads what follows the name: a mistake there is one of usage.
	parse func(args []string) (setCall, error)
	// said is what a person reads when it is done.
	said func(a scafo.Application) string
}

type setCall = func(ctx context.Context, cl *client.Client, name string) (scafo.Application, error)

// plain is the parse of a setter that takes the name alone.
func plain(call func(cl *client.Client, ctx context.Context, name string) (scafo.Application, error)) func([]string) (setCall, error) {
	return func([]string) (setCall, error) {
		return func(ctx context.Context, cl *client.Client, name string) (scafo.Application, error) {
			return call(cl, ctx, name)
		}, nil
	}
}

func newAppsSet(g *globals) []*cobra.Command {
	var clearLabels, clearSelector bool
	label := g.setter(setter{
		use: "label NAME KEY=VALUE...", short: "Replace all labels of an application", args: cobra.MinimumNArgs(1),
		long: "Replace all labels of an application: those that are not given are gone. Labels belong to the\nfleet's admins, mean nothing to scafo, and are not shown to other operators.",
		parse: func(args []string) (setCall, error) {
			labels, err := parsePairs(args, clearLabels)
			return func(ctx context.Context, cl *client.Client, name string) (scafo.Application, error) {
				return cl.SetLabels(ctx, name, labels)
			}, err
		},
		said: func(a scafo.Application) string {
			return fmt.Sprintf("%s has the labels %s", a.Name, orDash(pairs(a.Labels)))
		},
	})
	label.Flags().BoolVar(&clearLabels, "clear", false, "take all labels away")
	choose := g.setter(setter{
		use: "select NAME KEY=VALUE...", short: "Set which labels a node must have to run an application", args: cobra.MinimumNArgs(1),
		long: "Set which labels a node must have to run an application; it replaces what was set. Where no\nnode has them, `scafo status` lists the application as unplaced.",
		parse: func(args []string) (setCall, error) {
			selector, err := parsePairs(args, clearSelector)
			return func(ctx context.Context, cl *client.Client, name string) (scafo.Application, error) {
				return cl.SetSelector(ctx, name, selector)
			}, err
		},
		said: func(a scafo.Application) string {
			if len(a.Selector) == 0 {
				return a.Name + " runs on any node"
			}
			return fmt.Sprintf("%s runs on nodes with %s", a.Name, pairs(a.Selector))
		},
	})
	choose.Flags().BoolVar(&clearSelector, "clear", false, "lift the constraint: any node will do")
	return []*cobra.Command{
		g.setter(setter{
			use: "block NAME", short: "Stop an application, as an admin of the fleet", parse: plain((*client.Client).Block),
			long: "Stop an application: its processes end, its hosts leave the ingress, and it takes no deploys.\nNothing is deleted; `scafo apps unblock` makes it what it was.",
			said: func(a scafo.Application) string { return a.Name + " is blocked" },
		}),
		g.setter(setter{
			use: "unblock NAME", short: "Let a blocked application go on", parse: plain((*client.Client).Unblock),
			said: func(a scafo.Application) string { return a.Name + " is not blocked" },
		}),
		label,
		g.setter(setter{
			use: "retire NAME", short: "Take an application out of service, to be deleted later", parse: plain((*client.Client).Retire),
			long: "Take an application out of service. It may be deleted once its grace period is over; until it\nis deleted, `scafo apps unretire` brings it back.",
			said: func(a scafo.Application) string { return a.Name + " is retired" },
		}),
		g.setter(setter{
			use: "unretire NAME", short: "Bring a retired application back", parse: plain((*client.Client).Unretire),
			said: func(a scafo.Application) string { return a.Name + " is not retired" },
		}),
		choose,
		g.setter(setter{
			use: "scale NAME N|all", short: "Set how many nodes serve an application", args: cobra.ExactArgs(2),
			parse: func(args []string) (setCall, error) {
				replicas, err := parseReplicas(args[0])
				return func(ctx context.Context, cl *client.Client, name string) (scafo.Application, error) {
					return cl.SetReplicas(ctx, name, replicas)
				}, err
			},
			said: func(a scafo.Application) string {
				if a.Replicas.All {
					return a.Name + " is to run on every node that qualifies"
				}
				return fmt.Sprintf("%s is to run on %s of the nodes", a.Name, a.Replicas)
			},
		}),
	}
}

func (g *globals) setter(s setter) *cobra.Command {
	if s.args == nil {
		s.args = cobra.ExactArgs(1)
	}
	c := &cobra.Command{
		Use: s.use, Short: s.short, Long: s.long, Args: s.args,
		RunE: func(c *cobra.Command, args []string) error {
			name, err := scafo.ParseApplicationName(args[0])
			if err != nil {
				return usageError{err}
			}
			call, err := s.parse(args[1:])
			if err != nil {
				return usageError{err}
			}
			return g.with(func(cl *client.Client) error {
				a, err := call(c.Context(), cl, name)
				if err != nil {
					return err
				}
				if g.json {
					return printJSON(c.OutOrStdout(), map[string]any{"application": a})
				}
				fmt.Fprintln(c.OutOrStdout(), s.said(a))
				return nil
			})
		},
	}
	g.addTarget(c)
	return c
}

// parsePairs reads KEY=VALUE arguments. None of them must be said: --clear.
func parsePairs(args []string, none bool) (map[string]string, error) {
	switch {
	case none && len(args) > 0:
		return nil, usagef("--clear takes no KEY=VALUE beside it")
	case !none && len(args) == 0:
		return nil, usagef("give KEY=VALUE, or --clear")
	}
	out := map[string]string{}
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if !ok || k == "" {
			return nil, usagef("%q is not KEY=VALUE", a)
		}
		if _, twice := out[k]; twice {
			return nil, usagef("%s is given twice", k)
		}
		out[k] = v
	}
	return out, nil
}

func parseReplicas(s string) (scafo.Replicas, error) {
	if s == "all" {
		return scafo.Replicas{All: true}, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return scafo.Replicas{}, usagef(`%q is not "all" or a whole number of at least 1`, s)
	}
	return scafo.Replicas{Count: n}, nil
}
