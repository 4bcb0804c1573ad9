package node

import (
	"fmt"
	"net/netip"
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
		Env: n.c.Celld.Env, Durability: n.durability(), Log: n.log, Logs: logs,
	})
}
