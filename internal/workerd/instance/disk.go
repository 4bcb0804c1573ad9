package instance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// ErrDiskInUse: another process still has the local disk.
var ErrDiskInUse = errors.New("the local disk is in use")

const (
	// diskWait is how long Start waits for an earlier process to let go of the disk:
	// one that was killed takes a moment to end.
	diskWait = 5 * time.Second
	diskPoll = 20 * time.Millisecond
)

// lockDisk takes the lock of a local disk, a file beside it. The process inherits
// the lock, and so has it exactly as long as it runs, also when this one ends
// first. The runtime itself would share a disk without a word.
func lockDisk(ctx context.Context, disk string) (*os.File, error) {
	f, err := os.OpenFile(disk+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, diskWait, ErrDiskInUse)
	defer cancel()
	tick := time.NewTicker(diskPoll)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%s: %w", disk, context.Cause(ctx)), f.Close())
		}
	}
}
