package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/applog"
	"github.com/scafo/scafo/internal/profile"
)

func TestSinceTime(t *testing.T) {
	now := time.Date(2026, 1, 10, 12, 0, 0, 0, time.UTC)
	for s, want := range map[string]time.Time{
		"": {}, "90s": now.Add(-90 * time.Second), "1h30m": now.Add(-90 * time.Minute), "3d": now.Add(-72 * time.Hour), "0.5d": now.Add(-12 * time.Hour),
		"2026-01-02T15:04:05Z": time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC),
	} {
		if got, err := sinceTime(s, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"soon", "-5m", "d", "5", "1w"} {
		var u usageError
		if _, err := sinceTime(s, now); !errors.As(err, &u) {
			t.Errorf("%q: %v is no mistake of the command line", s, err)
		}
	}
}

func TestEscapeJSON(t *testing.T) {
	in := "a\u009b31m\u2028\u202e\U000e0001é世"
	line, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	escaped := escapeJSON(string(line))
	if want := `"a\u009b31m\u2028\u202e\udb40\udc01é世"`; escaped != want {
		t.Errorf("%s, want %s", escaped, want)
	}
	var out string
	if err := json.Unmarshal([]byte(escaped), &out); err != nil || out != in {
		t.Errorf("%q, %v", out, err)
	}
}

func TestLogsCommand(t *testing.T) {
	state := t.TempDir()
	s, err := applog.NewStore(filepath.Join(state, "logs"), applog.Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	for _, e := range []applog.Entry{
		{Time: at, Level: applog.Info, Source: applog.Worker, Deployment: "0123456789abcdef", Message: "hello \x1b[31m\nthere"},
		{Time: at, Level: applog.Error, Source: applog.Worker, Deployment: "0123456789abcdef", Message: "Error: no", Stack: "    at f (index.js:1:2)"},
		{Time: at, Level: applog.Error, Source: applog.Node, Message: "it ended", Event: applog.Crash},
	} {
		if _, err := s.Log("shop", "u1").Append(e); err != nil {
			t.Fatal(err)
		}
	}
	const hello = "2026-01-02T03:04:05.006Z info  0123456789abcdef hello \\x1b[31m\n    there\n"
	const thrown = "2026-01-02T03:04:05.006Z error 0123456789abcdef Error: no\n        at f (index.js:1:2)\n"
	const ended = "2026-01-02T03:04:05.006Z error - [node] it ended\n"
	fleet := profile.Fleet{Nodes: []string{"http://127.0.0.1:1"}, State: state}
	out, _, err := scafoFor(t, fleet, "logs", "shop")
	head, whole, ok := strings.Cut(out, "--- the whole log:\n")
	if err != nil || !ok || whole != hello+thrown+ended || !strings.HasSuffix(head, "; its last lines:\n"+hello+thrown+ended) {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err = scafoFor(t, fleet, "logs", "shop", "--json", "--since", "2026-01-02T03:04:06Z"); err != nil || strings.Count(out, "\n") != 3 || strings.Count(out, `"crash":true`) != 3 {
		t.Errorf("%v\n%s", err, out)
	}
	if _, _, err = scafoFor(t, profile.Fleet{}, "logs", "shop", "--state", state); err != nil {
		t.Error(err)
	}
	if _, _, err = scafoFor(t, fleet, "logs", "other"); err == nil || !strings.Contains(err.Error(), "not-found") && !strings.Contains(explain(err), "not-found") {
		t.Errorf("%v", err)
	}
	var u usageError
	if _, _, err = scafoFor(t, fleet, "logs", "../shop"); !errors.As(err, &u) {
		t.Errorf("%v", err)
	}
	if os.Getuid() != 0 {
		if err := os.Chmod(filepath.Join(state, "logs"), 0); err != nil {
			t.Fatal(err)
		}
		if _, _, err = scafoFor(t, fleet, "logs", "shop"); err == nil || !strings.Contains(err.Error(), "the user that runs the node") {
			t.Errorf("%v", err)
		}
	}
}
