package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
)

// Go leaves some of a run to chance: which of several ready cases a select takes, in
// which order timers of one moment fire, and when its monitor takes the thread from a
// goroutine that has had it for long, which on a busy machine is whenever another
// program was faster. Workers whose seeds somebody means to run again are therefore
// built with a runtime that does none of that while a fleet runs: the one of the
// installed Go, with the few lines changed that are named here.

// amendment is one change of a file of Go's runtime.
type amendment struct{ file, was, is string }

var amendments = []amendment{
	// The first ready case is taken.
	{
		"select.go", "\t\tj := cheaprandn(uint32(norder + 1))\n",
		"\t\tj := uint32(norder)\n\t\tif gp.bubble == nil {\n\t\t\tj = cheaprandn(uint32(norder + 1))\n\t\t}\n",
	},
	// Timers of one moment fire in the order in which they were set.
	{"time.go", "\t\t\tt.rand = cheaprand()\n", "\t\t\tfakeTimers++\n\t\t\tt.rand = fakeTimers\n"},
	{"time.go", "// less reports whether tw is less than other.\n", "var fakeTimers uint32\n\n// less reports whether tw is less than other.\n"},
	// The monitor leaves the only thread alone while a fleet runs.
	{
		"proc.go", "\tfor i := 0; i < len(allp); i++ {\n\t\t// Quickly filter out non-running Ps.",
		"\tif bubblesRunning.Load() > 0 && gomaxprocs == 1 {\n\t\tunlock(&allpLock)\n\t\treturn 0\n\t}\n" +
			"\tfor i := 0; i < len(allp); i++ {\n\t\t// Quickly filter out non-running Ps.",
	},
	{
		"synctest.go", "\tgp.bubble = bubble\n\tdefer func() {\n\t\tgp.bubble = nil\n",
		"\tbubblesRunning.Add(1)\n\tgp.bubble = bubble\n\tdefer func() {\n\t\tbubblesRunning.Add(-1)\n\t\tgp.bubble = nil\n",
	},
	{"synctest.go", "var bubbleGen atomic.Uint64", "var bubblesRunning atomic.Int32\n\nvar bubbleGen atomic.Uint64"},
}

// exact is whether the seeds that were asked for have to be the same runs again. The
// few of the plain suite need not: building Go's library anew takes a while.
func exact() bool {
	return *seedFlag >= 0 || *seedsFlag != plainSeeds || *twiceFlag > 0 || *exactFlag
}

// worker is the program that runs seeds.
var worker = sync.OnceValues(func() (string, error) {
	if !exact() {
		return os.Executable()
	}
	if err := buildWorker(workerDir); err != nil {
		return "", fmt.Errorf("a worker that repeats itself could not be built: %w", err)
	}
	return filepath.Join(workerDir, "sim.test"), nil
})

// buildWorker builds this very test over the amended runtime.
func buildWorker(dir string) error {
	overlay, err := amend(dir)
	if err != nil {
		return err
	}
	args := []string{"test", "-c", "-overlay", overlay, "-o", filepath.Join(dir, "sim.test")}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "-tags" {
				args = append(args, "-tags", s.Value)
			}
		}
	}
	cmd := exec.CommandContext(context.Background(), "go", append(args, ".")...) //nolint:gosec // the Go that runs this test
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// amend writes the changed files, and what tells the compiler of them.
func amend(dir string) (overlay string, err error) {
	root, err := exec.CommandContext(context.Background(), "go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	src := filepath.Join(strings.TrimSpace(string(root)), "src", "runtime")
	changed := map[string]string{}
	for _, a := range amendments {
		body, ok := changed[a.file]
		if !ok {
			b, err := os.ReadFile(filepath.Join(src, a.file))
			if err != nil {
				return "", err
			}
			body = string(b)
		}
		if n := strings.Count(body, a.was); n != 1 {
			return "", fmt.Errorf("%s of %s has %q %d times, not once: the amendments are for another Go", a.file, runtime.Version(), a.was, n)
		}
		changed[a.file] = strings.Replace(body, a.was, a.is, 1)
	}
	replace := map[string]string{}
	for file, body := range changed {
		to := filepath.Join(dir, file)
		if err := os.WriteFile(to, []byte(body), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(src, file)] = to
	}
	body, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, body, 0o600)
}

// workerDir is where the worker is built, and where workers keep what a fleet stages.
var workerDir string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv(workerEnv) == "" {
		dir, err := os.MkdirTemp("", "scafo-sim-worker-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
		workerDir = dir
	}
	return m.Run()
}

// The amendments are for the Go that builds this.
func TestTheRuntimeIsTheOneThatIsAmended(t *testing.T) {
	if _, err := amend(t.TempDir()); err != nil {
		t.Error(err)
	}
}
