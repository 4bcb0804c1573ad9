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
	Source  string  `json:"source"` // a place in workerd's own code; empty: a Worker's console
}

// How workerd tells of an exception that no code caught: twice at level info, of which
// the first has the stack, and once more as an error where a request failed of it.
const (
	uncaught       = "uncaught exception; "
	uncaughtSource = uncaught + "source = "
	uncaughtStack  = "; stack = "
	uncaughtValue  = "; exception = " // something was thrown that is no Error
	failedRequest  = "Uncaught exception: "
	thrownByJS     = "jsg."
)

// parseLine reads one line of output, structured or not.
func parseLine(b []byte, stderr bool) (Line, record) {
	var r record
	if len(b) == 0 || b[0] != '{' || json.Unmarshal(b, &r) != nil && !r.salvage(b) || r.Message == nil {
		// Before it logs in structure, and when it breaks, it writes plain text.
		return Line{Stderr: stderr, Runtime: stderr, Text: string(b)}, record{}
	}
	l := Line{Stderr: stderr, Level: r.Level, Text: *r.Message, Runtime: r.Source != ""}
	if !l.Runtime {
		return l, r
	}
	if what, ok := strings.CutPrefix(l.Text, uncaughtSource); ok {
		source, text, ok := strings.Cut(what, uncaughtStack)
		if s, value, found := strings.Cut(what, uncaughtValue); found && (!ok || len(s) < len(source)) {
			text, ok = value, true
		}
		if ok {
			l.Text, l.Level, l.Exception, l.Runtime = text, "error", true, false
			return l, r
		}
	}
	l.Text = withoutAddresses(l.Text)
	return l, r
}

// chatter reports what workerd says at its most talkative and nobody needs: what is
// no warning, and what says once more that a Worker threw.
func (r record) chatter() bool {
	if r.Source == "" || r.Message == nil {
		return false
	}
	m := *r.Message
	if strings.HasPrefix(m, failedRequest) {
		return strings.Contains(m, thrownByJS)
	}
	return (r.Level == "info" || r.Level == "debug") && !strings.HasPrefix(m, uncaughtSource)
}

// salvage reads a record whose line was cut because it is too long: the message is
// its last long part.
func (r *record) salvage(b []byte) bool {
	const key = `"message":"`
	i := bytes.Index(b, []byte(key))
	if len(b) < maxLine-2 || i < 0 || json.Unmarshal(append(bytes.TrimRight(bytes.Clone(b[:i]), ","), '}'), r) != nil {
		return false
	}
	text := b[i+len(key):]
	// An escape may have been cut, at most \uXXXX\uXXXX.
	for range 12 {
		var m string
		if json.Unmarshal(append(append([]byte{'"'}, text...), '"'), &m) == nil {
			m += "…"
			r.Message = &m
			return true
		}
		if len(text) == 0 {
			return false
		}
		text = text[:len(text)-1]
	}
	return false
}

// withoutAddresses takes away the addresses of workerd's own code, which say nothing
// without its symbols.
func withoutAddresses(s string) string {
	const begins = "\nstack: "
	at := strings.Index(s, begins)
	if at < 0 {
		return s
	}
	rest := s[at+len(begins):]
	end := 0
	for word := range strings.SplitSeq(rest, " ") {
		if !strings.Contains(word, "@") {
			break
		}
		end = min(len(rest), end+len(word)+1)
		if strings.HasSuffix(word, ";") {
			end -= 2
			break
		}
	}
	if end <= 0 {
		return s
	}
	return s[:at] + rest[end:]
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
