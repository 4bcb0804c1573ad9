package state

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Watch tells when something in a state directory may have changed: a record
// was put in its place or removed, or a lock was closed.
type Watch struct {
	f       *os.File
	changes chan struct{}
	done    chan struct{}
}

// Watch starts watching. What happens from here on is told.
func (d Dir) Watch() (*Watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", d, err)
	}
	if _, err := unix.InotifyAddWatch(fd, string(d), unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE|unix.IN_DELETE); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("watching %s: %w", d, err)
	}
	w := &Watch{
		f:       os.NewFile(uintptr(fd), "inotify"), //nolint:gosec // a descriptor is never negative here
		changes: make(chan struct{}, 1), done: make(chan struct{}),
	}
	go w.run()
	return w, nil
}

// run ends when Close closes the file.
func (w *Watch) run() {
	defer close(w.done)
	buf := make([]byte, 4096)
	for {
		if _, err := w.f.Read(buf); err != nil {
			return
		}
		select {
		case w.changes <- struct{}{}:
		default:
		}
	}
}

// Changes has a value when something may have changed since the last one.
func (w *Watch) Changes() <-chan struct{} { return w.changes }

// Close ends the watch.
func (w *Watch) Close() {
	_ = w.f.Close()
	<-w.done
}
