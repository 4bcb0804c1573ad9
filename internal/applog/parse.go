package applog

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// textLine is a line as Go's slog writes it: what celld-workerd says itself, and how
// it passes on what the Worker and workerd say.
var textLine = regexp.MustCompile(`^time=(\S+) level=(\w+) msg=("(?:[^"\\]|\\.)*"|[^ "]*)(.*)$`)

// tracingLine is a line as Rust's tracing writes it, without colours.
var tracingLine = regexp.MustCompile(`^(\d{4}-\d\d-\d\dT\S+Z)\s+(TRACE|DEBUG|INFO|WARN|ERROR)\s+(.*)$`)

// The words by which celld-workerd says whose line it is.
const (
	attrWorker     = "from=worker"
	attrRuntime    = "from=workerd"
	attrException  = "kind=exception"
	attrDeployment = "deployment="
)

// diedMessage is what celld-workerd says when a workerd of its own has ended
// without being asked to; it starts the next one by itself.
const diedMessage = "workerd died"

// Parse reads one line of a runtime's output. now is its time where it says none.
func Parse(line string, now time.Time) Entry {
	if m := textLine.FindStringSubmatch(line); m != nil {
		return parseText(m, now)
	}
	if m := tracingLine.FindStringSubmatch(line); m != nil {
		return Entry{Time: timeOf(m[1], now), Level: levelOf(m[2]), Source: Runtime, Message: m[3]}
	}
	if e, ok := parseJSON(line, now); ok {
		return e
	}
	e := Entry{Time: now, Level: Info, Source: Runtime, Message: line}
	if strings.HasPrefix(line, "Error: ") {
		e.Level = Error
	}
	return e
}

func parseText(m []string, now time.Time) Entry {
	e := Entry{Time: timeOf(m[1], now), Level: levelOf(m[2]), Source: Runtime, Message: unquote(m[3])}
	exception := false
	var rest []string
	for _, a := range attributes(m[4]) {
		switch version, isVersion := strings.CutPrefix(a, attrDeployment); {
		case a == attrWorker:
			e.Source = Worker
		case a == attrRuntime:
		case a == attrException:
			exception = true
		case isVersion:
			e.Deployment = version
		default:
			rest = append(rest, a)
		}
	}
	if exception {
		e.Message, e.Stack = splitStack(e.Message)
	}
	if e.Source == Runtime {
		if e.Message == diedMessage {
			e.Event = Crash
		}
		e.Message = strings.Join(append([]string{e.Message}, rest...), " ")
	}
	return e
}

// attributes are the key=value words at the end of a line; a value may be quoted.
func attributes(s string) []string {
	var out []string
	for s = strings.TrimLeft(s, " "); s != ""; s = strings.TrimLeft(s, " ") {
		end := strings.IndexByte(s, ' ')
		if eq := strings.Index(s, `="`); eq >= 0 && (end < 0 || eq < end) {
			q, err := strconv.QuotedPrefix(s[eq+1:])
			if err != nil {
				return append(out, s)
			}
			end = eq + 1 + len(q)
		}
		if end < 0 || end >= len(s) {
			return append(out, s)
		}
		out = append(out, s[:end])
		s = s[end:]
	}
	return out
}

func unquote(s string) string {
	if q, err := strconv.Unquote(s); err == nil {
		return q
	}
	return s
}

// frame is how a line of a JavaScript stack begins.
const frame = "\n    at "

// splitStack parts an exception's own words from its frames.
func splitStack(s string) (message, stack string) {
	i := strings.Index(s, frame)
	if i < 0 {
		return s, ""
	}
	return s[:i], s[i+1:]
}

// parseJSON reads a line as a program writes it that logs JSON objects: Rust's
// tracing, or what has its message and level at the top.
func parseJSON(line string, now time.Time) (Entry, bool) {
	if !strings.HasPrefix(line, "{") {
		return Entry{}, false
	}
	var l struct {
		Timestamp string `json:"timestamp"`
		Time      string `json:"time"`
		Level     string `json:"level"`
		Message   string `json:"message"`
		Msg       string `json:"msg"`
		Fields    struct {
			Message string `json:"message"`
		} `json:"fields"`
	}
	if json.Unmarshal([]byte(line), &l) != nil {
		return Entry{}, false
	}
	e := Entry{Level: levelOf(l.Level), Source: Runtime, Time: timeOf(l.Timestamp, timeOf(l.Time, now))}
	for _, m := range []string{l.Fields.Message, l.Message, l.Msg} {
		if m != "" {
			e.Message = m
			return e, true
		}
	}
	return Entry{}, false
}

func timeOf(s string, otherwise time.Time) time.Time {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t.UTC()
	}
	return otherwise
}

func levelOf(s string) Level {
	switch strings.ToLower(s) {
	case "debug", "trace":
		return Debug
	case "warn", "warning":
		return Warn
	case "error", "fatal":
		return Error
	}
	return Info
}
