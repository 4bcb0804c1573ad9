package main

import (
	"bytes"
	"log/slog"
	"testing"
)

// Whoever runs `scafo up` sees what the Workers write, and of the node only what is
// worth a warning.
func TestUpShowsWhatWorkersSay(t *testing.T) {
	var out bytes.Buffer
	own := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	log := newUpLog(own, &out)
	shop := log.With("application", "shop")
	for _, line := range []string{
		`time=2026-12-02T05:53:32.518Z level=INFO msg=listening program=celld-workerd pid=1`,
		`time=2026-12-02T05:53:32.586Z level=INFO msg=hello from=worker`,
		`time=2026-12-02T05:53:32.586Z level=ERROR msg="an \"err\"\n\tat x:1" from=worker`,
		`time=2026-12-02T05:53:32.586Z level=INFO msg="\x1b[31mred" from=worker`,
		`time=2026-12-02T05:53:32.586Z level=INFO msg="" from=worker`,
		`time=2026-12-02T05:53:32.907Z level=WARN msg="workerd died" pid=7`,
		`a line of celld's`,
	} {
		shop.Info("shop | "+line, "source", "runtime")
	}
	log.Info("the node answers")
	log.Debug("nothing")
	shop.Warn("the runtime has ended")
	want := "shop | hello\n" +
		"shop | an \"err\"\n\tat x:1\n" +
		"shop | \\x1b[31mred\n" +
		"shop | \n" +
		"shop | time=2026-12-02T05:53:32.907Z level=WARN msg=\"workerd died\" pid=7\n" +
		"shop | a line of celld's\n" +
		"level=WARN msg=\"the runtime has ended\" application=shop\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
