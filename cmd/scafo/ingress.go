package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/node"
)

// ingressTarget is whose routes and storage a command asks for.
type ingressTarget struct {
	g         *globals
	tokenFile string
}

func (i *ingressTarget) add(c *cobra.Command) {
	c.Flags().StringVar(&i.g.fleet, "fleet", "", "fleet of the profile (default: the one of the last init or up)")
	c.Flags().StringArrayVar(&i.g.nodes, "node", nil, "base URL of a node's API, repeatable (default: the profile's)")
	c.Flags().StringVar(&i.tokenFile, "ingress-token-file", "", "file with the ingress token, as it lies in a node's state directory (default: SCAFO_INGRESS_TOKEN, else that of the node that the profile knows on this machine)")
}

// token is the file's first line, or the first of the tokens of SCAFO_INGRESS_TOKEN,
// or else the one of the node on this machine, if its fleet is the one that is asked.
func (i *ingressTarget) token() (string, error) {
	text, from := os.Getenv("SCAFO_INGRESS_TOKEN"), "SCAFO_INGRESS_TOKEN"
	file := i.tokenFile
	if file == "" && text == "" && len(i.g.nodes) == 0 {
		file = i.g.localIngressToken()
	}
	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("the ingress token: %w", err)
		}
		text, _, _ = strings.Cut(string(b), "\n")
		from = file
	} else {
		text, _, _ = strings.Cut(text, ",")
	}
	if text = strings.TrimSpace(text); text == "" {
		return "", usagef("no ingress token in %s: give --ingress-token-file, or set SCAFO_INGRESS_TOKEN", from)
	}
	return text, nil
}

// localIngressToken is the file with the token of the profile's node on this machine;
// empty where there is none.
func (g *globals) localIngressToken() string {
	f, err := g.target()
	if err != nil || f.State == "" {
		return ""
	}
	path := node.IngressTokenFile(f.State)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// with calls f with a client that has the ingress token.
func (i *ingressTarget) with(f func(cl *client.Client) error) error {
	token, err := i.token()
	if err != nil {
		return err
	}
	nodes := i.g.nodes
	if len(nodes) == 0 {
		fleet, err := i.g.target()
		if err != nil {
			return err
		}
		nodes = fleet.Nodes
	}
	cl, err := client.New(client.Config{URLs: nodes, Credential: client.Static(token)})
	if err != nil {
		return usageError{err}
	}
	defer cl.Close()
	return f(cl)
}

func newRoutes(g *globals) *cobra.Command {
	i := &ingressTarget{g: g}
	var format, prefer string
	c := &cobra.Command{
		Use: "routes", Short: "Show where an ingress sends each host", Args: cobra.NoArgs,
		Long: "Show the routing document as an ingress gets it: the hosts that are served and by which\nprocesses, and the hosts that the fleet knows and nobody serves. With --format traefik it is\nprinted as Traefik reads it.",
		RunE: func(c *cobra.Command, _ []string) error {
			return i.with(func(cl *client.Client) error {
				if format != "" {
					b, err := cl.RenderedRoutes(c.Context(), format, prefer)
					if err != nil {
						return err
					}
					_, err = fmt.Fprintln(c.OutOrStdout(), strings.TrimSpace(string(b)))
					return err
				}
				doc, _, _, err := cl.Routes(c.Context(), prefer, "")
				if err != nil {
					return err
				}
				if g.json {
					return printJSON(c.OutOrStdout(), doc)
				}
				return showRoutes(c.OutOrStdout(), doc)
			})
		},
	}
	c.Flags().StringVar(&format, "format", "", "print it in a form that an ingress reads natively: traefik")
	c.Flags().StringVar(&prefer, "prefer", "", "the node whose processes come first; self is the node that is asked")
	i.add(c)
	return c
}

func showRoutes(w io.Writer, doc scafo.FleetRouting) error {
	urls := func(ups []scafo.Upstream) string {
		var out []string
		for _, u := range ups {
			out = append(out, u.URL+" ("+u.Node+")")
		}
		return orDash(strings.Join(out, " "))
	}
	return table(w, "HOST\tAPPLICATION\tUPSTREAMS", func(row func(string, ...any)) {
		for _, r := range doc.Routes {
			row("%s\t%s\t%s", r.Host, r.Application, urls(r.Upstreams))
		}
		for _, r := range doc.Wildcards {
			row("%s\t%s\t%s", "*."+r.Base, r.Application, urls(r.Upstreams))
		}
		for _, a := range doc.API {
			row("%s\t%s\t%s", a.Host, "(the API)", urls(a.Upstreams))
		}
		for _, u := range doc.Unserved {
			row("%s\t%s\t%s", u.Host, u.Application, "unserved: "+u.Reason)
		}
	})
}

func newStorage(g *globals) *cobra.Command {
	storage := &cobra.Command{Use: "storage", Short: "Look after what the ingresses keep: certificates and locks", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	i := &ingressTarget{g: g}
	storage.AddCommand(i.storageList(), i.storageGet(), i.storagePut(), i.storageStat(), i.storageRemove(), i.storageLock(), i.storageUnlock())
	for _, c := range storage.Commands() {
		i.add(c)
	}
	return storage
}

func (i *ingressTarget) storageList() *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use: "list [PREFIX]", Short: "List keys beneath a prefix", Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			prefix := strings.Join(args, "")
			return i.with(func(cl *client.Client) error {
				keys, err := cl.ListObjects(c.Context(), prefix, recursive)
				if err != nil {
					return err
				}
				if i.g.json {
					return printJSON(c.OutOrStdout(), map[string]any{"keys": keys})
				}
				for _, k := range keys {
					fmt.Fprintln(c.OutOrStdout(), k)
				}
				return nil
			})
		},
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "all keys that have values, however deep, instead of the immediate children")
	return c
}

func (i *ingressTarget) storageGet() *cobra.Command {
	return &cobra.Command{
		Use: "get KEY", Short: "Print a value, byte for byte", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return i.with(func(cl *client.Client) error {
				b, err := cl.Object(c.Context(), args[0])
				if err != nil {
					return err
				}
				if i.g.json {
					return printJSON(c.OutOrStdout(), map[string]any{"key": args[0], "value": b}) // base64
				}
				_, err = c.OutOrStdout().Write(b)
				return err
			})
		},
	}
}

func (i *ingressTarget) storagePut() *cobra.Command {
	return &cobra.Command{
		Use: "put KEY FILE", Short: "Keep the bytes of a file as a value; - is standard input", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			b, err := readAtMost(args[1], c.InOrStdin(), scafo.MaxStorageObject)
			if err != nil {
				return err
			}
			return i.with(func(cl *client.Client) error {
				if err := cl.PutObject(c.Context(), args[0], b); err != nil {
					return err
				}
				return i.done(c, map[string]any{"key": args[0], "size": len(b)}, "")
			})
		},
	}
}

// readAtMost reads a file, or standard input, that may have so many bytes.
func readAtMost(path string, stdin io.Reader, most int64) ([]byte, error) {
	r := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > most {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return b, nil
}

func (i *ingressTarget) storageStat() *cobra.Command {
	return &cobra.Command{
		Use: "stat KEY", Short: "Show what is known of a key", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return i.with(func(cl *client.Client) error {
				st, err := cl.StatObject(c.Context(), args[0])
				if err != nil {
					return err
				}
				if i.g.json {
					return printJSON(c.OutOrStdout(), st)
				}
				w := c.OutOrStdout()
				fmt.Fprintf(w, "key       %s\nsize      %d\nmodified  %s\nvalue     %v\n", printable(st.Key), st.Size, st.Modified.UTC().Format(time.RFC3339), st.IsTerminal)
				return nil
			})
		},
	}
}

func (i *ingressTarget) storageRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove KEY", Short: "Remove a key and everything beneath it", Args: cobra.ExactArgs(1),
		Long: "Remove a key and everything beneath it. Removing a certificate makes the next handshake, or the\nnext renewal, order a new one.",
		RunE: func(c *cobra.Command, args []string) error {
			return i.with(func(cl *client.Client) error {
				if err := cl.DeleteObject(c.Context(), args[0]); err != nil {
					return err
				}
				return i.done(c, map[string]any{"removed": args[0]}, "")
			})
		},
	}
}

func (i *ingressTarget) storageLock() *cobra.Command {
	var holder string
	var lease time.Duration
	c := &cobra.Command{
		Use: "lock NAME", Short: "Take a lock, or renew it, without waiting", Args: cobra.ExactArgs(1),
		Long: "Take a lock, or renew it, without waiting; fails when another has it. Whoever is to renew it or\nto give it back names the same --holder, which is printed.",
		RunE: func(c *cobra.Command, args []string) error {
			if holder == "" {
				holder = strings.ToLower(rand.Text())
			}
			return i.with(func(cl *client.Client) error {
				granted, err := cl.Lock(c.Context(), args[0], holder, lease)
				if err != nil {
					return err
				}
				return i.done(c, map[string]any{"lock": args[0], "holder": holder, "seconds": int(granted / time.Second)}, holder)
			})
		},
	}
	c.Flags().StringVar(&holder, "holder", "", "who takes it (default: a random name)")
	c.Flags().DurationVar(&lease, "lease", 0, "after which time without a renewal it is free again (default and at most: the fleet's storage.lockSeconds)")
	return c
}

func (i *ingressTarget) storageUnlock() *cobra.Command {
	var holder string
	c := &cobra.Command{
		Use: "unlock NAME", Short: "Give a lock back", Args: cobra.ExactArgs(1),
		Long: "Give a lock back: the one that --holder has, or else one that was taken without a holder. No\nfailure where there is none.",
		RunE: func(c *cobra.Command, args []string) error {
			return i.with(func(cl *client.Client) error {
				if err := cl.Unlock(c.Context(), args[0], holder); err != nil {
					return err
				}
				return i.done(c, map[string]any{"unlocked": args[0]}, "")
			})
		},
	}
	c.Flags().StringVar(&holder, "holder", "", "who took it")
	return c
}

// done says that a change was made: a document with --json, else a line where there is
// something to tell.
func (i *ingressTarget) done(c *cobra.Command, doc map[string]any, line string) error {
	if i.g.json {
		return printJSON(c.OutOrStdout(), doc)
	}
	if line != "" {
		fmt.Fprintln(c.OutOrStdout(), line)
	}
	return nil
}

func newHealth(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use: "health", Short: "Ask each node whether it is there; needs no key", Args: cobra.NoArgs,
		Long: "Ask each node of the profile, or of --node, whether it is there. Fails when one of them does not\nanswer.",
		RunE: func(c *cobra.Command, _ []string) error {
			nodes := g.nodes
			if len(nodes) == 0 {
				f, err := g.target()
				if err != nil {
					return err
				}
				nodes = f.Nodes
			}
			return health(c, g.json, nodes)
		},
	}
	c.Flags().StringVar(&g.fleet, "fleet", "", "fleet of the profile (default: the one of the last init or up)")
	c.Flags().StringArrayVar(&g.nodes, "node", nil, "base URL of a node's API, repeatable (default: the profile's)")
	return c
}

// healthPatience bounds how long one node may take.
const healthPatience = 5 * time.Second

func health(c *cobra.Command, asJSON bool, nodes []string) error {
	type row struct {
		URL string `json:"url"`
		scafo.Health
		Error string `json:"error,omitempty"`
	}
	var rows []row
	var failed error
	for _, u := range nodes {
		r := row{URL: u}
		h, err := askHealth(c.Context(), u)
		r.Health = h
		if err != nil {
			r.Error = explain(err)
			failed = errors.New("not every node answers")
		}
		rows = append(rows, r)
	}
	if asJSON {
		if err := printJSON(c.OutOrStdout(), map[string]any{"nodes": rows}); err != nil {
			return err
		}
		return failed
	}
	err := table(c.OutOrStdout(), "URL\tNODE\tVERSION\tANSWER", func(line func(string, ...any)) {
		for _, r := range rows {
			said := "ok"
			if r.Error != "" {
				said = r.Error
			}
			line("%s\t%s\t%s\t%s", r.URL, orDash(r.Node), orDash(r.Version), said)
		}
	})
	return errors.Join(err, failed)
}

func askHealth(ctx context.Context, node string) (scafo.Health, error) {
	cl, err := client.New(client.Config{URLs: []string{node}})
	if err != nil {
		return scafo.Health{}, usageError{err}
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, healthPatience)
	defer cancel()
	return cl.Health(ctx)
}
