package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/profile"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// keyPatience is how long a key that was just registered may take to be known on
// every node: as long as a node remembers that there was none, and a little more.
const keyPatience = 8 * time.Second

func newOperators(g *globals) *cobra.Command {
	operators := &cobra.Command{Use: "operators", Short: "Manage the keys that the fleet trusts", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	operators.AddCommand(g.operatorsList(), g.operatorsAdd(), g.operatorsKey(), g.operatorsRotate(), g.operatorsRemove())
	return operators
}

func (g *globals) operatorsList() *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List the operator keys: all of them to an admin, to others their own and what it replaces", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.with(func(cl *client.Client) error {
				l, err := cl.Operators(c.Context())
				if err != nil {
					return err
				}
				if g.json {
					return printJSON(c.OutOrStdout(), l)
				}
				return table(c.OutOrStdout(), "ID\tROLE\tAPPLICATIONS\tREPLACES\tCREATED\tBY", func(row func(string, ...any)) {
					for _, op := range l.Operators {
						row("%s\t%s\t%s\t%s\t%s\t%s", op.ID, op.Role, strings.Join(op.Applications, ","), orDash(op.Supersedes), ago(op.CreatedAt, time.Now()), orDash(op.CreatedBy))
					}
				})
			})
		},
	}
	g.addTarget(c)
	return c
}

func (g *globals) operatorsAdd() *cobra.Command {
	var role, newKey, publicKey string
	var applications []string
	c := &cobra.Command{
		Use: "add ID", Short: "Trust a fresh key", Args: cobra.ExactArgs(1),
		Long: "Trust a fresh key for the applications that --applications names. The key is made on this\nmachine and stays here, in a file of its own, unless --public-key names one that was made\nelsewhere with `scafo operators key`. A command that was cut short may be repeated.",
		RunE: func(c *cobra.Command, args []string) error {
			grant := client.Grant{ID: args[0], Role: scafo.Role(role)}
			if _, err := scafo.ParseID("operator", grant.ID); err != nil {
				return usageError{err}
			}
			if grant.Role != scafo.RoleAdmin && grant.Role != scafo.RoleOperator {
				return usagef("--role is admin or operator")
			}
			var err error
			if grant.Applications, err = scafo.ParseScope(applications); err != nil {
				return usageError{err}
			}
			path, fresh := "", false
			if publicKey != "" {
				grant.PublicKey, err = readPublicKey(publicKey, grant.ID, c.InOrStdin())
			} else {
				var k keyfile.Key
				k, path, fresh, err = g.ensureKey(grant.ID, newKey)
				grant.PublicKey = k.Public()
			}
			if err != nil {
				return err
			}
			return g.with(func(cl *client.Client) error {
				op, err := cl.AddOperator(c.Context(), grant)
				if err != nil {
					if fresh && refused(err) {
						_ = os.Remove(path) // nobody knows this key
					}
					return err
				}
				return sayAdded(c.OutOrStdout(), g.json, op, path)
			})
		},
	}
	c.Flags().StringSliceVar(&applications, "applications", nil, `what the key reaches, separated by commas: a name, a prefix such as "shop-*", or "*" alone`)
	c.Flags().StringVar(&role, "role", string(scafo.RoleOperator), "admin or operator")
	c.Flags().StringVar(&newKey, "new-key", "", "where the private key is written (default: the user's configuration directory)")
	c.Flags().StringVar(&publicKey, "public-key", "", "file with the public key of somebody else, as 'scafo operators key' prints it; - is standard input")
	if err := c.MarkFlagRequired("applications"); err != nil {
		panic(err) // the flag is defined above
	}
	c.MarkFlagsMutuallyExclusive("new-key", "public-key")
	g.addTarget(c)
	return c
}

func sayAdded(w io.Writer, asJSON bool, op scafo.Operator, path string) error {
	if asJSON {
		out := map[string]any{"operator": op}
		if path != "" {
			out["keyFile"] = path
		}
		return printJSON(w, out)
	}
	fmt.Fprintf(w, "%s %s is trusted for %s\n", op.Role, op.ID, strings.Join(op.Applications, ", "))
	if path != "" {
		fmt.Fprintf(w, "key %s\n", path)
	}
	return nil
}

func (g *globals) operatorsKey() *cobra.Command {
	var newKey string
	c := &cobra.Command{
		Use: "key ID", Short: "Make a key on this machine and print its public half, for an admin to trust", Args: cobra.ExactArgs(1),
		Long: "Make a key on this machine and print its public half, for an admin to trust:\n\n  scafo operators key alice > alice.json          # alice\n  scafo operators add alice --public-key alice.json --applications 'shop-*'   # an admin\n\nA key that is there already is used again.",
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := scafo.ParseID("operator", args[0]); err != nil {
				return usageError{err}
			}
			k, path, _, err := g.ensureKey(args[0], newKey)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.ErrOrStderr(), "the private key is in "+path)
			fmt.Fprintln(c.OutOrStdout(), string(k.PublicJWK()))
			return nil
		},
	}
	c.Flags().StringVar(&newKey, "new-key", "", "where the private key is written (default: the user's configuration directory)")
	return c
}

// ensureKey makes a key file, or uses the one that is there: that of a command that
// was cut short.
func (g *globals) ensureKey(id, path string) (k keyfile.Key, where string, fresh bool, err error) {
	if path == "" {
		if path, err = g.keyPath(id); err != nil {
			return k, "", false, err
		}
	}
	if path, err = filepath.Abs(path); err != nil {
		return k, "", false, err
	}
	k, _, err = keyfile.Load(path)
	switch {
	case err == nil && k.ID != id:
		return k, path, false, usagef("the key file %s belongs to operator %q", path, k.ID)
	case err == nil || !errors.Is(err, fs.ErrNotExist):
		return k, path, false, err
	}
	if k, err = keyfile.New(id); err == nil {
		err = keyfile.Save(path, k)
	}
	return k, path, err == nil, err
}

// keyPath is where the key of an operator of this fleet lies unless told otherwise.
func (g *globals) keyPath(id string) (string, error) {
	path, err := profile.Path()
	if err != nil {
		return "", err
	}
	name := id
	if f, err := g.target(); err == nil && f.ID != "" {
		name += "-" + f.ID
	}
	return filepath.Join(filepath.Dir(path), "keys", name+".jwk"), nil
}

// readPublicKey reads the public key of a file, which may name the id it is for.
func readPublicKey(path, id string, stdin io.Reader) (scafo.PublicKey, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return scafo.PublicKey{}, fmt.Errorf("the public key: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, keyfile.MaxBytes))
	if err != nil {
		return scafo.PublicKey{}, fmt.Errorf("the public key: %w", err)
	}
	kid, k, err := keyfile.ParsePublic(b)
	if err != nil {
		return k, fmt.Errorf("the public key %s: %w", path, err)
	}
	if kid != "" && kid != id {
		return k, usagef("the public key %s was made for operator %q", path, kid)
	}
	return k, nil
}

func (g *globals) operatorsRotate() *cobra.Command {
	var id string
	c := &cobra.Command{
		Use: "rotate", Short: "Replace your own key by a fresh one", Args: cobra.NoArgs,
		Long: "Replace the key that you sign with by a fresh one of the same tier and scope, made on this\nmachine, under an id of its own, in the same file. The old key is revoked once the new one was\nseen to work. Cut short at any point, the command is repeated and goes on where it stopped.",
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := g.target()
			if err != nil {
				return err
			}
			if f.Key == "" {
				return usagef("no key to rotate: give --key-file")
			}
			// A link stays one: what it leads to is replaced.
			path, err := filepath.EvalSymlinks(f.Key)
			if err != nil {
				return fmt.Errorf("key file: %w", err)
			}
			var clients []*client.Client
			defer func() {
				for _, cl := range clients {
					cl.Close()
				}
			}()
			r := rotation{path: path, id: id, patience: keyPatience, call: func(k keyfile.Key) (operatorCalls, error) {
				cl, err := client.New(client.Config{
					URLs:       f.Nodes,
					Credential: client.CredentialFunc(func(context.Context) (string, error) { return k.Token(time.Now()) }),
				})
				if err != nil {
					return nil, usageError{err}
				}
				clients = append(clients, cl)
				return cl, nil
			}}
			done, err := r.run(c.Context())
			if err != nil {
				return err
			}
			if g.json {
				return printJSON(c.OutOrStdout(), done)
			}
			if done.Resumed {
				fmt.Fprintln(c.OutOrStdout(), "a rotation that had been cut short is complete")
			}
			fmt.Fprintf(c.OutOrStdout(), "%s replaces %s, which is revoked\nkey %s\n", done.Operator, done.Replaced, done.KeyFile)
			return nil
		},
	}
	c.Flags().StringVar(&id, "id", "", "id of the new key (default: the old one's with a random ending)")
	g.addTarget(c)
	return c
}

func (g *globals) operatorsRemove() *cobra.Command {
	c := &cobra.Command{
		Use: "remove ID", Short: "Revoke a key", Args: cobra.ExactArgs(1),
		Long: "Revoke a key. Its id stays taken for good. The last admin's key cannot be revoked, and no key\nrevokes itself: `scafo operators rotate` replaces it.",
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := scafo.ParseID("operator", args[0]); err != nil {
				return usageError{err}
			}
			return g.with(func(cl *client.Client) error {
				if err := cl.RemoveOperator(c.Context(), args[0]); err != nil {
					return err
				}
				if g.json {
					return printJSON(c.OutOrStdout(), map[string]string{"removed": args[0]})
				}
				fmt.Fprintf(c.OutOrStdout(), "%s is revoked\n", args[0])
				return nil
			})
		},
	}
	g.addTarget(c)
	return c
}
