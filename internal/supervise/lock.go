package supervise

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// errHeld means that a process has the data directory.
var errHeld = errors.New("the data directory is in use")

// lockData takes the lock on an application's data directory. A process inherits
// the file; the lock is free once every copy of it is closed, however its holder
// ended.
func lockData(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close() //nolint:errcheck,gosec // nothing was written
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errHeld
	}
	return nil, err
}

// heldBy finds the process that holds the data directory: the one that leads a
// session of its own, as every process does that was started here. Others that
// have the file open are what is left of one that ended; they are returned too.
func heldBy(dir string) (leader *handle, left []*handle, err error) {
	ids, err := holders(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, nil, err
	}
	for _, pid := range ids {
		h, err := newHandle(pid, -1, 0)
		if err != nil {
			continue
		}
		st, err := readStat(pid)
		if err != nil || st.startTicks != h.ticks {
			h.close()
			continue
		}
		if st.session == pid && leader == nil {
			leader = h
			continue
		}
		left = append(left, h)
	}
	return leader, left, nil
}
