package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/node"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

const nodesLong = `The node API has no route for it: this command works on the fleet's bucket, so it needs the
bucket's configuration and credentials.`

// nodesBy is whom the records name for what these commands decide: who may write the
// bucket shows no key.
const nodesBy = "cli"

// openFleet opens the bucket of a command's fleet; close gives it back.
type openFleet func(c *cobra.Command) (r *registry.Registry, l *config.Loaded, shut func(), err error)

func openConfigured(c *cobra.Command) (*registry.Registry, *config.Loaded, func(), error) {
	l, err := loadConfig(c, nil)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := wantStore(l); err != nil {
		return nil, nil, nil, err
	}
	store, err := openStore(c.Context(), l, node.Logger(config.Log{Level: "warn", Format: "text"}, os.Stderr))
	if err != nil {
		return nil, nil, nil, err
	}
	if _, err := store.registry.Fleet(c.Context()); err != nil {
		store.close()
		return nil, nil, nil, err
	}
	return store.registry, l, store.close, nil
}

func newNodes(g *globals, open openFleet) *cobra.Command {
	nodes := &cobra.Command{Use: "nodes", Short: "Look at the fleet's machines, drain and remove them", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	f := nodesCommands{g, open}
	nodes.AddCommand(f.list(), f.show(), f.drain(), f.undrain(), f.remove(), f.admit())
	return nodes
}

// nodesCommands make the commands below `scafo nodes`.
type nodesCommands struct {
	g    *globals
	open openFleet
}

// one makes a command about one node.
func (f nodesCommands) one(c *cobra.Command, do func(ctx context.Context, w io.Writer, r *registry.Registry, n nodeView) error) *cobra.Command {
	c.Args = cobra.ExactArgs(1)
	c.Long += "\n\n" + nodesLong
	c.RunE = func(c *cobra.Command, args []string) error {
		if _, err := scafo.ParseID("node", args[0]); err != nil {
			return usageError{err}
		}
		r, l, shut, err := f.open(c)
		if err != nil {
			return err
		}
		defer shut()
		n, err := viewNode(c.Context(), r, args[0], staleAfter(l))
		if err != nil {
			return err
		}
		return do(c.Context(), c.OutOrStdout(), r, n)
	}
	addConfig(c)
	return c
}

func (f nodesCommands) list() *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List the fleet's machines, from the bucket", Args: cobra.NoArgs,
		Long: "List the machines of the fleet with what they last said of themselves: live, draining, drained,\nsilent (its heartbeat is older than heartbeat.staleSeconds by this machine's clock), new (it never\nran), removed.\n\n" + nodesLong,
		RunE: func(c *cobra.Command, _ []string) error {
			r, l, shut, err := f.open(c)
			if err != nil {
				return err
			}
			defer shut()
			records, err := r.Nodes(c.Context())
			if err != nil {
				return err
			}
			beats, err := r.Heartbeats(c.Context())
			if err != nil {
				return err
			}
			views, now := make([]nodeView, 0, len(records)), time.Now()
			for _, n := range records {
				h, known := beats[n.ID]
				views = append(views, newNodeView(n, h, known, now, staleAfter(l)))
			}
			if f.g.json {
				return printJSON(c.OutOrStdout(), map[string]any{"nodes": views})
			}
			return table(c.OutOrStdout(), "ID\tSTATE\tADDRESS\tVERSION\tLABELS\tHEARTBEAT\tAPPLICATIONS", func(row func(string, ...any)) {
				for _, v := range views {
					row("%s\t%s\t%s\t%s\t%s\t%s\t%s", v.ID, string(v.State), orDash(v.Address), orDash(v.Version), orDash(pairs(v.Labels)), v.heard(now), orDash(v.names()))
				}
			})
		},
	}
	addConfig(c)
	return c
}

func (f nodesCommands) show() *cobra.Command {
	c := &cobra.Command{Use: "show NODE", Short: "Show a machine and what runs on it, from the bucket", Long: "Show a machine of the fleet and the applications that it last said it runs."}
	return f.one(c, func(_ context.Context, w io.Writer, _ *registry.Registry, n nodeView) error {
		if f.g.json {
			return printJSON(w, map[string]any{"node": n})
		}
		return n.show(w, time.Now())
	})
}

func (f nodesCommands) drain() *cobra.Command {
	var wait bool
	var within time.Duration
	c := &cobra.Command{
		Use: "drain NODE", Short: "Move the applications of a machine elsewhere",
		Long: "Give a machine no more applications and move away those that it has: each becomes ready elsewhere\nfirst, where another machine qualifies, for at most drain.replaceSeconds; then its routes leave, and\nits process ends when requests under way have. The machine stays in the fleet, also when it starts\nanew, until `nodes undrain`. `nodes show` says when it is drained;\nwith --wait this command ends then, and fails when that is not within --timeout.",
	}
	c.Flags().BoolVar(&wait, "wait", false, "wait until the machine runs nothing any more")
	c.Flags().DurationVar(&within, "timeout", drainWait, "how long to wait with --wait")
	return f.one(c, func(ctx context.Context, w io.Writer, r *registry.Registry, n nodeView) error {
		if within <= 0 {
			return usagef("--timeout is a time, as 90s or 10m")
		}
		record, changed, err := r.DrainNode(ctx, n.ID, nodesBy)
		if err == nil && wait {
			if n, err = awaitDrained(ctx, c.ErrOrStderr(), r, n.ID, within, n.stale); err == nil {
				return f.decided(w, n, record, changed, nil, "node %s is drained", "node %s is drained")
			}
		}
		return f.decided(w, n, record, changed, err, "node %s drains", "node %s was draining already")
	})
}

func (f nodesCommands) undrain() *cobra.Command {
	c := &cobra.Command{Use: "undrain NODE", Short: "Let a machine take its share again", Long: "Take a drain back: the machine is given applications again."}
	return f.one(c, func(ctx context.Context, w io.Writer, r *registry.Registry, n nodeView) error {
		record, changed, err := r.UndrainNode(ctx, n.ID)
		return f.decided(w, n, record, changed, err, "node %s takes its share again", "node %s was not told to drain")
	})
}

func (f nodesCommands) remove() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "remove NODE", Short: "Take a machine out of the fleet",
		Long: "Take a machine out of the fleet: its tokens are refused within a minute, what it had runs elsewhere,\nand it does not come back by itself, also when it starts anew from an old disk. A machine that is up\nstops what it runs, and itself. Drain it first: one that still runs applications is only removed\nwith --force, since they would be away until they run elsewhere. A machine that is lost is removed\nonce it is silent. Its key of the bucket is not scafo's: revoke it where you made it.",
	}
	c.Flags().BoolVar(&force, "force", false, "remove a machine that still runs applications")
	return f.one(c, func(ctx context.Context, w io.Writer, r *registry.Registry, n nodeView) error {
		if !force && plan.Interrupts(n.State, n.beat) {
			return scafo.Errorf(scafo.CodeReferenceHeld, "node %s still runs %s: drain it first (scafo nodes drain %s), or say --force", n.ID, n.names(), n.ID)
		}
		record, changed, err := r.RemoveNode(ctx, n.ID, nodesBy)
		return f.decided(w, n, record, changed, err, "node %s is removed from the fleet", "node %s was removed already")
	})
}

func (f nodesCommands) admit() *cobra.Command {
	c := &cobra.Command{
		Use: "admit NODE", Short: "Let a removed machine come back",
		Long: "Let a machine come back that was removed, with the key that it had: its tokens count again, and it\ntakes its share once it is started.",
	}
	return f.one(c, func(ctx context.Context, w io.Writer, r *registry.Registry, n nodeView) error {
		record, changed, err := r.AdmitNode(ctx, n.ID)
		return f.decided(w, n, record, changed, err, "node %s may come back", "node %s was not removed")
	})
}

// decided says what was decided about a node.
func (f nodesCommands) decided(w io.Writer, n nodeView, record scafo.Node, changed bool, err error, yes, no string) error {
	if err != nil {
		return err
	}
	if f.g.json {
		return printJSON(w, map[string]any{"node": n.with(record), "changed": changed})
	}
	if !changed {
		yes = no
	}
	_, err = fmt.Fprintf(w, yes+"\n", n.ID)
	return err
}

// staleAfter is how old the heartbeat of a live node may be.
func staleAfter(l *config.Loaded) time.Duration {
	return time.Duration(l.Heartbeat.StaleSeconds) * time.Second
}

// nodeView is a node as these commands show it.
type nodeView struct {
	ID           string            `json:"id"`
	State        plan.Standing     `json:"state"`
	Address      string            `json:"address"`
	Version      string            `json:"version"`
	Labels       map[string]string `json:"labels"`
	RegisteredAt time.Time         `json:"registeredAt"`
	Drain        *scafo.Stamp      `json:"drain,omitempty"`
	Removed      *scafo.Stamp      `json:"removed,omitempty"`
	HeartbeatAt  *time.Time        `json:"heartbeatAt,omitempty"`
	CelldVersion string            `json:"celldVersion,omitempty"`
	// Applications are the processes that it last said it runs.
	Applications []nodeApplication `json:"applications"`

	beat  scafo.Heartbeat
	known bool
	now   time.Time
	stale time.Duration
}

type nodeApplication struct {
	Application string             `json:"application"`
	State       scafo.ProcessState `json:"state"`
	Deployment  string             `json:"deployment,omitempty"`
}

func viewNode(ctx context.Context, r *registry.Registry, id string, stale time.Duration) (nodeView, error) {
	n, err := r.Node(ctx, id)
	if err != nil {
		return nodeView{}, err
	}
	h, known, err := r.Heartbeat(ctx, id)
	if err != nil {
		return nodeView{}, err
	}
	return newNodeView(n, h, known, time.Now(), stale), nil
}

func newNodeView(n scafo.Node, h scafo.Heartbeat, known bool, now time.Time, stale time.Duration) nodeView {
	v := nodeView{
		ID: n.ID, State: plan.StandingOf(n, h, known, now, stale), Address: n.Address, Version: n.Version, Labels: n.Labels,
		RegisteredAt: n.RegisteredAt, Drain: n.Drain, Removed: n.Removed, Applications: []nodeApplication{},
		beat: h, known: known, now: now, stale: stale,
	}
	if v.Labels == nil {
		v.Labels = map[string]string{}
	}
	if known {
		v.HeartbeatAt, v.CelldVersion = &h.At, h.CelldVersion
	}
	for _, p := range plan.Running(h) {
		v.Applications = append(v.Applications, nodeApplication{p.Application, p.State, p.Deployment})
	}
	return v
}

// with is the same node by a newer record.
func (v nodeView) with(n scafo.Node) nodeView { return newNodeView(n, v.beat, v.known, v.now, v.stale) }

func (v nodeView) heard(now time.Time) string {
	if v.HeartbeatAt == nil {
		return "-"
	}
	return ago(*v.HeartbeatAt, now)
}

func (v nodeView) names() string {
	names := make([]string, 0, len(v.Applications))
	for _, a := range v.Applications {
		names = append(names, a.Application)
	}
	return strings.Join(slices.Compact(names), ", ")
}

func (v nodeView) show(w io.Writer, now time.Time) error {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-11s %s\n", name, printable(value))
		}
	}
	stamp := func(name string, s *scafo.Stamp) {
		if s != nil {
			line(name, s.At.UTC().Format(time.RFC3339)+" by "+s.By)
		}
	}
	line("node", v.ID)
	line("state", string(v.State))
	line("address", v.Address)
	line("version", v.Version)
	line("runtime", v.CelldVersion)
	line("labels", pairs(v.Labels))
	line("registered", v.RegisteredAt.UTC().Format(time.RFC3339))
	line("heartbeat", v.heard(now))
	stamp("drain", v.Drain)
	stamp("removed", v.Removed)
	if len(v.Applications) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return table(w, "APPLICATION\tSTATE\tDEPLOYMENT", func(row func(string, ...any)) {
		for _, a := range v.Applications {
			row("%s\t%s\t%s", a.Application, string(a.State), orDash(a.Deployment))
		}
	})
}
