// Package trial starts a deployment before it is published, without cluster,
// network, crons and queues: what does not start fails its deploy, in the
// runtime's own words.
package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/wrangler"
)

// Timeout is how long a Worker may take to start.
const Timeout = 10 * time.Second

// Memory is how much a Worker may take until it has started, in bytes, where nothing
// else is asked for.
const Memory = 512 << 20

// files is how many files and sockets a trial may have open: it has no network.
const files = 1024

// outOfMemory are what workerd says when it cannot have more memory.
var outOfMemory = []string{"out of memory", "Cannot allocate memory"}

// missingClass is how the runtime begins to say that a class is not exported. It
// only warns of it, and serves.
const missingClass = "A DurableObjectNamespace in the config referenced the class"

// Error is a Worker that does not start.
type Error struct {
	Sentence string // the runtime's words
}

func (e *Error) Error() string { return e.Sentence }

// Run starts the bundle's modules, which have to be sealed, and ends them again.
// It returns what the runtime warned of. An *Error says that the Worker does not
// start; every other error, that it could not be tried.
func Run(ctx context.Context, workerd string, b *layout.Bundle) (warnings []string, err error) {
	return RunWithin(ctx, workerd, b, Memory)
}

// RunWithin is Run for a Worker that may take so much memory.
func RunWithin(ctx context.Context, workerd string, b *layout.Bundle, memory int64) (warnings []string, err error) {
	dir, err := os.MkdirTemp("", "celld-workerd-trial-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d, err := b.Unpack(dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, errTimeout)
	defer cancel()
	i, err := instance.Start(ctx, instance.Spec{
		Workerd: workerd, Deployment: d, Run: filepath.Join(dir, "run"), Trial: true,
		Limits: instance.Limits{Memory: memory, Files: files},
	})
	if err != nil {
		return nil, err
	}
	over := watchMemory(i, memory)
	ready := i.Ready(ctx)
	// Nothing of it has to be kept. What it warned of is complete at its end.
	if err := i.Kill(); err != nil {
		return nil, err
	}
	<-i.Done()
	var start *instance.StartError
	switch {
	case over.Load() || errors.As(ready, &start) && starved(start.Exit):
		return nil, &Error{fmt.Sprintf("it took more than the %d MiB of memory that it may have, before it was ready: is there an endless loop outside of its handlers?", memory>>20)}
	case errors.As(ready, &start) && start.Exit.Signal == syscall.SIGKILL.String():
		return nil, errKilled
	case errors.As(ready, &start):
		return nil, &Error{hint(b.Manifest, start.Sentence)}
	case errors.Is(context.Cause(ctx), errTimeout):
		return nil, &Error{fmt.Sprintf("it was not ready within %v: is there an endless loop outside of its handlers?", Timeout)}
	case ready != nil:
		return nil, ready
	}
	for _, w := range i.Warnings() {
		if strings.HasPrefix(w, missingClass) {
			return nil, &Error{w}
		}
		warnings = append(warnings, w)
	}
	return warnings, nil
}

// hint adds what to do where the runtime only says what is wrong.
func hint(m *layout.Manifest, sentence string) string {
	if !strings.Contains(sentence, `No such module "node:`) || wrangler.NodeCompat(m.CompatibilityDate, m.CompatibilityFlags) {
		return sentence
	}
	if slices.Contains(m.CompatibilityFlags, "no_nodejs_compat") {
		return sentence + "\ncompatibility_flags has \"no_nodejs_compat\", which takes the modules of Node away"
	}
	return sentence + "\nadd \"nodejs_compat\" to compatibility_flags for the modules of Node"
}

// errKilled blames nobody: the kernel kills who asks for memory that is not there,
// and that may be the Worker or anybody beside it.
var errKilled = errors.New("the workerd that tried it was killed from outside, as happens where memory runs out: deploy again, and if that goes on look at what the Worker does outside of its handlers")

var errTimeout = errors.New("the trial took too long")

// lookEvery is how often the memory of a trial is looked at.
const lookEvery = 10 * time.Millisecond

// watchMemory kills a workerd that takes more than that, until it is gone. What is
// faster meets the kernel's bound, which has to be wider.
func watchMemory(i *instance.Instance, memory int64) (over *atomic.Bool) {
	over = &atomic.Bool{}
	go func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-i.Done():
				return
			case <-tick.C:
			}
			if i.Resident() > memory {
				over.Store(true)
				_ = i.Kill() // it may be gone already
				return
			}
		}
	}()
	return over
}

// starved reports whether it ended because it could not have more memory.
func starved(e instance.Exit) bool {
	return slices.ContainsFunc(outOfMemory, func(s string) bool { return strings.Contains(e.Stderr, s) })
}
