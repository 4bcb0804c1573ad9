package supervise

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/celld"
)

func one(version string) []Want { return []Want{{Application: "app", UID: "u1", Version: version}} }

func TestStartsAndStops(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	t.Setenv("CELLD_TTL_MS", "1")
	t.Setenv("SECRET_OF_THE_NODE", "x")
	s, _ := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	if st.UID != "u1" || st.PID == 0 || st.CelldVersion != "celld 0.6.2" || st.StartedAt == nil || st.Restarts != 0 {
		t.Errorf("status %+v", st)
	}
	if got := get(t, st.URL+celld.HealthPath); got != `{"ok":true}` {
		t.Errorf("health at the status's url: %s", got)
	}
	starts := readStarts(t, w.dir, "app")
	if len(starts) != 1 {
		t.Fatalf("%d starts", len(starts))
	}
	dir := filepath.Join(w.dir, "state", "apps", "u1")
	for _, want := range []string{
		"AWS_ACCESS_KEY_ID=AK", "AWS_SECRET_ACCESS_KEY=SK", "AWS_REGION=r1",
		"CELLD_DURABILITY=bucket", "CELLD_DEPLOY_POLL_S=3600", "CELLD_NODE=" + nodeName("m1", "u1"),
		"CELLD_WATCH=" + dir + "/data", "CELLD_ASSET_CACHE_DIR=" + dir + "/assets", "RUST_LOG=warn",
	} {
		if !slices.Contains(starts[0].Env, want) {
			t.Errorf("the environment lacks %s", want)
		}
	}
	for _, e := range starts[0].Env {
		if strings.HasPrefix(e, "CELLD_TTL_MS=") || strings.HasPrefix(e, "SECRET_OF") || strings.HasPrefix(e, "HOME=") {
			t.Errorf("the environment has the node's own %s", e)
		}
	}
	if strings.Contains(strings.Join(starts[0].Args, " "), "SK") {
		t.Error("a secret is in the arguments")
	}
	for file, mode := range map[string]os.FileMode{"record.json": 0o600, "lock": 0o600, "out.log": 0o600, "data": 0o700 | os.ModeDir, ".": 0o700 | os.ModeDir} {
		if fi, err := os.Stat(filepath.Join(dir, file)); err != nil || fi.Mode() != mode {
			t.Errorf("%s: mode %v, %v", file, fi.Mode(), err)
		}
	}
	s.Set(nil)
	waitFor(t, "no process", func() bool { return len(s.Statuses()) == 0 })
	if alivePID(st.PID) {
		t.Error("it still runs")
	}
	if _, err := os.Stat(filepath.Join(dir, "record.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record of a drained process stays: %v", err)
	}
	if !strings.Contains(w.log.String(), "app | draining") {
		t.Error("its last line is not in the log")
	}
}

func alivePID(pid int) bool {
	st, err := readStat(pid)
	return err == nil && st.state != 'Z'
}

func TestIdentityStaysAcrossRestarts(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	s, _ := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	get(t, st.URL+"/exit?code=1")
	again := until(t, s, "app", "another process", func(n scafo.ProcessStatus) bool {
		return n.State == scafo.ProcessReady && n.PID != st.PID
	})
	if again.Restarts != 1 || again.LastExit == nil || again.LastExit.Code != 1 {
		t.Errorf("status %+v", again)
	}
	starts := readStarts(t, w.dir, "app")
	if a, b := variable(starts[0], "CELLD_NODE"), variable(starts[1], "CELLD_NODE"); a != b || a == "" {
		t.Errorf("CELLD_NODE went from %q to %q", a, b)
	}
	if a, b := variable(starts[0], "CELLD_WATCH"), variable(starts[1], "CELLD_WATCH"); a != b {
		t.Errorf("CELLD_WATCH went from %q to %q", a, b)
	}
	if !slices.Equal(starts[0].Args, starts[1].Args) {
		t.Errorf("its addresses changed: %q, then %q", starts[0].Args, starts[1].Args)
	}
}

func variable(s start, name string) string {
	for _, e := range s.Env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

func TestNeverATakenPortAndNeverOneTwice(t *testing.T) {
	w := newWorld(t)
	s, _ := w.supervise(func(c *Config) { c.Ports = Range{w.first, w.first + 9} })
	taken(t, w.first)
	taken(t, w.first+3)
	var wants []Want
	for i := range 4 {
		app := fmt.Sprintf("app%d", i)
		w.script(app, script{Pointer: v1})
		wants = append(wants, Want{Application: app, UID: "u" + app, Version: v1})
	}
	s.Set(wants)
	seen := map[string]string{}
	for _, want := range wants {
		until(t, s, want.Application, "ready", ready(v1))
		st := readStarts(t, w.dir, want.Application)
		if len(st) != 1 {
			t.Errorf("%s was started %d times", want.Application, len(st))
		}
		for _, flag := range []string{celld.FlagListen, celld.FlagInternalListen} {
			a := valueOf(st[0].Args, flag)
			if by, ok := seen[a]; ok {
				t.Errorf("%s has %s, like %s", want.Application, a, by)
			}
			seen[a] = want.Application
		}
	}
	// Eight of ten ports are in use and two are taken: a fifth finds none.
	w.script("more", script{Pointer: v1})
	s.Set(append(wants, Want{Application: "more", UID: "umore"}))
	st := until(t, s, "more", "back-off", inState(scafo.ProcessBackoff))
	if !slices.ContainsFunc(st.LastLines, func(l string) bool { return strings.Contains(l, "celld.ports") }) {
		t.Errorf("it does not say why: %q", st.LastLines)
	}
	// A port that is given back is found.
	s.Set(append(wants[1:], Want{Application: "more", UID: "umore"}))
	until(t, s, "more", "ready", ready(v1))
}

func TestAStrangerOnThePortIsNotBelieved(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1, Exit: 1})
	mux := http.NewServeMux()
	mux.HandleFunc(celld.HealthPath, func(http.ResponseWriter, *http.Request) {})
	p := newPorts(Range{w.first, w.first + 99}, w.config().Bind, w.config().Bind)
	// Another program of this machine may take a port between the look at it and the
	// bind, which is what this is about.
	var a pair
	var l net.Listener
	waitFor(t, "a port", func() (ok bool) {
		var err error
		if a, err = p.take("u1", pair{}); err == nil {
			l, err = net.Listen("tcp", a.public.String())
		}
		return err == nil
	})
	server := &http.Server{Handler: mux}
	go server.Serve(l)
	defer server.Close()
	waitFor(t, "the stranger", func() bool { return celld.Healthy(context.Background(), "http://"+a.public.String()) == nil })
	// The kernel's table of sockets may leave one out that it lists a moment later, when
	// others come and go while it is read.
	waitFor(t, "the stranger is one", func() bool { return strangerListens(os.Getppid(), a.public) })
	if strangerListens(os.Getpid(), a.public) {
		t.Error("a process is a stranger to itself")
	}
}

func TestCrashLoop(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1, Broken: "uncaught ReferenceError: nope is not defined"})
	s, _ := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "the third restart", func(st scafo.ProcessStatus) bool {
		return st.State == scafo.ProcessBackoff && st.Restarts >= 3
	})
	if st.LastExit == nil || st.LastExit.Code != 1 {
		t.Errorf("last exit %+v", st.LastExit)
	}
	if !slices.Contains(st.LastLines, "Error: uncaught ReferenceError: nope is not defined") {
		t.Errorf("last lines %q", st.LastLines)
	}
	// A pointer that was put back is seen at the next question, not at the end of a
	// long wait.
	w.script("app", script{Pointer: v1})
	ctx, cancel := timeout(patience)
	defer cancel()
	r, err := s.Reload(ctx, "u1")
	if err != nil || r.Version != v1 || r.Outcome != celld.ReloadUnchanged {
		t.Errorf("reload: %+v, %v", r, err)
	}
	until(t, s, "app", "ready", ready(v1))
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		name  string
		code  int
		least time.Duration
	}{
		{"a crash backs off", 1, 50 * time.Millisecond},
		{"a lost lease waits a lease", 3, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.script("app", script{Pointer: v1})
			s, _ := w.supervise()
			s.Set(one(v1))
			for range 2 { // without a limit of attempts
				st := until(t, s, "app", "ready", ready(v1))
				get(t, fmt.Sprintf("%s/exit?code=%d", st.URL, c.code))
				again := until(t, s, "app", "another one", func(n scafo.ProcessStatus) bool { return ready(v1)(n) && n.PID != st.PID })
				if again.LastExit.Code != c.code {
					t.Errorf("last exit %+v", again.LastExit)
				}
				if waited := again.StartedAt.Sub(again.LastExit.At); waited < c.least {
					t.Errorf("started again after %v, want at least %v", waited, c.least)
				}
			}
		})
	}
}

func TestFrozenIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	s, _ := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	if err := syscall.Kill(st.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	out := until(t, s, "app", "taken out", func(n scafo.ProcessStatus) bool { return n.State != scafo.ProcessReady })
	if out.PID != st.PID {
		t.Errorf("it was ended before it was taken out: %+v", out)
	}
	again := until(t, s, "app", "another one", func(n scafo.ProcessStatus) bool { return ready(v1)(n) && n.PID != st.PID })
	if again.LastExit.Signal != "SIGKILL" {
		t.Errorf("last exit %+v", again.LastExit)
	}
	if alivePID(st.PID) {
		t.Error("the frozen one still is")
	}
}

func TestBusyIsTakenOutAndKept(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	s, _ := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	w.script("app", script{Pointer: v1, Unhealthy: true})
	until(t, s, "app", "taken out", inState(scafo.ProcessStarting))
	w.script("app", script{Pointer: v1})
	if again := until(t, s, "app", "ready", ready(v1)); again.PID != st.PID || again.Restarts != 0 {
		t.Errorf("it was replaced: %+v", again)
	}
}

func TestBoundButNotServing(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1, BootMS: 700, GateMS: 300})
	s, _ := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	if took := time.Since(*st.StartedAt); took < time.Second || took > 2*time.Second {
		t.Errorf("ready after %v; it serves after 0.7 s and opens its gate at 1 s", took)
	}
	if st.Restarts != 0 {
		t.Errorf("it was restarted: %+v", st)
	}
}

func TestReload(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	s, _ := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))

	// A want with another version makes it look, and the truth is recorded.
	w.script("app", script{Pointer: v2})
	s.Set(one(v2))
	until(t, s, "app", "the second version", ready(v2))

	w.script("app", script{Pointer: v3, Broken: "boom at import"})
	s.Set(one(v3))
	refused := until(t, s, "app", "a refusal", func(st scafo.ProcessStatus) bool { return st.Refused != nil })
	if *refused.Refused != (scafo.Refusal{Version: v3, Detail: "boom at import"}) || !ready(v2)(refused) {
		t.Errorf("status %+v, refused %+v", refused, refused.Refused)
	}

	// The pointer is put back: the refusal is gone.
	w.script("app", script{Pointer: v2})
	s.Set(one(v2))
	ctx, cancel := timeout(patience)
	defer cancel()
	if r, err := s.Reload(ctx, "u1"); err != nil || r.Outcome != celld.ReloadUnchanged || r.Version != v2 {
		t.Errorf("reload: %+v, %v", r, err)
	}
	now := until(t, s, "app", "no refusal", func(st scafo.ProcessStatus) bool { return st.Refused == nil })
	if !ready(v2)(now) || now.PID != st.PID || now.Restarts != 0 {
		t.Errorf("status %+v", now)
	}
	if _, err := s.Reload(ctx, "nobody"); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Errorf("reload of nobody: %v", err)
	}
}

func TestReloadIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	s, _ := w.supervise()
	s.Set(one(v1))
	until(t, s, "app", "ready", ready(v1))
	w.script("app", script{Pointer: v2, Reload503: true})
	s.Set(one(v2))
	ctx, cancel := timeout(patience)
	defer cancel()
	if r, err := s.Reload(ctx, "u1"); err != nil || r.Outcome != celld.ReloadUnavailable {
		t.Errorf("reload: %+v, %v", r, err)
	}
	w.script("app", script{Pointer: v2})
	until(t, s, "app", "the second version", ready(v2))
}

func TestVersionOfAReleaseThatDoesNotSayIt(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1, NoState: true})
	s, _ := w.supervise()
	s.Set(one(v1))
	until(t, s, "app", "ready, by a reload", ready(v1))
}

func TestDrainLetsRequestsFinish(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	s, _ := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	body := make(chan string, 1)
	began := make(chan struct{})
	go func() { close(began); body <- get(t, st.URL+"/slow?for=500ms") }()
	<-began
	time.Sleep(100 * time.Millisecond) // the request is under way
	s.Set(nil)
	until(t, s, "app", "draining", inState(scafo.ProcessDraining))
	if got := <-body; got != "slow but whole" {
		t.Errorf("the running request got %q", got)
	}
	waitFor(t, "its end", func() bool { return len(s.Statuses()) == 0 })
}

func TestDrainHasABound(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1, IgnoreTerm: true})
	s, _ := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	ctx, cancel := timeout(patience)
	defer cancel()
	begin := time.Now()
	if err := s.Stop(ctx, "u1", 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < 300*time.Millisecond || took > 2*time.Second {
		t.Errorf("it was gone after %v", took)
	}
	if alivePID(st.PID) {
		t.Error("it still runs")
	}
}

func TestWantedAgainWhileItDrains(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	s, _ := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	s.Set(nil)
	until(t, s, "app", "draining", inState(scafo.ProcessDraining))
	s.Set(one(v1))
	until(t, s, "app", "another one", func(n scafo.ProcessStatus) bool { return ready(v1)(n) && n.PID != st.PID })
}

func TestStopAll(t *testing.T) {
	w := newWorld(t)
	s, _ := w.supervise()
	var wants []Want
	var pids []int
	for _, app := range []string{"a", "b", "stubborn"} {
		w.script(app, script{Pointer: v1, IgnoreTerm: app == "stubborn"})
		wants = append(wants, Want{Application: app, UID: "u" + app, Version: v1})
	}
	s.Set(wants)
	for _, want := range wants {
		pids = append(pids, until(t, s, want.Application, "ready", ready(v1)).PID)
	}
	ctx, cancel := timeout(500 * time.Millisecond) // then it hurries
	defer cancel()
	if err := s.StopAll(ctx); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if alivePID(pid) {
			t.Errorf("%d still runs", pid)
		}
	}
	s.Set(wants)
	if list := s.Statuses(); len(list) != 0 {
		t.Errorf("something starts after StopAll: %+v", list)
	}
}

func TestRefusesWhatCannotWork(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(*Config){
		"no such program":     func(c *Config) { c.Command = filepath.Join(w.dir, "nobody") },
		"a removed variable":  func(c *Config) { c.Env = map[string]string{"CELLD_VARS_FILE": "x"} },
		"a range of one port": func(c *Config) { c.Ports = Range{20000, 20000} },
		"no bind address":     func(c *Config) { c.Bind = w.config().Bind.Prev().Prev(); c.Bind = [1]Config{}[0].Bind },
	} {
		cfg := w.config()
		change(&cfg)
		if _, err := New(cfg); scafo.CodeOf(err) == "" || scafo.CodeOf(err) == scafo.CodeInternal {
			t.Errorf("%s: %v", name, err)
		}
	}
}
