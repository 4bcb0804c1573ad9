// Package embedded runs the store of a machine that has none of its own: an S3
// server over a directory, in a process of its own that outlives the node. This
// package finds, starts and stops it; package server, beneath it, is what that
// process runs, and links the server's libraries, which others need not.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scafo/scafo/internal/bucket/embedded/state"
)

// Endpoint is where the store answers and how to sign requests for it. It stays
// the same for as long as the state directory does.
type Endpoint struct {
	URL       string
	Bucket    string
	Region    string
	AccessKey string
	SecretKey string
}

// String leaves the credential out.
func (e Endpoint) String() string { return e.URL + "/" + e.Bucket }

// GoString leaves the credential out.
func (e Endpoint) GoString() string { return e.String() }

// Options for Ensure.
type Options struct {
	Log *slog.Logger
	// Args make the executable serve the store; nil takes "bucket", "--state" and
	// the state directory.
	Args []string
	// FrozenAfter is how long a kept store may be silent until it is killed; 0 takes
	// DefaultFrozenAfter.
	FrozenAfter time.Duration
	// Env is the whole environment of the process. Nothing is inherited.
	Env []string
}

// Limits of looking for the process.
const (
	// lookAgain is how often the state directory is looked at even if nothing in it
	// seems to have changed: the end of a lock's holder is told a moment before the
	// lock is free.
	lookAgain = 250 * time.Millisecond
	// logTail is how much of the log a failed start shows.
	logTail = 2048
	// firstOther is the first descriptor after the standard ones.
	firstOther = 3
	// maxLog is the size from which the log is put aside at a start.
	maxLog = 8 << 20
)

// Handle is the running store.
type Handle struct {
	id    state.Identity
	child *child // nil when it ran already
}

// PID is the process id of the store.
func (h *Handle) PID() int { return h.id.PID }

// Started says whether this call of Ensure started the process.
func (h *Handle) Started() bool { return h.child != nil }

// Alive says whether that very process still runs.
func (h *Handle) Alive() bool { return h.id.Alive() }

// Wait returns nil once the process has ended, or the context's error.
func (h *Handle) Wait(ctx context.Context) error {
	if err := h.id.Wait(ctx); err != nil {
		return err
	}
	if h.child != nil {
		<-h.child.done // reaped
	}
	return nil
}

// Stop asks the process to end and waits until it has. It finishes what it
// answers already. Nothing is lost if it is killed instead: what it acknowledged
// is on disk.
func (h *Handle) Stop(ctx context.Context) error { return h.end(ctx, unix.SIGTERM) }

// Kill ends the process at once, also a frozen one.
func (h *Handle) Kill(ctx context.Context) error { return h.end(ctx, unix.SIGKILL) }

func (h *Handle) end(ctx context.Context, sig unix.Signal) error {
	if err := h.id.Signal(sig); err != nil && !errors.Is(err, state.ErrGone) {
		return fmt.Errorf("stopping the bucket: %w", err)
	}
	if err := h.Wait(ctx); err != nil {
		return fmt.Errorf("stopping the bucket: process %d has not ended: %w", h.id.PID, err)
	}
	return nil
}

// Running finds the store of the state directory; ok is false when none runs.
func Running(ctx context.Context, stateDir string) (e Endpoint, h *Handle, ok bool, err error) {
	dir, err := state.Open(stateDir)
	if err != nil {
		return Endpoint{}, nil, false, err
	}
	e, id, ok, err := find(ctx, dir)
	if err != nil || !ok {
		return Endpoint{}, nil, false, err
	}
	return e, &Handle{id: id}, true, nil
}

// Ensure finds the store of the state directory, or starts it: detached, in a
// session of its own, printing to a file. It returns once the store answers.
// Any number of processes may call it at once; one store serves them all.
func Ensure(ctx context.Context, stateDir, executable string, o Options) (Endpoint, *Handle, error) {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	dir, err := state.Open(stateDir)
	if err != nil {
		return Endpoint{}, nil, err
	}
	w, err := dir.Watch()
	if err != nil {
		return Endpoint{}, nil, err
	}
	defer w.Close()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()

	var started *child
	var ended <-chan struct{} // of started
	for {
		e, id, ok, err := find(ctx, dir)
		if err != nil {
			return Endpoint{}, nil, errors.Join(err, started.abandon())
		}
		if ok {
			h := &Handle{id: id}
			if started != nil && started.pid() == id.PID {
				h.child = started
				log.Info("started the embedded bucket", "event", "bucket.started", "pid", id.PID, "endpoint", e.URL)
				return e, h, nil
			}
			// Another one was faster. Ours would find the lock held and end, but should
			// it look only after the other one has ended, it would begin to serve.
			return e, h, started.abandon()
		}
		busy, err := dir.Locked()
		if err != nil {
			return Endpoint{}, nil, errors.Join(err, started.abandon())
		}
		switch {
		case busy: // somebody, perhaps our child, is about to serve
		case started == nil:
			if started, err = start(dir, executable, o); err != nil {
				return Endpoint{}, nil, err
			}
			ended = started.done
		case started.over():
			return Endpoint{}, nil, started.failure()
		}
		select {
		case <-w.Changes():
		case <-ended:
			ended = nil
		case <-tick.C:
		case <-ctx.Done():
			err := fmt.Errorf("waiting for the embedded bucket of %s: %w", dir, ctx.Err())
			return Endpoint{}, nil, errors.Join(err, started.abandon())
		}
	}
}

// find looks for a serving process. One that runs but does not answer is waited
// for: it may be frozen, but it holds the lock.
func find(ctx context.Context, dir state.Dir) (Endpoint, state.Identity, bool, error) {
	p, ok := dir.LoadProcess()
	if !ok {
		return Endpoint{}, state.Identity{}, false, nil
	}
	c, err := dir.LoadConfig()
	if errors.Is(err, fs.ErrNotExist) {
		return Endpoint{}, state.Identity{}, false, fmt.Errorf("%s is missing while process %d serves", dir.ConfigPath(), p.PID)
	}
	if err != nil {
		return Endpoint{}, state.Identity{}, false, err
	}
	if err := probe(ctx, c.URL()); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("the embedded bucket (process %d, %s) does not answer: %w", p.PID, c.URL(), err)
			return Endpoint{}, state.Identity{}, false, err
		}
		return Endpoint{}, state.Identity{}, false, nil
	}
	return Endpoint{
		URL: c.URL(), Bucket: c.Bucket, Region: c.Region, AccessKey: c.AccessKey, SecretKey: c.SecretKey,
	}, p.Identity, true, nil
}

func probe(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+state.HealthPath, nil)
	if err != nil {
		return err
	}
	// A transport of its own: no proxy, and no connection left behind.
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is left to lose
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, logTail)); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("health: %s", resp.Status)
	}
	return nil
}

// child is a process that this one started.
type child struct {
	cmd    *exec.Cmd
	done   chan struct{} // closed once it was reaped
	err    error         // set before done is closed
	dir    state.Dir
	logEnd int64 // of the log, when it started
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// abandon ends a child that nobody waits for any more. It has not been seen to
// answer, so nothing depends on it.
func (c *child) abandon() error {
	if c == nil || c.over() {
		return nil
	}
	err := c.cmd.Process.Kill() // by a descriptor: never another process
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	if err == nil {
		<-c.done
	}
	return err
}

func start(dir state.Dir, executable string, o Options) (*child, error) {
	if i, err := os.Stat(dir.Log()); err == nil && i.Size() > maxLog {
		_ = os.Rename(dir.Log(), dir.Log()+".1") // a log too long is no reason not to start
	}
	out, err := os.OpenFile(dir.Log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("starting the embedded bucket: log: %w", err)
	}
	defer out.Close() //nolint:errcheck // the child has its own
	end, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("starting the embedded bucket: log: %w", err)
	}
	args := o.Args
	if args == nil {
		args = []string{"bucket", "--state", string(dir)}
	}
	cmd := exec.Command(executable, args...) //nolint:gosec // the program is scafo itself
	cmd.Dir = "/"
	cmd.Env = o.Env
	if cmd.Env == nil {
		cmd.Env = []string{} // nil would inherit
	}
	// A file, not a pipe: it goes on printing when this process is gone. A session
	// of its own: the signals of a terminal do not reach it.
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// What this process was itself given beside its standard files (a pipe of a
	// shell or of make) must not be held open by one that outlives it.
	_ = unix.CloseRange(firstOther, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) // kernels before 5.11 cannot
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the embedded bucket: %w", err)
	}
	c := &child{cmd: cmd, done: make(chan struct{}), dir: dir, logEnd: end}
	go func() { // ends with the process
		c.err = cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// failure says how a start ended, in the words of the process.
func (c *child) failure() error {
	said := "it printed nothing"
	if tail, err := c.tail(); err == nil && tail != "" {
		said = tail
	}
	if c.err != nil {
		return fmt.Errorf("the embedded bucket did not start: %w: %s", c.err, said)
	}
	return fmt.Errorf("the embedded bucket ended at once: %s", said)
}

func (c *child) tail() (string, error) {
	f, err := os.Open(c.dir.Log())
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // read only
	i, err := f.Stat()
	if err != nil {
		return "", err
	}
	from := max(c.logEnd, i.Size()-logTail)
	b, err := io.ReadAll(io.NewSectionReader(f, from, logTail))
	return strings.TrimSpace(string(b)), err
}
