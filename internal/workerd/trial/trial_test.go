package trial_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/workerd/trial"
	"github.com/scafo/scafo/internal/workerd/workerdtest"
)

func bundle(t *testing.T, code string) *layout.Bundle {
	t.Helper()
	b := &layout.Bundle{
		Manifest: &layout.Manifest{
			V: 1, ScriptName: "app", Main: "index.js", CompatibilityDate: "2026-11-01",
			Modules: []layout.Module{{Name: "index.js", Type: layout.ESModule}},
		},
		Contents: map[string][]byte{"index.js": []byte(code)},
	}
	if err := b.SealModules(); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	warnings, err := trial.Run(t.Context(), workerdtest.Path(t), bundle(t, "export default {}"))
	if err != nil || len(warnings) > 0 {
		t.Errorf("got %v, %v", warnings, err)
	}
	_, err = trial.Run(t.Context(), workerdtest.Path(t), bundle(t, "throw new Error('no')"))
	var refused *trial.Error
	if !errors.As(err, &refused) || refused.Sentence != "Uncaught Error: no\n  at index.js:1:7" {
		t.Errorf("got %v", err)
	}
	if _, err = trial.Run(t.Context(), "/nowhere/workerd", bundle(t, "")); err == nil || errors.As(err, &refused) {
		t.Errorf("without workerd: %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// What a configuration asks of a Worker and the Worker lacks fails the deploy.
func TestWhatTheServicesNeed(t *testing.T) {
	crons := layout.Services{Crons: []string{"* * * * *"}}
	consumer := layout.Services{Consumers: []layout.Consumer{{Queue: "q"}}}
	workflow := layout.Services{Workflows: []layout.Workflow{{Binding: "W", Name: "w", Class: "Flow"}}}
	entry := layout.Services{Bindings: []layout.Entry{{Binding: "E", Entrypoint: "Admin"}}}
	stores := layout.Services{KV: []layout.Store{{Binding: "KV", ID: "k"}}, D1: []layout.Store{{Binding: "DB", ID: "d"}}}
	for name, c := range map[string]struct {
		asks layout.Services
		code string
		want string // of the sentence; empty: it starts
	}{
		"crons":              {crons, "export default { scheduled() {} }", ""},
		"crons of a class":   {crons, "import { WorkerEntrypoint } from 'cloudflare:workers'; export default class extends WorkerEntrypoint { scheduled() {} }", ""},
		"crons unheard":      {crons, "export default { fetch() {} }", "triggers.crons needs a scheduled() handler, and the Worker's default export has none"},
		"crons of nothing":   {crons, "export const a = { fetch() {} }", "triggers.crons needs a scheduled() handler, and the Worker's default export has none"},
		"crons that throw":   {crons, "export default { scheduled() {} }; throw new Error('own')", "Uncaught Error: own\n  at index.js:1:42"},
		"consumer":           {consumer, "export default { queue() {} }", ""},
		"consumer unheard":   {consumer, "export default { scheduled() {} }", "queues.consumers needs a queue() handler, and the Worker's default export has none"},
		"workflow":           {workflow, "import { WorkflowEntrypoint } from 'cloudflare:workers'; export class Flow extends WorkflowEntrypoint {}; export default {}", ""},
		"workflow missing":   {workflow, "export default {}", `Workflow "w" refers to class "Flow", but the Worker exports no such WorkflowEntrypoint.`},
		"entry point":        {entry, "export const Admin = { fetch() {} }; export default {}", ""},
		"no such entry":      {entry, "export default {}", `Worker "worker"'s binding "E" refers to service "worker" with a named entrypoint "Admin", but "worker" has no such named entrypoint.`},
		"bindings at import": {stores, "import { env } from 'cloudflare:workers'; if (!env.KV || !env.DB) throw new Error('none'); export default {}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bundle(t, c.code)
			b.Manifest.Services = c.asks
			warnings, err := trial.Run(t.Context(), workerdtest.Path(t), b)
			var refused *trial.Error
			switch {
			case c.want == "" && (err != nil || len(warnings) > 0):
				t.Errorf("got %v, %q", err, warnings)
			case c.want != "" && (!errors.As(err, &refused) || refused.Sentence != c.want):
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// A workerd that somebody kills says nothing of the Worker.
func TestAKilledTrialBlamesNobody(t *testing.T) {
	killed := filepath.Join(t.TempDir(), "workerd")
	if err := os.WriteFile(killed, []byte("#!/bin/sh\necho 'Uncaught Error: no' >&2\nkill -9 $$\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	_, err := trial.Run(t.Context(), killed, bundle(t, "export default {}"))
	var refused *trial.Error
	if err == nil || errors.As(err, &refused) || !strings.Contains(err.Error(), "killed from outside") {
		t.Errorf("got %v", err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := trial.Run(ctx, workerdtest.Path(t), bundle(t, "while (true);"))
	var refused *trial.Error
	if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
}
