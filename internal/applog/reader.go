package applog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// ErrNone: nothing of that application is kept on this machine.
var ErrNone = errors.New("no log of it is kept on this machine")

// Reader reads the log of one application, while its node writes or not. It has no
// lock, and none is needed: segments only grow, and whole lines alone are read.
type Reader struct {
	dir string // of the application, with its lives below

	life   string // the uid that is read
	number uint64 // the segment that is read; 0: none yet
	offset int64  // in it
}

// pollEvery is how often a follower looks.
const pollEvery = 200 * time.Millisecond

// maxEntry bounds a line on disk; longer ones, which nobody writes, are skipped.
const maxEntry = 4*2*maxText + 4096

// Open finds the application's log under root.
func Open(root, application string) (*Reader, error) {
	r := &Reader{dir: filepath.Join(root, application)}
	life, err := r.latest()
	if err != nil {
		return nil, err
	}
	if life == "" {
		return nil, ErrNone
	}
	r.life = life
	return r, nil
}

// latest is the life of the application that wrote last.
func (r *Reader) latest() (string, error) {
	lives, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the application's log: %w", err)
	}
	var best string
	var at time.Time
	for _, e := range lives {
		all, err := segmentsOf(filepath.Join(r.dir, e.Name()))
		if err != nil || len(all) == 0 {
			continue
		}
		if last := all[len(all)-1].last; best == "" || last.After(at) {
			best, at = e.Name(), last
		}
	}
	return best, nil
}

// Read calls f for every entry since that time that was not read yet; the zero time
// takes all.
func (r *Reader) Read(since time.Time, f func(Entry) error) error {
	for {
		// Listed before it is read: where there is a later one, this one is complete.
		all, err := segmentsOf(filepath.Join(r.dir, r.life))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		i := slices.IndexFunc(all, func(g segment) bool { return g.number >= r.number })
		if i < 0 {
			return nil
		}
		if all[i].number != r.number {
			r.number, r.offset = all[i].number, 0
		}
		last := i == len(all)-1
		if last || !all[i].last.Before(since) {
			if err := r.segment(since, f); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
		r.number, r.offset = all[i+1].number, 0
	}
}

// segment reads what the segment has to its end.
func (r *Reader) segment(since time.Time, f func(Entry) error) error {
	file, err := os.Open(filepath.Join(r.dir, r.life, segmentName(r.number)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was the oldest, and went
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(r.offset, io.SeekStart); err != nil {
		return err
	}
	b := bufio.NewReaderSize(file, maxEntry)
	for {
		line, err := b.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			r.offset += int64(len(line))
			continue // what follows of it is no entry either
		}
		if err != nil { // what has no end yet is read the next time
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		r.offset += int64(len(line))
		var e Entry
		if json.Unmarshal(bytes.TrimSpace(line), &e) != nil || e.Time.IsZero() || e.Time.Before(since) {
			continue
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

// Follow calls f for every entry that comes, until ctx ends, which is no error. It
// goes on with the next life of the application's name.
func (r *Reader) Follow(ctx context.Context, f func(Entry) error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		before := *r
		if err := r.Read(time.Time{}, f); err != nil {
			return err
		}
		if *r == before {
			life, err := r.latest()
			if err != nil {
				return err
			}
			if life != "" && life != r.life {
				r.life, r.number, r.offset = life, 0, 0
				continue
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
