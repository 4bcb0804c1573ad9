// Package confine runs a program that sees and writes only the files that it was
// given, by Linux's Landlock. The restriction falls on one thread, which starts the
// program and ends with it; the program inherits it from its first instruction on,
// and the rest of the caller keeps its rights.
//
// Reading, writing, creating, renaming and executing files are restricted; so
// are, on kernels that can, signals and abstract sockets to processes outside.
// The network is not.
package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Rules are what a confined program may reach. What is beneath a directory
// counts; what does not exist is passed over; links count as what they lead to.
type Rules struct {
	Read  []string // to read and to execute
	Write []string // to read, write, create and remove
}

// leastABI is the first version of Landlock that lets files move between the
// directories that a program may write (Linux 5.19).
const leastABI = 2

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

// Do calls f on a thread of its own that is under the rules, and so is every program
// that f starts. What f itself opens, such as /dev/null in place of a command's missing
// input, has to be among the rules; what it hands to other goroutines is not
// restricted. The thread ends when f returns.
func Do(r Rules, f func() error) error {
	if err := Supported(); err != nil {
		return err
	}
	// Go finds out once whether it can hold processes by descriptors, by a signal to
	// itself, which a restricted thread of some kernels may not send.
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Release() // nothing to lose
	}
	done := make(chan error, 1)
	go func() { done <- r.onThread(f) }()
	return <-done
}

// onThread runs in a goroutine of its own, whose thread it takes with it.
func (r Rules) onThread(f func() error) error {
	// Never unlocked where it is restricted: the thread is then ended and not used
	// for anything else.
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The main thread cannot be ended. While it is held here, another goroutine
		// runs on another one.
		done := make(chan error, 1)
		go func() { done <- r.onThread(f) }()
		err := <-done
		runtime.UnlockOSThread()
		return err
	}
	if err := r.restrictThread(); err != nil {
		return fmt.Errorf("the program could not be confined: %w", err)
	}
	return f()
}

// restrictThread puts the calling thread under the rules, for good.
func (r Rules) restrictThread() error {
	rules, err := r.landlock()
	if err != nil {
		return err
	}
	// Best effort beyond what Supported has asked for: what a newer kernel can
	// restrict as well. In one ruleset, since a second one would forbid again to
	// move files between directories.
	c := landlock.Config{HandledAccessFS: landlock.V9.HandledAccessFS, Scoped: landlock.V9.Scoped}
	fd, flags, err := c.BestEffort().NewRulesetFD(rules...)
	if err != nil {
		return err
	}
	if fd < 0 {
		return errors.New("the kernel restricts nothing")
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl: %w", err)
	}
	return ll.LandlockRestrictSelf(fd, flags)
}

func (r Rules) landlock() ([]landlock.Rule, error) {
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
	if err := add(r.Read, landlock.ROFiles, landlock.RODirs); err != nil {
		return nil, err
	}
	movable := func(p ...string) landlock.FSRule { return landlock.RWDirs(p...).WithRefer() }
	if err := add(r.Write, landlock.RWFiles, movable); err != nil {
		return nil, err
	}
	return rules, nil
}
