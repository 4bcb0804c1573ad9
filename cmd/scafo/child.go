package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// childStop is how long a child may take to end before it is killed.
const childStop = 10 * time.Second

// childAgain is the pause before a child that ended is started again.
const childAgain = time.Second

// keepChild runs a child again that ends although nobody asked it to, as long as each
// one was ready before: one that does not get there will not the next time either.
// ready is called for the first.
func keepChild(ctx context.Context, log *slog.Logger, run func(ready func()) error, ready func()) error {
	for {
		was := false
		err := run(func() {
			if was = true; ready != nil {
				ready()
				ready = nil
			}
		})
		if err == nil || !was {
			return err
		}
		log.Warn("the ingress has ended and is started again", "err", err)
		select {
		case <-time.After(childAgain):
		case <-ctx.Done():
			return nil
		}
	}
}

// runChild runs a program until ctx ends and then stops it. ready is called when
// its first line came. It dies with this process, however that ends.
func runChild(ctx context.Context, path string, args []string, ready func()) error {
	// A parent-death signal follows the thread that started the child: this one
	// stays until the child is gone.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = childStop
	// A group of its own: Ctrl-C reaches it through this process, in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	errs := &lastLine{to: os.Stderr}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	if lines.Scan() && ready != nil {
		ready()
	}
	_, _ = io.Copy(io.Discard, out) // until the child ends
	err = cmd.Wait()
	if ctx.Err() != nil {
		return nil // it was told to
	}
	err = fmt.Errorf("%s ended: %w", path, orExit(err))
	if errs.last != "" {
		err = fmt.Errorf("%w: %s", err, errs.last)
	}
	return err
}

func orExit(err error) error {
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}

// lastLine passes a child's lines on and keeps the last one.
type lastLine struct {
	to   io.Writer
	last string
}

func (l *lastLine) Write(b []byte) (int, error) {
	if s := strings.TrimSpace(string(b)); s != "" {
		if i := strings.LastIndexByte(s, '\n'); i >= 0 {
			s = s[i+1:]
		}
		l.last = s
	}
	return l.to.Write(b)
}

// hurry is a context that ends at the second signal: the first one drains, the
// second one hurries.
func hurry(ctx context.Context) context.Context {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	signals := make(chan os.Signal, 2)
	go func() {
		<-ctx.Done()
		signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
		<-signals
		cancel()
	}()
	return out
}
