package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
)

func newStatus(g *globals) *cobra.Command {
	var costs bool
	c := &cobra.Command{
		Use: "status", Short: "Show what a node runs and who coordinates", Args: cobra.NoArgs,
		Long: "Show what a node runs and who coordinates.\n\nWith --cost every machine is asked what it lately asked of the bucket, and the counts are turned into\nmoney at the list prices of S3 and R2; the runtimes' own share is estimated beside them. It takes an\nadmin's key.",
		RunE: func(c *cobra.Command, _ []string) error {
			if costs {
				return runCost(c, g)
			}
			cl, _, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			s, err := cl.State(c.Context())
			if err != nil {
				return err
			}
			if g.json {
				return printJSON(c.OutOrStdout(), s)
			}
			return showState(c, s)
		},
	}
	c.Flags().BoolVar(&costs, "cost", false, "show what the fleet's bucket requests cost in a month")
	g.addTarget(c)
	return c
}

func showState(c *cobra.Command, s scafo.DaemonState) error {
	w := c.OutOrStdout()
	now := time.Now()
	if s.Node != nil {
		fmt.Fprintf(w, "node         %s (scafo %s) at %s\n", s.Node.ID, s.Node.Version, s.Node.Address)
	} else {
		fmt.Fprintln(w, "node         not registered yet")
	}
	switch {
	case s.Coordinator == nil:
		fmt.Fprintln(w, "coordinator  nobody")
	case s.Coordinator.Self:
		fmt.Fprintf(w, "coordinator  this node (fence %d)\n", s.Coordinator.Fence)
	default:
		fmt.Fprintf(w, "coordinator  %s (fence %d)\n", s.Coordinator.Node, s.Coordinator.Fence)
	}
	if r := s.Reconcile; r != nil {
		fmt.Fprintf(w, "last pass    %s, %d ms, %d bucket requests\n", ago(r.FinishedAt, now), r.DurationMS, r.Requests)
		if r.Error != "" {
			fmt.Fprintf(w, "             failed: %s\n", printable(r.Error))
		}
	}
	for _, key := range sortedKeys(s.Unreadable) {
		fmt.Fprintf(w, "left alone   %s: %s\n", key, oneLine(s.Unreadable[key]))
	}
	fmt.Fprintln(w)
	err := table(w, "APPLICATION\tSTATE\tDEPLOYMENT\tPID\tRESTARTS\tSTARTED\tURL", func(row func(string, ...any)) {
		for _, p := range s.Processes {
			started := "-"
			if p.StartedAt != nil {
				started = ago(*p.StartedAt, now)
			}
			row("%s\t%s\t%s\t%d\t%d\t%s\t%s", p.Application, p.State, orDash(p.Deployment), p.PID, p.Restarts, started, orDash(p.URL))
		}
	})
	if err != nil {
		return err
	}
	for _, p := range s.Processes {
		if p.WaitsForLease() {
			fmt.Fprintf(w, "\n%s starts once the lease of its last process is over\n", p.Application)
		} else if p.State == scafo.ProcessBackoff && len(p.LastLines) > 0 {
			fmt.Fprintf(w, "\n%s is crash-looping; its last lines:\n", p.Application)
			for _, l := range p.LastLines {
				fmt.Fprintf(w, "  %s\n", printable(l))
			}
		}
		if p.Refused != nil {
			fmt.Fprintf(w, "\n%s refused version %s: %s\n", p.Application, p.Refused.Version, printable(p.Refused.Detail))
		}
	}
	if s.Coordinator != nil && s.Coordinator.Unplaced != nil {
		for _, u := range *s.Coordinator.Unplaced {
			fmt.Fprintf(w, "\nunplaced: %s (%d of %s): %s\n", u.Application, u.Placed, u.Wanted, u.Reason)
		}
	}
	return nil
}

func newApps(g *globals) *cobra.Command {
	apps := &cobra.Command{Use: "apps", Short: "Look at applications and change them", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	list := &cobra.Command{
		Use: "list", Short: "List the applications that your key reaches", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, _, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			l, err := cl.Applications(c.Context())
			if err != nil {
				return err
			}
			if g.json {
				return printJSON(c.OutOrStdout(), l)
			}
			return table(c.OutOrStdout(), "NAME\tDEPLOYMENT\tREPLICAS\tSTATE\tDOMAINS\tCREATED", func(row func(string, ...any)) {
				for _, a := range l.Applications {
					row("%s\t%s\t%s\t%s\t%s\t%s", a.Name, orDash(a.Deployment), a.Replicas, applicationState(a), orDash(domains(a)), ago(a.CreatedAt, time.Now()))
				}
			})
		},
	}
	show := &cobra.Command{
		Use: "show NAME", Short: "Show one application", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := scafo.ParseApplicationName(args[0]); err != nil {
				return usageError{err}
			}
			cl, _, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			a, err := cl.Application(c.Context(), args[0])
			if err != nil {
				return err
			}
			if g.json {
				return printJSON(c.OutOrStdout(), map[string]any{"application": a})
			}
			return showApplication(c, a)
		},
	}
	g.addTarget(list)
	g.addTarget(show)
	apps.AddCommand(list, show)
	apps.AddCommand(newAppsSet(g)...)
	apps.AddCommand(newAppsDelete(g))
	return apps
}

func applicationState(a scafo.Application) string {
	switch {
	case a.Deleting != nil:
		return "deleting"
	case a.Blocked != nil:
		return "blocked"
	case a.Retired != nil:
		return "retired"
	case a.Deployment == "":
		return "empty"
	default:
		return "active"
	}
}

func domains(a scafo.Application) string {
	var out []string
	for _, d := range a.Domains {
		if d.Wildcard {
			out = append(out, d.Host+" (and *."+d.Host+")")
		} else {
			out = append(out, d.Host)
		}
	}
	return strings.Join(out, ", ")
}

func showApplication(c *cobra.Command, a scafo.Application) error {
	w := c.OutOrStdout()
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-11s %s\n", name, value)
		}
	}
	line("name", a.Name)
	line("state", applicationState(a))
	line("deployment", a.Deployment)
	line("replicas", a.Replicas.String())
	line("selector", pairs(a.Selector))
	line("labels", pairs(a.Labels))
	line("domains", domains(a))
	line("created", a.CreatedAt.UTC().Format(time.RFC3339)+" by "+a.CreatedBy)
	if a.Blocked != nil {
		line("blocked", a.Blocked.At.UTC().Format(time.RFC3339)+" by "+a.Blocked.By)
	}
	if a.Retired != nil {
		line("retired", a.Retired.At.UTC().Format(time.RFC3339)+" by "+a.Retired.By)
	}
	return nil
}

func pairs(m map[string]string) string {
	var out []string
	for _, k := range sortedKeys(m) {
		out = append(out, k+"="+m[k])
	}
	return strings.Join(out, ",")
}
