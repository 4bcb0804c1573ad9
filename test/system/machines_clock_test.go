//go:build system

package system

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clockProgram builds a scafo whose time of day a file moves, by the seconds that it
// says. Its monotonic clock goes on as it is, as that of a machine whose clock is set.
func clockProgram(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(strings.TrimSpace(string(out)), "src/time/time.go")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if !bytes.Contains(text, []byte(now)) {
		t.Fatalf("%s has no Now as this test knows it", source)
	}
	text = bytes.Replace(text, []byte(now), []byte("// Skew is added to the time of day.\nvar Skew int64\n\n"+now+"\tsec += Skew\n"), 1)
	patched := filepath.Join(dir, "time.go")
	if err := os.WriteFile(patched, text, 0o600); err != nil {
		t.Fatal(err)
	}
	hook, err := filepath.Abs("testdata/clockhook.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		source: patched, filepath.Join(root(t), "cmd/scafo/clockhook.go"): hook,
	}})
	if err != nil {
		t.Fatal(err)
	}
	file, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "scafo")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("go", "build", "-overlay", file, "-o", program, "./cmd/scafo")
	c.Dir = root(t)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func (w *world) clockFile(m *machine) string { return filepath.Join(w.state, "clock-"+m.id) }

// setClock moves the time of day of a machine's node, by so much from the true one, and
// waits until the node tells that time.
func (w *world) setClock(m *machine, by time.Duration) {
	w.t.Helper()
	if err := os.WriteFile(w.clockFile(m), fmt.Appendf(nil, "%d", int64(by/time.Second)), 0o600); err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, m.id+" tells another time", func() error {
		res, err := w.requestClient.Get("http://" + m.api + "/")
		if err != nil {
			return err
		}
		res.Body.Close()
		at, err := http.ParseTime(res.Header.Get("Date"))
		if err == nil && (time.Until(at)-by).Abs() > 5*time.Second {
			err = fmt.Errorf("it is %s there", at)
		}
		return err
	})
}

// clockTroubles need the program of clockProgram.
var clockTroubles = []trouble{
	{
		name: "the coordinator's clock jumps an hour ahead, and two back", lasts: 40 * time.Second, whole: 60 * time.Second,
		cause: func(w *world) func() {
			m := w.coordinator()
			w.setClock(m, time.Hour)
			time.Sleep(20 * time.Second)
			w.setClock(m, -time.Hour)
			return func() { w.setClock(m, 0) }
		},
	},
}
