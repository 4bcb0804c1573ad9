// Package celld is everything that scafo knows of the celld contract: the
// command lines, the environment, the versions and which of them may serve one
// application together, publishing, health, the internal listener and the exit
// codes. Nothing else in scafo spells any of them.
//
// It drives whatever program has that command line: celld itself, or
// celld-workerd. It targets 0.6 and keeps working from 0.4 on.
package celld

import (
	"errors"
	"time"
)

// LeaseTTL is how long a runtime's own lease lasts unless CELLD_TTL_MS says
// otherwise. A process that fenced itself is started again no earlier than that.
const LeaseTTL = 10 * time.Second

// DrainBound is how long a runtime takes at most to drain after SIGTERM
// (CELLD_SHUTDOWN_TOTAL_MS).
const DrainBound = 40 * time.Second

// Target says where an application's objects lie.
type Target struct {
	Bucket   string // NAME[/PREFIX], with or without s3://
	Endpoint string // empty: the store's own address
	Region   string
}

func (t Target) args() []string {
	args := []string{"--bucket", t.Bucket}
	if t.Endpoint != "" {
		args = append(args, "--endpoint", t.Endpoint)
	}
	if t.Region != "" {
		args = append(args, "--region", t.Region)
	}
	return args
}

// Serve is the command line that serves one application. It has no subcommand.
type Serve struct {
	Target
	Listen         string // literal IP:PORT of the public listener
	InternalListen string // literal IP:PORT; it has no authentication
	Advertise      string // HOST:PORT where other nodes reach the internal listener
	// UnsafePublicAdvertise lifts the refusal of a public Advertise.
	UnsafePublicAdvertise bool
	// TrustForwarded takes host and scheme from the last X-Forwarded-Host and
	// X-Forwarded-Proto, which the ingress must have overwritten.
	TrustForwarded bool
}

// The flags that others look for in a running process's command line.
const (
	FlagListen         = "--listen"
	FlagInternalListen = "--internal-listen"
)

// Args is the command line behind the program's name. A value is always an
// argument of its own: the runtime knows no --flag=value.
func (s Serve) Args() []string {
	args := s.args()
	add := func(flag, value string) {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	add(FlagListen, s.Listen)
	add(FlagInternalListen, s.InternalListen)
	add("--advertise", s.Advertise)
	if s.UnsafePublicAdvertise {
		args = append(args, "--unsafe-public-advertise")
	}
	if s.TrustForwarded {
		args = append(args, "--trust-forwarded-headers")
	}
	return args
}

// The exit codes of a serving runtime.
const (
	ExitDrained = 0 // asked to stop, and did
	ExitFailed  = 1 // start-up, configuration or command line
	ExitFenced  = 3 // lost its lease and left, so that nobody else's write is overwritten
)

// ErrUnanswered means that a listener did not answer: the connection was
// refused or cut, or nothing came in time.
var ErrUnanswered = errors.New("no answer from the runtime")

// ErrUnhealthy means that the runtime answered that it is not ready: it waits
// for its lease, drains, or lacks memory.
var ErrUnhealthy = errors.New("the runtime says that it is not ready")
