package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scafo/scafo"
)

// pidfdGroup is PIDFD_SIGNAL_PROCESS_GROUP (Linux 6.9): the signal goes to the
// process group that the process leads.
const pidfdGroup = 1 << 2

// bootID names the boot of this machine: start times repeat across boots.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// sinceBoot is how long this machine has been up, suspension included.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// stat is what /proc/<pid>/stat says.
type stat struct {
	state      byte
	parent     int
	session    int
	startTicks uint64
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	// The second field is the name in brackets, and may hold brackets and blanks.
	at := bytes.LastIndexByte(b, ')')
	if at < 0 {
		return stat{}, errors.New("/proc: no name in stat")
	}
	fields := strings.Fields(string(b[at+1:]))
	const stateField, parentField, sessionField, startField = 0, 1, 3, 19 // of all: the third, fourth, sixth, twenty-second
	if len(fields) <= startField {
		return stat{}, errors.New("/proc: stat is too short")
	}
	parent, err1 := strconv.Atoi(fields[parentField])
	session, err2 := strconv.Atoi(fields[sessionField])
	ticks, err3 := strconv.ParseUint(fields[startField], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return stat{}, err
	}
	return stat{state: fields[stateField][0], parent: parent, session: session, startTicks: ticks}, nil
}

// handle holds a process by a pidfd, so that its id cannot come to mean another
// one.
type handle struct {
	pid   int
	ticks uint64
	file  *os.File // the pidfd, in the runtime's poller
}

// newHandle takes over fd, or opens one when fd is negative. The process must
// have that start time, unless ticks is 0. A dead one, or a zombie, is
// os.ErrProcessDone.
func newHandle(pid, fd int, ticks uint64) (*handle, error) {
	if fd < 0 {
		var err error
		fd, err = unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			return nil, os.ErrProcessDone
		}
		if err != nil {
			return nil, fmt.Errorf("pidfd: %w", err)
		}
	}
	if err := unix.SetNonblock(fd, true); err != nil { // lets the poller wait for it
		unix.Close(fd) //nolint:errcheck // reported already
		return nil, fmt.Errorf("pidfd: %w", err)
	}
	h := &handle{pid: pid, file: os.NewFile(uintptr(fd), "pidfd")}
	st, err := readStat(pid)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
		h.close()
		return nil, err
	}
	// Looked at after the pidfd was opened: while that one has not ended, the id
	// and so this start time are its own.
	h.ticks = st.startTicks
	if err != nil || h.ended() || (ticks != 0 && st.startTicks != ticks) {
		h.close()
		return nil, os.ErrProcessDone
	}
	return h, nil
}

func (h *handle) close() { h.file.Close() } //nolint:errcheck,gosec // nothing was written

// ended reports whether the process is gone or a zombie.
func (h *handle) ended() bool {
	ended := true
	h.control(func(fd int) { ended = readable(fd) })
	return ended
}

func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0 || err != nil
	}
}

func (h *handle) control(fn func(fd int)) {
	c, err := h.file.SyscallConn()
	if err != nil {
		return
	}
	c.Control(func(fd uintptr) { fn(int(fd)) }) //nolint:errcheck,gosec // a closed handle runs nothing
}

// wait returns once the process ended, or the handle was closed (false).
func (h *handle) wait() bool {
	c, err := h.file.SyscallConn()
	if err != nil {
		return false
	}
	return c.Read(func(fd uintptr) bool { return readable(int(fd)) }) == nil
}

// reap says how the process ended, if it was a child of this one; else the exit
// is unseen, which counts as a lost lease.
func (h *handle) reap(now time.Time) exit {
	unseen := exit{Exit: scafo.Exit{Code: unseenCode, At: now}, unseen: true}
	x := unseen
	h.control(func(fd int) {
		// First only look: what this very pidfd can wait for is our own zombie, whose
		// id nobody else can have until the second call.
		if err := unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
			return
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(h.pid, &ws, syscall.WNOHANG, nil); err != nil {
			return
		}
		x = seenExit(ws, now)
	})
	return x
}

func seenExit(ws syscall.WaitStatus, now time.Time) exit {
	if ws.Signaled() {
		return exit{Exit: scafo.Exit{Code: -1, Signal: unix.SignalName(ws.Signal()), At: now}}
	}
	return exit{Exit: scafo.Exit{Code: ws.ExitStatus(), At: now}}
}

// reapOwn says how the process of that record ended, if it is a zombie of this
// very process: one that executed itself anew is still the parent of what it
// started before. Until it is waited for, nobody else can have its id.
func reapOwn(r record, now time.Time) (x exit, ok bool) {
	if r.PID == 0 || r.BootID != bootID() {
		return exit{}, false
	}
	st, err := readStat(r.PID)
	if err != nil || st.state != 'Z' || st.parent != os.Getpid() || st.startTicks != r.StartTicks {
		return exit{}, false
	}
	var ws syscall.WaitStatus
	if pid, err := syscall.Wait4(r.PID, &ws, syscall.WNOHANG, nil); err != nil || pid != r.PID {
		return exit{}, false
	}
	return seenExit(ws, now), true
}

// signal sends sig to the process alone.
func (h *handle) signal(sig syscall.Signal) error {
	err := os.ErrProcessDone
	h.control(func(fd int) { err = unix.PidfdSendSignal(fd, sig, nil, 0) })
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// killGroup kills the process and its whole group, also what is left of the
// group when the process itself is gone.
func (h *handle) killGroup() error {
	err := os.ErrProcessDone
	h.control(func(fd int) { err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, pidfdGroup) })
	if errors.Is(err, unix.EINVAL) { // an older kernel
		return h.signal(unix.SIGKILL)
	}
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// holders lists the processes that have the file open, this one aside.
func holders(path string) ([]int, error) {
	want, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	var list []int
	for _, pid := range pids() {
		if pid == os.Getpid() {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue // gone, or another user's
		}
		for _, fd := range fds {
			link := filepath.Join(dir, fd.Name())
			to, err := os.Readlink(link)
			if err != nil || filepath.Base(to) != filepath.Base(path) {
				continue
			}
			if have, err := os.Stat(link); err == nil && os.SameFile(want, have) {
				list = append(list, pid)
				break
			}
		}
	}
	return list, nil
}

func pids() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var list []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

// arguments is a process's command line.
func arguments(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// valueOf is what stands behind a flag.
func valueOf(args []string, flag string) string {
	for i := range len(args) - 1 {
		if args[i] == flag {
			return args[i+1]
		}
	}
	return ""
}
