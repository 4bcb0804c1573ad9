package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Identity names one process for good: ids are used again, and start times
// repeat across boots, but the three together do not.
type Identity struct {
	Boot  string `json:"bootId"`
	PID   int    `json:"pid"`
	Start uint64 `json:"startTime"` // in clock ticks since the boot
}

// Self is the identity of this process.
func Self() (Identity, error) { return identify(os.Getpid()) }

func identify(pid int) (Identity, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, fmt.Errorf("boot id: %w", err)
	}
	start, zombie, err := stat(pid)
	if err != nil {
		return Identity{}, err
	}
	if zombie {
		return Identity{}, errors.New("the process has ended")
	}
	return Identity{Boot: strings.TrimSpace(string(boot)), PID: pid, Start: start}, nil
}

// stat reads start time and state of a process from /proc (proc_pid_stat(5)).
func stat(pid int) (start uint64, zombie bool, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false, err
	}
	// The second field is the program's name in parentheses, and may hold any.
	_, rest, ok := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" "))
	fields := bytes.Fields(rest)
	const stateField, startField = 0, 19 // the third and the 22nd
	if !ok || len(fields) <= startField {
		return 0, false, fmt.Errorf("process %d: /proc has no state that can be read", pid)
	}
	start, err = strconv.ParseUint(string(fields[startField]), 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("process %d: start time: %w", pid, err)
	}
	s := fields[stateField][0]
	return start, s == 'Z' || s == 'X', nil
}

// Alive says whether that very process runs.
func (i Identity) Alive() bool {
	if i.PID <= 0 {
		return false
	}
	now, err := identify(i.PID)
	return err == nil && now == i
}

// ErrGone says that the process has ended.
var ErrGone = errors.New("the process has ended")

// open takes hold of that very process; ErrGone when it has ended. What is held
// never becomes another process.
func (i Identity) open() (int, error) {
	fd, err := unix.PidfdOpen(i.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, fmt.Errorf("process %d: %w", i.PID, err)
	}
	// Looked at after the descriptor was taken: from here on it cannot change.
	if !i.Alive() {
		_ = unix.Close(fd)
		return -1, ErrGone
	}
	return fd, nil
}

// Signal sends a signal to that very process; ErrGone when it has ended.
func (i Identity) Signal(sig unix.Signal) error {
	fd, err := i.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing is left to lose
	err = unix.PidfdSendSignal(fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	return err
}

// Wait returns nil once that very process has ended, or the context's error.
func (i Identity) Wait(ctx context.Context) error {
	fd, err := i.open()
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing is left to lose
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(wake) //nolint:errcheck // nothing is left to lose
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-woken // it must not write to a descriptor that was closed
		}
	}()
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}} //nolint:gosec // descriptors are small
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if fds[0].Revents != 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
