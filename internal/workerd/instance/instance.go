// Package instance runs one workerd: it writes the configuration for a
// deployment, starts the process, knows when it is ready, follows its output,
// and ends it. It decides nothing about when: the server above it does.
package instance

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/scafo/scafo/internal/workerd/layout"
)

// Spec is everything that a workerd needs.
type Spec struct {
	Workerd    string             // the program
	Deployment *layout.Deployment // what it serves
	// Run is a directory of its own for configuration and credentials; made with
	// mode 0700, removed at the exit.
	Run string
	// Disk is the local disk of the Durable Objects. Only one running instance
	// may use it at a time. Needed with Cluster alone.
	Disk string
	// Cluster joins the application's cluster. Needed when the deployment is
	// durable, except in a trial; ignored when it is not durable.
	Cluster *Cluster
	// Trial starts it without cluster, network, crons and queues, its objects in
	// memory: to see whether it starts.
	Trial bool
	// ForwardedProto makes request.url follow X-Forwarded-Proto.
	ForwardedProto bool
	// Log gets every line of output, in order for each stream. It must not block.
	Log func(Line)
}

// Cluster is how an instance finds its peers and its state.
type Cluster struct {
	Bucket      string // s3://name[/prefix]
	Endpoint    string // empty: AWS
	Region      string
	Credentials Credentials
	Listen      string        // IP:port for peers; port 0 takes a free one
	Advertise   string        // what peers are told; empty: Listen
	Key         string        // shared by the application's instances, 32 bytes or more
	StopTimeout time.Duration // from SIGTERM to exit at the most; 0: 40 s
	TimeDivisor int           // tests: divides the lease and its rounds; 0: 1
}

// Credentials are what the bucket is opened with. They can be changed while the
// instance runs.
type Credentials struct {
	AccessKey, SecretKey, SessionToken string
}

// Line is one line of output.
type Line struct {
	Stderr bool
	Level  string // log, info, debug, warn, error; empty: not structured
	Text   string // the message
}

// Instance is a started workerd.
type Instance struct {
	// to be filled
	spec Spec
}

// Exit is how an instance ended.
type Exit struct {
	Code   int    // -1 when a signal ended it
	Signal string // its name, or empty
	Stderr string // the last lines of standard error
}

// Start writes the configuration and starts the process. It returns once the
// process runs; Ready waits for its ports. The process ends when this one does,
// however it ends. ctx bounds the start alone.
func Start(ctx context.Context, s Spec) (*Instance, error) { return nil, errors.New("not yet") }

// Ready waits until every port is bound and, in a cluster, until the instance
// holds its lease. It fails when the process exits before, with the runtime's
// sentence, as a *StartError.
func (i *Instance) Ready(ctx context.Context) error { return errors.New("not yet") }

// Addr is where it answers requests, IP:port on loopback; valid after Ready.
func (i *Instance) Addr() string { return "" }

// Dial opens a connection to its public socket; valid after Ready.
func (i *Instance) Dial(ctx context.Context) (net.Conn, error) { return nil, errors.New("not yet") }

// ClusterAddr is where its peers reach it, and GET /ready answers; empty outside
// a cluster; valid after Ready.
func (i *Instance) ClusterAddr() string { return "" }

// PID is the process id.
func (i *Instance) PID() int { return 0 }

// Healthy asks GET /ready of the cluster port; outside a cluster it opens a
// connection.
func (i *Instance) Healthy(ctx context.Context) error { return errors.New("not yet") }

// SetCredentials replaces the bucket's credentials; the process reads them anew
// by itself.
func (i *Instance) SetCredentials(c Credentials) error { return errors.New("not yet") }

// Drain asks the process to finish: objects are handed over, running requests
// end, then it exits, within the stop timeout. It does not wait; see Done.
func (i *Instance) Drain() error { return errors.New("not yet") }

// Kill ends the process at once.
func (i *Instance) Kill() error { return errors.New("not yet") }

// Done is closed when the process was reaped and its output read to the end.
func (i *Instance) Done() <-chan struct{} { return nil }

// Exit is how it ended; valid after Done.
func (i *Instance) Exit() Exit { return Exit{} }

// Stderr is the last lines of standard error so far.
func (i *Instance) Stderr() string { return "" }

// StartError is a workerd that did not start.
type StartError struct {
	Sentence string // the runtime's own words, with file and line where it has them
	Exit     Exit
}

func (e *StartError) Error() string { return e.Sentence }
