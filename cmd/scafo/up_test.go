package main

import "testing"

func TestEngine(t *testing.T) {
	for version, want := range map[string]string{
		"celld-workerd 0.1.0 (workerd 1.20261117.1)": "workerd 1.20261117.1",
		"celld 0.6.2":         "celld 0.6.2",
		"celld 0.6.2 (debug)": "celld 0.6.2 (debug)",
		"":                    "",
	} {
		if got := engine(version); got != want {
			t.Errorf("%q: %q, want %q", version, got, want)
		}
	}
}
