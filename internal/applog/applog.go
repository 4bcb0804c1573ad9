// Package applog keeps what applications say on the disk of the machine that runs
// them: lines of their console, exceptions with their stacks, and what became of
// their processes. The node writes ([Store]), anybody who may read its state
// directory reads ([Reader]), also while it writes and when it is gone.
//
// An application's log is a directory of segments, each a file of JSON lines that
// only ever grows. A full segment is followed by the next one, and the oldest go:
// each application has a bound, and all of them together have one.
package applog

import (
	"strings"
	"time"
)

// Entry is one thing that was said.
type Entry struct {
	Time  time.Time `json:"time"`
	Level Level     `json:"level"`
	// Source is who says it.
	Source Source `json:"source"`
	// Deployment is the version that was running; empty where nobody knows.
	Deployment string `json:"deployment,omitempty"`
	Message    string `json:"message"`
	// Stack are the frames of an exception, a line each.
	Stack string `json:"stack,omitempty"`
	Event Event  `json:"event,omitempty"`
	// Crash marks the entries that are told first because the application is
	// crash-looping; they come again in their place. Never on disk.
	Crash bool `json:"crash,omitempty"`
}

// Level is how much an entry matters.
type Level string

// The levels.
const (
	Debug Level = "debug"
	Info  Level = "info"
	Warn  Level = "warn"
	Error Level = "error"
)

// Source is who said something.
type Source string

// The sources.
const (
	Worker  Source = "worker"  // the application's own code
	Runtime Source = "runtime" // the program that runs it
	Node    Source = "node"    // scafo, about the program that runs it
)

// Event is what happened to an application's process, where an entry tells that.
type Event string

// The events.
const (
	Ready   Event = "ready"
	Crash   Event = "crash"
	Stopped Event = "stopped"
)

const (
	// maxText bounds the message and the stack of an entry, in bytes.
	maxText = 32 << 10
	// overhead is what an entry takes beside its texts, about.
	overhead = 128
)

// bounded cuts texts that are too long.
func (e Entry) bounded() Entry {
	e.Message, e.Stack = cut(e.Message), cut(e.Stack)
	return e
}

func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}
