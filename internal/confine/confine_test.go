package confine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The test's own program is both: the one that confines, and the confined program.
func TestMain(m *testing.M) {
	if what := os.Getenv("CONFINE_TEST"); what != "" {
		probe(what)
		return
	}
	os.Exit(m.Run())
}

// probe is the confined program: it tries what it was told to and prints the
// errors by name.
func probe(what string) {
	switch what {
	case "sleep":
		fmt.Println(os.Getpid())
		time.Sleep(time.Minute)
		return
	case "parent":
		child := confined("sleep")
		child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		child.Stdout = os.Stdout
		fmt.Println(Do(Rules{Read: append(slices.Clone(system), os.Getenv("CONFINE_EXE")), Write: []string{os.DevNull}}, child.Run))
		return
	}
	var try map[string]string
	if err := json.Unmarshal([]byte(what), &try); err != nil {
		panic(err)
	}
	got := map[string]string{}
	for name, t := range try {
		verb, arg, _ := strings.Cut(t, " ")
		got[name] = outcome(do(verb, arg))
	}
	if err := json.NewEncoder(os.Stdout).Encode(got); err != nil {
		panic(err)
	}
}

func do(verb, arg string) error {
	a, b, _ := strings.Cut(arg, " ")
	switch verb {
	case "read":
		_, err := os.ReadFile(a)
		return err
	case "list":
		_, err := os.ReadDir(a)
		return err
	case "write":
		return os.WriteFile(a, []byte("x"), 0o600)
	case "append":
		f, err := os.OpenFile(a, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			err = f.Close()
		}
		return err
	case "remove":
		return os.Remove(a)
	case "rename":
		return os.Rename(a, b)
	case "symlink":
		return os.Symlink(a, b)
	case "link":
		return os.Link(a, b)
	case "exec":
		return exec.Command(a).Run()
	case "child-read":
		out, err := exec.Command("/bin/cat", a).CombinedOutput()
		if bytes.Contains(out, []byte("Permission denied")) {
			return fs.ErrPermission
		}
		return err
	case "kill":
		pid, err := strconv.Atoi(a)
		if err != nil {
			return err
		}
		return syscall.Kill(pid, 0)
	case "dial":
		c, err := net.Dial("tcp", a)
		if err == nil {
			err = c.Close()
		}
		return err
	}
	return errors.New("no such verb: " + verb)
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, fs.ErrPermission):
		return "denied"
	case errors.Is(err, syscall.EXDEV):
		return "denied"
	}
	return err.Error()
}

// confined is the command of a probe.
func confined(what string) *exec.Cmd {
	exe := os.Getenv("CONFINE_EXE")
	cmd := exec.Command(exe)
	cmd.Env = []string{"CONFINE_TEST=" + what, "CONFINE_EXE=" + exe}
	return cmd
}

func executable(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONFINE_EXE", exe)
	return exe
}

func TestConfined(t *testing.T) {
	if err := Supported(); err != nil {
		t.Fatalf("this kernel cannot confine, so nothing here can be shown: %v", err)
	}
	exe := executable(t)
	base := t.TempDir()
	for name, content := range map[string]string{"in/a": "a", "in/sub/b": "b", "out/secret": "s", "tmp/x/f": "f", "tmp/y/keep": "", "alone": "1", "sibling": "2"} {
		p := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(base, "out/secret"), filepath.Join(base, "in/link")); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	rules := Rules{
		Read:  []string{exe, filepath.Join(base, "in"), filepath.Join(base, "alone"), filepath.Join(base, "missing"), filepath.Join(base, "alone/below")},
		Write: []string{filepath.Join(base, "tmp"), "/dev/null"},
	}
	rules.Read = append(rules.Read, system...)
	want := map[string][2]string{
		"read a file inside":          {"read in/a", "ok"},
		"read below a directory":      {"read in/sub/b", "ok"},
		"list a directory inside":     {"list in", "ok"},
		"read a file of its own":      {"read alone", "ok"},
		"read its sibling":            {"read sibling", "denied"},
		"read outside":                {"read out/secret", "denied"},
		"read outside, roundabout":    {"read in/../out/secret", "denied"},
		"read through a link":         {"read in/link", "denied"},
		"list outside":                {"list out", "denied"},
		"list above":                  {"list .", "denied"},
		"read the system":             {"read /etc/passwd", "denied"},
		"read the parent's variables": {fmt.Sprintf("read /proc/%d/environ", os.Getpid()), "denied"},
		"write inside":                {"write in/new", "denied"},
		"write over":                  {"append in/a", "denied"},
		"remove inside":               {"remove in/a", "denied"},
		"write to its own directory":  {"write tmp/new", "ok"},
		"move in its own directory":   {"rename tmp/x/f tmp/y/f", "ok"},
		"write outside":               {"write out/new", "denied"},
		"write over a secret":         {"append out/secret", "denied"},
		"remove a secret":             {"remove out/secret", "denied"},
		"move a secret in":            {"rename out/secret tmp/secret", "denied"},
		"link a secret in":            {"link out/secret tmp/secret2", "denied"},
		"write to /dev/null":          {"append /dev/null", "ok"},
		"execute":                     {"exec /bin/true", "ok"},
		"a child reads outside":       {"child-read out/secret", "denied"},
		"a child reads inside":        {"child-read in/a", "ok"},
		"signal the parent":           {fmt.Sprintf("kill %d", os.Getpid()), "denied"},
		"the network":                 {"dial " + listener.Addr().String(), "ok"},
	}
	try := map[string]string{}
	for name, w := range want {
		words := strings.Split(w[0], " ")
		for i, word := range words[1:] {
			switch words[0] {
			case "dial", "kill":
			default:
				if !strings.HasPrefix(word, "/") {
					words[i+1] = base + "/" + word
				}
			}
		}
		try[name] = strings.Join(words, " ")
	}
	told, err := json.Marshal(try)
	if err != nil {
		t.Fatal(err)
	}
	cmd := confined(string(told))
	out, err := output(cmd, rules)
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v: %s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, w := range want {
		if got[name] != w[1] {
			t.Errorf("%s (%s): %s, want %s", name, w[0], got[name], w[1])
		}
	}
	// And this process is as free as before.
	if _, err := os.ReadFile(filepath.Join(base, "out/secret")); err != nil {
		t.Errorf("the caller was confined too: %v", err)
	}
}

func TestConfinedKeepsItsCommand(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", `echo "$0 $1 $VAR"; echo oops >&2; exit 7`, "zero", "one two")
	cmd.Env = []string{"VAR=value"}
	cmd.Dir = t.TempDir()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := output(cmd, Rules{Read: system})
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || string(out) != "zero one two value\n" || stderr.String() != "oops\n" {
		t.Errorf("%q, %q, %v", out, stderr.String(), err)
	}
}

func TestConfinedWithoutItsProgram(t *testing.T) {
	out, err := output(exec.Command("/bin/true"), Rules{Read: []string{t.TempDir()}, Write: []string{os.DevNull}})
	if !errors.Is(err, fs.ErrPermission) || len(out) > 0 || !strings.Contains(err.Error(), "/bin/true") {
		t.Errorf("%q, %v", out, err)
	}
}

// The caller's other threads keep their rights, also those that begin later, and no
// restricted thread is left behind, wherever the confinement was asked for.
func TestOnlyOneThreadIsConfined(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	rules := Rules{Read: system}
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			err := Do(rules, func() error {
				if _, err := os.ReadFile(secret); !errors.Is(err, fs.ErrPermission) {
					t.Errorf("a confined thread reads: %v", err)
				}
				elsewhere := make(chan error)
				go func() {
					runtime.LockOSThread() // of a thread that may have to be made for it
					defer runtime.UnlockOSThread()
					_, err := os.ReadFile(secret)
					elsewhere <- err
				}()
				return <-elsewhere
			})
			if err != nil {
				t.Errorf("beside a confined thread: %v", err)
			}
		})
	}
	all.Wait()
	if alreadyWithoutPrivileges {
		return // the threads look alike
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		left := restrictedThreads(t)
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("restricted threads are left: %v", left)
		}
	}
}

func restrictedThreads(t *testing.T) (left []string) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		status, err := os.ReadFile("/proc/self/task/" + thread.Name() + "/status")
		if err == nil && strings.Contains(string(status), noNewPrivileges) {
			left = append(left, thread.Name())
		}
	}
	return left
}

const noNewPrivileges = "NoNewPrivs:\t1"

// alreadyWithoutPrivileges: the test itself runs where nobody gains any.
var alreadyWithoutPrivileges = func() bool {
	status, err := os.ReadFile("/proc/self/status")
	return err != nil || strings.Contains(string(status), noNewPrivileges)
}()

// output runs a command under the rules.
func output(cmd *exec.Cmd, rules Rules) (out []byte, err error) {
	err = Do(rules, func() (err error) {
		out, err = cmd.Output()
		return err
	})
	return out, err
}

// The confined program dies with whoever started it.
func TestConfinedDiesWithItsParent(t *testing.T) {
	exe := executable(t)
	parent := exec.Command(exe)
	parent.Env = []string{"CONFINE_TEST=parent", "CONFINE_EXE=" + exe}
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(stdout, &pid); err != nil {
		t.Fatal(err)
	}
	fd, err := pidfdOpen(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	if !pidfdEnds(fd, 10*time.Second) {
		t.Error("the confined program outlived its parent")
	}
}
