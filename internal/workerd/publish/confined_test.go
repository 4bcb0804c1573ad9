package publish_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/confine"
	"github.com/scafo/scafo/internal/workerd/publish"
	"github.com/scafo/scafo/internal/workerd/workerdtest"
)

// The test binary is also the program, for the test that confines it.
const deployVariable = "SCAFO_TEST_DEPLOY"

func TestMain(m *testing.M) {
	if os.Getenv(deployVariable) != "" {
		os.Exit(publish.Main(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// TestRunsConfined: a node lets a deploy see the project, the toolchain and a
// scratch directory alone.
func TestRunsConfined(t *testing.T) {
	if err := confine.Supported(); err != nil {
		t.Skip(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	workerd, err := filepath.EvalSymlinks(workerdtest.Path(t))
	if err != nil {
		t.Fatal(err)
	}
	// A directory above that may not be read, as a node's staging is.
	project, scratch := filepath.Join(tree(t, map[string]string{
		"staging/p/wrangler.json":             config + `, "assets": {"directory": "public"}}`,
		"staging/p/src/a.ts":                  `import x from "pkg"; import t from "./t.txt"; console.log(x, t); export default {}`,
		"staging/p/src/t.txt":                 "t",
		"staging/p/tsconfig.json":             "{}",
		"staging/p/package.json":              "{}",
		"staging/p/public/index.html":         "<p>",
		"staging/p/node_modules/pkg/index.js": "export default 1",
		"staging/key.json":                    "SECRET",
	}), "staging/p"), t.TempDir()
	var stderr bytes.Buffer
	cmd := exec.Command(self, project, "--bucket", "b", "--dry-run", "--json")
	cmd.Dir, cmd.Stderr = project, &stderr
	cmd.Env = []string{deployVariable + "=1", "CELLD_WORKERD_BIN=" + workerd, "TMPDIR=" + scratch, "HOME=" + scratch}
	var out []byte
	err = confine.Do(confine.Rules{
		Read:  []string{self, workerd, project, "/usr", "/lib", "/lib64", "/etc/ssl", "/proc/self", "/dev/urandom"},
		Write: []string{scratch, os.DevNull},
	}, func() (err error) {
		out, err = cmd.Output()
		return err
	})
	if err != nil || !strings.HasPrefix(string(out), `{"worker":"app"`) {
		t.Errorf("%v: printed %s, said %s", err, out, stderr.String())
	}
}
