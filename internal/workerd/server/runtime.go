package server

import (
	"context"
	"net"
	"time"

	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
)

// Runtime is what the supervisor asks of the store and of workerd.
type Runtime interface {
	// Prepare settles what an earlier run left behind. A prove that is not nil proves
	// that the store keeps its conditions: nothing that relies on them may be done before
	// it has. An error that wraps bucket.ErrUnavailable, of either, is worth another try.
	Prepare(ctx context.Context) (prove func(context.Context) error, err error)
	// Load reads the pointer; layout.ErrNoPointer when nothing was deployed.
	Load(ctx context.Context) (layout.Pointer, error)
	// Fetch brings a deployment to this machine, verified.
	Fetch(ctx context.Context, p layout.Pointer) (*layout.Deployment, error)
	// Start starts a workerd on the disk of that slot. It may not be ready yet.
	Start(ctx context.Context, d *layout.Deployment, slot int) (Process, error)
	// StandIn starts a workerd of a deployment that keeps state, without the state; see
	// standin.go. It may not be ready yet.
	StandIn(ctx context.Context, d *layout.Deployment) (Process, error)
	// PeersServe reports whether another member of the cluster is known to serve.
	PeersServe(ctx context.Context) bool
	// Migrate brings the databases of a process that is ready up to what its deployment
	// expects of them. An error that is transient is worth another try.
	Migrate(ctx context.Context, d *layout.Deployment, p Process) error
	// Joined is called once a process is ready, Reaped once it is gone for good;
	// clean says that it handed over and left the cluster by itself.
	Joined(ctx context.Context, p Process)
	Reaped(ctx context.Context, p Process, clean bool)
	// Lapsed says how long ago peers went without leaving the cluster.
	Lapsed(ctx context.Context) ([]time.Duration, error)
	// FirstSlot is the slot whose disk is the warmest.
	FirstSlot() int
	// Keep drops the local copies of all deployments but these.
	Keep(ds ...*layout.Deployment)
}

// Process is one workerd. *instance.Instance is the real one.
type Process interface {
	// Ready waits until it serves; it fails with the runtime's own sentence when
	// the process ends before.
	Ready(ctx context.Context) error
	// Dial opens a connection to its public socket.
	Dial(ctx context.Context) (net.Conn, error)
	// ClusterAddr is empty for a deployment that keeps no state.
	ClusterAddr() string
	PID() int
	// Healthy asks whether it serves; an error that is not the context's says that
	// it answered, and no.
	Healthy(ctx context.Context) error
	// Drain asks it to hand over and leave, Kill ends it at once.
	Drain() error
	Kill() error
	Done() <-chan struct{}
	// Leaving is closed once it says that it leaves the cluster, just before it ends.
	Leaving() <-chan struct{}
	// StoreTrouble is when it last said that the store failed it; zero: never.
	StoreTrouble() time.Time
	Exit() instance.Exit
	Stderr() string
}

var _ Process = (*instance.Instance)(nil)
