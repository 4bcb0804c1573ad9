package node

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"

	"github.com/scafo/scafo/internal/applog"
	"github.com/scafo/scafo/internal/supervise"
)

// LogsDir is where a node with that state directory keeps what its applications say.
func LogsDir(state string) string { return filepath.Join(state, "logs") }

func (n *Node) newSupervisor() (*supervise.Supervisor, error) {
	bind, err := netip.ParseAddr(n.c.Node.Bind)
	if err != nil {
		return nil, fmt.Errorf("node.bind: %w", err)
	}
	ports, err := n.c.Celld.PortRange()
	if err != nil {
		return nil, err
	}
	logs, err := applog.NewStore(LogsDir(n.c.Node.State), applog.Bounds{Application: n.c.Logs.ApplicationBytes, Total: n.c.Logs.TotalBytes})
	if err != nil {
		return nil, err
	}
	return supervise.New(supervise.Config{
		Node: n.ID, MachineID: n.machineID, StateDir: filepath.Join(n.c.Node.State, runtimesDir), Command: n.Command,
		Bind: bind, Address: n.c.Node.Address, InternalHost: n.c.Node.Internal,
		Ports:  supervise.Range{First: ports[0], Last: ports[1]},
		Target: n.Store.Target, Credentials: n.Store.RuntimeCredentials,
		Env: n.c.Celld.Env, Durability: n.durability(), Log: n.log, Logs: logs, Fleet: n.fleetHosts, Counted: n.metrics.Process,
	})
}

// fleetHosts are the hosts of the machines that this node knows, its own among them.
func (n *Node) fleetHosts() []string {
	seen := map[string]bool{}
	var out []string
	add := func(host string) {
		if host != "" && !seen[host] {
			seen[host] = true
			out = append(out, host)
		}
	}
	hostOf := func(address string) string {
		if u, err := url.Parse(address); err == nil {
			return u.Hostname()
		}
		return ""
	}
	add(n.c.Node.Bind)
	add(n.c.Node.Address)
	add(n.c.Node.Internal)
	add(hostOf(n.c.Node.Advertise))
	for _, listen := range []string{n.c.Node.Listen, n.c.Metrics.Listen} {
		if host, _, err := net.SplitHostPort(listen); err == nil {
			add(host)
		}
	}
	if n.loop == nil {
		return out
	}
	snap := n.loop.Snapshot()
	if snap == nil {
		return out // the bucket was not read yet
	}
	for _, node := range snap.Nodes {
		if node.Removed == nil {
			add(hostOf(node.Address))
		}
	}
	for _, h := range snap.Heartbeats {
		for _, p := range h.Processes {
			add(hostOf(p.URL))
		}
	}
	return out
}
