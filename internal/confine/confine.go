// Package confine runs a program that sees and writes only the files that it was
// given, by Linux's Landlock. The restriction falls on a process of its own: the
// program that starts it executes itself anew, that process gives its rights up,
// and then becomes the program. So the caller keeps its rights, and there is no
// moment at which the confined program has them.
//
// Reading, writing, creating, renaming and executing files are restricted; so
// are, on kernels that can, signals and abstract sockets to processes outside.
// The network is not.
package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Rules are what a confined program may reach. What is beneath a directory
// counts; what does not exist is passed over; links count as what they lead to.
type Rules struct {
	Read  []string `json:"read"`  // to read and to execute
	Write []string `json:"write"` // to read, write, create and remove
}

// leastABI is the first version of Landlock that lets files move between the
// directories that a program may write (Linux 5.19).
const leastABI = 2

// marker is how a process that is to confine itself knows.
const marker = "scafo: confining"

// exitFailed is the exit code of a process that could not confine itself or not
// execute the program, as shells have it.
const exitFailed = 126

// order is what the process that confines itself is told.
type order struct {
	Rules
	Program string         `json:"program"`
	Parent  int            `json:"parent"`
	Death   syscall.Signal `json:"death,omitempty"` // on the death of the parent
}

// Supported says whether this kernel can confine; the error says why not.
func Supported() error {
	abi, err := ll.LandlockGetABIVersion()
	switch {
	case errors.Is(err, unix.ENOSYS):
		return errors.New("this kernel has no Landlock (Linux 5.19 or newer is needed)")
	case errors.Is(err, unix.EOPNOTSUPP):
		return errors.New("Landlock is not enabled in this kernel: its lsm= parameter has to name landlock")
	case err != nil:
		return fmt.Errorf("Landlock does not answer: %w", err)
	case abi < leastABI:
		return fmt.Errorf("this kernel's Landlock is too old: version %d, and %d is needed (Linux 5.19 or newer)", abi, leastABI)
	}
	return nil
}

// Apply changes cmd, which has not started, so that it runs under the rules. The
// program of cmd must be among what it may read. Whoever uses Apply calls [Main]
// first thing in its own main.
func Apply(cmd *exec.Cmd, r Rules) error {
	if err := Supported(); err != nil {
		return err
	}
	if cmd.Err != nil {
		return cmd.Err
	}
	o := order{Rules: r, Program: cmd.Path, Parent: os.Getpid()}
	if cmd.SysProcAttr != nil {
		o.Death = cmd.SysProcAttr.Pdeathsig
	}
	told, err := json.Marshal(o)
	if err != nil {
		return err
	}
	// The running program itself, also when its file was replaced meanwhile.
	cmd.Path = "/proc/self/exe"
	cmd.Args = append([]string{marker, string(told)}, cmd.Args...)
	return nil
}

// Main is called first by the main function of a program that confines others:
// it returns at once unless this process was started by what [Apply] made of a
// command, and never returns then.
func Main() {
	if len(os.Args) < 3 || os.Args[0] != marker {
		return
	}
	// The signal for the parent's death belongs to a thread, and what executes
	// another program becomes its only one.
	runtime.LockOSThread()
	err := become(os.Args[1], os.Args[2:])
	fmt.Fprintf(os.Stderr, "Error: the program could not be confined: %v\n", err)
	os.Exit(exitFailed)
}

// become confines this process and turns it into the program. It returns only
// when that failed.
func become(told string, args []string) error {
	var o order
	if err := json.Unmarshal([]byte(told), &o); err != nil {
		return err
	}
	if err := Supported(); err != nil {
		return err
	}
	rules, err := o.landlock()
	if err != nil {
		return err
	}
	// Best effort beyond what Supported has asked for: what a newer kernel can
	// restrict as well. In one ruleset, since a second one would forbid again to
	// move files between directories.
	c := landlock.Config{HandledAccessFS: landlock.V9.HandledAccessFS, Scoped: landlock.V9.Scoped}
	if err := c.BestEffort().Restrict(rules...); err != nil {
		return err
	}
	if o.Death != 0 {
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(o.Death), 0, 0, 0); err != nil {
			return fmt.Errorf("prctl: %w", err)
		}
		if os.Getppid() != o.Parent {
			return errors.New("the process that asked for it is gone")
		}
	}
	if err := syscall.Exec(o.Program, args, os.Environ()); err != nil { //nolint:gosec // the caller's own command
		return fmt.Errorf("%s: %w", o.Program, err)
	}
	return nil
}

func (o order) landlock() ([]landlock.Rule, error) {
	var rules []landlock.Rule
	add := func(paths []string, file, dir func(...string) landlock.FSRule) error {
		for _, p := range paths {
			info, err := os.Stat(p)
			switch {
			case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			case err != nil:
				return err
			case info.IsDir():
				rules = append(rules, dir(p))
			default:
				rules = append(rules, file(p))
			}
		}
		return nil
	}
	if err := add(o.Read, landlock.ROFiles, landlock.RODirs); err != nil {
		return nil, err
	}
	movable := func(p ...string) landlock.FSRule { return landlock.RWDirs(p...).WithRefer() }
	if err := add(o.Write, landlock.RWFiles, movable); err != nil {
		return nil, err
	}
	return rules, nil
}
