package server

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// identity names a process for good: a process id alone is given to others later.
type identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
	Boot  string `json:"boot"`
	// Namespace is that of process ids: the same number elsewhere is another
	// process.
	Namespace string `json:"namespace"`
}

// identify reads the identity of a running process.
func identify(pid int) (identity, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return identity{}, err
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return identity{}, err
	}
	_, start, err := stat(pid)
	if err != nil {
		return identity{}, err
	}
	return identity{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot)), Namespace: ns}, nil
}

// stat reads a process's state letter and start time.
func stat(pid int) (state byte, start uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// The name, in parentheses, may hold anything.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, 0, fmt.Errorf("/proc/%d/stat: no name", pid)
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 20 {
		return 0, 0, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(f))
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return f[0][0], start, err
}

// provenGone reports whether that process has certainly ended. It is false
// whenever that cannot be seen from here: on another boot, which may be another
// machine, and from another namespace of process ids.
func (i identity) provenGone() bool {
	self, err := identify(os.Getpid())
	if err != nil || i.PID <= 0 || self.Boot != i.Boot || self.Namespace != i.Namespace {
		return false
	}
	state, start, err := stat(i.PID)
	if err != nil {
		return os.IsNotExist(err)
	}
	// A zombie has closed everything it had open.
	return start != i.Start || state == 'Z' || state == 'X'
}
