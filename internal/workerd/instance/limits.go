package instance

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits are what the kernel holds a workerd to. Whoever watches it is slower than a
// loop that allocates: the kernel is not.
type Limits struct {
	// Memory is how much it may take for itself beyond what it takes when it has just
	// started, in bytes; 0: no bound. It aborts when it asks for more.
	Memory int64
	// Files is how many files and sockets it may have open; 0: as many as this
	// process may.
	Files uint64
}

const (
	// ownMemory is more than what a workerd maps writable before any Worker runs:
	// much of it is never touched, so that it says nothing of what is used.
	ownMemory = 1 << 30
	// sacrifice makes a workerd the first to go when the machine has no memory left,
	// before the programs that would start it again.
	sacrifice = "600"
)

// restrain holds the process to its limits from its start.
func (i *Instance) restrain() error {
	l := i.spec.Limits
	pid := i.cmd.Process.Pid
	// Where the kernel does not let it, it is as likely to go as any other.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(sacrifice), 0) //nolint:gosec // no file is made
	if l.Files > 0 {
		var most unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &most); err != nil {
			return fmt.Errorf("limits of workerd: %w", err)
		}
		n := min(l.Files, most.Max)
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}, nil); err != nil {
			return fmt.Errorf("limits of workerd: %w", err)
		}
	}
	if l.Memory > 0 {
		return limitData(pid, ownMemory+l.Memory)
	}
	return nil
}

// tighten bounds its memory by what it has taken until it was ready.
func (i *Instance) tighten() {
	if i.spec.Limits.Memory <= 0 {
		return
	}
	pid := i.cmd.Process.Pid
	if taken := writable(pid); taken > 0 && taken < ownMemory {
		_ = limitData(pid, taken+i.spec.Limits.Memory) // the wider bound stays, then
	}
}

func limitData(pid int, bytes int64) error {
	n := uint64(bytes)
	if err := unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: n, Max: n}, nil); err != nil {
		return fmt.Errorf("limits of workerd: %w", err)
	}
	return nil
}

// writable is how much private memory a process may write, in bytes, as the kernel
// counts it for the limit; 0 when it is gone.
func writable(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, "VmData:")
		if !ok {
			continue
		}
		if kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64); err == nil {
			return kb << 10
		}
	}
	return 0
}

// Resident is how much memory of the machine it takes, in bytes; 0 when it is gone.
func (i *Instance) Resident() int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", i.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
