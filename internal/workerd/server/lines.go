package server

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo/internal/applog"
	"github.com/scafo/scafo/internal/workerd/instance"
)

// lineLog passes the lines of workerds on to the log. A reader of this program's
// output that is slow must not stop a workerd, so there is a queue between them;
// what does not fit is counted. So is what comes faster than a log is good for: a
// flood costs the reading alone.
type lineLog struct {
	log     *slog.Logger
	queue   chan taggedLine
	dropped chan struct{} // has one when lines were dropped and nobody was told yet
	stop    chan struct{}
	done    chan struct{}

	mu    sync.Mutex   // guards the rest
	limit applog.Limit // how fast lines may come
	lost  int64        // dropped and not told of yet
	first time.Time    // when the first of those was
	last  time.Time    // and the last
}

// taggedLine is a line with the deployment that said it.
type taggedLine struct {
	instance.Line
	deployment string
	stacks     *stacks // nil: places in the code stay as they are
}

const (
	lineQueue = 4096
	// lineRate and lineBurst are how fast a Worker may fill the log, in bytes a second
	// and in bytes.
	lineRate  = 512 << 10
	lineBurst = 8 << 20
	// maxText bounds one line, so that it is one also for whoever reads the log.
	maxText = 16 << 10
	// dropsOver is how long nothing was dropped once a burst is over; then the log is told
	// how much it lacks. One that goes on is told of each dropsEvery.
	dropsOver  = 3 * time.Second
	dropsEvery = 10 * time.Second
)

func newLineLog(log *slog.Logger) *lineLog {
	l := &lineLog{
		log: log, queue: make(chan taggedLine, lineQueue), dropped: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		limit: applog.Limit{Rate: lineRate, Burst: lineBurst},
	}
	go l.run()
	return l
}

func (l *lineLog) run() {
	defer close(l.done)
	over := time.NewTimer(dropsOver)
	over.Stop()
	defer over.Stop()
	for {
		select {
		case line := <-l.queue:
			l.write(line)
			continue
		default:
		}
		select {
		case line := <-l.queue:
			l.write(line)
		case <-l.dropped:
			over.Reset(dropsOver)
		case <-over.C:
			if !l.told(time.Now()) {
				over.Reset(dropsOver)
			}
		case <-l.stop:
			return
		}
	}
}

// told says how many lines were dropped, in one line for each burst. It is false while
// the burst goes on.
func (l *lineLog) told(now time.Time) bool {
	l.mu.Lock()
	n := l.lost
	if n > 0 && now.Sub(l.last) < dropsOver && now.Sub(l.first) < dropsEvery {
		l.mu.Unlock()
		return false
	}
	l.lost = 0
	l.mu.Unlock()
	if n > 0 {
		l.log.Warn("lines of output were dropped", "lines", n)
	}
	return true
}

func (l *lineLog) write(line taggedLine) {
	level := slog.LevelInfo
	switch line.Level {
	case "error":
		level = slog.LevelError
	case "warn":
		level = slog.LevelWarn
	case "debug":
		level = slog.LevelDebug
	case "":
		if line.Stderr {
			level = slog.LevelWarn
		}
	}
	text := line.stacks.rewrite(line.Text)
	if over := len(text) - maxText; over > 0 {
		text = fmt.Sprintf("%s… (%d bytes more)", strings.ToValidUTF8(text[:maxText], ""), over)
	}
	attrs := []slog.Attr{slog.String("from", "worker")}
	if line.Runtime {
		attrs[0] = slog.String("from", "workerd")
	}
	if line.Exception {
		attrs = append(attrs, slog.String("kind", "exception"))
	}
	if line.deployment != "" {
		attrs = append(attrs, slog.String("deployment", line.deployment))
	}
	r := slog.NewRecord(time.Now(), level, text, 0)
	r.AddAttrs(attrs...)
	// Past the level of this program's own lines: what a Worker says is its developer's.
	_ = l.log.Handler().Handle(context.Background(), r) // nobody is left to be told
}

// of takes the lines of a workerd with that deployment, whose code stacks knows.
func (l *lineLog) of(deployment string, stacks *stacks) func(instance.Line) {
	return func(line instance.Line) { l.add(taggedLine{Line: line, deployment: deployment, stacks: stacks}) }
}

// add queues a line; it never blocks.
func (l *lineLog) add(line taggedLine) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	ok, _ := l.limit.Take(min(len(line.Text), maxText)+lineOverhead, now)
	if ok || line.Runtime {
		select {
		case l.queue <- line:
			return
		default:
		}
	}
	l.last = now
	if l.lost++; l.lost > 1 {
		return
	}
	l.first = now
	select {
	case l.dropped <- struct{}{}:
	default:
	}
}

// lineOverhead is what a line takes beside its text, about.
const lineOverhead = 100

// close writes what is queued.
func (l *lineLog) close() {
	close(l.stop)
	<-l.done
	l.told(time.Now().Add(dropsOver))
}
