package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The bounds of following a process's output.
const (
	maxLine      = 96 << 10  // a longer line is passed on in pieces
	punchEvery   = 1 << 20   // what was read is freed on disk in steps of this
	maxBacklog   = 256 << 20 // what may wait on disk; the oldest beyond it is skipped, and said so
	pollInterval = 250 * time.Millisecond
	readSize     = 64 << 10
	keptLines    = 20
	keptLineSize = 512
)

// stream is one file that a process appends to and its follower reads behind it.
// The process never waits for anybody: what was read is freed as a hole at the
// file's beginning, so that no line can fall between a copy and a truncation.
type stream struct {
	file    *os.File
	offset  int64 // what is passed on already
	punched int64
	buf     []byte // read, but not passed on: an unfinished line
	sizable bool   // holes cannot be made here; truncate when all is read
}

// follower passes the output of one process on, line by line.
type follower struct {
	dir     string
	out     stream
	err     stream
	offsets *os.File
	line    func(text string)
	poke    chan struct{}
	watched bool
	remove  []func()
}

// createOutput makes fresh output files for a process that starts, and returns
// them open for appending.
func createOutput(dir string) (out, errs *os.File, err error) {
	open := func(name string) *os.File {
		path := filepath.Join(dir, name)
		// A new file: whatever is left of an earlier process keeps the old one.
		if e := os.Remove(path); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
		f, e := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
		err = errors.Join(err, e)
		return f
	}
	out, errs = open(outFile), open(errFile)
	if e := os.Remove(filepath.Join(dir, offsetsFile)); e != nil && !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, e)
	}
	if err != nil {
		closeAll(out, errs)
		return nil, nil, err
	}
	return out, errs, nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close() //nolint:errcheck,gosec // only closed here
		}
	}
}

// newFollower goes on where the last one stopped.
func newFollower(dir string, w *watcher, line func(string)) (*follower, error) {
	f := &follower{dir: dir, line: line, poke: make(chan struct{}, 1)}
	var err error
	if f.out.file, err = os.OpenFile(filepath.Join(dir, outFile), os.O_RDWR, 0); err != nil {
		return nil, err
	}
	if f.err.file, err = os.OpenFile(filepath.Join(dir, errFile), os.O_RDWR, 0); err != nil {
		f.close()
		return nil, err
	}
	if f.offsets, err = os.OpenFile(filepath.Join(dir, offsetsFile), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		f.close()
		return nil, err
	}
	f.out.offset, f.err.offset = readOffsets(f.offsets)
	f.watched = true
	for _, name := range []string{outFile, errFile} {
		remove, ok := w.add(filepath.Join(dir, name), f.poke)
		f.remove = append(f.remove, remove)
		f.watched = f.watched && ok
	}
	return f, nil
}

// readOffsets reads what save wrote; a new file, or one that cannot be read, means
// the beginning of both.
func readOffsets(r io.Reader) (out, errs int64) {
	b, _ := io.ReadAll(io.LimitReader(r, 64)) //nolint:errcheck // as said
	fields := strings.Fields(string(b))
	if len(fields) != 2 {
		return 0, 0
	}
	out, err1 := strconv.ParseInt(fields[0], 10, 64)
	errs, err2 := strconv.ParseInt(fields[1], 10, 64)
	if err1 != nil || err2 != nil {
		return 0, 0
	}
	return out, errs
}

func (f *follower) close() {
	for _, remove := range f.remove {
		remove()
	}
	closeAll(f.out.file, f.err.file, f.offsets)
}

// run passes lines on until ctx ends or gone is closed; then, for a process that
// is gone, also what is left, with an unfinished last line.
func (f *follower) run(ctx context.Context, gone <-chan struct{}) {
	defer f.close()
	var poll <-chan time.Time
	if !f.watched {
		t := time.NewTicker(pollInterval)
		defer t.Stop()
		poll = t.C
	}
	for {
		f.pass(ctx)
		select {
		case <-ctx.Done():
			return
		case <-gone:
			f.pass(ctx)
			f.rest()
			return
		case <-f.poke:
		case <-poll:
		}
	}
}

// pass passes on what is there.
func (f *follower) pass(ctx context.Context) {
	for _, s := range []*stream{&f.out, &f.err} {
		for ctx.Err() == nil && s.read(f.line) {
			f.save()
			s.free()
		}
	}
}

// rest passes on unfinished last lines.
func (f *follower) rest() {
	for _, s := range []*stream{&f.out, &f.err} {
		if len(s.buf) > 0 {
			f.line(clean(s.buf))
			s.offset += int64(len(s.buf))
			s.buf = nil
		}
	}
	f.save()
}

// save notes how far both files were passed on, after the lines: a daemon that
// dies in between passes some on twice, and loses none.
func (f *follower) save() {
	f.offsets.WriteAt(fmt.Appendf(nil, "%020d %020d\n", f.out.offset, f.err.offset), 0) //nolint:errcheck,gosec // read again then
}

// read reads one piece and passes its whole lines on. It is false at the end.
func (s *stream) read(line func(string)) bool {
	s.skip(line)
	piece := make([]byte, readSize)
	n, _ := s.file.ReadAt(piece, s.offset+int64(len(s.buf))) //nolint:errcheck // an error reads as the end
	if n == 0 {
		return false
	}
	s.buf = append(s.buf, piece[:n]...)
	for {
		at := bytes.IndexByte(s.buf, '\n')
		switch {
		case at >= 0 && at <= maxLine:
			line(clean(s.buf[:at]))
			s.advance(at + 1)
		case len(s.buf) > maxLine:
			line(clean(s.buf[:maxLine]))
			s.advance(maxLine)
		default:
			s.buf = bytes.Clone(s.buf) // lets go of the big piece
			return true
		}
	}
}

func (s *stream) advance(n int) {
	s.offset += int64(n)
	s.buf = s.buf[n:]
}

// skip gives up the oldest output when more waits than the disk should hold.
func (s *stream) skip(line func(string)) {
	fi, err := s.file.Stat()
	if err != nil {
		return
	}
	if fi.Size() < s.offset { // truncated by somebody
		s.offset, s.punched, s.buf = 0, 0, nil
	}
	if waiting := fi.Size() - s.offset; waiting > maxBacklog {
		to := fi.Size() - maxBacklog/2
		line(fmt.Sprintf("(%d bytes of output were skipped: it came faster than it could be passed on)", to-s.offset))
		s.offset, s.buf = to, nil
	}
}

// free gives back the disk space of what was passed on.
func (s *stream) free() {
	if s.offset-s.punched < punchEvery {
		return
	}
	if !s.sizable {
		const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
		err := unix.Fallocate(int(s.file.Fd()), mode, 0, s.offset)
		if err == nil {
			s.punched = s.offset
			return
		}
		s.sizable = errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)
		return
	}
	// No holes on this file system: truncate in the moment when nothing is left.
	if fi, err := s.file.Stat(); err == nil && fi.Size() == s.offset && s.file.Truncate(0) == nil {
		s.offset, s.punched, s.buf = 0, 0, nil
	}
}

func clean(b []byte) string {
	return strings.ToValidUTF8(strings.TrimSuffix(string(b), "\r"), "\uFFFD")
}

// lines keeps the last lines of a process's output.
type lines struct {
	mu   sync.Mutex
	kept []string // guarded by mu
}

func (l *lines) add(text string) {
	if len(text) > keptLineSize {
		text = strings.ToValidUTF8(text[:keptLineSize], "") + "…"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.kept) == keptLines {
		copy(l.kept, l.kept[1:])
		l.kept = l.kept[:keptLines-1]
	}
	l.kept = append(l.kept, text)
}

func (l *lines) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = nil
}

func (l *lines) last() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.kept...)
}
