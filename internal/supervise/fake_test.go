package supervise

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/celld"
)

// fakeName is the name under which the test binary is a runtime.
const fakeName = "fake-celld"

// script is what a fake runtime does; it reads it anew at every question.
type script struct {
	Pointer    string // the version that its pointer names
	Broken     string // why that version cannot be built; empty when it can
	BootMS     int    // bound, and serving nothing
	GateMS     int    // health is 503
	Exit       int    // leaves so at once, when not 0
	IgnoreTerm bool
	Unhealthy  bool
	NoState    bool // /state names no version
	Reload503  bool
	Lines      int // printed at the start
	CloseLock  bool
}

func scriptFile(dir, app string) string { return filepath.Join(dir, app+".json") }

func readScript(dir, app string) script {
	var s script
	b, err := os.ReadFile(scriptFile(dir, app))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		panic(err)
	}
	return s
}

// fakeMain is the fake runtime: celld's command line and listeners, no Worker.
func fakeMain() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("celld 0.6.2")
		return
	}
	args := os.Args[1:]
	bucket := strings.Split(valueOf(args, "--bucket"), "/")
	app := bucket[len(bucket)-2]
	dir := os.Getenv("FAKE_DIR")
	s := readScript(dir, app)
	note(dir, app)
	if s.CloseLock {
		syscall.Close(3)
	}
	if s.Exit != 0 {
		fmt.Fprintln(os.Stderr, "Error: told to leave")
		os.Exit(s.Exit)
	}
	public, err := net.Listen("tcp", valueOf(args, celld.FlagListen))
	if err == nil {
		var internal net.Listener
		if internal, err = net.Listen("tcp", valueOf(args, celld.FlagInternalListen)); err == nil {
			serveFake(dir, app, s, public, internal)
			return
		}
	}
	fmt.Fprintln(os.Stderr, "Error:", err)
	os.Exit(1)
}

// note leaves what it was started with for the test to look at.
func note(dir, app string) {
	cwd, _ := os.Getwd()
	b, _ := json.Marshal(map[string]any{"args": os.Args, "env": os.Environ(), "pid": os.Getpid(), "cwd": cwd})
	f, err := os.OpenFile(filepath.Join(dir, app+".starts"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.Write(append(b, '\n'))
	}
	if err != nil {
		panic(err)
	}
	f.Close()
}

func serveFake(dir, app string, s script, public, internal net.Listener) {
	if s.Broken != "" {
		fmt.Fprintln(os.Stderr, "Error: "+s.Broken)
		os.Exit(1)
	}
	for i := range s.Lines {
		fmt.Printf("line %d\n", i)
	}
	time.Sleep(time.Duration(s.BootMS) * time.Millisecond)
	gate := time.Now().Add(time.Duration(s.GateMS) * time.Millisecond)
	var version atomic.Value
	version.Store(s.Pointer)
	var draining atomic.Bool
	now := func() script { return readScript(dir, app) }

	pub := http.NewServeMux()
	pub.HandleFunc(celld.HealthPath, func(w http.ResponseWriter, _ *http.Request) {
		ok := !draining.Load() && !now().Unhealthy && !time.Now().Before(gate)
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintf(w, `{"ok":%v}`, ok)
	})
	pub.HandleFunc("/print", func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(r.URL.Query().Get("line"))
	})
	pub.HandleFunc("/partial", func(_ http.ResponseWriter, r *http.Request) {
		fmt.Fprint(os.Stderr, r.URL.Query().Get("line"))
	})
	pub.HandleFunc("/exit", func(_ http.ResponseWriter, r *http.Request) {
		var code int
		fmt.Sscan(r.URL.Query().Get("code"), &code)
		os.Exit(code)
	})
	pub.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		d, _ := time.ParseDuration(r.URL.Query().Get("for"))
		time.Sleep(d)
		fmt.Fprint(w, "slow but whole")
	})
	in := http.NewServeMux()
	in.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		if now().NoState {
			fmt.Fprint(w, `{"rss_bytes":1}`)
			return
		}
		fmt.Fprintf(w, `{"deployment":{"version":%q,"generation":1},"rss_bytes":1}`, version.Load())
	})
	in.HandleFunc("POST /reload", func(w http.ResponseWriter, _ *http.Request) {
		s := now()
		answer := func(status int, r celld.Reload) {
			w.WriteHeader(status)
			json.NewEncoder(w).Encode(r)
		}
		switch {
		case s.Reload503:
			answer(503, celld.Reload{Outcome: celld.ReloadUnavailable})
		case s.Broken != "":
			answer(422, celld.Reload{Outcome: celld.ReloadFailed, Version: s.Pointer, Error: s.Broken})
		case version.Swap(s.Pointer) == s.Pointer:
			answer(200, celld.Reload{OK: true, Outcome: celld.ReloadUnchanged, Version: s.Pointer})
		default:
			answer(200, celld.Reload{OK: true, Outcome: celld.ReloadAdopted, Version: s.Pointer})
		}
	})
	go http.Serve(internal, in)
	server := &http.Server{Handler: pub}
	go server.Serve(public)
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	for range term {
		if !now().IgnoreTerm {
			break
		}
	}
	draining.Store(true)
	fmt.Println("draining")
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) && open(server) {
		time.Sleep(5 * time.Millisecond)
	}
	os.Exit(0)
}

// open drains the server; it is false once nothing is left.
func open(server *http.Server) bool {
	ctx, cancel := timeout(10 * time.Second)
	defer cancel()
	return server.Shutdown(ctx) != nil
}

// starts are the notes of every start of an application's fake.
type start struct {
	Args []string `json:"args"`
	Env  []string `json:"env"`
	PID  int      `json:"pid"`
	CWD  string   `json:"cwd"`
}

func readStarts(t *testing.T, dir, app string) []start {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, app+".starts"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var list []start
	for line := range strings.Lines(string(b)) {
		var s start
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	return list
}
