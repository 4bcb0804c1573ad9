package server

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
)

func deployed(version string) *fakeRuntime {
	f := &fakeRuntime{broken: map[string]string{}, durable: true}
	f.deploy(version)
	return f
}

func TestServesWhatThePointerNames(t *testing.T) {
	withServer(t, deployed("v1"), Options{}, func(w *world) {
		w.wantHealth(200)
		w.wantVersion("v1")
		st := w.s.State()
		if d := st.Deployment; d == nil || d.Version != "v1" || d.Generation != 1 || d.Prefix != "deploy/s/v1/" || d.Swapping || d.Draining != 0 {
			t.Errorf("state: %+v", st.Deployment)
		}
	})
}

func TestWaitsWithoutAPointer(t *testing.T) {
	rt := &fakeRuntime{}
	withServer(t, rt, Options{}, func(w *world) {
		w.wantHealth(503)
		w.wantRefused(w.get("/"))
		if status, o := w.reload(); status != 503 || o.Kind != Unavailable || o.OK {
			t.Errorf("reload with nothing deployed: %d %+v", status, o)
		}
		rt.deploy("v1")
		if status, o := w.reload(); status != 200 || !o.OK || o.Kind != Adopted || o.Version != "v1" || o.Generation != 1 || o.Prefix != "deploy/s/v1/" {
			t.Errorf("reload: %d %+v", status, o)
		}
		w.wantHealth(200)
		w.wantVersion("v1")
	})
}

func TestPollsThePointer(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{DeployPoll: 30 * time.Second}, func(w *world) {
		rt.deploy("v2")
		time.Sleep(29 * time.Second)
		w.wantVersion("v1")
		time.Sleep(2 * time.Second)
		w.wantVersion("v2")
	})
}

func TestReloadTellsTheTruth(t *testing.T) {
	rt := deployed("v1")
	rt.broken["v2"] = "Uncaught Error: no such thing\n  at w.js:3:7"
	withServer(t, rt, Options{DeployPoll: time.Minute}, func(w *world) {
		if status, o := w.reload(); status != 200 || o.Kind != Unchanged || !o.OK || o.Generation != 1 {
			t.Errorf("%d %+v", status, o)
		}
		rt.deploy("v2")
		status, o := w.reload()
		if status != 422 || o.OK || o.Kind != Failed || o.Version != "v2" || o.Prefix != "deploy/s/v2/" || o.Error != rt.broken["v2"] {
			t.Errorf("%d %+v", status, o)
		}
		w.wantHealth(200)
		w.wantVersion("v1")
		// A refused deployment is tried again only when somebody asks.
		starts, loads := rt.starts(), rt.loaded()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if rt.starts() != starts || rt.loaded() < loads+9 {
			t.Errorf("%d starts after %d looks at the pointer", rt.starts()-starts, rt.loaded()-loads)
		}
		rt.mu.Lock()
		rt.loadErr = errDown
		rt.mu.Unlock()
		if status, o := w.reload(); status != 503 || o.Kind != Unavailable || o.OK || o.Error == "" {
			t.Errorf("%d %+v", status, o)
		}
		w.wantVersion("v1")
		rt.mu.Lock()
		rt.loadErr = nil
		delete(rt.broken, "v2")
		rt.mu.Unlock()
		if status, o := w.reload(); status != 200 || o.Kind != Adopted || o.Generation != 2 {
			t.Errorf("%d %+v", status, o)
		}
		w.wantVersion("v2")
	})
}

// ends runs a server that must end by itself and returns what with.
func ends(t *testing.T, rt *fakeRuntime, within time.Duration, during func(w *world)) error {
	var got error
	withServer(t, rt, Options{}, func(w *world) {
		if during != nil {
			during(w)
		}
		select {
		case got = <-w.result:
			w.result <- got
		case <-time.After(within):
			t.Errorf("it did not end within %s", within)
		}
	})
	return got
}

func TestABrokenPointerAtStartEndsWith1(t *testing.T) {
	rt := deployed("v1")
	rt.broken["v1"] = "Uncaught Error: at import"
	err := ends(t, rt, time.Second, nil)
	if exitCode(err) != 1 || err == nil || !strings.Contains(err.Error(), "Uncaught Error: at import") {
		t.Errorf("%v", err)
	}
}

func TestAStoreThatIsAwayAtStart(t *testing.T) {
	// Until the store is proven, nothing that relies on it is started. What does not is
	// served.
	for name, c := range map[string]struct {
		durable, leftovers bool
		started            int
	}{
		"comes back":               {durable: true},
		"comes back, stateless":    {started: 1},
		"comes back after a crash": {durable: true, leftovers: true},
		"stateless, after a crash": {leftovers: true},
	} {
		health := 503
		if c.started > 0 {
			health = 200
		}
		t.Run(name, func(t *testing.T) {
			rt := deployed("v1")
			rt.prepErr, rt.durable, rt.leftovers = errDown, c.durable, c.leftovers
			withServer(t, rt, Options{}, func(w *world) {
				w.wantHealth(health)
				time.Sleep(5 * time.Second)
				w.wantHealth(health)
				rt.mu.Lock()
				if len(rt.started) != c.started {
					t.Errorf("%d workerds were started before the store was proven, want %d", len(rt.started), c.started)
				}
				rt.prepErr = nil
				rt.mu.Unlock()
				time.Sleep(time.Second)
				w.wantVersion("v1")
			})
		})
	}
	t.Run("stays away", func(t *testing.T) {
		rt := deployed("v1")
		rt.prepErr = errDown
		if err := ends(t, rt, 12*time.Second, nil); exitCode(err) != 1 || !errors.Is(err, bucket.ErrUnavailable) {
			t.Errorf("%v", err)
		}
	})
	t.Run("stays away while something is served that does not need it", func(t *testing.T) {
		rt := deployed("v1")
		rt.prepErr, rt.durable = errDown, false
		withServer(t, rt, Options{}, func(w *world) {
			time.Sleep(time.Minute)
			w.wantVersion("v1")
			rt.mu.Lock()
			rt.prepErr = errors.New("the bucket: replace with a stale ETag was not refused")
			rt.mu.Unlock()
			select {
			case got := <-w.result:
				w.result <- got
				if exitCode(got) != 1 || !strings.Contains(got.Error(), "stale ETag") {
					t.Errorf("%v", got)
				}
			case <-time.After(10 * time.Second):
				t.Error("it goes on with a store that ignores conditions")
			}
		})
	})
	for _, durable := range []bool{true, false} {
		t.Run(fmt.Sprint("ignores conditions, durable ", durable), func(t *testing.T) {
			rt := deployed("v1")
			rt.durable = durable
			rt.prepErr = errors.New("the bucket: replace with a stale ETag was not refused")
			if err := ends(t, rt, time.Second, nil); exitCode(err) != 1 || !strings.Contains(err.Error(), "stale ETag") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestACrashIsRestarted(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{}, func(w *world) {
		time.Sleep(time.Minute)
		rt.process(0).end(instance.Exit{Code: -1, Signal: "segmentation fault"})
		synctest.Wait()
		w.wantVersion("v1")
		if w.s.State().Restarts != 1 || w.s.State().Deployment.Generation != 1 {
			t.Errorf("%+v", w.s.State())
		}
		// Again at once: now it waits a little, and requests are refused meanwhile.
		rt.process(1).end(instance.Exit{Code: 1})
		synctest.Wait()
		w.wantHealth(503)
		w.wantRefused(w.get("/"))
		time.Sleep(firstBackoff)
		synctest.Wait()
		w.wantVersion("v1")
	})
	if len(rt.reaped) < 2 || rt.reaped[0] != "-1 false" || rt.reaped[1] != "-2 false" {
		t.Errorf("reaped: %v", rt.reaped)
	}
}

func TestARestartYieldsToANewDeployment(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{}, func(w *world) {
		rt.mu.Lock()
		rt.broken["v1"] = "it dies"
		rt.mu.Unlock()
		rt.process(0).end(instance.Exit{Code: 1})
		time.Sleep(time.Second)
		w.wantHealth(503)
		rt.deploy("v2")
		if status, o := w.reload(); status != 200 || o.Kind != Adopted {
			t.Errorf("%d %+v", status, o)
		}
		time.Sleep(time.Minute)
		w.wantVersion("v2")
	})
}

func TestACrashLoopEndsWith1(t *testing.T) {
	rt := deployed("v1")
	err := ends(t, rt, 2*time.Minute, func(w *world) {
		rt.mu.Lock()
		rt.startErr = errors.New("it dies")
		rt.mu.Unlock()
		rt.process(0).end(instance.Exit{Code: 1})
	})
	if exitCode(err) != 1 || err == nil {
		t.Errorf("%v", err)
	}
}

func TestBackoff(t *testing.T) {
	want := []time.Duration{0, 200, 400, 800, 1600, 3200, 6400, 10000, 10000, 10000}
	for i, ms := range want {
		if got := backoff(i + 1); got != ms*time.Millisecond {
			t.Errorf("backoff(%d) = %s, want %s", i+1, got, ms*time.Millisecond)
		}
	}
}

func TestAFrozenWorkerdIsKilled(t *testing.T) {
	for _, durable := range []bool{true, false} {
		t.Run(fmt.Sprint("durable ", durable), func(t *testing.T) {
			rt := deployed("v1")
			rt.durable = durable
			withServer(t, rt, Options{}, func(w *world) {
				time.Sleep(time.Minute)
				p := rt.process(0)
				p.mu.Lock()
				p.frozen = true
				p.mu.Unlock()
				begun := time.Now()
				w.wantRefused(w.get("/"))
				if took := time.Since(begun); durable && (took < 9*time.Second || took > frozenAfter+lookEvery+lookTimeout) {
					t.Errorf("the request hung for %s", took)
				}
				time.Sleep(frozenAfter + 2*(lookEvery+lookTimeout) - time.Since(begun))
				w.wantHealth(200)
				w.wantVersion("v1")
				if p.Exit().Signal != "killed" {
					t.Errorf("%+v", p.Exit())
				}
			})
		})
	}
}

func TestHealthFollowsTheProbe(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{}, func(w *world) {
		p := rt.process(0)
		p.mu.Lock()
		p.frozen = true
		p.mu.Unlock()
		time.Sleep(lookEvery + lookTimeout + 10*time.Millisecond)
		w.wantHealth(503)
		p.mu.Lock()
		p.frozen = false
		p.mu.Unlock()
		time.Sleep(2 * lookEvery)
		w.wantHealth(200)
		if rt.starts() != 1 {
			t.Error("it was restarted")
		}
	})
}

func TestASwapFailsNoRequest(t *testing.T) {
	for _, durable := range []bool{true, false} {
		t.Run(fmt.Sprint("durable ", durable), func(t *testing.T) {
			rt := deployed("v0")
			rt.durable = durable
			withServer(t, rt, Options{}, func(w *world) {
				var stop atomic.Bool
				var wg sync.WaitGroup
				var total atomic.Int64
				for range 4 {
					wg.Go(func() {
						for !stop.Load() {
							r := w.get("/slow?for=3ms")
							total.Add(1)
							if r.status != 200 || r.err != nil {
								t.Errorf("%d %v", r.status, r.err)
							}
						}
					})
				}
				long := make(chan reply, 1)
				go func() { long <- w.get("/slow?for=20s") }()
				time.Sleep(50 * time.Millisecond)
				for i := 1; i <= 3; i++ {
					rt.deploy(fmt.Sprint("v", i))
					if status, o := w.reload(); status != 200 || o.Generation != int64(i+1) {
						t.Errorf("%d %+v", status, o)
					}
					w.wantVersion(fmt.Sprint("v", i))
					if durable && !w.s.State().Processes[0].Serving && w.s.State().Deployment.Draining == 0 {
						t.Error("nothing drains")
					}
					time.Sleep(700 * time.Millisecond)
				}
				stop.Store(true)
				wg.Wait()
				if r := <-long; r.status != 200 || r.header.Get("X-Version") != "v0" {
					t.Errorf("the long request: %d %s %v", r.status, r.header.Get("X-Version"), r.err)
				}
				time.Sleep(10 * time.Second)
				if n := len(w.s.State().Processes); n != 1 {
					t.Errorf("%d processes are left", n)
				}
				if total.Load() < 100 {
					t.Errorf("only %d requests", total.Load())
				}
			})
			for _, r := range rt.reaped {
				if !strings.HasSuffix(r, "true") {
					t.Errorf("reaped: %v", rt.reaped)
				}
			}
		})
	}
}

func TestTheOldOneHasABound(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{DeployMaxAge: 60 * time.Second}, func(w *world) {
		long := make(chan reply, 1)
		go func() { long <- w.get("/slow?for=3m") }()
		time.Sleep(time.Second)
		rt.deploy("v2")
		w.reload()
		begun := time.Now()
		w.wantRefused(<-long)
		if took := time.Since(begun); took < 59*time.Second || took > 61*time.Second {
			t.Errorf("cut after %s", took)
		}
	})
}

func TestStopDrains(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{}, func(w *world) {
		long := make(chan reply, 1)
		go func() { long <- w.get("/slow?for=15s") }()
		time.Sleep(time.Second)
		begun := time.Now()
		r := do(w.control, http.MethodPost, "/shutdown", nil)
		if r.status != 200 || strings.TrimSpace(r.body) != `{"ok":true}` {
			t.Errorf("%+v", r)
		}
		synctest.Wait()
		w.wantHealth(503)
		refused := w.raw("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		contains(t, refused, "503")
		req, _ := http.NewRequest(http.MethodGet, "http://a/", nil)
		resp, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" || !resp.Close {
			t.Errorf("%d %v close=%v", resp.StatusCode, resp.Header, resp.Close)
		}
		if status, o := w.reload(); status != 503 || o.Kind != Unavailable {
			t.Errorf("%d %+v", status, o)
		}
		if r := <-long; r.status != 200 {
			t.Errorf("the running request: %d %v", r.status, r.err)
		}
		err = <-w.result
		w.result <- err
		if err != nil || exitCode(err) != 0 {
			t.Errorf("%v", err)
		}
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestStopHasABound(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{ShutdownTotal: 40 * time.Second}, func(w *world) {
		long := make(chan reply, 1)
		go func() { long <- w.get("/slow?for=10m") }()
		time.Sleep(time.Second)
		begun := time.Now()
		w.s.Stop()
		err := <-w.result
		w.result <- err
		if took := time.Since(begun); err != nil || took < 39*time.Second || took > 42*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		w.wantRefused(<-long)
	})
}

func TestTheMemoryBound(t *testing.T) {
	const bound = 100 << 20
	// The first workerd has grown to that much, all others are at the bound.
	grown := func(to *atomic.Int64) func(int) int64 {
		return func(pid int) int64 {
			if pid == -1 && to.Load() > 0 {
				return to.Load()
			}
			return bound
		}
	}
	t.Run("at the bound", func(t *testing.T) {
		rt := deployed("v1")
		withServer(t, rt, Options{MaxRSS: bound, rss: grown(&atomic.Int64{})}, func(w *world) {
			time.Sleep(time.Minute)
			if rt.starts() != 1 {
				t.Error("it was replaced")
			}
		})
	})
	t.Run("above it is replaced without a failed request", func(t *testing.T) {
		rt := deployed("v1")
		var size atomic.Int64
		withServer(t, rt, Options{MaxRSS: bound, rss: grown(&size)}, func(w *world) {
			long := make(chan reply, 1)
			go func() { long <- w.get("/slow?for=10s") }()
			time.Sleep(time.Millisecond)
			size.Store(bound + 1)
			time.Sleep(2 * time.Second)
			if rt.starts() != 2 || w.s.State().Deployment.Generation != 1 {
				t.Errorf("%d starts, %+v", rt.starts(), w.s.State().Deployment)
			}
			w.wantVersion("v1")
			if r := <-long; r.status != 200 {
				t.Errorf("%d %v", r.status, r.err)
			}
			time.Sleep(time.Minute)
			if rt.process(0).Exit().Code != 0 || rt.starts() != 2 {
				t.Errorf("%+v, %d starts", rt.process(0).Exit(), rt.starts())
			}
		})
	})
	t.Run("far above is killed", func(t *testing.T) {
		rt := deployed("v1")
		var size atomic.Int64
		withServer(t, rt, Options{MaxRSS: bound, rss: grown(&size)}, func(w *world) {
			size.Store(2 * bound)
			time.Sleep(2 * time.Second)
			if rt.process(0).Exit().Signal != "killed" {
				t.Errorf("%+v", rt.process(0).Exit())
			}
			w.wantVersion("v1")
		})
	})
}

func TestOneReloadAtATime(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{}, func(w *world) {
		rt.deploy("v2")
		kinds := make(chan Kind, 8)
		for range 8 {
			go func() { _, o := w.reload(); kinds <- o.Kind }()
		}
		got := map[Kind]int{}
		for range 8 {
			got[<-kinds]++
		}
		if got[Adopted] != 1 || got[Unchanged] != 7 || rt.starts() != 2 {
			t.Errorf("%v, %d starts", got, rt.starts())
		}
	})
}

func TestInternalRoutes(t *testing.T) {
	withServer(t, deployed("v1"), Options{Node: "n1"}, func(w *world) {
		r := do(w.control, http.MethodGet, "/state", nil)
		for _, part := range []string{`"pid":`, `"rss_bytes":`, `"node":"n1"`, `"version":"v1"`, `"generation":1`, `"swapping":false`, `"draining":0`} {
			contains(t, r.body, part)
		}
		for path, method := range map[string]string{"/state": "POST", "/reload": "GET", "/shutdown": "GET"} {
			if r := do(w.control, method, path, nil); r.status != 405 {
				t.Errorf("%s %s: %d", method, path, r.status)
			}
		}
		if r := do(w.control, "GET", "/", nil); r.status != 404 {
			t.Errorf("%d", r.status)
		}
	})
}

var _ layout.Pointer

// A workerd that had too many files open refuses connections for good, and lives: also
// a member of a cluster, whose other listener goes on.
func TestAListenerThatClosedIsNoticed(t *testing.T) {
	for _, durable := range []bool{true, false} {
		t.Run(fmt.Sprint("durable ", durable), func(t *testing.T) {
			rt := deployed("v1")
			rt.durable = durable
			withServer(t, rt, Options{}, func(w *world) {
				time.Sleep(time.Minute)
				p := rt.process(0)
				_ = p.l.Close()
				time.Sleep(lookEvery + lookTimeout)
				synctest.Wait()
				w.wantVersion("v1")
				if p.Exit().Signal != "killed" {
					t.Errorf("%+v", p.Exit())
				}
			})
		})
	}
}
