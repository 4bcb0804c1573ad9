package contracttest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/scafo/scafo/internal/celld"
)

func testReloadAdopts(b *bench) {
	one := b.deploy(subject("one")).Version
	r := b.serve("n1")
	if got := r.reload(); got.Outcome != celld.ReloadUnchanged || !got.OK || got.Version != one && got.Version != "" {
		b.Errorf("without news: %+v", got)
	}
	before := r.state()
	r.get("/next")
	two := b.deploy(subject("two")).Version
	if got := r.get("/release"); got != "one" {
		b.Errorf("before the reload it serves %q", got)
	}
	got := r.reload()
	if got.Outcome != celld.ReloadAdopted || !got.OK || got.Version != two || strings.Trim(got.Prefix, "/") != strings.Trim(versionPrefix(two), "/") {
		b.Errorf("with news: %+v", got)
	}
	b.until("the new code", soon, func() bool { return r.get("/release") == "two" })
	after := r.state()
	if after.Version != two || after.Generation <= before.Generation {
		b.Errorf("state %+v, then %+v", before, after)
	}
	if r.over() {
		b.Fatal("another process is needed for another version")
	}
	if got := r.get("/greeting"); got != "hello from two" {
		b.Errorf("the vars are %q", got)
	}
	if got := r.settled("/next"); got != "2" {
		b.Errorf("the object counts %q", got)
	}
	// And back.
	b.deploy(subject("one"))
	if got := r.reload(); got.Outcome != celld.ReloadAdopted || got.Version != one {
		b.Errorf("back: %+v", got)
	}
	b.until("the old code", soon, func() bool { return r.get("/release") == "one" })
	if got := r.settled("/next"); got != "3" {
		b.Errorf("the object counts %q", got)
	}
}

// load is a steady load of two kinds on one process.
type load struct {
	mu       sync.Mutex
	answered map[string]int      // guarded by mu; by path
	failed   map[string][]string // guarded by mu; by path
}

// run asks for the path, again and again, until stop is closed.
func (l *load) run(r *running, path string, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-r.b.Context().Done():
			return
		default:
		}
		a, err := r.ask(path)
		l.mu.Lock()
		if err == nil && a.status == 200 {
			l.answered[path]++
		} else {
			l.failed[path] = append(l.failed[path], fmt.Sprintf("%d %.100q %v", a.status, a.body, err))
		}
		l.mu.Unlock()
	}
}

// A reload fails no request to the Worker and loses no acknowledged write. Of the
// requests to an object, those that are under way in the moment when it moves may
// be turned away by the runtime: with an error, and never in silence.
func testReloadUnderLoad(b *bench) {
	b.deploy(subject("one"))
	r := b.serve("n1")
	const clients = 2 // of each kind
	l := &load{answered: map[string]int{}, failed: map[string][]string{}}
	stop := make(chan struct{})
	var group sync.WaitGroup
	for range clients {
		group.Go(func() { l.run(r, "/release", stop) })
		group.Go(func() { l.run(r, "/next", stop) })
	}
	releases := []string{"two", "three"}
	for _, release := range releases {
		v := b.deploy(subject(release)).Version
		if got := r.reload(); got.Outcome != celld.ReloadAdopted || got.Version != v {
			b.Errorf("%+v", got)
		}
		b.until(release, soon, func() bool { a, err := r.ask("/release"); return err == nil && a.body == release })
	}
	close(stop)
	group.Wait()
	if n := len(l.failed["/release"]); n > 0 {
		b.Errorf("%d of %d requests failed, such as %s", n, n+l.answered["/release"], l.failed["/release"][0])
	}
	written, lost := l.answered["/next"], l.failed["/next"]
	if len(lost) > clients*len(releases) {
		b.Errorf("%d requests to the object failed in %d reloads, such as %s", len(lost), len(releases), lost[0])
	}
	var count int
	if _, err := fmt.Sscan(r.settled("/count"), &count); err != nil || count < written || count > written+len(lost) {
		b.Errorf("%d writes were acknowledged and %d not; the object has %d", written, len(lost), count)
	}
	b.Logf("%d requests; %d durable writes, %d of them turned away: %q", l.answered["/release"], written, len(lost), lost)
}

// begin starts a request that takes so long, and returns once it is under way.
func (r *running) begin(d time.Duration) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		a, err := r.ask(fmt.Sprintf("/slow?ms=%d", d.Milliseconds()))
		if err != nil {
			a.body = err.Error()
		}
		done <- a
	}()
	time.Sleep(500 * time.Millisecond) // nothing outside tells that it has begun
	return done
}

func testReloadLetsRequestsFinish(b *bench) {
	b.deploy(subject("one"))
	r := b.serve("n1")
	b.deploy(subject("two"))
	slow := r.begin(3 * time.Second)
	if got := r.reload(); got.Outcome != celld.ReloadAdopted {
		b.Errorf("%+v", got)
	}
	b.until("the new code", soon, func() bool { return r.get("/release") == "two" })
	if got := <-slow; got.status != 200 || got.body != "slow one" {
		b.Errorf("the request that ran: %d %q", got.status, got.body)
	}
}

// A regular WebSocket is closed with 1012 once its code is too old, and the client
// that comes back has the new code.
func testReloadClosesSockets(b *bench) {
	b.deploy(subject("one"))
	r := b.serve("n1", map[string]string{"CELLD_DEPLOY_MAX_AGE_S": "2"})
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	say := func(c *websocket.Conn) (string, error) {
		if err := c.Write(ctx, websocket.MessageText, []byte("hi")); err != nil {
			return "", err
		}
		_, got, err := c.Read(ctx)
		return string(got), err
	}
	dial := func() *websocket.Conn {
		c, _, err := websocket.Dial(ctx, r.url+"/echo", nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.CloseNow() }) //nolint:errcheck,gosec // at the end of the test
		return c
	}
	c := dial()
	if got, err := say(c); got != "one:hi" {
		b.Fatalf("%q, %v", got, err)
	}
	b.deploy(subject("two"))
	if got := r.reload(); got.Outcome != celld.ReloadAdopted {
		b.Errorf("%+v", got)
	}
	if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != websocket.StatusServiceRestart {
		b.Errorf("the old socket ends with %v", err)
	}
	if got, err := say(dial()); got != "two:hi" {
		b.Errorf("%q, %v", got, err)
	}
}

func testReloadWithoutTheStore(b *bench) {
	b.deploy(subject("one"))
	r := b.serve("n1")
	b.proxy.set(vanished)
	if got := r.reload(); got.Outcome != celld.ReloadUnavailable || got.OK {
		b.Errorf("without the store: %+v", got)
	}
	if got := r.get("/release"); got != "one" {
		b.Errorf("it serves %q", got)
	}
	b.proxy.set(passing)
	b.until("the store again", soon, func() bool {
		got, err := r.in.Reload(b.Context())
		return err == nil && got.Outcome == celld.ReloadUnchanged
	})
}

// A Worker that throws at import is refused by the deploy or by every node; the
// old version goes on either way, and the runtime's own sentence is told.
func testThrowsAtImport(b *bench) {
	one := b.deploy(subject("one")).Version
	r := b.serve("n1")
	f := b.tryDeploy(subject("two").with(files{"src/release.js": `throw new Error("boom at import"); export const release = "two";`}))
	if f.code == 0 {
		bad := b.published(f).Version
		got := r.reload()
		if got.Outcome != celld.ReloadFailed || got.Version != bad || !strings.Contains(got.Error, "boom at import") {
			b.Errorf("%+v", got)
		}
	} else {
		b.expectFailure(f, "Error", "boom at import")
		b.names(one)
		if got := r.reload(); got.Outcome != celld.ReloadUnchanged {
			b.Errorf("%+v", got)
		}
	}
	b.goesOn(r, one)
}

// goesOn holds a process to serving release one as if nothing had happened.
func (b *bench) goesOn(r *running, version string) {
	b.Helper()
	if err := celld.Healthy(b.Context(), r.url); err != nil {
		b.Errorf("health: %v", err)
	}
	if got := r.get("/release"); got != "one" {
		b.Errorf("it serves %q", got)
	}
	if got := r.state(); got.Version != version {
		b.Errorf("state %+v, want version %s", got, version)
	}
}

// A version that cannot be built leaves a process on the old one, and keeps a new
// process from starting: exit code 1.
func testBrokenPointer(b *bench) {
	one := b.deploy(subject("one")).Version
	r := b.serve("n1")
	two := b.deploy(subject("two")).Version
	if _, err := b.bucket.Put(b.Context(), b.moduleKey(two), []byte("export default {}; // other bytes")); err != nil {
		b.Fatal(err)
	}
	for range 2 {
		got := r.reload()
		if got.Outcome != celld.ReloadFailed || got.OK || got.Version != two || got.Error == "" {
			b.Errorf("%+v", got)
		}
		b.goesOn(r, one)
	}
	other := b.start("n2", nil)
	if code := other.exit(patience); code != celld.ExitFailed {
		b.Errorf("a process that starts onto it ends with %d", code)
	}
	if !strings.Contains(other.out.String(), "rror") {
		b.Errorf("and does not say why: %q", other.out.String())
	}
	r.signal(syscall.SIGTERM)
	r.exit(patience)
	if code := b.start("n1", nil).exit(patience); code != celld.ExitFailed {
		b.Errorf("a restart onto it ends with %d", code)
	}
	// The pointer is put back.
	b.deploy(subject("one"))
	b.goesOn(b.serve("n1"), one)
}
