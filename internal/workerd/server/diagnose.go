package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/scafo/scafo/internal/bucket/qualify"
	"github.com/scafo/scafo/internal/workerd/layout"
)

// Row is one check of `diagnose`.
type Row struct {
	Verdict string `json:"verdict"` // ok, fail or skip
	Check   string `json:"check"`
	Detail  string `json:"detail"`
}

const diagnoseTimeout = 30 * time.Second

// diagnose runs every check that serving would run, and serves nothing. It binds
// the listeners for a moment.
func diagnose(ctx context.Context, c Command, env Env, stdout io.Writer) int {
	ctx, cancel := context.WithTimeout(ctx, diagnoseTimeout)
	defer cancel()
	rows := checks(ctx, c, env)
	code := ExitOK
	for _, r := range rows {
		if r.Verdict == "fail" {
			code = ExitFailed
		}
		if !c.JSON {
			fmt.Fprintf(stdout, "%-4s  %-18s  %s\n", r.Verdict, r.Check, r.Detail)
		}
	}
	if c.JSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(rows); err != nil {
			return ExitFailed
		}
	}
	return code
}

func checks(ctx context.Context, c Command, env Env) []Row {
	rows := []Row{{"ok", "environment", "every variable is understood"}}
	add := func(check string, err error, detail string) bool {
		if err != nil {
			rows = append(rows, Row{"fail", check, oneLine(err)})
			return false
		}
		rows = append(rows, Row{"ok", check, detail})
		return true
	}
	workerd, err := Locate(env, executable())
	version := ""
	if err == nil {
		version, err = WorkerdVersion(ctx, workerd)
	}
	add("workerd", err, version+" at "+workerd)

	public, internal, err := bind(c)
	if add("listeners", err, "") {
		rows[len(rows)-1].Detail = fmt.Sprintf("%s and %s can be bound", public.Addr(), internal.Addr())
		_ = public.Close()
		_ = internal.Close()
	}
	if env.Watch == "" {
		rows = append(rows, Row{"skip", "data-directory", "CELLD_WATCH is not set: a temporary directory is used"})
	} else {
		add("data-directory", writable(env.Watch), env.Watch)
	}
	st, err := openStore(ctx, c, env)
	if err == nil {
		_, _, err = layout.Load(ctx, st)
	}
	switch {
	case err == nil:
		rows = append(rows, Row{"ok", "bucket", target(c)})
	case isNoPointer(err):
		rows = append(rows, Row{"ok", "bucket", target(c) + "; nothing is deployed yet"})
	default:
		add("bucket", err, "")
		return append(rows, Row{"skip", "conditional-writes", "the bucket cannot be reached"})
	}
	add("conditional-writes", qualify.Prove(ctx, st, provePrefix), "the store keeps its conditions")
	return rows
}

// writable makes the directory and a file in it.
func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".diagnose-")
	if err != nil {
		return err
	}
	_ = f.Close()
	return os.Remove(f.Name())
}
