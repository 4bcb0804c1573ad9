package bundle

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// below lets a build read what lies in dir, as a runtime does.
func below(dir string) func(string) error {
	return func(file string) error {
		real, err := filepath.EvalSymlinks(file)
		if err != nil {
			return err
		}
		if rel, err := filepath.Rel(dir, real); err != nil || !filepath.IsLocal(rel) {
			return ErrOutside
		}
		return nil
	}
}

func write(t *testing.T, dir, name, body string) string {
	t.Helper()
	at := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(body), 0o644); err != nil {
		t.Fatal(err)
	}
	return at
}

// The bundler takes `__virtual__/x/N` in a path for N directories up. It leads
// nowhere that a plain path would not.
func TestVirtualPathsLeadNowhereElse(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "project")
	write(t, top, "key.json", `{"d": "SECRET"}`)
	for _, path := range []string{
		"./__virtual__/x/1/key.json", "./__virtual__/x/9/" + top + "/key.json", "./$$virtual/x/1/key.json", "./src/../__virtual__/x/1/key.json",
		"./__virtual__/x/0/__virtual__/y/1/key.json", "./$$virtual/x/0/__virtual__/y/1/key.json", "./__virtual__/x/+1/key.json", "./__virtual__/x/01/key.json",
	} {
		entry := write(t, dir, "a.js", "import k from '"+path+"'; console.log(k); export default {}")
		r, err := Run(t.Context(), Options{Dir: dir, Entry: entry, Reach: below(dir)})
		if err == nil && strings.Contains(string(r.Modules[0].Body), "SECRET") {
			t.Errorf("%s reaches out", path)
		}
		if err == nil {
			t.Errorf("%s is taken", path)
		}
		if _, err := Run(t.Context(), Options{Dir: dir, Entry: entry, Reach: func(file string) error {
			if file == filepath.Join(top, "key.json") {
				return errors.New("asked about the key")
			}
			return nil
		}}); err == nil {
			t.Errorf("%s is read unasked", path)
		}
	}
}
