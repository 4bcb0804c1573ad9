package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever a configuration file holds, it is read or refused: no key is taken that
// nobody knows, and each value that is said to come from the file was in it.
func FuzzFile(f *testing.F) {
	for _, s := range []string{
		"", "{}", "node:\n  id: vps-a\n", "node: {labels: {region: eu}}", "node.id: vps-a", "nodes:\n  id: x\n", "node:\n  ids: x\n", "node: 7", "- node", "node:\n\tid: x",
		"api:\n  jsonBytes: 1e3\n", "api:\n  jsonBytes: -1\n", "ingress:\n  token: [a, b]\n", "ingress:\n  token: a,b\n", "log: {level: loud}", "a: &a [*a]", "node: {id: x, id: y}",
		"celld:\n  env: {A: 1, B: true}\n", "drain:\n  routeSeconds: 99999999999999999999\n", "\ufeffnode: {id: x}", "node: !!binary aGk=", "? [a]\n: b", "bucket: null",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		path := filepath.Join(t.TempDir(), "scafo.yaml")
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Load(Sources{File: path, Presets: map[string]string{"node.id": "preset"}})
		if err != nil {
			if err.Error() == "" {
				t.Errorf("%q is refused without a word", s)
			}
			return
		}
		for key, origin := range l.Origins {
			_, last, _ := strings.Cut(key, ".")
			if i := strings.LastIndex(last, "."); i >= 0 {
				last = last[i+1:]
			}
			if origin == OriginFile && !strings.Contains(s, "\\") && !strings.Contains(s, "*") && !strings.Contains(s, last) {
				t.Errorf("%q says nothing of %s", s, key)
			}
		}
		if strings.TrimSpace(s) == "" && l.Node.ID != "preset" {
			t.Errorf("node.id %q", l.Node.ID)
		}
	})
}
