package applog

import (
	"slices"
	"time"
)

// Loop is an application that crashes again and again.
type Loop struct {
	Crashes int       // within the window, or since it was last ready
	Last    time.Time // the last one
	Lines   []Entry   // what was said before it, with it at the end
}

const (
	// crashWindow is how far back crashes count: longer than the longest back-off, twice.
	crashWindow = 3 * time.Minute
	// crashLines is how many lines of a crash are told first.
	crashLines = 20
)

// Crashes finds out, entry by entry, whether an application is crash-looping.
type Crashes struct {
	run    []Entry // said since the last event
	lines  []Entry
	since  int // crashes since it was last ready
	last   time.Time
	recent []time.Time
}

// Add takes the next entry.
func (c *Crashes) Add(e Entry) {
	switch e.Event {
	case Ready:
		c.since = 0
	case Stopped:
		*c = Crashes{}
	}
	c.run = append(c.run, e)
	if len(c.run) > crashLines {
		c.run = c.run[1:]
	}
	if e.Event != Crash {
		return
	}
	c.lines, c.run = c.run, nil
	c.since++
	c.last = e.Time
	c.recent = append(slices.DeleteFunc(c.recent, func(at time.Time) bool { return e.Time.Sub(at) > crashWindow }), e.Time)
}

// Loop says whether it is crash-looping: it crashed and was not ready since, or it
// crashed more than once within a few minutes.
func (c *Crashes) Loop(now time.Time) (Loop, bool) {
	recent := 0
	for _, at := range c.recent {
		if now.Sub(at) <= crashWindow {
			recent++
		}
	}
	if c.since == 0 && recent < 2 {
		return Loop{}, false
	}
	return Loop{Crashes: max(recent, c.since), Last: c.last, Lines: c.lines}, true
}
