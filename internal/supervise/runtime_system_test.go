//go:build system

package supervise

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/embedded/embeddedtest"
	"github.com/scafo/scafo/internal/celld"
	"github.com/scafo/scafo/internal/workerd/workerdtest"
)

// The quick suite has the TestMain, which knows no store.
func init() { embeddedtest.Main() }

// real is a world with a real runtime and a real store.
type real struct {
	*world
	command string
	store   embedded.Endpoint
}

func newReal(t *testing.T) *real {
	t.Helper()
	r := &real{world: newWorld(t)}
	r.command = filepath.Join(r.dir, "celld-workerd")
	build := exec.Command("go", "build", "-o", r.command, "github.com/scafo/scafo/cmd/celld-workerd")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r.store = embeddedtest.Start(t, filepath.Join(r.dir, "store"))
	return r
}

func (r *real) env() map[string]string {
	return map[string]string{"CELLD_WORKERD_BIN": workerdtest.Path(r.t)}
}

func (r *real) credentials(context.Context) (celld.Credentials, error) {
	return celld.Credentials{AccessKey: r.store.AccessKey, SecretKey: r.store.SecretKey, Region: r.store.Region}, nil
}

func (r *real) target(app, uid string) celld.Target {
	return celld.Target{Bucket: r.store.Bucket + "/fleets/" + app + "/" + uid, Endpoint: r.store.URL, Region: r.store.Region}
}

func (r *real) configure(c *Config) {
	c.Command, c.Env, c.Credentials, c.Target = r.command, r.env(), r.credentials, r.target
	c.Policy = DefaultPolicy(nil)
}

// deploy publishes a counter whose answers begin with that word.
func (r *real) deploy(app, uid, word string) string {
	r.t.Helper()
	project := r.t.TempDir()
	for name, text := range map[string]string{
		"index.js": `import { DurableObject } from "cloudflare:workers";
export class Counter extends DurableObject {
  async fetch() {
    const n = ((await this.ctx.storage.get("n")) ?? 0) + 1;
    await this.ctx.storage.put("n", n);
    return new Response("` + word + ` " + n);
  }
}
export default { fetch: (request, env) => env.COUNTER.get(env.COUNTER.idFromName("x")).fetch(request) };
`,
		"wrangler.json": `{"name":"counter","main":"index.js","compatibility_date":"2026-01-01",
"durable_objects":{"bindings":[{"name":"COUNTER","class_name":"Counter"}]},"migrations":[{"tag":"v1","new_sqlite_classes":["Counter"]}]}`,
	} {
		if err := os.WriteFile(filepath.Join(project, name), []byte(text), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	c, _ := r.credentials(r.t.Context())
	d := celld.Deploy{
		Command: r.command, Project: project, Target: r.target(app, uid),
		Env: celld.Env(c, celld.EnvParams{Extra: r.env(), Inherit: os.LookupEnv}),
	}
	got, err := d.Run(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return got.Version
}

// TestRealRuntime: 25 writes; the runtime is killed, then the supervisor goes and
// another one takes over; a new version is adopted; everything is stopped. No
// write is lost, and nothing is left.
func TestRealRuntime(t *testing.T) {
	r := newReal(t)
	v1 := r.deploy("app", "u1", "one")
	s, stop := r.supervise(r.configure)
	begin := time.Now()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	t.Logf("ready after %v", time.Since(begin).Round(time.Millisecond))
	count := 0
	next := func(word string) {
		t.Helper()
		count++
		want := fmt.Sprintf("%s %d", word, count)
		got := ""
		waitFor(t, want, func() bool { got = get(t, st.URL+"/"); return !strings.Contains(got, "cannot answer") })
		if got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	for range 25 {
		next("one")
	}
	if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	pid := st.PID
	st = until(t, s, "app", "another process", func(n scafo.ProcessStatus) bool { return ready(v1)(n) && n.PID != pid })
	next("one")
	t.Logf("answered %v after the kill", time.Since(killed).Round(time.Millisecond))
	stop()
	next("one") // nobody supervises it
	s, _ = r.supervise(r.configure)
	if list := s.Statuses(); len(list) != 1 || list[0].PID != st.PID || !ready(v1)(list[0]) {
		t.Fatalf("taken over as %+v", list)
	}
	s.Set(one(v1))
	v2 := r.deploy("app", "u1", "two")
	s.Set(one(v2))
	if now := until(t, s, "app", "the second version", ready(v2)); now.PID != st.PID {
		t.Errorf("status %+v", now)
	}
	next("two")
	ctx, cancel := timeout(time.Minute)
	defer cancel()
	if err := s.StopAll(ctx); err != nil {
		t.Fatal(err)
	}
	for _, p := range pids() {
		if args := arguments(p); len(args) > 0 && strings.Contains(strings.Join(args, " "), filepath.Join(r.dir, "state")) {
			t.Errorf("%d is left: %q", p, args)
		}
	}
}
