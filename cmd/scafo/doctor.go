package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/qualify"
	"github.com/scafo/scafo/internal/celld"
	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/confine"
	"github.com/scafo/scafo/internal/node"
	"github.com/scafo/scafo/internal/registry"
)

// Bounds of the doctor's checks.
const (
	doctorTimeout = 30 * time.Second
	// clockWarn is what a node tolerates between its clock and a caller's; clockFail
	// is where the runtime's cluster stops working.
	clockWarn = 5 * time.Second
	clockFail = 30 * time.Second
)

// finding is the doctor's word on one thing.
type finding struct {
	Check   string `json:"check"`
	Verdict string `json:"verdict"` // ok, warn, fail or skip
	Detail  string `json:"detail,omitempty"`
}

func newDoctor(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use: "doctor", Short: "Check the bucket, the runtime, the clock, the ports and the confinement", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := loadConfig(c, nil)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), doctorTimeout)
			defer cancel()
			found := diagnose(ctx, l)
			failed := false
			for _, f := range found {
				failed = failed || f.Verdict == "fail"
			}
			if g.json {
				err = printJSON(c.OutOrStdout(), map[string]any{"ok": !failed, "findings": found})
			} else {
				err = table(c.OutOrStdout(), "CHECK\tVERDICT\tDETAIL", func(row func(string, ...any)) {
					for _, f := range found {
						row("%s\t%s\t%s", f.Check, f.Verdict, f.Detail)
					}
				})
			}
			if err == nil && failed {
				err = silentError{fmt.Errorf("a check failed")}
			}
			return err
		},
	}
	addConfig(c)
	return c
}

func diagnose(ctx context.Context, l *config.Loaded) []finding {
	out := diagnoseStore(ctx, l)
	out = append(out, diagnoseRuntime(ctx, l), diagnosePort(l), diagnoseTokens(l))
	if err := confine.Supported(); err != nil {
		out = append(out, finding{"confinement", "warn", "deploys would run unconfined: " + err.Error()})
	} else {
		out = append(out, finding{"confinement", "ok", "deploys run under Landlock"})
	}
	return out
}

func diagnoseStore(ctx context.Context, l *config.Loaded) []finding {
	exe, err := os.Executable()
	if err != nil {
		return []finding{{"bucket", "fail", err.Error()}}
	}
	s, err := node.OpenStore(ctx, l, exe, slog.New(slog.DiscardHandler))
	if err != nil {
		return []finding{{"bucket", "fail", err.Error()}}
	}
	defer s.Close(context.WithoutCancel(ctx))
	if err := qualify.Prove(ctx, s.Bucket, registry.ProbePrefix); err != nil {
		return []finding{{"bucket", "fail", err.Error()}}
	}
	return []finding{{"bucket", "ok", s.Name + " keeps its conditions"}, diagnoseClock(ctx, s.Bucket)}
}

// diagnoseClock compares this machine's clock with the store's.
func diagnoseClock(ctx context.Context, b bucket.Bucket) finding {
	const key = registry.ProbePrefix + "clock"
	before := time.Now()
	if _, err := b.Put(ctx, key, []byte("{}")); err != nil {
		return finding{"clock", "skip", err.Error()}
	}
	defer func() { _ = b.Delete(context.WithoutCancel(ctx), key) }()
	o, err := b.Get(ctx, key)
	if err != nil || o.Date.IsZero() {
		return finding{"clock", "skip", "the store tells no time"}
	}
	// The store's time is in whole seconds, taken somewhere between the two reads.
	off := o.Date.Sub(before)
	if off > 0 {
		off = max(0, time.Until(o.Date))
	} else {
		off = min(0, off+time.Second)
	}
	switch off = off.Round(time.Second); {
	case off.Abs() >= clockFail:
		return finding{"clock", "fail", fmt.Sprintf("this clock and the store's differ by %s: tokens and the runtime's cluster need less than %s", off.Abs(), clockFail)}
	case off.Abs() >= clockWarn:
		return finding{"clock", "warn", fmt.Sprintf("this clock and the store's differ by %s", off.Abs())}
	}
	return finding{"clock", "ok", "agrees with the store's"}
}

func diagnoseRuntime(ctx context.Context, l *config.Loaded) finding {
	if l.Celld.Command == config.None {
		return finding{"runtime", "skip", "this node runs no applications"}
	}
	path, err := exec.LookPath(l.Celld.Command)
	beside := ""
	if err != nil && l.Origins["celld.command"] == config.OriginDefault {
		beside = besideThis("celld-workerd")
	}
	if err != nil && beside == "" {
		return finding{"runtime", "fail", err.Error()}
	}
	v, verr := celld.Version(ctx, cmp.Or(beside, path), celld.Pairs(l.Celld.Env)...)
	switch {
	case verr != nil:
		return finding{"runtime", "fail", verr.Error()}
	case beside != "":
		return finding{"runtime", "warn", v + ", as `scafo up` takes it; for `scafo sail` set celld.command to " + beside}
	}
	return finding{"runtime", "ok", v}
}

// besideThis is a program in this one's directory; empty where it is not there.
func besideThis(name string) string {
	exe, err := os.Executable()
	if err != nil {
		return ""
	}
	path, err := exec.LookPath(filepath.Join(filepath.Dir(exe), name))
	if err != nil {
		return ""
	}
	return path
}

func diagnosePort(l *config.Loaded) finding {
	p, err := net.Listen("tcp", l.Node.Listen)
	if err != nil {
		return finding{"api port", "warn", err.Error() + " (fine while a node runs here)"}
	}
	p.Close()
	return finding{"api port", "ok", l.Node.Listen + " is free"}
}

func diagnoseTokens(l *config.Loaded) finding {
	if len(l.Ingress.Token) == 0 && l.Bucket.URL != "" {
		return finding{"ingress token", "warn", "ingress.token is not set: each node mints its own"}
	}
	return finding{"ingress token", "ok", ""}
}
