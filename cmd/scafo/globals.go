package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/profile"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// globals are the flags that several commands share.
type globals struct {
	json    bool
	fleet   string
	nodes   []string
	keyFile string
}

// addTarget adds the flags that say which fleet to call, and as whom.
func (g *globals) addTarget(c *cobra.Command) {
	c.Flags().StringVar(&g.fleet, "fleet", "", "fleet of the profile (default: the one of the last init or up)")
	c.Flags().StringArrayVar(&g.nodes, "node", nil, "base URL of a node's API, repeatable (default: the profile's)")
	c.Flags().StringVar(&g.keyFile, "key-file", "", "file of the operator's private key (default: the profile's)")
}

// target resolves them with the profile.
func (g *globals) target() (profile.Fleet, error) {
	f := profile.Fleet{Nodes: g.nodes, Key: g.keyFile}
	if len(f.Nodes) > 0 && f.Key != "" {
		return f, nil
	}
	p, err := profile.Load()
	if err != nil {
		return f, err
	}
	_, known, err := p.Select(g.fleet)
	if err != nil {
		return f, err
	}
	if len(f.Nodes) == 0 {
		f.Nodes, f.Workers, f.ID, f.State = known.Nodes, known.Workers, known.ID, known.State
	}
	if f.Key == "" {
		f.Key = known.Key
	}
	return f, nil
}

// key loads the operator's key; warnings go to standard error.
func loadKey(path string) (keyfile.Key, error) {
	if path == "" {
		return keyfile.Key{}, usagef("no key to sign with: give --key-file")
	}
	k, othersCanRead, err := keyfile.Load(path)
	if err != nil {
		return k, err
	}
	if othersCanRead {
		fmt.Fprintf(os.Stderr, "scafo: warning: others can read the key file %s; chmod 600 it\n", path)
	}
	return k, nil
}

// client makes the client of the fleet that the flags name.
func (g *globals) client() (*client.Client, profile.Fleet, error) {
	f, err := g.target()
	if err != nil {
		return nil, f, err
	}
	k, err := loadKey(f.Key)
	if err != nil {
		return nil, f, err
	}
	c, err := client.New(client.Config{
		URLs:       f.Nodes,
		Credential: client.CredentialFunc(func(context.Context) (string, error) { return k.Token(time.Now()) }),
	})
	if err != nil {
		return nil, f, usageError{err}
	}
	return c, f, nil
}

// printJSON prints one object, the whole of a command's answer.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// table prints rows under a head, in columns. A text of many lines is cut to its first.
func table(w io.Writer, head string, rows func(row func(format string, args ...any))) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, head)
	rows(func(format string, args ...any) {
		for i, a := range args {
			if s, ok := a.(string); ok {
				args[i] = oneLine(s)
			}
		}
		fmt.Fprintf(t, format+"\n", args...)
	})
	return t.Flush()
}

// ago is a time as a person reads it in a table.
func ago(at time.Time, now time.Time) string {
	d := now.Sub(at).Round(time.Second)
	switch {
	case at.IsZero():
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd ago", int(d.Hours()/24))
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
