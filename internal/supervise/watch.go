package supervise

import (
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watcher tells followers that their files grew, so that nobody polls them. When
// the kernel has no more watches to give, followers poll.
type watcher struct {
	log *slog.Logger

	mu   sync.Mutex
	file *os.File                // guarded by mu; nil before open and after run
	fd   int                     // guarded by mu; of file
	subs map[int32]chan struct{} // guarded by mu; by watch descriptor
}

func newWatcher(log *slog.Logger) *watcher {
	return &watcher{log: log, subs: map[int32]chan struct{}{}}
}

// open makes add work. close must follow.
func (w *watcher) open() {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		w.log.Warn("output files are polled: the kernel gives no watch", "error", err)
		return
	}
	w.mu.Lock()
	w.file, w.fd = os.NewFile(uintptr(fd), "inotify"), fd
	w.mu.Unlock()
}

// add pokes the channel whenever the file is written to. It is false when there
// is nothing that would.
func (w *watcher) add(path string, poke chan struct{}) (remove func(), ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	none := func() {}
	if w.file == nil {
		return none, false
	}
	wd, err := unix.InotifyAddWatch(w.fd, path, unix.IN_MODIFY)
	if err != nil {
		w.log.Warn("an output file is polled: the kernel gives no watch", "error", err)
		return none, false
	}
	w.subs[int32(wd)] = poke
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.subs, int32(wd))
		if w.file != nil {
			unix.InotifyRmWatch(w.fd, uint32(wd)) //nolint:errcheck,gosec // gone with its file
		}
	}, true
}

// run delivers until ctx ends.
func (w *watcher) run(ctx context.Context) {
	w.mu.Lock()
	f := w.file
	w.mu.Unlock()
	if f == nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { f.Close() }) //nolint:errcheck,gosec // read only
	defer stop()
	buf := make([]byte, 16<<10)
	for {
		n, err := f.Read(buf)
		if err != nil {
			break
		}
		w.deliver(buf[:n])
	}
	w.mu.Lock()
	w.file = nil
	w.mu.Unlock()
}

func (w *watcher) deliver(events []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(events) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(events))
		size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		events = events[min(size, len(events)):]
		if poke, ok := w.subs[wd]; ok {
			nudge(poke)
		} else if wd == -1 { // the queue overflowed: anybody may have missed something
			for _, poke := range w.subs {
				nudge(poke)
			}
		}
	}
}

func nudge(poke chan struct{}) {
	select {
	case poke <- struct{}{}:
	default:
	}
}
