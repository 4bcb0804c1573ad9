//go:build system

package system

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/paralleltest"
)

// said is a line of `scafo logs --json`.
type said struct {
	Time                                      time.Time
	Level, Source, Deployment, Message, Stack string
	Event                                     string
	Crash                                     bool
}

func (f *fleet) logs(app string, args ...string) []said {
	f.t.Helper()
	var out []said
	for line := range strings.Lines(f.must(append([]string{"logs", app, "--json"}, args...)...)) {
		var s said
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			f.t.Fatalf("%v: %q", err, line)
		}
		out = append(out, s)
	}
	return out
}

// talks waits until the log has a line that starts so.
func (f *fleet) talks(app, begins string) (found said) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("the log of %s has %q", app, begins), func() error {
		for _, s := range f.logs(app) {
			if strings.HasPrefix(s.Message, begins) {
				found = s
				return nil
			}
		}
		return errors.New("not yet")
	})
	return found
}

const talker = `import { DurableObject } from "cloudflare:workers";
function inner() { throw new TypeError("thrown\u001b[31m inside"); }
export default {
  async fetch(request, env, ctx) {
    const path = new URL(request.url).pathname;
    if (path === "/say") {
      console.log("plain", { a: 1 }); console.debug("a detail"); console.warn("careful\nsecond line");
      console.error("\u001b]0;owned\u0007 and \u009b31m and \u202e");
    }
    if (path === "/throw") inner();
    if (path === "/later") ctx.waitUntil((async () => inner())());
    if (path === "/string") throw "only a string";
    if (path === "/long") console.log("long " + "x".repeat(200000));
    if (path === "/flood") for (let i = 0; i < 300000; i++) console.log("flood " + i + " " + "x".repeat(300));
    return new Response("ok");
  },
};
`

func TestLogsOfAnApplication(t *testing.T) {
	paralleltest.Beside(t)
	f := newFleet(t)
	url := f.deploy(worker(t, "talker", talker))
	version := ""
	eventually(t, "it runs", func() error {
		p, err := f.process("talker")
		version = p.Deployment
		return err
	})
	for _, path := range []string{"/say", "/throw", "/later", "/string", "/long"} {
		if _, _, err := f.get(url + path); err != nil {
			t.Fatal(err)
		}
	}
	long := f.talks("talker", "long x")
	if len(long.Message) < 10_000 || len(long.Message) > 32<<10 {
		t.Errorf("a line of 200 kB is kept with %d bytes", len(long.Message))
	}
	levels := map[string]string{"plain { a: 1 }": "info", "a detail": "debug", "careful\nsecond line": "warn", "\x1b]0;owned\a and \u009b31m and \u202e": "error"}
	exceptions := 0
	for _, s := range f.logs("talker") {
		if want, ok := levels[s.Message]; ok {
			if s.Level != want || s.Source != "worker" || s.Deployment != version || time.Since(s.Time).Abs() > time.Minute {
				t.Errorf("%+v", s)
			}
			delete(levels, s.Message)
		}
		if s.Message == "TypeError: thrown\x1b[31m inside" {
			exceptions++
			if s.Level != "error" || !strings.Contains(s.Stack, "at inner (index.js:2:26)") { // in the project's file, not in the bundle
				t.Errorf("%+v", s)
			}
		}
		if s.Source == "runtime" && strings.Contains(s.Message, "Uncaught exception") {
			t.Errorf("an exception is told twice: %+v", s)
		}
	}
	if len(levels) != 0 || exceptions != 2 {
		t.Errorf("missing %q; %d exceptions, want 2", levels, exceptions)
	}
	if s := f.talks("talker", "only a string"); s.Level != "error" {
		t.Errorf("%+v", s)
	}
	// For people, and whatever the Worker says, nothing commands their terminal.
	for _, args := range [][]string{{"logs", "talker"}, {"logs", "talker", "--json"}} {
		out := f.must(args...)
		if i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && r < ' ' || r >= 0x7f && r <= 0x9f || r == 0x202e }); i >= 0 {
			t.Errorf("%v: %q can command a terminal", args, out[i:min(len(out), i+10)])
		}
	}
	if out := f.must("logs", "talker"); !strings.Contains(out, " error "+version+" TypeError: thrown\\x1b[31m inside\n        at inner (") {
		t.Errorf("%s", tail(out, 3000))
	}
	if got := f.logs("talker", "--since", "1h"); len(got) < 6 {
		t.Errorf("%d lines within an hour", len(got))
	}
	if got := f.logs("talker", "--since", time.Now().Add(time.Minute).UTC().Format(time.RFC3339)); len(got) != 0 {
		t.Errorf("%d lines of the future", len(got))
	}
	for want, args := range map[int][]string{1: {"logs", "nobody"}, 2: {"logs", "talker", "--since", "soon"}} {
		_, _, err := f.scafo(args...)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != want {
			t.Errorf("%v: %v, want exit code %d", args, err, want)
		}
	}
	// Nothing of it is in the bucket.
	if where := grep(t, filepath.Join(f.state, "bucket"), "careful\\nsecond line"); where != "" {
		t.Errorf("a line of the log is in the bucket: %s", where)
	}
}

// grep finds the first file below dir that holds the text. The Worker's source holds
// it too, so that is looked past by its own words.
func grep(t testing.TB, dir, text string) (found string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || found != "" {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(text)) && !bytes.Contains(b, []byte("waitUntil")) {
			found = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A follower sees every line once: over a flood that rotates the log, a runtime that
// is killed, and the node that starts it again. The crash is told first.
func TestFollowingALogThroughAFloodAndACrash(t *testing.T) {
	f := newFleet(t)
	neighbour := f.deploy(worker(t, "neighbour", `export default { fetch() { return new Response("here") } }`))
	url := f.deploy(worker(t, "talker", talker))
	follower := start(t, f.env(), bin(t, "scafo"), "logs", "talker", "--follow", "--json")
	eventually(t, "the follower begins", func() error {
		if !strings.Contains(follower.out.String(), `"event":"ready"`) {
			return errors.New("not yet")
		}
		return nil
	})
	flooded := make(chan error, 1)
	go func() {
		_, _, err := f.get(url + "/flood")
		flooded <- err
	}()
	// Meanwhile the neighbour goes on.
	var slowest time.Duration
	for over := false; !over; {
		select {
		case err := <-flooded:
			if err != nil {
				t.Error(err)
			}
			over = true
		default:
			begun := time.Now()
			if body := f.body(neighbour); body != "here" {
				t.Fatalf("%q", body)
			}
			slowest = max(slowest, time.Since(begun))
		}
	}
	if slowest > 2*time.Second {
		t.Errorf("beside a flood the neighbour's slowest answer took %s", slowest)
	}
	var kept int64
	for _, p := range []string{"logs", "runtimes"} {
		n := sizeBelow(t, filepath.Join(f.state, p), ".log", ".jsonl")
		kept += n
	}
	if kept > 300<<20 {
		t.Errorf("%d bytes of logs are on disk", kept)
	}
	eventually(t, "the flood is counted", func() error {
		if out := f.must("logs", "talker", "--since", "1m"); !strings.Contains(out, "lines of output were dropped") {
			return errors.New("not yet")
		}
		return nil
	})
	p, err := f.process("talker")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it answers again", func() error {
		if status, _, err := f.get(url + "/say"); err != nil || status != http.StatusOK {
			return fmt.Errorf("%d %v", status, err)
		}
		return nil
	})
	eventually(t, "the follower went on", func() error {
		out := follower.out.String()
		if !strings.Contains(out, "the runtime ended with signal SIGKILL") || !strings.Contains(out, `"message":"plain { a: 1 }"`) {
			return errors.New("not yet")
		}
		return nil
	})
	if n := strings.Count(follower.out.String(), `"message":"plain { a: 1 }"`); n != 1 {
		t.Errorf("the follower saw the line %d times", n)
	}
	// A second crash makes it a loop.
	if p, err = f.process("talker"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the loop is told first", func() error {
		out := f.must("logs", "talker")
		if !strings.HasPrefix(out, "--- crash-looping: 2 crashes in a row") {
			return errors.New(tail(out, 500))
		}
		head, _, ok := strings.Cut(out, "--- the whole log:\n")
		if !ok || !strings.Contains(head, "plain { a: 1 }") || !strings.Contains(head, "the runtime ended with signal SIGKILL") {
			return fmt.Errorf("the head is %q", head)
		}
		return nil
	})
	if all := f.logs("talker"); !all[0].Crash || all[len(all)-1].Crash {
		t.Error("--json does not mark the lines of the crash")
	}
	if err := follower.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-follower.done:
		if follower.err != nil {
			t.Errorf("a follower that is interrupted ends with %v", follower.err)
		}
	case <-time.After(patience):
		t.Error("the follower does not end")
	}
}

// sizeBelow is what the files with these endings take on disk, holes left out.
func sizeBelow(t testing.TB, dir string, endings ...string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		for _, e := range endings {
			if !strings.HasSuffix(path, e) {
				continue
			}
			if info, err := d.Info(); err == nil {
				if st, ok := info.Sys().(*syscall.Stat_t); ok {
					bytes += st.Blocks * 512
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}
