package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
)

func newDomains(g *globals) *cobra.Command {
	domains := &cobra.Command{Use: "domains", Short: "Give applications domains of your own", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	var wildcard bool
	add := &cobra.Command{
		Use: "add NAME HOST", Short: "Have an application answer on a host", Args: cobra.ExactArgs(2),
		Long: "Have an application answer on a host. The host's DNS must lead to the fleet's ingress, which then\ngets a certificate for it. An application has at most 64 domains, and a host belongs to one\napplication. Adding one twice changes nothing.",
		RunE: func(c *cobra.Command, args []string) error {
			if host, ok := strings.CutPrefix(args[1], "*."); ok {
				return usagef("a host with its subdomains is given without the star: scafo domains add %s %s --wildcard", args[0], host)
			}
			return g.domain(c, args, func(ctx context.Context, cl *client.Client, name, host string) (client.DomainAnswer, error) {
				return cl.ClaimDomain(ctx, name, host, wildcard)
			}, showClaim)
		},
	}
	add.Flags().BoolVar(&wildcard, "wildcard", false, "every host one label below as well: your key must reach every application whose name begins with NAME-")
	remove := &cobra.Command{
		Use: "remove NAME HOST", Short: "Have an application answer on a host no more", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return g.domain(c, args, func(ctx context.Context, cl *client.Client, name, host string) (client.DomainAnswer, error) {
				return cl.ReleaseDomain(ctx, name, host)
			}, func(w io.Writer, a client.DomainAnswer) {
				fmt.Fprintf(w, "%s does not answer on %s any more\n", a.Application.Name, a.Host)
			})
		},
	}
	list := &cobra.Command{
		Use: "list [NAME]", Short: "List the domains of an application, or of all that your key reaches", Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				if _, err := scafo.ParseApplicationName(args[0]); err != nil {
					return usageError{err}
				}
			}
			return g.with(func(cl *client.Client) error { return g.listDomains(c, cl, args) })
		},
	}
	for _, c := range []*cobra.Command{add, remove, list} {
		g.addTarget(c)
		domains.AddCommand(c)
	}
	return domains
}

type domainCall = func(ctx context.Context, cl *client.Client, name, host string) (client.DomainAnswer, error)

// domain calls a domain route of an application.
func (g *globals) domain(c *cobra.Command, args []string, call domainCall, show func(io.Writer, client.DomainAnswer)) error {
	name, err := scafo.ParseApplicationName(args[0])
	if err != nil {
		return usageError{err}
	}
	host, err := scafo.ParseHost(args[1])
	if err != nil {
		return usageError{err}
	}
	return g.with(func(cl *client.Client) error {
		a, err := call(c.Context(), cl, name, host)
		if err != nil {
			return err
		}
		if g.json {
			return printJSON(c.OutOrStdout(), a)
		}
		show(c.OutOrStdout(), a)
		return nil
	})
}

func showClaim(w io.Writer, a client.DomainAnswer) {
	on := a.Host
	for _, d := range a.Application.Domains {
		if d.Host == a.Host && d.Wildcard {
			on += " and on every host one label below it"
		}
	}
	fmt.Fprintf(w, "%s answers on %s\n", a.Application.Name, on)
	if len(a.PlatformHosts) > 0 {
		fmt.Fprintf(w, "it answers on %s, too\n", strings.Join(a.PlatformHosts, " and "))
	}
}

// domainRow is one row of `scafo domains list`.
type domainRow struct {
	Host        string `json:"host"`
	Wildcard    bool   `json:"wildcard"`
	Application string `json:"application"`
	State       string `json:"-"`
}

func (g *globals) listDomains(c *cobra.Command, cl *client.Client, args []string) error {
	var apps []scafo.Application
	scoped := false
	if len(args) == 1 {
		a, err := cl.Application(c.Context(), args[0])
		if err != nil {
			return err
		}
		apps = append(apps, a)
	} else {
		l, err := cl.Applications(c.Context())
		if err != nil {
			return err
		}
		apps, scoped = l.Applications, l.Scoped
	}
	rows := []domainRow{}
	for _, a := range apps {
		for _, d := range a.Domains {
			rows = append(rows, domainRow{Host: d.Host, Wildcard: d.Wildcard, Application: a.Name, State: applicationState(a)})
		}
	}
	if g.json {
		return printJSON(c.OutOrStdout(), struct {
			Domains []domainRow `json:"domains"`
			Scoped  bool        `json:"scoped,omitempty"`
		}{rows, scoped})
	}
	return table(c.OutOrStdout(), "HOST\tSUBDOMAINS\tAPPLICATION\tSTATE", func(row func(string, ...any)) {
		for _, r := range rows {
			below := "-"
			if r.Wildcard {
				below = "*." + r.Host
			}
			row("%s\t%s\t%s\t%s", r.Host, below, r.Application, r.State)
		}
	})
}
