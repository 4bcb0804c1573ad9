package server

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/scafo/scafo/internal/workerd/instance"
)

// lineLog passes the lines of workerds on to the log. A reader of this program's
// output that is slow must not stop a workerd, so there is a queue between them;
// what does not fit is counted.
type lineLog struct {
	log     *slog.Logger
	queue   chan instance.Line
	dropped atomic.Int64
	stop    chan struct{}
	done    chan struct{}
}

const lineQueue = 4096

func newLineLog(log *slog.Logger) *lineLog {
	l := &lineLog{log: log, queue: make(chan instance.Line, lineQueue), stop: make(chan struct{}), done: make(chan struct{})}
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

func (l *lineLog) write(line instance.Line) {
	if n := l.dropped.Swap(0); n > 0 {
		l.log.Warn("lines of output were dropped", "lines", n)
	}
	level := slog.LevelInfo
	switch line.Level {
	case "error":
		level = slog.LevelError
	case "warn":
		level = slog.LevelWarn
	case "":
		if line.Stderr {
			level = slog.LevelWarn
		}
	}
	l.log.Log(context.Background(), level, line.Text, "from", "worker")
}

// add queues a line; it never blocks.
func (l *lineLog) add(line instance.Line) {
	select {
	case l.queue <- line:
	default:
		l.dropped.Add(1)
	}
}

// close writes what is queued.
func (l *lineLog) close() {
	close(l.stop)
	<-l.done
}
