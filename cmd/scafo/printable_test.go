package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
)

const hostile = "no\x1b]0;title\a \u009b31m\r\n\tat src/index.ts:1:7\n"

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"":                      "",
		"Grüße, 世界 …\n\tat x:1": "Grüße, 世界 …\n\tat x:1",
		hostile:                 `no\x1b]0;title\a \u009b31m\r` + "\n\tat src/index.ts:1:7\n",
		"\xff\u202e":            `�\u202e`,
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got, want := oneLine(hostile), `no\x1b]0;title\a \u009b31m\r …`; got != want {
		t.Errorf("one line: %q, want %q", got, want)
	}
	if got := oneLine("a\tb\n"); got != "a b" {
		t.Errorf("one line: %q", got)
	}
}

// Whatever a Worker's error holds, a table has one line for each row, and no text of a
// Worker reaches the terminal as a command.
func TestTextOfWorkersInOutput(t *testing.T) {
	var out bytes.Buffer
	err := table(&out, "ID\tDETAIL\tAT", func(row func(string, ...any)) {
		row("%s\t%s\t%s", "a.1", hostile, "now")
		row("%s\t%s\t%s", "b.2", "-", "then")
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 3 {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
	s := scafo.DaemonState{Processes: []scafo.ProcessStatus{{
		Application: "x", State: scafo.ProcessBackoff, LastLines: []string{hostile},
		Refused: &scafo.Refusal{Version: "v", Detail: hostile},
	}}}
	c := &cobra.Command{}
	c.SetOut(&out)
	showDeploy(&out, scafo.DeployStatus{ID: "a.1", Detail: hostile, Nodes: []scafo.DeployNode{{Node: "n", Detail: hostile}}})
	if err := showState(c, s); err != nil {
		t.Fatal(err)
	}
	out.WriteString(explain(&scafo.Error{Code: scafo.CodePublishFailed, Detail: hostile}))
	if i := strings.IndexAny(out.String(), "\x1b\a\r\u009b"); i >= 0 {
		t.Errorf("a control character at %d: %q", i, out.String())
	}
}
