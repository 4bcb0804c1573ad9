package celld

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
)

// head keeps the first bytes of what is written to it, and swallows the rest.
type head struct {
	b    []byte
	most int
	lost bool
}

func (h *head) Write(p []byte) (int, error) {
	room := min(h.most-len(h.b), len(p))
	h.b = append(h.b, p[:room]...)
	h.lost = h.lost || room < len(p)
	return len(p), nil
}

// tail keeps the last bytes of what is written to it.
type tail struct {
	b    []byte
	most int
}

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	// Twice the room, so that it does not move at every write.
	if len(t.b) > 2*t.most {
		t.b = append(t.b[:0], t.b[len(t.b)-t.most:]...)
	}
	return len(p), nil
}

func (t *tail) bytes() []byte { return t.b[max(0, len(t.b)-t.most):] }

// killGroup kills a child that leads its own process group, with all of it. It
// is called before the child is reaped, so its id is still its own.
func killGroup(cmd *exec.Cmd) error {
	err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

var (
	ansi      = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")
	causeRule = regexp.MustCompile(`^\s*(?:\d+:\s+)?(.*)$`)
)

// maxSentence bounds the runtime's words that an error carries on.
const maxSentence = 4096

// Sentence picks what a failed command says from its standard error: the
// `Error: …` chain with its causes in one line each, or the last lines when it
// has none. Colours are taken out.
func Sentence(stderr string) string {
	text := strings.ReplaceAll(ansi.ReplaceAllString(stderr, ""), "\r\n", "\n")
	text = strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
	at := strings.LastIndex("\n"+text, "\nError: ")
	if at < 0 {
		return lastLines(text, 5)
	}
	text = text[at+len("Error: "):]
	said, causes, found := strings.Cut(text, "\nCaused by:")
	sentence := strings.TrimSpace(said)
	if found {
		sentence += joinCauses(causes)
	}
	return clip(sentence, maxSentence)
}

// joinCauses puts each numbered cause behind a colon. Lines that begin no new
// cause belong to the one before, such as the code that a bundler shows.
func joinCauses(text string) string {
	var b strings.Builder
	first := true
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		if m := numberedCause.FindStringSubmatch(line); m != nil || first {
			b.WriteString(": " + causeRule.FindStringSubmatch(line)[1])
		} else {
			b.WriteString("\n" + strings.TrimSpace(line))
		}
		first = false
	}
	return b.String()
}

var numberedCause = regexp.MustCompile(`^\s*\d+:\s`)

func lastLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	return clip(strings.TrimSpace(strings.Join(lines[max(0, len(lines)-n):], "\n")), maxSentence)
}

// splitLines yields the lines of b that are not empty.
func splitLines(b []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for line := range bytes.Lines(b) {
			if line = bytes.TrimSpace(line); len(line) > 0 && !yield(line) {
				return
			}
		}
	}
}
