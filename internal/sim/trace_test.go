package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo/internal/registry"
)

// trace is what happened, in order. Its lines are made when somebody reads them: a
// run that goes well costs no formatting.
type trace struct {
	begin time.Time

	mu    sync.Mutex
	lines []line // guarded by mu
}

type line struct {
	at   time.Duration
	who  string
	what string
	args []any
}

func (t *trace) say(who, what string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, line{time.Since(t.begin), who, what, args})
}

func (l line) String() string {
	return fmt.Sprintf("%14.6fs  %-8s %s", l.at.Seconds(), l.who, fmt.Sprintf(l.what, l.args...))
}

// text is the last lines of the trace, all of them for 0. What happened at the very
// same moment is in the order of its words: nothing follows from which of it was
// noted first.
func (t *trace) text(last int) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	from := 0
	if last > 0 {
		from = max(0, len(t.lines)-last)
	}
	out := make([]string, 0, len(t.lines)-from)
	for i := from; i < len(t.lines); {
		begin := len(out)
		for at := t.lines[i].at; i < len(t.lines) && t.lines[i].at == at; i++ {
			out = append(out, t.lines[i].String())
		}
		slices.Sort(out[begin:])
	}
	return out
}

// document is a document in a line of the trace: what of it matters, in one line.
type document struct {
	key  string
	body []byte
}

// quiet are the members that say nothing to who reads a trace.
var quiet = []string{"v", "write", "publicKey", "createdAt", "createdBy", "registeredAt", "version", "address", "changed", "name", "at", "movedAt", "acceptedAt", "previous", "artifactSha256", "artifactBytes", "celldVersion"}

func (d document) String() string {
	if d.body == nil {
		return "nothing"
	}
	if !strings.HasPrefix(d.key, registry.Prefix) {
		return fmt.Sprintf("%d bytes", len(d.body))
	}
	var all map[string]any
	if json.Unmarshal(d.body, &all) != nil {
		return fmt.Sprintf("%q", d.body)
	}
	if d.key == registry.CoordinatorKey {
		return fmt.Sprintf("node:%v fence:%v seq:%v", all["node"], all["fence"], all["seq"])
	}
	for _, k := range quiet {
		delete(all, k)
	}
	if list, ok := all["processes"].([]any); ok {
		short := []string{}
		for _, e := range list {
			if p, ok := e.(map[string]any); ok {
				short = append(short, fmt.Sprintf("%v %v %v", p["application"], p["state"], p["deployment"]))
			}
		}
		all["processes"] = short
	}
	out, err := json.Marshal(all)
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(string(out), `"`, "")
}
