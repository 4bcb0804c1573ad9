package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/profile"
)

// A command that looks into a bucket makes none.
func TestDeploysListMakesNoStore(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	root := newRoot()
	root.SetOut(new(bytes.Buffer))
	root.SetArgs([]string{"deploys", "list", "shop", "--node-state", state})
	err := root.ExecuteContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "--node-state") || !strings.Contains(err.Error(), state) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Errorf("the state directory was made: %v", err)
	}
}

// What looks into the embedded bucket of a machine looks into the one of the node that
// the profile knows, wherever `scafo up` was told to keep it, and not into another's.
func TestTheBucketIsTheProfiles(t *testing.T) {
	state := filepath.Join(t.TempDir(), "kept")
	for _, args := range [][]string{{"deploys", "list", "shop"}, {"trust", "show", "shop"}} {
		_, _, err := scafoFor(t, profile.Fleet{Nodes: []string{"http://127.0.0.1:1"}, State: state}, args...)
		if err == nil || !strings.Contains(err.Error(), state) {
			t.Errorf("%v: %v", args, err)
		}
		other := filepath.Join(t.TempDir(), "other")
		_, _, err = scafoFor(t, profile.Fleet{Nodes: []string{"http://127.0.0.1:1"}, State: state}, append(args, "--node-state", other)...)
		if err == nil || !strings.Contains(err.Error(), other) {
			t.Errorf("%v with a state directory of its own: %v", args, err)
		}
	}
}

// After `make up`, which takes the runtime beside itself, the doctor does not call the
// machine sick for having no celld; a runtime that was named has to be there.
func TestDoctorLooksBesideItself(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(filepath.Dir(exe), "celld-workerd")
	l := &config.Loaded{Origins: map[string]config.Origin{"celld.command": config.OriginDefault}}
	l.Celld.Command = "celld"
	if f := diagnoseRuntime(t.Context(), l); f.Verdict != "fail" {
		t.Errorf("nothing there: %+v", f)
	}
	if err := os.WriteFile(beside, []byte("#!/bin/sh\necho 'celld-workerd 0.1.0 (workerd 1.2)'\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(beside) })
	if f := diagnoseRuntime(t.Context(), l); f.Verdict != "warn" || !strings.Contains(f.Detail, "workerd 1.2") || !strings.Contains(f.Detail, beside) {
		t.Errorf("beside: %+v", f)
	}
	l.Origins["celld.command"] = config.OriginFile
	if f := diagnoseRuntime(t.Context(), l); f.Verdict != "fail" {
		t.Errorf("named: %+v", f)
	}
}
