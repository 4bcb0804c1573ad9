package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrServed says that another process serves this state directory.
var ErrServed = errors.New("another process serves the bucket of this state directory")

// Lock takes the lock, or says ErrServed. It is free again as soon as the holder
// closes it or ends, however it ends.
func (d Dir) Lock() (io.Closer, error) {
	f, err := os.OpenFile(filepath.Join(string(d), lockFile), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, whole())
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, ErrServed
	}
	return nil, fmt.Errorf("lock %s: %w", filepath.Join(string(d), lockFile), err)
}

// Locked says whether some process holds the lock, without taking it: a test
// that took it could keep out the very process that it waits for.
func (d Dir) Locked() (bool, error) {
	f, err := os.Open(filepath.Join(string(d), lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	l := whole()
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, l); err != nil {
		return false, fmt.Errorf("lock: %w", err)
	}
	return l.Type != unix.F_UNLCK, nil
}

func whole() *unix.Flock_t { return &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart} }
