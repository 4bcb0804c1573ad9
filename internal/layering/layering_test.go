// Package layering holds the directions of the imports: dependencies point one
// way, from the programs to the rules, and the rules know no I/O.
package layering

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/scafo/scafo"

// ban forbids imports to the packages under a path.
type ban struct {
	from   string   // package path under the module; "" is the root package alone
	unless string   // this package beneath it may
	to     []string // prefixes of import paths; a leading "scafo/" is the module
	except []string // import paths that are allowed all the same
	why    string
}

var pureBans = []string{"os", "net", "net/http", "time.Now", "math/rand", "math/rand/v2", "crypto/rand", "io/fs", "syscall", "golang.org/x/sys"}

var bans = []ban{
	{from: "", to: append([]string{"scafo/", "github.com/", "golang.org/", "go."}, pureBans...), except: []string{"net/url", "net/netip"}, why: "the vocabulary is values only, on the standard library"},
	{from: "internal/plan", to: pureBans, why: "decisions are functions of their arguments, so that production and simulation share them"},
	{from: "internal/plan", to: []string{"scafo/"}, except: []string{module}, why: "decisions know the vocabulary alone"},
	{from: "internal/route", to: pureBans, except: []string{"net/url"}, why: "the routing document is a function of what it is made from"},
	{from: "internal/route", to: []string{"scafo/"}, except: []string{module}, why: "the routing document knows the vocabulary alone"},
	{from: "internal/bucket", to: []string{"scafo/internal/registry", "scafo/internal/lease", "scafo/internal/auth", "scafo/internal/api", "scafo/internal/deploy", "scafo/internal/reconcile", "scafo/internal/celld", "scafo/internal/supervise", "scafo/internal/storage"}, why: "the store knows nothing of what is kept in it"},
	{from: "internal/registry", to: []string{"scafo/internal/lease", "scafo/internal/auth", "scafo/internal/api", "scafo/internal/deploy", "scafo/internal/reconcile", "scafo/internal/supervise", "scafo/internal/celld", "net/http"}, why: "documents know nothing of who reads them"},
	{from: "internal/lease", to: []string{"scafo/internal/auth", "scafo/internal/api", "scafo/internal/deploy", "scafo/internal/reconcile"}, why: "the lease is beneath what it gates"},
	{from: "internal/auth", to: []string{"scafo/internal/api", "scafo/internal/deploy", "scafo/internal/reconcile"}, why: "a principal is made before anything is done for it"},
	{from: "internal/deploy", to: []string{"scafo/internal/api", "scafo/internal/reconcile", "net/http"}, why: "deploys know neither HTTP nor the loop: they ask for a fleet by an interface"},
	{from: "internal/deletion", to: []string{"scafo/internal/api", "scafo/internal/reconcile", "scafo/internal/supervise", "net/http"}, why: "a deletion knows neither HTTP nor the loop: it asks for a fleet by an interface"},
	{from: "internal/reconcile", to: []string{"scafo/internal/api", "scafo/internal/deletion"}, why: "the loop is served, it does not serve"},
	{from: "internal/api", to: []string{"scafo/internal/bucket/", "scafo/internal/supervise", "os/exec", "github.com/aws/"}, why: "handlers have no logic of their own"},
	{from: "internal/workerd", to: []string{"scafo/internal/registry", "scafo/internal/supervise", "scafo/internal/deploy", "scafo/internal/api", "scafo/internal/reconcile", "scafo/internal/auth"}, why: "celld-workerd is a program of its own that keeps celld's contract and knows no fleet"},
	{from: "internal", unless: "internal/node", to: []string{"scafo/internal/metrics"}, why: "what is counted tells whoever asks, and knows no metrics"},
	{from: "internal/celld", to: []string{"scafo/internal/workerd"}, why: "scafo knows the contract, not one runtime"},
	{from: "internal/supervise", to: []string{"scafo/internal/workerd", "scafo/internal/registry", "scafo/internal/reconcile"}, why: "the supervisor starts what it is told to"},
	{from: "caddy", to: []string{"scafo/internal"}, except: nil, why: "the Caddy modules are public and build without the rest of scafo"},
	{from: "conformance", to: []string{"scafo/"}, except: []string{module + "/internal/openapitest", module + "/internal/token/tokentest"}, why: "it measures any implementation, so it knows none"},
	{from: "client", to: []string{"scafo/internal/bucket", "scafo/internal/registry", "scafo/internal/api", "github.com/aws/", "github.com/caddyserver/"}, why: "a client needs the vocabulary and a key, no store"},
	{from: "cmd/scafo", to: []string{"github.com/caddyserver/"}, why: "Caddy stays in its own program, so that the node stays small"},
	{from: "cmd/scafo", to: []string{"scafo/internal/bucket/embedded/server", "github.com/versity/"}, why: "the embedded store's server is a program of its own: every command of scafo would start twice as slowly"},
	{from: "cmd/celld-workerd", to: []string{"github.com/caddyserver/", "github.com/versity/"}, why: "the runtime adapter starts in milliseconds"},
	{from: "internal", unless: "internal/bucket/embedded/server", to: []string{"github.com/versity/"}, why: "only the process that serves the embedded store links a server"},
	{from: "internal", to: []string{"github.com/caddyserver/"}, why: "Caddy stays in its own program and package"},
}

// imports lists what each package of the module imports outside its tests, read
// from the sources: no build is needed.
func imports(t *testing.T, root string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			if path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		if dir == "." {
			dir = ""
		}
		for _, i := range f.Imports {
			out[dir] = append(out[dir], strings.Trim(i.Path.Value, `"`))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func matches(imported, pattern string) bool {
	if rest, ok := strings.CutPrefix(pattern, "scafo/"); ok {
		pattern = module + "/" + rest
		if rest == "" {
			return strings.HasPrefix(imported, module)
		}
	}
	if strings.HasSuffix(pattern, "/") || strings.HasSuffix(pattern, ".") {
		return strings.HasPrefix(imported, pattern)
	}
	return imported == pattern || strings.HasPrefix(imported, pattern+"/")
}

func TestImportDirections(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err)
	}
	all := imports(t, root)
	if len(all[""]) == 0 || len(all["internal/bucket"]) == 0 {
		t.Fatalf("no imports were read below %s", root)
	}
	for pkg, list := range all {
		for _, b := range bans {
			if b.from == "" && pkg != "" || b.from != "" && pkg != b.from && !strings.HasPrefix(pkg, b.from+"/") {
				continue
			}
			if b.unless != "" && pkg == b.unless {
				continue
			}
			for _, imported := range list {
				if slices.Contains(b.except, imported) {
					continue
				}
				for _, pattern := range b.to {
					if matches(imported, pattern) {
						t.Errorf("%s imports %s: %s", pkg, imported, b.why)
					}
				}
			}
		}
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		imported, pattern string
		want              bool
	}{
		{"os", "os", true},
		{"os/exec", "os", true},
		{"ossify", "os", false},
		{module + "/internal/api", "scafo/internal/api", true},
		{module + "/internal/apix", "scafo/internal/api", false},
		{module, "scafo/", true},
		{"github.com/aws/x", "github.com/", true},
	} {
		if got := matches(c.imported, c.pattern); got != c.want {
			t.Errorf("matches(%q, %q) = %v", c.imported, c.pattern, got)
		}
	}
}
