package instance

import (
	"slices"
	"strings"
)

// starvingSentence stands before what the engine and its allocator write when there is no
// more memory for them, which names neither the Worker nor what to do.
const starvingSentence = "The Worker's process asked for more memory than it may have: something in the Worker grows without end, or the bound (CELLD_MAX_RSS_MB) is too low for it. What the runtime says of that:"

// starvingWords are in the first line that they write then, one of them.
var starvingWords = []string{"out of memory", "Cannot allocate memory", "Unable to allocate", "<--- Last few GCs"}

// starving reports whether a line without structure is about memory that is not there.
func starving(text string) bool {
	return slices.ContainsFunc(starvingWords, func(w string) bool { return strings.Contains(text, w) })
}

// explain says once what the lines that follow mean. The engine writes of it to both of
// the process's outputs, and either may be read first; nothing that a Worker writes is
// fatal.
func (i *Instance) explain(l Line, r record) {
	engine := l.Stderr && r.Message == nil || l.Runtime && l.Level == "fatal"
	if !engine || i.spec.Log == nil || !starving(l.Text) {
		return
	}
	i.starved.Do(func() {
		i.spec.Log(Line{Stderr: true, Level: "error", Text: starvingSentence, Runtime: true})
	})
}
