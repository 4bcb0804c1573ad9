package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo/internal/applog"
)

// upLog is the log of `scafo up`: what the applications say, as whoever writes them
// wants to read it, and of the node's own lines those that the configuration lets pass.
type upLog struct {
	slog.Handler // of the node's own lines
	mu           *sync.Mutex
	out          io.Writer
}

func newUpLog(own slog.Handler, out io.Writer) *slog.Logger {
	return slog.New(upLog{Handler: own, mu: new(sync.Mutex), out: out})
}

func (l upLog) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || l.Handler.Enabled(ctx, level)
}

func (l upLog) Handle(ctx context.Context, r slog.Record) error {
	application := false
	r.Attrs(func(a slog.Attr) bool {
		application = application || a.Key == "source" && a.Value.String() == "runtime"
		return !application
	})
	if application {
		line, ok := workerLine(r.Message)
		if !ok {
			return nil
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		_, err := fmt.Fprintln(l.out, printable(line))
		return err
	}
	if !l.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

func (l upLog) WithAttrs(a []slog.Attr) slog.Handler {
	l.Handler = l.Handler.WithAttrs(a)
	return l
}

func (l upLog) WithGroup(name string) slog.Handler {
	l.Handler = l.Handler.WithGroup(name)
	return l
}

// workerLine is what the Worker wrote, of "application | line of the runtime". A
// runtime that merely says how it is doing is left out where its lines say what they
// are; others stay as they are.
func workerLine(message string) (string, bool) {
	application, line, _ := strings.Cut(message, " | ")
	e := applog.Parse(line, time.Time{})
	switch {
	case e.Time.IsZero(): // no line of a form that is known
		return message, true
	case e.Source != applog.Worker:
		return message, e.Level != applog.Info && e.Level != applog.Debug
	case e.Stack != "":
		return application + " | " + e.Message + "\n" + e.Stack, true
	}
	return application + " | " + e.Message, true
}
