package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/node"
)

func newDeploys(g *globals) *cobra.Command {
	deploys := &cobra.Command{Use: "deploys", Short: "Look at deploys", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	show := &cobra.Command{
		Use: "show ID", Short: "Show how far a deploy is", Args: cobra.ExactArgs(1),
		Long: "Show how far a deploy is, the digest of its artifact, and, where a pipeline sent it, what the job's\nworkload token said: issuer, subject, repository, ref, commit and run, as the node has verified them.",
		RunE: func(c *cobra.Command, args []string) error {
			if _, ok := scafo.ParseDeployID(args[0]); !ok {
				return usagef("%q is no deploy id: it is <application>.<16 hex>", args[0])
			}
			cl, _, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			s, err := cl.DeployStatus(c.Context(), args[0])
			if err != nil {
				return err
			}
			if g.json {
				return printJSON(c.OutOrStdout(), s)
			}
			showDeploy(c.OutOrStdout(), s)
			return nil
		},
	}
	g.addTarget(show)
	wide := false
	list := &cobra.Command{
		Use: "list APPLICATION", Short: "List an application's deploys, from the bucket", Args: cobra.ExactArgs(1),
		Long: "List an application's deploys, newest first. The node API has no route for it: this command\nreads the fleet's bucket, so it needs the bucket's configuration and credentials.\nA deploy that waits says for what. --wide adds the artifact's digest and what the workload token\nof a pipeline said; --json has that too, and the token's issuer.",
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := scafo.ParseApplicationName(args[0]); err != nil {
				return usageError{err}
			}
			l, err := loadConfig(c, nil)
			if err != nil {
				return err
			}
			if err := wantStore(l); err != nil {
				return err
			}
			store, err := openStore(c.Context(), l, node.Logger(config.Log{Level: "warn", Format: "text"}, os.Stderr))
			if err != nil {
				return err
			}
			defer store.close()
			all, err := store.registry.Deploys(c.Context(), args[0])
			if err != nil {
				return err
			}
			if len(all) == 0 {
				// None of an application that exists is an answer, a typing mistake is not.
				if _, err := store.registry.Application(c.Context(), args[0]); err != nil {
					return err
				}
			}
			slices.SortFunc(all, func(a, b scafo.Deploy) int { return b.AcceptedAt.Compare(a.AcceptedAt) })
			if g.json {
				return printJSON(c.OutOrStdout(), map[string]any{"deploys": all})
			}
			return deploysTable(c.OutOrStdout(), all, wide, time.Now())
		},
	}
	addConfig(list)
	list.Flags().BoolVar(&wide, "wide", false, "show the artifact's digest, and repository, ref, commit and run of a pipeline")
	deploys.AddCommand(list, show)
	return deploys
}

// deploysTable shows deploys to a person. wide adds where they came from, as the
// workload token said that was verified: metadata says nothing there.
func deploysTable(w io.Writer, all []scafo.Deploy, wide bool, now time.Time) error {
	head := "ID\tSTATE\tDEPLOYMENT\tBY\tNODE\tACCEPTED\tDETAIL"
	if wide {
		head = "ID\tSTATE\tDEPLOYMENT\tBY\tNODE\tACCEPTED\tREPOSITORY\tREF\tCOMMIT\tRUN\tARTIFACT\tDETAIL"
	}
	return table(w, head, func(row func(string, ...any)) {
		for _, d := range all {
			detail := d.Detail
			if !d.State.Terminal() && d.Step != "" {
				detail = d.Step
			}
			accepted := ago(d.AcceptedAt, now)
			if !wide {
				row("%s\t%s\t%s\t%s\t%s\t%s\t%s", d.ID, d.State, orDash(d.Deployment), orDash(d.Caller), d.Node, accepted, orDash(detail))
				continue
			}
			var said scafo.Provenance
			if d.OIDC != nil {
				said = *d.OIDC
			}
			row("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", d.ID, d.State, orDash(d.Deployment), orDash(d.Caller), d.Node, accepted,
				orDash(said.Repository), orDash(said.Ref), orDash(said.Commit), orDash(said.Run), orDash(d.ArtifactHash), orDash(detail))
		}
	})
}

func showDeploy(w io.Writer, s scafo.DeployStatus) {
	fmt.Fprintf(w, "deploy       %s\napplication  %s\nstate        %s\n", s.ID, s.Application, s.State)
	if s.Deployment != "" {
		fmt.Fprintf(w, "deployment   %s\n", s.Deployment)
	}
	if s.Step != "" && !s.State.Terminal() {
		fmt.Fprintf(w, "waiting for  %s\n", s.Step)
	}
	if s.Code != "" {
		fmt.Fprintf(w, "code         %s\n", s.Code)
	}
	if s.Detail != "" {
		fmt.Fprintf(w, "why          %s\n", printable(s.Detail))
	}
	showOrigin(w, s)
	for _, n := range s.Nodes {
		fmt.Fprintf(w, "node         %s serves %s", n.Node, orDash(n.Version))
		if n.Detail != "" {
			fmt.Fprintf(w, " (%s)", printable(n.Detail))
		}
		fmt.Fprintln(w)
	}
}

// showOrigin shows where a deploy came from and what it was made of: what the node
// has verified and measured, and nothing that metadata says.
func showOrigin(w io.Writer, s scafo.DeployStatus) {
	if s.ArtifactHash != "" {
		fmt.Fprintf(w, "artifact     sha256:%s (%d bytes)\n", escape(s.ArtifactHash, ""), s.ArtifactSize)
	}
	if s.OIDC == nil {
		return
	}
	for _, said := range []struct{ what, value string }{
		{"issuer", s.OIDC.Issuer}, {"subject", s.OIDC.Subject}, {"repository", s.OIDC.Repository},
		{"ref", s.OIDC.Ref}, {"commit", s.OIDC.Commit}, {"run", s.OIDC.Run},
	} {
		if said.value != "" {
			fmt.Fprintf(w, "%-12s %s\n", said.what, escape(said.value, ""))
		}
	}
}
