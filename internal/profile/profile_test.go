package profile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "profile.json")
	t.Setenv("SCAFO_PROFILE", path)
	p, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Select(""); err == nil || !strings.Contains(err.Error(), "scafo up") {
		t.Errorf("an empty profile must say what to do: %v", err)
	}
	p.Set("a", Fleet{Nodes: []string{"http://127.0.0.1:1"}, Key: "/k"})
	p.Set("b", Fleet{Nodes: []string{"http://127.0.0.1:2"}, Key: "/l", Workers: "http://<name>.localhost:8080"})
	if err := p.Save(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	q, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	if name, f, err := q.Select(""); err != nil || name != "b" || f.Key != "/l" {
		t.Errorf("%s %+v %v", name, f, err)
	}
	if name, f, err := q.Select("a"); err != nil || name != "a" || f.Nodes[0] != "http://127.0.0.1:1" {
		t.Errorf("%s %+v %v", name, f, err)
	}
	if _, _, err := q.Select("c"); err == nil {
		t.Error("an unknown fleet is found")
	}
	if rest, err := os.ReadDir(filepath.Dir(path)); err != nil || len(rest) != 1 {
		t.Errorf("left behind: %v %v", rest, err)
	}
}

func TestDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "profile.json")
	t.Setenv("SCAFO_PROFILE", path)
	for content, want := range map[string]string{"{": "damaged", `{"v":2}`: "newer scafo"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", content, err)
		}
	}
}
