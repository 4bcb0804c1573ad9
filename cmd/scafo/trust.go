package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/registry"
)

const trustLong = `The node API has no route for it: this command writes the fleet's bucket, so it needs the
bucket's configuration and credentials.`

func newTrust(g *globals) *cobra.Command {
	trust := &cobra.Command{Use: "trust", Short: "Say which pipelines may deploy an application", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	trust.AddCommand(newTrustSet(g), newTrustShow(g), newTrustRemove(g))
	return trust
}

// trustFlags name rules.
type trustFlags struct {
	issuer, audience, github, gitlab string
	subjects                         []string
}

// rule is the rule that the flags of `set` name.
func (f *trustFlags) rule() (scafo.TrustRule, error) {
	var rule scafo.TrustRule
	var err error
	switch {
	case f.github != "" && (f.gitlab != "" || f.issuer != "" || len(f.subjects) > 0), f.gitlab != "" && len(f.subjects) > 0:
		return rule, usagef("--github and --gitlab say the issuer and the subjects themselves")
	case f.github != "":
		rule, err = scafo.GitHubRule(f.github)
	case f.gitlab != "":
		rule, err = scafo.GitLabRule(f.gitlab, f.issuer)
	case f.issuer == "" || len(f.subjects) == 0:
		return rule, usagef("say who is trusted: --github OWNER/REPO, --gitlab GROUP/PROJECT, or --issuer URL with --subject PATTERN")
	default:
		rule = scafo.TrustRule{Issuer: f.issuer, Subjects: f.subjects}
	}
	if err != nil {
		return rule, usageError{err}
	}
	rule.Audience = f.audience
	return rule, nil
}

func newTrustSet(g *globals) *cobra.Command {
	f := new(trustFlags)
	c := &cobra.Command{
		Use: "set APPLICATION", Short: "Let a pipeline deploy an application", Args: cobra.ExactArgs(1),
		Long: "Add a rule to an application's trust policy: jobs whose workload token is of this issuer, with\none of these subjects, may deploy it. The application need not exist yet. In a subject, * stands\nfor any run of characters; all else is compared byte for byte.\n\n" + trustLong,
		Example: `  scafo trust set shop --github acme/shop@main
  scafo trust set shop --gitlab acme/web/shop --issuer https://gitlab.example.com
  scafo trust set shop --issuer https://ci.example.com --subject 'job:shop:*'`,
		RunE: func(c *cobra.Command, args []string) error {
			rule, err := f.rule()
			if err != nil {
				return err
			}
			return withTrust(c, args[0], func(ctx context.Context, r *registry.Registry, l *config.Loaded) error {
				if err := (scafo.TrustPolicy{Rules: []scafo.TrustRule{rule}}).Validate(l.OIDC.AllowLoopback); err != nil {
					return usageError{err}
				}
				p, changed, err := r.Trust(ctx, args[0], rule, l.OIDC.AllowLoopback)
				if err != nil {
					return err
				}
				if g.json {
					return printJSON(c.OutOrStdout(), trustAnswer(args[0], p, &changed))
				}
				if !changed {
					fmt.Fprintln(c.OutOrStdout(), "that was trusted already")
				}
				return showTrust(c.OutOrStdout(), args[0], p)
			})
		},
	}
	addConfig(c)
	c.Flags().StringVar(&f.github, "github", "", "OWNER/REPO[@REF]: runs of GitHub Actions for its branches and tags, or for one; none for pull requests")
	c.Flags().StringVar(&f.gitlab, "gitlab", "", "GROUP/PROJECT[@REF]: GitLab's pipelines of its branches and tags, or of one; --issuer is the GitLab's address unless it is gitlab.com")
	c.Flags().StringVar(&f.issuer, "issuer", "", "issuer of the tokens, as they spell it")
	c.Flags().StringArrayVar(&f.subjects, "subject", nil, "subject that is admitted, exact or with * for any run of characters, repeatable")
	c.Flags().StringVar(&f.audience, "audience", "", "audience that the tokens name (default: "+scafo.DefaultAudience+")")
	return c
}

func newTrustShow(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use: "show APPLICATION", Short: "Show which pipelines may deploy an application", Args: cobra.ExactArgs(1),
		Long: "Show an application's trust policy.\n\n" + trustLong,
		RunE: func(c *cobra.Command, args []string) error {
			return withTrust(c, args[0], func(ctx context.Context, r *registry.Registry, _ *config.Loaded) error {
				p, err := r.TrustPolicy(ctx, args[0])
				if err != nil {
					return err
				}
				if g.json {
					return printJSON(c.OutOrStdout(), trustAnswer(args[0], p, nil))
				}
				return showTrust(c.OutOrStdout(), args[0], p)
			})
		},
	}
	addConfig(c)
	return c
}

func newTrustRemove(g *globals) *cobra.Command {
	f := new(trustFlags)
	var subject string
	var all bool
	c := &cobra.Command{
		Use: "remove APPLICATION", Short: "Trust a pipeline no longer", Args: cobra.ExactArgs(1),
		Long: "Take rules out of an application's trust policy: all of an issuer, or one of its subjects, or\nevery rule with --all. It counts from the next call on; a deploy that was accepted goes on.\n\n" + trustLong,
		RunE: func(c *cobra.Command, args []string) error {
			if all == (f.issuer != "") || (all && subject != "") {
				return usagef("say what is removed: --issuer URL, maybe with --subject PATTERN, or --all")
			}
			return withTrust(c, args[0], func(ctx context.Context, r *registry.Registry, _ *config.Loaded) error {
				p, removed, err := r.Distrust(ctx, args[0], f.issuer, subject)
				if err != nil {
					return err
				}
				if g.json {
					return printJSON(c.OutOrStdout(), trustAnswer(args[0], p, &removed))
				}
				if !removed {
					fmt.Fprintln(c.OutOrStdout(), "that was not trusted")
				}
				return showTrust(c.OutOrStdout(), args[0], p)
			})
		},
	}
	addConfig(c)
	c.Flags().StringVar(&f.issuer, "issuer", "", "issuer whose rules are removed")
	c.Flags().StringVar(&subject, "subject", "", "the one subject of that issuer that is removed, spelled as in the policy")
	c.Flags().BoolVar(&all, "all", false, "remove every rule")
	return c
}

// withTrust opens the fleet's bucket for a command about an application's policy.
func withTrust(c *cobra.Command, application string, do func(context.Context, *registry.Registry, *config.Loaded) error) error {
	if _, err := scafo.ParseApplicationName(application); err != nil {
		return usageError{err}
	}
	r, l, shut, err := openConfigured(c)
	if err != nil {
		return err
	}
	defer shut()
	return do(c.Context(), r, l)
}

// trustAnswer is what --json prints.
func trustAnswer(application string, p scafo.TrustPolicy, changed *bool) map[string]any {
	rules := p.Rules
	if rules == nil {
		rules = []scafo.TrustRule{}
	}
	a := map[string]any{"application": application, "rules": rules}
	if changed != nil {
		a["changed"] = *changed
	}
	return a
}

func showTrust(w io.Writer, application string, p scafo.TrustPolicy) error {
	if len(p.Rules) == 0 {
		_, err := fmt.Fprintf(w, "no pipeline may deploy %s\n", application)
		return err
	}
	return table(w, "ISSUER\tAUDIENCE\tSUBJECTS", func(row func(string, ...any)) {
		for _, r := range p.Rules {
			row("%s\t%s\t%s", r.Issuer, r.EffectiveAudience(), strings.Join(r.Subjects, " "))
		}
	})
}
