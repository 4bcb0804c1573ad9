package main

import (
	"errors"
	"io"
	"slices"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
)

// failure is what --json prints for a command that failed without an answer of its
// own. Its members are called as in a problem document and in a deploy's status.
type failure struct {
	Code      scafo.Code `json:"code,omitempty"` // none for what went wrong before anybody was asked
	Detail    string     `json:"detail"`
	Reference string     `json:"reference,omitempty"`
}

func failureOf(err error) failure {
	f := failure{Detail: printable(err.Error())}
	var e *scafo.Error
	if errors.As(err, &e) {
		f.Code, f.Detail = e.Code, printable(e.Detail)
		if f.Detail == "" {
			f.Detail = e.Title
		}
		if f.Detail == "" {
			f.Detail = "refused"
		}
	}
	if a, ok := client.AnswerOf(err); ok {
		f.Reference = a.Reference
	}
	return f
}

// wantsJSON reports whether --json is on a command line, also one that is wrong and
// was not read to its end.
func wantsJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json") || slices.Contains(args, "--json=true")
}

// answered notes whether anything was written: a command prints one object, and one
// that has printed its answer prints no second one.
type answered struct {
	w   io.Writer
	any bool
}

func (a *answered) Write(b []byte) (int, error) {
	a.any = a.any || len(b) > 0
	return a.w.Write(b)
}
