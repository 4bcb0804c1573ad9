package applog

import (
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	said := time.Date(2026, 12, 2, 5, 53, 32, 518_000_000, time.UTC)
	for line, want := range map[string]Entry{
		`time=2026-12-02T05:53:32.518Z level=INFO msg=hello from=worker deployment=0123456789abcdef`: {Time: said, Level: Info, Source: Worker, Message: "hello", Deployment: "0123456789abcdef"},
		`time=2026-12-02T05:53:32.518Z level=WARN msg="" from=worker`:                                {Time: said, Level: Warn, Source: Worker},
		`time=2026-12-02T05:53:32.518Z level=ERROR msg="TypeError: no\nsecond\n    at f (a.js:1:2)\n    at b.js:3:4" from=worker kind=exception deployment=d`: {
			Time: said, Level: Error, Source: Worker, Message: "TypeError: no\nsecond", Stack: "    at f (a.js:1:2)\n    at b.js:3:4", Deployment: "d"},
		`time=2026-12-02T05:53:32.518Z level=ERROR msg="just a string" from=worker kind=exception`:                   {Time: said, Level: Error, Source: Worker, Message: "just a string"},
		`time=2026-12-02T05:53:32.518Z level=WARN msg="workerd died" pid=7 killed="it used 9 MiB" code=-1`:           {Time: said, Level: Warn, Source: Runtime, Message: `workerd died pid=7 killed="it used 9 MiB" code=-1`, Event: Crash},
		`time=2026-12-02T05:53:32.518Z level=ERROR msg="Network connection lost." from=workerd deployment=d`:         {Time: said, Level: Error, Source: Runtime, Message: "Network connection lost.", Deployment: "d"},
		`time=2026-12-02T05:53:32.518Z level=INFO msg="a \"from=worker\" of its own" from=worker`:                    {Time: said, Level: Info, Source: Worker, Message: `a "from=worker" of its own`},
		`2026-12-02T05:53:32.518000Z  WARN celld::cell: a cell moved`:                                                {Time: said, Level: Warn, Source: Runtime, Message: "celld::cell: a cell moved"},
		`{"timestamp":"2026-12-02T05:53:32.518Z","level":"ERROR","fields":{"message":"it failed"},"target":"celld"}`: {Time: said, Level: Error, Source: Runtime, Message: "it failed"},
		`{"not":"a log line"}`:  {Time: now, Level: Info, Source: Runtime, Message: `{"not":"a log line"}`},
		`Error: the bucket: no`: {Time: now, Level: Error, Source: Runtime, Message: "Error: the bucket: no"},
		`plain`:                 {Time: now, Level: Info, Source: Runtime, Message: "plain"},
		``:                      {Time: now, Level: Info, Source: Runtime},
		// What a Worker says cannot pass for something else: it is quoted.
		`time=2026-12-02T05:53:32.518Z level=INFO msg="x\ntime=2026-12-02T05:53:32.518Z level=WARN msg=\"workerd died\"" from=worker`: {
			Time: said, Level: Info, Source: Worker, Message: "x\ntime=2026-12-02T05:53:32.518Z level=WARN msg=\"workerd died\""},
	} {
		if got := Parse(line, now); got != want {
			t.Errorf("%s\n got %+v\nwant %+v", line, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`time=2026-12-02T05:53:32.518Z level=INFO msg="a" b="c d" e`)
	f.Add(`time=x level=y msg= a="`)
	f.Fuzz(func(t *testing.T, line string) {
		if e := Parse(line, time.Unix(1, 0)); e.Time.IsZero() || e.Level == "" || e.Source == "" {
			t.Errorf("%q: %+v", line, e)
		}
	})
}

func TestLimit(t *testing.T) {
	at := time.Unix(100, 0)
	l := Limit{Rate: 10, Burst: 100}
	passed := 0
	for range 20 {
		if ok, _ := l.Take(10, at); ok {
			passed++
		}
	}
	if passed != 10 {
		t.Errorf("%d lines of 10 bytes went through a burst of 100", passed)
	}
	if ok, _ := l.Take(10, at.Add(999*time.Millisecond)); ok {
		t.Error("a line went through before a tenth of the burst was free again")
	}
	ok, held := l.Take(10, at.Add(1100*time.Millisecond))
	if !ok || held != 11 {
		t.Errorf("after a second: %v, %d were kept back; want 11", ok, held)
	}
	if ok, _ := new(Limit).Take(1<<40, at); !ok {
		t.Error("the zero limit limits")
	}
}
