package applog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bounds are how much is kept, in bytes.
type Bounds struct {
	Application int64 // of one application
	Total       int64 // of all
}

// The bounds where nothing else is asked for, and the least that make sense.
const (
	DefaultApplication = 16 << 20
	DefaultTotal       = 1 << 30
	LeastApplication   = 64 << 10
)

const (
	// segmentsEach is how many segments an application's bound is made of: the oldest
	// part of that size goes at once.
	segmentsEach = 8
	maxSegment   = 4 << 20
	// maxOpen bounds the files that are open for writing.
	maxOpen = 128
	// evictTo is the part of the total that is left when the oldest of all had to go.
	evictTo = 0.9
	// rate and burst are how fast one application's log may grow. What comes faster is
	// counted, and the count is kept.
	rate  = 1 << 20
	burst = 16 << 20

	suffix   = ".jsonl"
	nameSize = 16 // digits of a segment's number
)

// Store writes the logs of all applications of this machine. One process has it.
type Store struct {
	root   string
	bounds Bounds
	now    func() time.Time

	mu    sync.Mutex // guards all below, and every Log
	logs  map[string]*Log
	total int64
	open  int
}

// segment is one file of a log.
type segment struct {
	number uint64
	size   int64
	last   time.Time // when it last grew
}

// Log is that of one application.
type Log struct {
	s        *Store
	dir      string
	segments []segment // the last one grows
	file     *os.File  // of the last one; nil while closed
	used     time.Time
	limit    Limit
	failed   bool // the last write failed, which was said
}

// NewStore finds what is kept under root already.
func NewStore(root string, b Bounds) (*Store, error) {
	if b.Application == 0 {
		b.Application = DefaultApplication
	}
	if b.Total == 0 {
		b.Total = DefaultTotal
	}
	b.Application = max(b.Application, LeastApplication)
	b.Total = max(b.Total, b.Application)
	s := &Store{root: root, bounds: b, now: time.Now, logs: map[string]*Log{}}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("the applications' logs: %w", err)
	}
	dirs, err := filepath.Glob(filepath.Join(root, "*", "*"))
	if err != nil {
		return nil, fmt.Errorf("the applications' logs: %w", err)
	}
	for _, dir := range dirs {
		found, err := segmentsOf(dir)
		if err != nil {
			continue // no directory, or gone: it is not ours to judge
		}
		l := &Log{s: s, dir: dir, segments: found, limit: Limit{Rate: rate, Burst: burst}}
		for _, g := range found {
			s.total += g.size
		}
		s.logs[dir] = l
	}
	s.evict()
	return s, nil
}

// segmentsOf lists the segments of a log, the oldest first.
func segmentsOf(dir string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []segment
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name(), suffix)
		n, err := strconv.ParseUint(digits, 10, 64)
		if !ok || err != nil || len(digits) != nameSize {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // gone meanwhile
		}
		out = append(out, segment{number: n, size: info.Size(), last: info.ModTime()})
	}
	slices.SortFunc(out, func(a, b segment) int {
		if a.number < b.number {
			return -1
		}
		return 1
	})
	return out, nil
}

func segmentName(n uint64) string { return fmt.Sprintf("%0*d%s", nameSize, n, suffix) }

// Log is the log of the application's life of that uid. Both are names that may be
// directories; the caller has checked them.
func (s *Store) Log(application, uid string) *Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := filepath.Join(s.root, application, uid)
	l, ok := s.logs[dir]
	if !ok {
		l = &Log{s: s, dir: dir, limit: Limit{Rate: rate, Burst: burst}}
		s.logs[dir] = l
	}
	return l
}

// Remove removes the log of the uid, whatever its application was called.
func (s *Store) Remove(uid string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for dir, l := range s.logs {
		if filepath.Base(dir) != uid {
			continue
		}
		l.close()
		for _, g := range l.segments {
			s.total -= g.size
		}
		l.segments = nil
		delete(s.logs, dir)
		errs = append(errs, os.RemoveAll(dir))
		os.Remove(filepath.Dir(dir)) // stays while other lives of the name have logs
	}
	return errors.Join(errs...)
}

// Close closes the files.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.logs {
		l.flush()
		l.close()
	}
}

// Append keeps an entry. It is false when the application says more than is kept: the
// entry is then counted alone. An error is told once, until a write succeeds again.
func (l *Log) Append(e Entry) (kept bool, err error) {
	e = e.bounded()
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	was := l.limit.choking
	ok, held := l.limit.Take(len(e.Message)+len(e.Stack)+overhead, s.now())
	passes := ok || e.Source == Node
	if !passes {
		if was {
			return false, nil
		}
		e = Entry{Time: e.Time, Level: Warn, Source: Node, Message: "lines come faster than they are kept: the next ones are left out"}
	}
	if held > 0 {
		err = l.write(leftOut(held, e.Time))
	}
	if err == nil {
		err = l.write(e)
	}
	first := err != nil && !l.failed
	l.failed = err != nil
	if !first {
		err = nil
	}
	return passes, err
}

// leftOut says how many lines came too fast.
func leftOut(n int64, at time.Time) Entry {
	return Entry{Time: at, Level: Warn, Source: Node, Message: fmt.Sprintf("%d lines of the log were left out: they came faster than they are kept", n)}
}

// flush says what was kept back. Called with the store's lock.
func (l *Log) flush() {
	if n := l.limit.Held(); n > 0 {
		_ = l.write(leftOut(n, l.s.now())) // nobody is there to be told
	}
}

// write appends one entry. Called with the store's lock.
func (l *Log) write(e Entry) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return err
	}
	size := int64(b.Len())
	if err := l.ready(size); err != nil {
		return err
	}
	n, err := l.file.Write(b.Bytes())
	g := &l.segments[len(l.segments)-1]
	g.size += int64(n)
	g.last = l.s.now()
	l.used = g.last
	l.s.total += int64(n)
	if err != nil {
		l.close() // half a line may be there: the next write looks
		return err
	}
	if l.s.total > l.s.bounds.Total {
		l.s.evict()
	}
	return nil
}

// ready makes the last segment one that is open and has room.
func (l *Log) ready(size int64) error {
	most := min(int64(maxSegment), l.s.bounds.Application/segmentsEach)
	if n := len(l.segments); n == 0 || l.segments[n-1].size > 0 && l.segments[n-1].size+size > most {
		return l.rotate(most)
	}
	if l.file != nil {
		return nil
	}
	g := &l.segments[len(l.segments)-1]
	f, err := os.OpenFile(filepath.Join(l.dir, segmentName(g.number)), os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) { // somebody removed it
		return l.rotate(most)
	}
	if err != nil {
		return err
	}
	l.hold(f)
	// A line that was cut, by a full disk or an end without notice, ends here.
	var last [1]byte
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		if _, err := f.ReadAt(last[:], info.Size()-1); err == nil && last[0] != '\n' {
			if n, err := f.WriteString("\n"); err == nil {
				g.size += int64(n)
				l.s.total += int64(n)
			}
		}
	}
	return nil
}

// rotate begins the next segment, and drops the oldest beyond the application's bound.
func (l *Log) rotate(most int64) error {
	l.close()
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return err
	}
	number := uint64(1)
	if n := len(l.segments); n > 0 {
		number = l.segments[n-1].number + 1
	}
	f, err := os.OpenFile(filepath.Join(l.dir, segmentName(number)), os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	l.hold(f)
	l.segments = append(l.segments, segment{number: number, last: l.s.now()})
	for {
		sum := most // the new one, when it is full
		for _, g := range l.segments {
			sum += g.size
		}
		if sum <= l.s.bounds.Application || len(l.segments) == 1 {
			return nil
		}
		l.drop()
	}
}

// drop removes the oldest segment.
func (l *Log) drop() {
	g := l.segments[0]
	if len(l.segments) == 1 {
		l.close()
	}
	os.Remove(filepath.Join(l.dir, segmentName(g.number)))
	l.segments = l.segments[1:]
	l.s.total -= g.size
}

// hold takes the open file, and closes another one when too many are.
func (l *Log) hold(f *os.File) {
	l.file, l.used = f, l.s.now()
	l.s.open++
	if l.s.open <= maxOpen {
		return
	}
	var oldest *Log
	for _, o := range l.s.logs {
		if o != l && o.file != nil && (oldest == nil || o.used.Before(oldest.used)) {
			oldest = o
		}
	}
	if oldest != nil {
		oldest.close()
	}
}

func (l *Log) close() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
		l.s.open--
	}
}

// evict removes the oldest segments of all until there is room again.
func (s *Store) evict() {
	if s.total <= s.bounds.Total {
		return
	}
	type at struct {
		l *Log
		segment
	}
	var all []at
	for _, l := range s.logs {
		for _, g := range l.segments {
			all = append(all, at{l, g})
		}
	}
	slices.SortFunc(all, func(a, b at) int {
		if c := a.last.Compare(b.last); c != 0 {
			return c
		}
		if a.number < b.number {
			return -1
		}
		return 1
	})
	for _, a := range all {
		if float64(s.total) <= evictTo*float64(s.bounds.Total) {
			return
		}
		// A log's segments grow one after the other: the oldest is its first.
		if len(a.l.segments) > 0 && a.l.segments[0].number == a.number {
			a.l.drop()
		}
	}
}
