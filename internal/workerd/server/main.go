package server

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/scafo/scafo"
)

// The exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1 // start-up, configuration, command line
	ExitFenced = 3 // lost the lease
)

// Name is the program's own name.
const Name = "celld-workerd"

// Main is the whole program: args are the arguments behind its name. deploy is
// what `deploy` runs. It returns the exit code.
func Main(ctx context.Context, args, environ []string, stdout, stderr io.Writer, deploy func(ctx context.Context, args, env []string, stdout, stderr io.Writer) int) int {
	fail := func(err error) int {
		fmt.Fprintf(stderr, "Error: %s\n", oneLine(err))
		return ExitFailed
	}
	env, err := ParseEnv(environ)
	if err != nil {
		return fail(err)
	}
	c, err := ParseCommand(args)
	if err != nil {
		return fail(err)
	}
	switch c.Verb {
	case Help:
		fmt.Fprint(stdout, Usage)
		return ExitOK
	case Deploy:
		return deploy(ctx, c.Rest, environ, stdout, stderr)
	case Version:
		line, err := VersionLine(ctx, env)
		if err != nil {
			return fail(err)
		}
		fmt.Fprintln(stdout, line)
		return ExitOK
	case Diagnose:
		return diagnose(ctx, c, env, stdout)
	}
	return serve(ctx, c, env, stdout, stderr)
}

// VersionLine is what --version prints.
func VersionLine(ctx context.Context, env Env) (string, error) {
	workerd, err := Locate(env, executable())
	if err != nil {
		return "", err
	}
	v, err := WorkerdVersion(ctx, workerd)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s (workerd %s)", Name, scafo.Version, v), nil
}

func executable() string {
	p, err := os.Executable()
	if err != nil {
		return ""
	}
	if r, err := filepath.EvalSymlinks(p); err == nil {
		return r
	}
	return p
}

// oneLine keeps an error on one line of standard error.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), " ")
}
