package instance

import (
	"strings"
	"testing"
)

func TestParseLine(t *testing.T) {
	long := `{"timestamp":1,"level":"warn","message":"` + strings.Repeat(`\u001b`, maxLine/6+10)
	for line, want := range map[string]Line{
		`{"timestamp":1796196047405,"level":"log","message":"hello { a: 1 }"}`: {Level: "log", Text: "hello { a: 1 }"},
		`{"timestamp":"1","level":"info","source":"workerd/io/worker.c++:3042","message":"uncaught exception; source = Uncaught (in promise); stack = TypeError: a\nb\n    at f (m.js:1:2)","context_depth":0}`: {
			Level: "error", Text: "TypeError: a\nb\n    at f (m.js:1:2)", Exception: true},
		`{"timestamp":"1","level":"info","source":"workerd/io/worker.c++:3049","message":"uncaught exception; source = Uncaught (in promise); exception = a string; stack = x"}`: {
			Level: "error", Text: "a string; stack = x", Exception: true},
		`{"timestamp":"1","level":"info","source":"workerd/io/worker.c++:3049","message":"uncaught exception; source = Uncaught (in promise); exception = a string"}`: {
			Level: "error", Text: "a string", Exception: true},
		`{"timestamp":"1","level":"error","source":"workerd/jsg/util.c++:320","message":"e = x: failed: connecting to 127.0.0.1:1 is not allowed\nstack: /a/workerd@2b5e /a/workerd@3fe; sentryErrorContext = jsgInternalError"}`: {
			Level: "error", Text: "e = x: failed: connecting to 127.0.0.1:1 is not allowed; sentryErrorContext = jsgInternalError", Runtime: true},
		`{"timestamp":"1","level":"error","source":"x","message":"failed\nstack: workerd@2b5e /a/workerd@3fe"}`: {Level: "error", Text: "failed", Runtime: true},
		// A Worker's own words are never taken for workerd's.
		`{"timestamp":1,"level":"info","message":"uncaught exception; source = x; stack = y"}`: {Level: "info", Text: "uncaught exception; source = x; stack = y"},
		`plain text`:     {Text: "plain text"},
		`{"a":1}`:        {Text: `{"a":1}`},
		``:               {},
		long[:maxLine-1]: {Level: "warn", Text: strings.Repeat("\x1b", (maxLine-1-41)/6) + "…"},
	} {
		got, _ := parseLine([]byte(line), false)
		if got != want {
			t.Errorf("%.200s\n got %.300q\nwant %.300q", line, got.Text, want.Text)
			t.Errorf("%v %v %v, want %v %v %v", got.Level, got.Runtime, got.Exception, want.Level, want.Runtime, want.Exception)
		}
	}
}

func TestChatter(t *testing.T) {
	for line, want := range map[string]bool{
		`{"level":"info","source":"a","message":"a connection was opened"}`:                         true,
		`{"level":"info","source":"a","message":"uncaught exception; exception = again"}`:           true,
		`{"level":"error","source":"a","message":"Uncaught exception: v: failed: remote.jsg.E: x"}`: true,
		`{"level":"error","source":"a","message":"Uncaught exception: Network connection lost."}`:   false,
		`{"level":"info","source":"a","message":"uncaught exception; source = p; stack = E"}`:       false,
		`{"level":"warn","source":"a","message":"a class is missing"}`:                              false,
		`{"level":"info","message":"the Worker's"}`:                                                 false,
		`plain`: false,
	} {
		if _, r := parseLine([]byte(line), false); r.chatter() != want {
			t.Errorf("%s: %v", line, !want)
		}
	}
}
