//go:build system

package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/paralleltest"
)

// counterWorker keeps the words that it was given, in order.
const counterWorker = `
import { DurableObject } from "cloudflare:workers";
export class Counter extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS hits (id INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT)");
  }
  async fetch(request) {
    const url = new URL(request.url);
    if (url.pathname === "/add") this.ctx.storage.sql.exec("INSERT INTO hits (what) VALUES (?)", url.searchParams.get("w") ?? "");
    const bad = [...this.ctx.storage.sql.exec("PRAGMA quick_check")].map((r) => Object.values(r)[0]).filter((r) => r !== "ok");
    if (bad.length > 0) return new Response(bad.join(), { status: 500 });
    const rows = [...this.ctx.storage.sql.exec("SELECT what FROM hits ORDER BY id")].map((r) => r.what);
    return new Response(url.pathname === "/rows" ? rows.join(",") : String(rows.length));
  }
}
export default { fetch(request, env) { return env.COUNTER.get(env.COUNTER.idFromName("only")).fetch(request); } };
`

// The lease of a dead workerd is ended while writes of it are still on their way
// to the store. Whenever they arrive, nothing that was acknowledged is lost,
// before or after, and the database stays whole.
func TestLateWritesOfADeadWorkerd(t *testing.T) {
	paralleltest.Waits(t)
	for _, kind := range []string{"/log/", "/snapshot/"} {
		for _, middle := range []int{0, 1, 3} {
			t.Run(fmt.Sprintf("%s, %d writes before it arrives", strings.Trim(kind, "/"), middle), func(t *testing.T) { lateWrite(t, kind, middle) })
		}
	}
}

func lateWrite(t *testing.T, kind string, middle int) {
	paralleltest.Beside(t)
	b := newBench(t)
	b.deploy(counterWorker, "Counter")
	s := b.serve("n1")
	var rows []string
	add := func(w string) {
		t.Helper()
		rows = append(rows, w)
		if n, got, err := s.try("/add?w=" + w); n != 200 || got != fmt.Sprint(len(rows)) {
			t.Fatalf("add %s: %d %q %v, want %d", w, n, got, err, len(rows))
		}
	}
	for i := range 4 {
		add(fmt.Sprint("a", i))
	}
	h := newHeld()
	defer h.let()
	b.gate.hold(func(r *http.Request) *held {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/v1/do/") && strings.Contains(r.URL.Path, kind) {
			return h
		}
		return nil
	})
	lost := make(chan int, 1)
	go func() { n, _, _ := s.try("/add?w=late"); lost <- n }()
	b.until("a write on its way", 20*time.Second, func() bool { n, _ := h.count(); return n > 0 })
	b.gate.hold(nil)
	kill(t, s)
	status := <-lost
	if kind == "/log/" && status == 200 {
		t.Fatal("a write that had not arrived was acknowledged")
	}
	if status == 200 { // the snapshot is written beside the requests
		rows = append(rows, "late")
	}

	got, took := s.settled("/rows")
	t.Logf("answered %s after %s; on their way: %q", got, took.Round(time.Millisecond), h.waiting)
	if got != strings.Join(rows, ",") {
		t.Fatalf("%s, want %s", got, strings.Join(rows, ","))
	}
	for i := range middle {
		add(fmt.Sprint("b", i))
	}
	h.let()
	b.until("their arrival", 10*time.Second, func() bool { w, a := h.count(); return w == a })
	t.Logf("the store answered %v", h.statuses)

	check := func(when string) {
		t.Helper()
		got, _ := s.settled("/rows")
		want := strings.Join(rows, ",")
		// With nothing written since, a write of unknown outcome may still have
		// happened; it must then be the last one, and stay.
		if got == want+",late" && status != 200 && len(rows) == 4 {
			rows, status = append(rows, "late"), 200
			t.Logf("%s: the late write has happened", when)
			return
		}
		if got != want {
			t.Fatalf("%s: %s, want %s", when, got, want)
		}
	}
	check("afterwards")
	kill(t, s) // the next owner reads everything from the store
	check("after another start")
	for i := range 3 {
		add(fmt.Sprint("c", i))
	}
	kill(t, s)
	check("after a third start")
	// Another machine has nothing but the store.
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-s.done
	s = b.serve("n2")
	check("on another machine")
}

// kill ends the workerd that serves, and waits until another one does.
func kill(t *testing.T, s *serving) {
	t.Helper()
	restarts, pid := s.state().Restarts, s.workerdPID()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.b.until("a new workerd", 20*time.Second, func() bool { return s.state().Restarts > restarts })
}
