package trial_test

import (
	"context"
	"errors"
	"os"
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

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := trial.Run(ctx, workerdtest.Path(t), bundle(t, "while (true);"))
	var refused *trial.Error
	if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
}
