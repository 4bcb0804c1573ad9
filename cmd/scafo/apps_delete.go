package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
)

const (
	// settleWithin is how long a deletion waits for somebody to coordinate.
	settleWithin = time.Minute
	settlePause  = time.Second
)

func newAppsDelete(g *globals) *cobra.Command {
	var force, yes bool
	c := &cobra.Command{
		Use: "delete NAME", Short: "Delete an application with all that it kept", Args: cobra.ExactArgs(1),
		Long: "Delete an application: its processes end, and everything that it kept is removed from the\n" +
			"bucket, the data of its Durable Objects too. It must be retired, and have been for its grace\n" +
			"period, unless --force is given. It cannot be undone, so the name is asked for once more at a\n" +
			"terminal, and --yes is needed elsewhere. What a deploy makes of the name later is a new\n" +
			"application.\n\n" +
			"A deletion that was cut short goes on by itself; repeat the command to wait for it. With --json\n" +
			"the keys that were removed are printed.",
		RunE: func(c *cobra.Command, args []string) error {
			name, err := scafo.ParseApplicationName(args[0])
			if err != nil {
				return usageError{err}
			}
			if err := confirmDelete(c, name, yes); err != nil {
				return err
			}
			return g.with(func(cl *client.Client) error { return g.deleteApplication(c, cl, name, force) })
		},
	}
	c.Flags().BoolVar(&force, "force", false, "delete it though it is not retired, or within its grace period")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	g.addTarget(c)
	return c
}

// confirmDelete has a person type the name of what will be gone.
func confirmDelete(c *cobra.Command, name string, yes bool) error {
	if yes {
		return nil
	}
	in, ok := c.InOrStdin().(*os.File)
	if !ok || !isTerminal(in) {
		return usagef("deleting %s cannot be undone: give --yes where nobody can be asked", name)
	}
	fmt.Fprintf(c.ErrOrStderr(), "This deletes %s and all of its data. Type its name to go on: ", name)
	return matchName(in, name)
}

func matchName(in io.Reader, name string) error {
	line, err := bufio.NewReader(io.LimitReader(in, 256)).ReadString('\n')
	if err != nil && line == "" {
		return fmt.Errorf("nothing was deleted: %w", err)
	}
	if strings.TrimSpace(line) != name {
		return fmt.Errorf("nothing was deleted: that is not %q", name)
	}
	return nil
}

// deleteApplication asks until somebody coordinates, and prints the keys as they
// arrive.
func (g *globals) deleteApplication(c *cobra.Command, cl *client.Client, name string, force bool) error {
	out := io.Discard
	if g.json {
		out = c.OutOrStdout()
	}
	p := newProgress(c.ErrOrStderr())
	defer p.end()
	if p.live {
		p.step("deleting " + name)
	}
	w := bufio.NewWriter(out)
	keys, told := 0, time.Now()
	each := func(key string) error {
		keys++
		if p.live && time.Since(told) > time.Second {
			told = time.Now()
			p.step(fmt.Sprintf("deleting %s: %d keys", name, keys))
		}
		if !g.json {
			return nil
		}
		return printKey(w, keys, key)
	}
	if err := settled(c.Context(), func() error { return cl.DeleteApplication(c.Context(), name, force, each) }); err != nil {
		_ = w.Flush() // what arrived; the error says the rest
		return err
	}
	if !g.json {
		p.end()
		fmt.Fprintf(c.OutOrStdout(), "%s is deleted: %d keys\n", name, keys)
		return nil
	}
	if err := endKeys(w, keys); err != nil {
		return err
	}
	return w.Flush()
}

// endKeys ends a list of n keys.
func endKeys(w io.Writer, n int) error {
	end := "\n  ]\n}\n"
	if n == 0 {
		end = "{\n  \"deleted\": []\n}\n"
	}
	_, err := io.WriteString(w, end)
	return err
}

// printKey is one key of the list, behind those before it.
func printKey(w io.Writer, n int, key string) error {
	b, err := json.Marshal(key)
	if err != nil {
		return err
	}
	begin := ",\n    "
	if n == 1 {
		begin = "{\n  \"deleted\": [\n    "
	}
	_, err = fmt.Fprintf(w, "%s%s", begin, b)
	return err
}

// settled repeats a deletion while the fleet has no coordinator that could answer it.
// One that finds nothing any more was finished by whoever coordinated in between.
func settled(ctx context.Context, call func() error) error {
	until := time.Now().Add(settleWithin)
	for again := false; ; again = true {
		err := call()
		if again && scafo.CodeOf(err) == scafo.CodeNotFound {
			return nil
		}
		if scafo.CodeOf(err) != scafo.CodeDraining || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(settlePause):
		}
	}
}

// goneMeanwhile says why a deploy that was accepted is not found any more: its record
// goes with its application alone.
func goneMeanwhile(err error, s scafo.DeployStatus) error {
	if scafo.CodeOf(err) != scafo.CodeNotFound {
		return err
	}
	return scafo.Wrap(err, scafo.CodeApplicationDeleting, "application %s was deleted while it was being deployed", s.Application)
}
