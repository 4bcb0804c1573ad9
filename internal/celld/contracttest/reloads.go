package contracttest

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

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

// A reload fails no request and loses no write.
func testReloadUnderLoad(b *bench) {
	b.deploy(subject("one"))
	r := b.serve("n1")
	stop := make(chan struct{})
	var group sync.WaitGroup
	var written, asked atomic.Int64
	var mu sync.Mutex
	var failures []string
	const clients = 4
	for i := range clients {
		path, n := "/release", &asked
		if i%2 == 1 {
			path, n = "/next", &written
		}
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-b.Context().Done():
					return
				default:
				}
				a, err := r.ask(path)
				if err != nil || a.status != 200 {
					mu.Lock()
					failures = append(failures, fmt.Sprintf("%s: %d %.100q %v", path, a.status, a.body, err))
					mu.Unlock()
					continue
				}
				n.Add(1)
			}
		})
	}
	for _, release := range []string{"two", "three"} {
		v := b.deploy(subject(release)).Version
		if got := r.reload(); got.Outcome != celld.ReloadAdopted || got.Version != v {
			b.Errorf("%+v", got)
		}
		b.until(release, soon, func() bool { a, err := r.ask("/release"); return err == nil && a.body == release })
	}
	close(stop)
	group.Wait()
	if len(failures) > 0 {
		b.Errorf("%d of %d requests failed, such as %s", len(failures), asked.Load()+written.Load(), failures[0])
	}
	if got := r.settled("/count"); got != fmt.Sprint(written.Load()) && len(failures) == 0 {
		b.Errorf("%d writes were acknowledged, the object has %s", written.Load(), got)
	}
	b.Logf("%d requests, %d of them durable writes", asked.Load()+written.Load(), written.Load())
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
