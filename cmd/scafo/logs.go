package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/applog"
	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/node"
	"github.com/scafo/scafo/internal/profile"
)

// followTail is how many lines of before --follow begins with.
const followTail = 20

func newLogs(g *globals) *cobra.Command {
	var follow bool
	var since, state, fleet string
	c := &cobra.Command{
		Use: "logs APP", Short: "Print what an application said on this machine", Args: cobra.ExactArgs(1),
		Long: "Print what the node on this machine kept of an application's log: the lines of its console,\nexceptions that nothing caught with their stacks, and what became of its processes. While the\napplication crashes again and again, the lines of its last crash come first.\n\nNo node answers this: the log lies on the disk of the machine that runs the application, and\nonly who may read the node's state directory can read it. --json prints one object a line.",
		RunE: func(c *cobra.Command, args []string) error {
			app, err := scafo.ParseApplicationName(args[0])
			if err != nil {
				return usageError{err}
			}
			from, err := sinceTime(since, time.Now())
			if err != nil {
				return err
			}
			if state, err = logState(c, state, fleet); err != nil {
				return err
			}
			r, err := applog.Open(node.LogsDir(state), app)
			switch {
			case errors.Is(err, applog.ErrNone):
				return scafo.Errorf(scafo.CodeNotFound, "nothing that %s said is kept on this machine, in %s; `scafo status` says what this node runs, and --state names another state directory", app, state)
			case errors.Is(err, fs.ErrPermission):
				return fmt.Errorf("%w; the log belongs to the user that runs the node", err)
			case err != nil:
				return err
			}
			p := &logPrinter{w: bufio.NewWriter(c.OutOrStdout()), json: g.json}
			return printLog(c.Context(), p, r, from, follow)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, fmt.Sprintf("go on with what comes, until Ctrl-C; begins with the last %d lines unless --since says more", followTail))
	c.Flags().StringVar(&since, "since", "", "only what was said since then: a duration such as 90s, 15m, 2h or 3d, or a time such as 2026-01-02T15:04:05Z")
	c.Flags().StringVar(&state, "state", "", "the node's state directory (default: node.state, or the one of the last init or up)")
	c.Flags().StringVar(&fleet, "fleet", "", "fleet of the profile whose state directory is meant")
	c.Flags().String("config", "", "configuration file of the node (default: SCAFO_CONFIG)")
	return c
}

// logState is the state directory that is meant: the flag's, a configured one, the
// profile's, or the default.
func logState(c *cobra.Command, flag, fleet string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	l, err := loadConfig(c, nil)
	if err != nil {
		return "", err
	}
	return stateOf(l, fleet)
}

// stateOf is the state directory of the node on this machine: a configured one, the
// profile's, or the default.
func stateOf(l *config.Loaded, fleet string) (string, error) {
	switch l.Origins["node.state"] {
	case config.OriginFlag, config.OriginEnv, config.OriginFile:
		return l.Node.State, nil
	}
	p, err := profile.Load()
	if err != nil {
		return "", err
	}
	_, f, err := p.Select(fleet)
	switch {
	case err != nil && fleet != "":
		return "", err
	case err == nil && f.State != "":
		return f.State, nil
	}
	return l.Node.State, nil
}

// sinceTime reads --since; empty is the beginning.
func sinceTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	d, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n float64
		if n, err = strconv.ParseFloat(days, 64); err == nil {
			d = time.Duration(n * 24 * float64(time.Hour))
		}
	}
	if err != nil || d < 0 {
		return time.Time{}, usagef("--since %q is neither a duration such as 15m, 2h or 3d nor a time such as 2026-01-02T15:04:05Z", s)
	}
	return now.Add(-d), nil
}

// printLog prints the log so far, a crash first where there is a loop of them, and
// then what comes.
func printLog(ctx context.Context, p *logPrinter, r *applog.Reader, since time.Time, follow bool) error {
	crashes := &applog.Crashes{}
	look := *r // a look ahead, so that a long log need not be held
	if err := look.Read(time.Time{}, func(e applog.Entry) error {
		crashes.Add(e)
		return ctx.Err()
	}); err != nil {
		return interrupted(ctx, err)
	}
	if loop, ok := crashes.Loop(time.Now()); ok {
		if err := p.loop(loop); err != nil {
			return err
		}
	}
	var last []applog.Entry
	short := follow && since.IsZero()
	err := r.Read(since, func(e applog.Entry) error {
		if !short {
			return errors.Join(p.entry(e), ctx.Err())
		}
		if last = append(last, e); len(last) > followTail {
			last = last[1:]
		}
		return ctx.Err()
	})
	for _, e := range last {
		err = errors.Join(err, p.entry(e))
	}
	if err = errors.Join(err, p.w.Flush()); err != nil || !follow {
		return interrupted(ctx, err)
	}
	return r.Follow(ctx, func(e applog.Entry) error { return errors.Join(p.entry(e), p.w.Flush()) })
}

// interrupted is no error where it is only that the user has seen enough.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// logPrinter prints entries.
type logPrinter struct {
	w    *bufio.Writer
	json bool
}

func (p *logPrinter) loop(l applog.Loop) error {
	if p.json {
		for _, e := range l.Lines {
			e.Crash = true
			if err := p.entry(e); err != nil {
				return err
			}
		}
		return nil
	}
	fmt.Fprintf(p.w, "--- crash-looping: %s, the last one %s; its last lines:\n", times(l.Crashes), ago(l.Last, time.Now()))
	for _, e := range l.Lines {
		if err := p.entry(e); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(p.w, "--- the whole log:")
	return err
}

func times(n int) string {
	if n == 1 {
		return "it crashed and is not ready since"
	}
	return fmt.Sprintf("%d crashes in a row", n)
}

// logTime is how a line says when: to the millisecond, in UTC, as the versions of
// deployments are the same everywhere.
const logTime = "2006-01-02T15:04:05.000Z"

func (p *logPrinter) entry(e applog.Entry) error {
	if p.json {
		return printLine(p.w, e)
	}
	who := orDash(e.Deployment)
	text := e.Message
	if e.Source != applog.Worker {
		text = "[" + string(e.Source) + "] " + text
	}
	if e.Stack != "" {
		text += "\n" + e.Stack
	}
	// The lines that follow the first are told from entries by their indentation.
	text = strings.ReplaceAll(printable(text), "\n", "\n    ")
	_, err := fmt.Fprintf(p.w, "%s %-5s %s %s\n", e.Time.UTC().Format(logTime), printable(string(e.Level)), printable(who), text)
	return err
}

// printLine prints one object on a line of its own. It is still JSON for programs, and
// nothing in it can command a terminal.
func printLine(w io.Writer, v any) error {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, escapeJSON(strings.TrimSuffix(b.String(), "\n"))+"\n")
	return err
}

// escapeJSON escapes what is not printable. In JSON such characters stand in strings
// alone, where an escape means the same.
func escapeJSON(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
