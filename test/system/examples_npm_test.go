//go:build system

package system

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/paralleltest"
)

// installed is a copy of an example with its packages.
func installed(t *testing.T, f *fleet, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(f.example(name))); err != nil {
		t.Fatal(err)
	}
	npm(t, dir, "ci")
	return dir
}

func TestExampleAPI(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	url := f.deploy(installed(t, f, "api"))
	for path, c := range map[string]struct {
		status int
		part   string
	}{
		"/":                              {200, "Units of measurement\n\n# Units\n"},
		"/units":                         {200, `"mile":1609.344`},
		"/convert/mile/km?value=26.2":    {200, `{"value":42.1648128,"unit":"km"}`},
		"/convert/mile/kg":               {400, "length is no mass"},
		"/convert/mile/parsec":           {404, "no such unit"},
		"/convert/mile/km?value=nothing": {400, "value is no number"},
		"/nope":                          {404, "nothing here"},
	} {
		if status, body, err := f.get(url + path); err != nil || status != c.status || !strings.Contains(body, c.part) {
			t.Errorf("%s: %d %q %v", path, status, body, err)
		}
	}
	req, err := http.NewRequest(http.MethodGet, url+"/units", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := f.requestClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	req.Header.Set("If-None-Match", res.Header.Get("ETag"))
	if status, body, err := f.do(req); err != nil || status != http.StatusNotModified || body != "" {
		t.Errorf("with the tag %s: %d %q %v", res.Header.Get("ETag"), status, body, err)
	}
}

func TestExampleSPA(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	dir := installed(t, f, "spa")
	if _, err := os.Stat(filepath.Join(dir, "dist")); err == nil {
		t.Fatal("it is built already")
	}
	url := f.deploy(dir)
	page := f.body(url + "/")
	if !strings.Contains(page, `src="/assets/`) || f.body(url+"/clock") != page || f.body(url+"/robots.txt") == page {
		t.Errorf("the page is %q", page)
	}
	if got := f.body(url + "/api/time"); !strings.HasPrefix(got, `{"now":"20`) {
		t.Errorf("%q", got)
	}
	if status, _, err := f.get(url + "/api/nope"); err != nil || status != http.StatusNotFound {
		t.Errorf("%d %v", status, err)
	}
	if out := f.must("deploy", "--dry-run", "--no-build", dir); strings.Contains(out, "vite") || !strings.Contains(out, "dist/index.html") {
		t.Errorf("%s", out)
	}
}
