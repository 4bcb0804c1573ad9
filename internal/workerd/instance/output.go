package instance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
)

const (
	// maxLine bounds one line of output; the rest of a longer one is dropped.
	maxLine = 64 << 10
	// maxTail is how many lines of standard error are kept.
	maxTail = 40
)

// lines calls fn for each line of r, without its end, until r ends.
func lines(r io.Reader, fn func([]byte)) {
	b := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := b.ReadSlice('\n')
		if len(line) > 0 {
			fn(bytes.TrimRight(line, "\r\n"))
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = b.ReadSlice('\n')
		}
		if err != nil {
			return
		}
	}
}

// record is a line of structured logging. The time stamp is a number or a string.
type record struct {
	Level   string  `json:"level"`
	Message *string `json:"message"`
	Source  string  `json:"source"`
}

// parseLine reads one line of output, structured or not.
func parseLine(b []byte, stderr bool) (Line, record) {
	var r record
	if len(b) > 0 && b[0] == '{' && json.Unmarshal(b, &r) == nil && r.Message != nil {
		return Line{Stderr: stderr, Level: r.Level, Text: *r.Message}, r
	}
	return Line{Stderr: stderr, Text: string(b)}, record{}
}

// tail keeps the last lines of standard error and of the runtime's own, and what the runtime said to be
// wrong at the start.
type tail struct {
	mu       sync.Mutex // guards all below
	lines    []string
	errors   []string // messages of level error that the runtime itself wrote, or plain text
	warnings []string
}

func (t *tail) add(l Line, r record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == maxTail {
		t.lines = append(t.lines[:0], t.lines[1:]...)
	}
	t.lines = append(t.lines, l.Text)
	switch {
	case r.Message == nil && l.Text != "" || r.Source != "" && l.Level == "error":
		if len(t.errors) < maxTail {
			t.errors = append(t.errors, l.Text)
		}
	case r.Source != "" && l.Level == "warn":
		if len(t.warnings) < maxTail {
			t.warnings = append(t.warnings, l.Text)
		}
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "\n")
}

func (t *tail) sentence() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.errors) == 0 {
		return ""
	}
	// What it found first is what it ended for, apart from what follows from it.
	var out []string
	for _, e := range t.errors {
		out = append(out, strings.TrimPrefix(e, "service "+serviceWorker+": "))
	}
	return strings.Join(out, "\n")
}

func (t *tail) warned() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.warnings...)
}
