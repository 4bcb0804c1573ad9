package server

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
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
	dropped atomic.Int64
	stop    chan struct{}
	done    chan struct{}

	mu    sync.Mutex
	limit applog.Limit // guarded by mu
}

// taggedLine is a line with the deployment that said it.
type taggedLine struct {
	instance.Line
	deployment string
}

const (
	lineQueue = 4096
	// lineRate and lineBurst are how fast a Worker may fill the log, in bytes a second
	// and in bytes.
	lineRate  = 512 << 10
	lineBurst = 8 << 20
	// maxText bounds one line, so that it is one also for whoever reads the log.
	maxText = 16 << 10
)

func newLineLog(log *slog.Logger) *lineLog {
	l := &lineLog{
		log: log, queue: make(chan taggedLine, lineQueue), stop: make(chan struct{}), done: make(chan struct{}),
		limit: applog.Limit{Rate: lineRate, Burst: lineBurst},
	}
	go func() {
		defer close(l.done)
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
			case <-l.stop:
				return
			}
		}
	}()
	return l
}

func (l *lineLog) write(line taggedLine) {
	if n := l.dropped.Swap(0); n > 0 {
		l.log.Warn("lines of output were dropped", "lines", n)
	}
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
	text := line.Text
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

// of takes the lines of a workerd with that deployment.
func (l *lineLog) of(deployment string) func(instance.Line) {
	return func(line instance.Line) { l.add(taggedLine{Line: line, deployment: deployment}) }
}

// add queues a line; it never blocks.
func (l *lineLog) add(line taggedLine) {
	l.mu.Lock()
	ok, _ := l.limit.Take(min(len(line.Text), maxText)+lineOverhead, time.Now())
	l.mu.Unlock()
	if !ok && !line.Runtime {
		l.dropped.Add(1)
		return
	}
	select {
	case l.queue <- line:
	default:
		l.dropped.Add(1)
	}
}

// lineOverhead is what a line takes beside its text, about.
const lineOverhead = 100

// close writes what is queued.
func (l *lineLog) close() {
	close(l.stop)
	<-l.done
	if n := l.dropped.Swap(0); n > 0 {
		l.log.Warn("lines of output were dropped", "lines", n)
	}
}
