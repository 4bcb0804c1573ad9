package contracttest

import (
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/scafo/scafo/internal/celld"
)

func testVersion(b *bench) {
	f := b.command(b.env(""), "--version")
	if f.code != 0 {
		b.Errorf("exit code %d\n%s", f.code, f.said())
	}
	line := strings.TrimSuffix(f.stdout, "\n")
	r, err := celld.ParseVersion(line)
	if err != nil || strings.Contains(line, "\n") {
		b.Fatalf("%q: %v", f.stdout, err)
	}
	if r.Product == celld.ProductWorkerd && r.Workerd == "" {
		b.Errorf("%q does not name its workerd", line)
	}
	if !celld.MayServeTogether(line, line, celld.DurabilityBucket) {
		b.Errorf("%q may not serve beside itself", line)
	}
}

// serveArgs is a command line that would serve.
func (b *bench) serveArgs(change func(*celld.Serve)) []string {
	s := celld.Serve{Target: b.target(), Listen: b.freePort(), InternalListen: b.freePort()}
	if change != nil {
		change(&s)
	}
	return s.Args()
}

func testCommandLine(b *bench) {
	env := b.env("n1")
	good := b.serveArgs(nil)
	for name, args := range map[string][]string{
		"an unknown flag":               append(good[:len(good):len(good)], "--no-such-flag"),
		"an unknown word":               {"serve-it"},
		"no bucket":                     good[2:],
		"a value behind an equals sign": append([]string{"--bucket=" + b.target().Bucket}, good[2:]...),
		"a flag without its value":      {"--bucket"},
		"a listen value that is a name": b.serveArgs(func(s *celld.Serve) { s.Listen = "localhost:8080" }),
		"a listen value without a port": b.serveArgs(func(s *celld.Serve) { s.Listen = "127.0.0.1" }),
		"deploy with an unknown flag":   {"deploy", ".", "--bucket", b.target().Bucket, "--no-such-flag"},
		"deploy without a bucket":       {"deploy", "."},
	} {
		b.expectNamed(name, b.command(env, args...))
	}
}

// expectNamed is expectFailure for one of several cases.
func (b *bench) expectNamed(name string, f finished, words ...string) {
	b.Helper()
	if f.code != celld.ExitFailed || strings.TrimSpace(f.stderr) == "" {
		b.Errorf("%s: exit code %d, standard error %q", name, f.code, f.stderr)
	}
	for _, w := range words {
		if !strings.Contains(f.stderr, w) {
			b.Errorf("%s: standard error does not say %q: %q", name, w, f.stderr)
		}
	}
}

func testListeningRules(b *bench) {
	env := b.env("n1")
	port := func() string { _, p, _ := net.SplitHostPort(b.freePort()); return p } //nolint:errcheck // of a listener
	for name, change := range map[string]func(*celld.Serve){
		"beyond loopback without an internal listener": func(s *celld.Serve) { s.Listen, s.InternalListen = "0.0.0.0:"+port(), "" },
		"advertise without an internal listener":       func(s *celld.Serve) { s.InternalListen, s.Advertise = "", "127.0.0.1:"+port() },
		"a public address to advertise":                func(s *celld.Serve) { s.Advertise = "8.8.8.8:" + port() },
	} {
		b.expectNamed(name, b.command(env, b.serveArgs(change)...))
	}
	b.deploy(plain(`export default { fetch() { return new Response("here") } }`))
	for name, change := range map[string]func(*celld.Serve){
		"beyond loopback with an internal listener": func(s *celld.Serve) { _, p, _ := net.SplitHostPort(s.Listen); s.Listen = "0.0.0.0:" + p }, //nolint:errcheck // made here
		"a public address, said to be unsafe":       func(s *celld.Serve) { s.Advertise, s.UnsafePublicAdvertise = "8.8.8.8:"+port(), true },
		"no internal listener on loopback":          func(s *celld.Serve) { s.InternalListen, s.Advertise = "", "" },
	} {
		r := b.start("n1", change)
		r.url = strings.Replace(r.url, "0.0.0.0", "127.0.0.1", 1)
		r.healthy()
		if got := r.get("/"); got != "here" {
			b.Errorf("%s: %q", name, got)
		}
		r.signal(syscall.SIGTERM)
		if code := r.exit(patience); code != celld.ExitDrained {
			b.Errorf("%s: exit code %d", name, code)
		}
	}
}

// The environment is looked at before every command.
func testRemovedVariables(b *bench) {
	project := b.project(plain(`export default { fetch() { return new Response("x") } }`))
	for _, name := range []string{
		"CELLD_VAR_COLOUR", "CELLD_VARS_FILE", "CELLD_STORAGE_PROBE", "CELLD_SHUTDOWN_DRAIN_MS",
		"CELLD_DRAIN_TOKEN_WAIT_MS", "CELLD_LOG_FORMAT",
	} {
		env := b.env("n1", map[string]string{name: "1"})
		b.expectNamed(name+" when serving", b.command(env, b.serveArgs(nil)...), name)
		b.expectNamed(name+" when deploying", b.command(env, b.deployArgs(project, false)...), name)
		b.expectNamed(name+" in a diagnosis", b.command(env, append([]string{"diagnose", "--json"}, b.serveArgs(nil)...)...), name)
	}
	if _, ok := b.pointer(); ok {
		b.Error("a deploy published all the same")
	}
}

func testTakenPort(b *bench) {
	b.deploy(plain(`export default { fetch() { return new Response("x") } }`))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test ends with it
	b.expectNamed("a taken public port", b.command(b.env("n1"), b.serveArgs(func(s *celld.Serve) { s.Listen = l.Addr().String() })...))
	b.expectNamed("a taken internal port", b.command(b.env("n1"), b.serveArgs(func(s *celld.Serve) { s.InternalListen = l.Addr().String() })...))
}

func testDiagnose(b *bench) {
	check := func(name string, change func(*celld.Serve)) (fails []string) {
		s := celld.Serve{Target: b.target()}
		if change != nil {
			change(&s)
		}
		rows, err := celld.Diagnose(b.Context(), b.program.Path, s, b.env("n1"))
		if err != nil {
			b.Errorf("%s: %v", name, err)
		}
		for _, r := range rows {
			switch r.Verdict {
			case "ok", "skip":
			case "fail":
				fails = append(fails, r.Check+": "+r.Detail)
			default:
				b.Errorf("%s: verdict %q", name, r.Verdict)
			}
			if r.Check == "" {
				b.Errorf("%s: a row without a check", name)
			}
		}
		return fails
	}
	if fails := check("all is well", nil); len(fails) > 0 {
		b.Errorf("all is well: %q", fails)
	}
	if f := b.command(b.env("n1"), append([]string{"diagnose", "--json"}, celld.Serve{Target: b.target(), Listen: "127.0.0.1:0"}.Args()...)...); f.code != 0 {
		b.Errorf("exit code %d when all is well\n%s", f.code, f.said())
	}
	b.proxy.set(vanished)
	if fails := check("no store", nil); len(fails) == 0 {
		b.Error("no row fails without a store")
	}
	if f := b.command(b.env("n1"), append([]string{"diagnose", "--json"}, celld.Serve{Target: b.target(), Listen: "127.0.0.1:0"}.Args()...)...); f.code != celld.ExitFailed {
		b.Errorf("exit code %d without a store", f.code)
	}
	b.proxy.set(passing)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test ends with it
	if fails := check("a taken port", func(s *celld.Serve) { s.Listen = l.Addr().String() }); len(fails) == 0 {
		b.Error("no row fails with a taken port")
	}
	if len(b.keys("deploy/")) > 0 {
		b.Error("a diagnosis published something")
	}
}

// A store that ignores conditions would let two nodes own one object: nothing is
// served from it.
func testWeakStore(b *bench) {
	b.deploy(plain(hello))
	b.proxy.onRequest(func(q *request) { q.forge = q.method == "PUT" })
	f := b.command(b.env("n1"), b.serveArgs(nil)...)
	b.expectNamed("serving", f)
	b.Logf("it said %q", f.stderr)
	rows, err := celld.Diagnose(b.Context(), b.program.Path, celld.Serve{Target: b.target()}, b.env("n1"))
	if err != nil {
		b.Fatal(err)
	}
	if !slices.ContainsFunc(rows, func(r celld.Row) bool { return r.Verdict == "fail" }) {
		b.Errorf("no row fails: %+v", rows)
	}
}
