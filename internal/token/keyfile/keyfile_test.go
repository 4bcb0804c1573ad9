package keyfile_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/token"
	"github.com/scafo/scafo/internal/token/keyfile"
)

func newKey(t *testing.T, id string) keyfile.Key {
	t.Helper()
	k, err := keyfile.New(id)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys", "op.json")
	k := newKey(t, "op-1")
	if err := keyfile.Save(path, k); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]fs.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", p, info.Mode().Perm(), want)
		}
	}
	got, readable, err := keyfile.Load(path)
	if err != nil || readable {
		t.Fatal(readable, err)
	}
	if got.ID != "op-1" || !got.Private.Equal(k.Private) {
		t.Errorf("another key came back: %s", got.ID)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("beside the key lies %v, %v", entries, err)
	}
}

func TestSaveReplacesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "op.json")
	first := newKey(t, "op-1")
	if err := keyfile.Save(path, first); err != nil {
		t.Fatal(err)
	}
	if err := keyfile.Save(path, newKey(t, "op-1")); err == nil {
		t.Fatal("a key was replaced")
	}
	got, _, err := keyfile.Load(path)
	if err != nil || !got.Private.Equal(first.Private) {
		t.Error("the first key is gone", err)
	}
}

func TestLoadWarnsOfReaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "op.json")
	if err := keyfile.Save(path, newKey(t, "op-1")); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []fs.FileMode{0o640, 0o604, 0o620, 0o644} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, readable, err := keyfile.Load(path); err != nil || !readable {
			t.Errorf("mode %v: %v, %v", mode, readable, err)
		}
	}
}

func TestKeySignsTokensThatParse(t *testing.T) {
	k := newKey(t, "node-1")
	now := time.Now()
	a, err := k.Token(now)
	if err != nil {
		t.Fatal(err)
	}
	b, err := k.Token(now)
	if err != nil {
		t.Fatal(err)
	}
	if a == b {
		t.Error("two tokens are the same")
	}
	c, err := token.Parse(a)
	if err != nil {
		t.Fatal(err)
	}
	public, err := token.ParsePublicKey(k.Public())
	if err != nil || !c.Verify(public) || c.KeyID != "node-1" {
		t.Error(c.KeyID, err)
	}
}

func TestBadKeyFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "good.json")
	if err := keyfile.Save(path, newKey(t, "op-1")); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	change := func(name string, v any) string {
		m := map[string]any{}
		if err := json.Unmarshal(good, &m); err != nil {
			t.Fatal(err)
		}
		if v == nil {
			delete(m, name)
		} else {
			m[name] = v
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	secret := strings.Split(strings.Split(string(good), `"d": "`)[1], `"`)[0]
	for name, c := range map[string]struct{ content, says string }{
		"empty":           {"", "JSON Web Key"},
		"half a file":     {string(good[:len(good)/2]), "JSON Web Key"},
		"another kty":     {change("kty", "RSA"), "Ed25519"},
		"another crv":     {change("crv", "X25519"), "Ed25519"},
		"no kid":          {change("kid", nil), "kid"},
		"kid is no id":    {change("kid", "Op 1"), "kid"},
		"public only":     {change("d", nil), "private"},
		"d is too short":  {change("d", "AAAA"), "32 bytes"},
		"d is padded":     {change("d", secret+"="), "32 bytes"},
		"x of another":    {change("x", newKey(t, "op-2").Public().X), "does not belong"},
		"larger than any": {strings.Repeat(" ", keyfile.MaxBytes+1), "larger"},
	} {
		p := filepath.Join(dir, "bad.json")
		if err := os.WriteFile(p, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := keyfile.Load(p)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows the key", name)
		}
	}
	if _, _, err := keyfile.Load(dir); err == nil {
		t.Error("a directory is a key")
	}
	if _, _, err := keyfile.Load(filepath.Join(dir, "none.json")); err == nil {
		t.Error("a missing file is a key")
	}
}

func TestNewRefusesIDs(t *testing.T) {
	for _, id := range []string{"", "Op", "-a", "a-", "a.b", strings.Repeat("a", 64)} {
		if _, err := keyfile.New(id); err == nil {
			t.Errorf("made a key for %q", id)
		}
	}
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path, next := filepath.Join(dir, "op.jwk"), filepath.Join(dir, "op.jwk.next")
	old, fresh := newKey(t, "op-1"), newKey(t, "op-2")
	for p, k := range map[string]keyfile.Key{path: old, next: fresh} {
		if err := keyfile.Save(p, k); err != nil {
			t.Fatal(err)
		}
	}
	if err := keyfile.Replace(next, path); err != nil {
		t.Fatal(err)
	}
	if k, others, err := keyfile.Load(path); err != nil || others || k.ID != "op-2" || !k.Private.Equal(fresh.Private) {
		t.Errorf("%s %v %v", k.ID, others, err)
	}
	if err := keyfile.Replace(next, path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is nothing to put in its place: %v", err)
	}
	if k, _, err := keyfile.Load(path); err != nil || k.ID != "op-2" {
		t.Errorf("%s %v", k.ID, err)
	}
}

func TestPublicHalves(t *testing.T) {
	k := newKey(t, "op-1")
	public := k.PublicJWK()
	if strings.Contains(string(public), `"d"`) {
		t.Fatalf("%s", public)
	}
	if id, got, err := keyfile.ParsePublic(public); err != nil || id != "op-1" || got != k.Public() {
		t.Errorf("%s %+v %v", id, got, err)
	}
	if id, _, err := keyfile.ParsePublic([]byte(`{"kty":"OKP","crv":"Ed25519","x":"` + k.Public().X + `"}`)); err != nil || id != "" {
		t.Errorf("%s %v", id, err)
	}
	path := filepath.Join(t.TempDir(), "k")
	if err := keyfile.Save(path, k); err != nil {
		t.Fatal(err)
	}
	private, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{string(private), ``, `[]`, `{}`, `{"kty":"OKP","crv":"Ed25519","x":"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`, `{"kty":"RSA"}`} {
		if _, _, err := keyfile.ParsePublic([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
