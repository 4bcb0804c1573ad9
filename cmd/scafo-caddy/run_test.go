package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// With --state nothing is written anywhere else, the id that Caddy gives itself
// included; without it everything is where Caddy has it.
func TestStateHoldsEverything(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_DATA_HOME", "")
	state := filepath.Join(t.TempDir(), "ingress")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--node", "http://127.0.0.1:1"}, filepath.Join(home, ".local/share/caddy")},
		{[]string{"--node", "http://127.0.0.1:1", "--state", state}, filepath.Join(state, "caddy")},
	} {
		f, err := parse(c.args)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.keepTo(); err != nil {
			t.Fatal(err)
		}
		if _, err := caddy.InstanceID(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(c.want, "instance.uuid")); err != nil {
			t.Errorf("%v: %v", c.args, err)
		}
	}
	if got, want := caddy.DefaultStorage.Path, filepath.Join(state, "caddy"); got != want {
		t.Errorf("what has no storage of its own is in %s, want %s", got, want)
	}
}
