package celld

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/scafo/scafo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServeArgs(t *testing.T) {
	s := Serve{
		Target: Target{Bucket: "s3://b/fleets/app/u1", Endpoint: "http://127.0.0.1:9000", Region: "eu-west-1"},
		Listen: "127.0.0.1:20000", InternalListen: "127.0.0.1:20001", Advertise: "10.0.0.1:20001", TrustForwarded: true,
	}
	want := []string{
		"--bucket", "s3://b/fleets/app/u1", "--endpoint", "http://127.0.0.1:9000", "--region", "eu-west-1",
		"--listen", "127.0.0.1:20000", "--internal-listen", "127.0.0.1:20001", "--advertise", "10.0.0.1:20001",
		"--trust-forwarded-headers",
	}
	if got := s.Args(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := (Serve{Target: Target{Bucket: "b"}, UnsafePublicAdvertise: true}).Args(); !slices.Equal(got, []string{"--bucket", "b", "--unsafe-public-advertise"}) {
		t.Errorf("%q", got)
	}
	d := Deploy{Project: "/p", Target: Target{Bucket: "b/x"}, DryRun: true}
	if got := d.Args(); !slices.Equal(got, []string{"deploy", "/p", "--bucket", "b/x", "--dry-run", "--json"}) {
		t.Errorf("%q", got)
	}
}

func TestEnvIsMadeFromNothing(t *testing.T) {
	mine := map[string]string{"PATH": "/bin", "HOME": "/root", "CELLD_TTL_MS": "1", "AWS_ACCESS_KEY_ID": "mine", "TZ": ""}
	got := Env(
		Credentials{AccessKey: "a", SecretKey: "s", SessionToken: "t", Region: "r"},
		EnvParams{
			Node: "n", Watch: "/w", AssetCache: "/c",
			Extra:   map[string]string{"RUST_LOG": "info", "CELLD_NODE": "stolen", "CELLD_DURABILITY": "fleet"},
			Inherit: func(name string) (string, bool) { v, ok := mine[name]; return v, ok },
		})
	want := []string{
		"AWS_ACCESS_KEY_ID=a", "AWS_REGION=r", "AWS_SECRET_ACCESS_KEY=s", "AWS_SESSION_TOKEN=t",
		"CELLD_ASSET_CACHE_DIR=/c", "CELLD_DEPLOY_POLL_S=3600", "CELLD_DURABILITY=fleet", "CELLD_NODE=n", "CELLD_WATCH=/w",
		"PATH=/bin", "RUST_LOG=info",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	got = Env(Credentials{Region: "r", Roles: map[string]string{"AWS_ROLE_ARN": "arn", "AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}}, EnvParams{Node: "n"})
	want = []string{"AWS_REGION=r", "AWS_ROLE_ARN=arn", "AWS_WEB_IDENTITY_TOKEN_FILE=/t", "CELLD_DEPLOY_POLL_S=3600", "CELLD_DURABILITY=bucket", "CELLD_NODE=n"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestCheckExtra(t *testing.T) {
	for _, name := range []string{
		"CELLD_VAR_X", "CELLD_VARS_FILE", "CELLD_STORAGE_PROBE", "CELLD_SHUTDOWN_DRAIN_MS", "CELLD_DRAIN_TOKEN_WAIT_MS",
		"CELLD_LOG_LEVEL", "CELLD_NODE", "CELLD_WATCH", "CELLD_ASSET_CACHE_DIR", "", "A=B",
	} {
		if err := CheckExtra(map[string]string{name: "1"}); scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := CheckExtra(map[string]string{"CELLD_TTL_MS": "5000", "RUST_LOG": "debug", "CELLD_SHUTDOWN_TOTAL_MS": "1"}); err != nil {
		t.Error(err)
	}
}

func TestParseVersion(t *testing.T) {
	for line, want := range map[string]Release{
		"celld 0.6.2":         {Product: "celld", Version: "0.6.2"},
		"celld 0.6.2 (debug)": {Product: "celld", Version: "0.6.2", Debug: true},
		"celld-workerd 0.1.0 (workerd 1.20261117.1)": {Product: "celld-workerd", Version: "0.1.0", Workerd: "1.20261117.1"},
		"celld-workerd 0.1.0 workerd 1.20261117.1":   {Product: "celld-workerd", Version: "0.1.0", Workerd: "1.20261117.1"},
	} {
		if got, err := ParseVersion(line); err != nil || got != want {
			t.Errorf("%q: %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{"", "celld", "bash 5.2", "celld-workerd", "celld 0.6.2 and more"} {
		if got, err := ParseVersion(line); err == nil {
			t.Errorf("%q: %+v", line, got)
		}
	}
}

func TestRollingPairs(t *testing.T) {
	for _, c := range []struct {
		a, b, durability string
		want             bool
	}{
		{"0.2.1", "0.3.0", "fleet", true},
		{"0.3.0", "0.4.0", "bucket", false},
		{"0.4.0", "0.4.1", "bucket", true},
		{"0.4.1", "0.5.0", "bucket", false},
		{"0.5.0", "0.5.1", "bucket", true},
		{"0.5.1", "0.6.0", "bucket", true},
		{"0.5.1", "0.6.0", "fleet", false},
		{"0.6.0", "0.6.1", "fleet", true},
		{"0.6.1", "0.6.0", "bucket", false},
		{"0.6.1", "0.6.2", "bucket", true},
		{"0.6.2", "0.6.1", "bucket", true},
		{"0.6.0", "0.6.2", "bucket", false},
		{"0.7.0", "0.7.0", "bucket", true},
		{"0.7.0", "0.7.1", "bucket", false},
	} {
		if got := MayServeTogether("celld "+c.a, "celld "+c.b, c.durability); got != c.want {
			t.Errorf("%s to %s under %s: %v", c.a, c.b, c.durability, got)
		}
	}
	w := func(release, workerd string) string { return "celld-workerd " + release + " (workerd " + workerd + ")" }
	if !MayServeTogether(w("0.1.0", "1.2.3"), w("0.2.0", "1.2.3"), "bucket") {
		t.Error("two releases with one workerd may not")
	}
	if MayServeTogether(w("0.1.0", "1.2.3"), w("0.1.0", "1.2.4"), "bucket") {
		t.Error("two workerds that nobody tested may")
	}
	if MayServeTogether("celld 0.6.2", w("0.6.2", "1.2.3"), "bucket") || MayServeTogether("celld-workerd 0.1.0", "celld-workerd 0.1.0", "bucket") {
		t.Error("products mix")
	}
	if MayServeTogether("", "", "bucket") {
		t.Error("nothing may serve with nothing")
	}
	if got := RollingPairs("celld 0.6.1"); !slices.Equal(got, []string{"0.6.2"}) {
		t.Errorf("%q", got)
	}
}

func TestHealthPathOf(t *testing.T) {
	for version, want := range map[string]string{
		"celld 0.3.0": OldHealthPath, "celld 0.2.1": OldHealthPath, "celld 0.4.0": HealthPath,
		"celld 0.30.0": HealthPath, "celld 0.6.2": HealthPath, "celld 1.0.0": HealthPath,
		"celld-workerd 0.1.0 (workerd 1)": HealthPath, "": HealthPath,
	} {
		if got := HealthPathOf(version); got != want {
			t.Errorf("%s: %s", version, got)
		}
	}
}

func TestHealthy(t *testing.T) {
	status := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/.well-known/celld/health" {
			status = http.StatusTeapot
		}
		w.WriteHeader(status)
	}))
	defer srv.Close()
	ctx := context.Background()
	if err := Healthy(ctx, srv.URL); err != nil {
		t.Error(err)
	}
	for _, status = range []int{503, 404, 301, 500} {
		if err := Healthy(ctx, srv.URL); !errors.Is(err, ErrUnhealthy) {
			t.Errorf("%d: %v", status, err)
		}
	}
	// Bound, and serving nothing: the connection succeeds and then hangs.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	begin := time.Now()
	if err := Healthy(ctx, "http://"+l.Addr().String()); !errors.Is(err, ErrUnanswered) {
		t.Error(err)
	}
	if took := time.Since(begin); took > HealthTimeout+time.Second {
		t.Errorf("took %v", took)
	}
	l.Close()
	if err := Healthy(ctx, "http://"+l.Addr().String()); !errors.Is(err, ErrUnanswered) {
		t.Error(err)
	}
}

func TestReloadAnswers(t *testing.T) {
	var status int
	var body string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/reload" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	defer srv.Close()
	i := Internal{URL: srv.URL}
	for _, c := range []struct {
		status int
		body   string
		want   Reload
		fails  bool
	}{
		{200, `{"ok":true,"outcome":"adopted","generation":3,"version":"v","prefix":"p"}`, Reload{OK: true, Outcome: ReloadAdopted, Generation: 3, Version: "v", Prefix: "p"}, false},
		{200, `{"ok":true,"outcome":"unchanged","version":"v"}`, Reload{OK: true, Outcome: ReloadUnchanged, Version: "v"}, false},
		{422, `{"ok":false,"outcome":"failed","version":"w","prefix":"p","error":"boom"}`, Reload{Outcome: ReloadFailed, Version: "w", Prefix: "p", Error: "boom"}, false},
		{503, `{"ok":false,"outcome":"unavailable"}`, Reload{Outcome: ReloadUnavailable}, false},
		{503, `draining`, Reload{Outcome: ReloadUnavailable}, false},
		{200, `{"ok":true,"outcome":"failed"}`, Reload{}, true},
		{200, `<html>`, Reload{}, true},
		{500, `{}`, Reload{}, true},
		{422, `{"ok":true,"outcome":"adopted","version":"w"}`, Reload{Outcome: ReloadFailed, Version: "w"}, false},
	} {
		status, body = c.status, c.body
		got, err := i.Reload(context.Background())
		if got != c.want || (err != nil) != c.fails {
			t.Errorf("%d %s: %+v, %v", c.status, c.body, got, err)
		}
	}
}

func TestState(t *testing.T) {
	body := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
	defer srv.Close()
	i := Internal{URL: srv.URL + "/"}
	for in, want := range map[string]State{
		`{}`:                                {},
		`{"deployment":null,"rss_bytes":5}`: {RSS: 5},
		`{"deployment":{"version":"v","prefix":"p","generation":2,"swapping":true,"draining":false,"cells":[]},"rss_bytes":7,"owned_cells":1}`: {Version: "v", Prefix: "p", Generation: 2, Swapping: true, RSS: 7},
		`{"deployment":{"version":"v","draining":2}}`: {Version: "v", Draining: true},
	} {
		body = in
		if got, err := i.State(context.Background()); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	body = strings.Repeat(" ", maxAnswer+1)
	if _, err := i.State(context.Background()); err == nil {
		t.Error("an endless answer is read")
	}
}

// program writes a shell script that plays the runtime.
func program(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "celld")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestVersionOfAProgram(t *testing.T) {
	ctx := context.Background()
	if got, err := Version(ctx, program(t, `echo "celld 0.6.2 (debug)"`)); err != nil || got != "celld 0.6.2 (debug)" {
		t.Errorf("%q, %v", got, err)
	}
	for name, body := range map[string]string{"another program": `echo hello`, "one that fails": `exit 1`} {
		if _, err := Version(ctx, program(t, body)); scafo.CodeOf(err) != scafo.CodeCapabilityMissing {
			t.Errorf("%s: %v", name, err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := Version(short, program(t, `sleep 60`)); err == nil || time.Since(begin) > 5*time.Second {
		t.Errorf("one that hangs: %v after %v", err, time.Since(begin))
	}
}

func TestDeployRun(t *testing.T) {
	ctx := context.Background()
	run := func(body string, change ...func(*Deploy)) (DeployResult, error) {
		d := Deploy{Command: program(t, body), Project: "/p", Target: Target{Bucket: "b"}, Env: []string{"PATH=/usr/bin:/bin", "ONLY=this"}}
		for _, c := range change {
			c(&d)
		}
		return d.Run(ctx)
	}
	got, err := run(`echo prose >&2; echo '{"location":"s3://b/deploy","dry_run":false,"version":"0123456789abcdef","worker":"w"}'`)
	if want := (DeployResult{Worker: "w", Version: "0123456789abcdef", Location: "s3://b/deploy"}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	// The environment is what was given, whole.
	if _, err = run(`test "$ONLY" = this && test -z "$HOME" || exit 1; echo '{"version":"0123456789abcdef"}'`); err != nil {
		t.Error(err)
	}
	_, err = run(`printf 'uploading\n\033[31mError: could not build\033[0m\n\nCaused by:\n    0: bundling failed\n    1: src/index.ts:3:7: Expected ";"\n' >&2; exit 1`)
	var e *scafo.Error
	if !errors.As(err, &e) || e.Code != scafo.CodePublishFailed || e.Detail != `could not build: bundling failed: src/index.ts:3:7: Expected ";"` {
		t.Errorf("%v", err)
	}
	var d *DeployError
	if !errors.As(err, &d) || d.ExitCode != 1 || d.LostRace || d.MayHaveCommitted {
		t.Errorf("%+v", d)
	}
	_, err = run(`echo 'Error: another deploy moved the pointer first; run it again' >&2; exit 1`)
	if !errors.As(err, &d) || !d.LostRace || d.MayHaveCommitted {
		t.Errorf("%+v", d)
	}
	_, err = run(`echo 'Error: the pointer write may have committed; run it again' >&2; exit 1`)
	if !errors.As(err, &d) || d.LostRace || !d.MayHaveCommitted {
		t.Errorf("%+v", d)
	}
	for name, body := range map[string]string{
		"no answer":             `true`,
		"another answer":        `echo hello`,
		"a version of no form":  `echo '{"version":"v1"}'`,
		"a killed command":      `kill -9 $$`,
		"a failure without why": `exit 1`,
	} {
		if _, err := run(body); scafo.CodeOf(err) != scafo.CodePublishFailed {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err = run(`true`, func(d *Deploy) { d.Command = "/nowhere/celld" }); scafo.CodeOf(err) != scafo.CodePublishFailed {
		t.Error(err)
	}
	confined := false
	_, err = run(`[ "$PWD" = / ] && echo '{"version":"0123456789abcdef"}'`, func(d *Deploy) {
		d.Dir = "/"
		d.Confine = func(run func() error) error { confined = true; return run() }
	})
	if err != nil || !confined {
		t.Errorf("%v, confined %v", err, confined)
	}
}

// A command that somebody kills says nothing about the project: it runs again, and
// when it is killed each time the detail does not blame what it had printed.
func TestAKilledDeployRunsAgain(t *testing.T) {
	count := func(dir string) int {
		b, err := os.ReadFile(filepath.Join(dir, "runs"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "run")
	}
	run := func(dir, body string) (retries int, r DeployResult, err error) {
		d := Deploy{
			Command: program(t, "echo run >> "+dir+"/runs\n"+body), Env: []string{"PATH=/usr/bin:/bin"},
			Retrying: func(error) { retries++ },
		}
		r, err = d.Run(context.Background())
		return retries, r, err
	}
	const good = `echo '{"version":"0123456789abcdef"}'`
	for name, first := range map[string]string{
		"killed":        `kill -9 $$`,
		"a lost race":   `echo 'Error: another deploy moved the pointer first; run it again' >&2; exit 1`,
		"a lost answer": `echo 'Error: the pointer write may have committed' >&2; exit 1`,
	} {
		dir := t.TempDir()
		retries, r, err := run(dir, `if [ ! -e `+dir+`/once ]; then touch `+dir+`/once; `+first+`; fi; `+good)
		if err != nil || r.Version != "0123456789abcdef" || retries != 1 || count(dir) != 2 {
			t.Errorf("%s: %+v, %v, %d retries, %d runs", name, r, err, retries, count(dir))
		}
	}
	dir := t.TempDir()
	_, _, err := run(dir, `echo 'Error: src/index.ts:1:1: no' >&2; kill -9 $$`)
	var e *scafo.Error
	var d *DeployError
	if !errors.As(err, &e) || !errors.As(err, &d) || e.Code != scafo.CodePublishFailed || d.Killed != "SIGKILL" ||
		!strings.Contains(e.Detail, "SIGKILL") || strings.Contains(e.Detail, "index.ts") {
		t.Errorf("%v", err)
	}
	if n := count(dir); n != deployTries {
		t.Errorf("%d runs", n)
	}
	// What the project is to blame for is not tried again.
	dir = t.TempDir()
	if retries, _, err := run(dir, `echo 'Error: no' >&2; exit 1`); err == nil || retries != 0 || count(dir) != 1 {
		t.Errorf("%d retries, %d runs, %v", retries, count(dir), err)
	}
}

// A deploy that is given up leaves nothing behind, children included.
func TestDeployIsKilledWhole(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	d := Deploy{Command: program(t, "sleep 60 & echo $! > "+dir+"/pid.tmp; mv "+dir+"/pid.tmp "+dir+"/pid; wait"), Env: []string{"PATH=/usr/bin:/bin"}}
	done := make(chan error, 1)
	go func() { _, err := d.Run(ctx); done <- err }()
	var pid int
	for deadline := time.Now().Add(10 * time.Second); pid == 0; {
		if b, err := os.ReadFile(filepath.Join(dir, "pid")); err == nil {
			fmt.Sscan(string(b), &pid)
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not start")
		}
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || scafo.CodeOf(err) != scafo.CodePublishFailed {
		t.Error(err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(b), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("a child of the deploy goes on")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestSentence(t *testing.T) {
	for in, want := range map[string]string{
		"Error: one": "one",
		"note\nError: one\n\nCaused by:\n    two":                                    "one: two",
		"Error: one\n\nCaused by:\n    0: two\n    1: three\n       more of three\n": "one: two: three\nmore of three",
		"Error: first\nError: second":                                                "second",
		"just prose\nin lines":                                                       "just prose\nin lines",
		"":                                                                           "",
	} {
		if got := Sentence(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := Sentence("Error: " + strings.Repeat("é", maxSentence)); len(got) > maxSentence+len("…") {
		t.Errorf("%d bytes", len(got))
	}
}

func TestDiagnose(t *testing.T) {
	want := []Row{{"ok", "bucket", "conditional writes hold"}, {"fail", "listen", "taken"}}
	for name, body := range map[string]string{
		"an array": `echo '[{"verdict":"ok","check":"bucket","detail":"conditional writes hold"},{"verdict":"fail","check":"listen","detail":"taken"}]'; exit 1`,
		"lines":    `echo '{"verdict":"ok","check":"bucket","detail":"conditional writes hold"}'; echo '{"verdict":"fail","check":"listen","detail":"taken"}'; exit 1`,
	} {
		got, err := Diagnose(context.Background(), program(t, body), Serve{Target: Target{Bucket: "b"}}, nil)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := Diagnose(context.Background(), program(t, `echo 'Error: unknown argument' >&2; exit 1`), Serve{}, nil); err == nil || !strings.Contains(err.Error(), "unknown argument") {
		t.Error(err)
	}
	out := filepath.Join(t.TempDir(), "args")
	if _, err := Diagnose(context.Background(), program(t, `echo "$*" >`+out+`; echo '{"verdict":"ok"}'`), Serve{Target: Target{Bucket: "b"}}, nil); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(out); string(b) != "diagnose --json --bucket b --listen 127.0.0.1:0\n" {
		t.Errorf("arguments %q", b)
	}
}
