package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo/internal/workerd/instance"
)

const lapsedWords = "workerd/x.rs:1: leaving the cluster: the lease lapsed before it could be renewed\n"

// goesAway makes the store unreachable, and the n-th workerd say so from now on until
// it ends.
func (w *world) goesAway(n int) {
	w.rt.mu.Lock()
	w.rt.loadErr, w.rt.startErr = errDown, errDown
	w.rt.mu.Unlock()
	p := w.rt.process(n)
	go func() {
		for {
			p.mu.Lock()
			p.trouble = time.Now()
			p.mu.Unlock()
			select {
			case <-p.done:
				return
			case <-time.After(time.Second):
			}
		}
	}()
}

func (w *world) comesBack() {
	w.rt.mu.Lock()
	w.rt.loadErr, w.rt.startErr = nil, nil
	w.rt.mu.Unlock()
}

func (f *fakeRuntime) reapedSoFar() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.reaped, ", ")
}

// A workerd that lost its lease has one that stands in for it without a gap, and comes
// back promptly when the store does, its lease ended before.
func TestALostLeaseIsBridged(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{}, func(w *world) {
		w.goesAway(0)
		time.Sleep(12 * time.Second)
		if n := rt.starts(); n != 2 {
			t.Fatalf("%d workerds were started after 12 s without the store, want 2", n)
		}
		if st := w.s.State(); st.StoreAway || st.Deployment.Draining != 0 {
			t.Errorf("while the member serves: %+v", st)
		}
		// It says so before it goes: nobody comes to it in between.
		close(rt.process(0).leaving)
		synctest.Wait()
		if st := w.s.State(); !st.StoreAway {
			t.Errorf("once it said that it leaves: %+v", st)
		}
		rt.process(0).end(instance.Exit{Code: 1, Stderr: lapsedWords})
		synctest.Wait()
		for range 300 { // five minutes
			w.wantVersion("v1")
			w.wantHealth(200)
			time.Sleep(time.Second)
		}
		if st := w.s.State(); !st.StoreAway || st.Deployment.Version != "v1" || st.Deployment.Generation != 1 {
			t.Errorf("without the store: %+v", st)
		}
		if status, o := w.reload(); status != 503 || o.Kind != Unavailable {
			t.Errorf("a reload without the store: %d %+v", status, o)
		}
		if n, got := rt.starts(), rt.reapedSoFar(); n != 2 || got != "" {
			t.Errorf("without the store: %d starts, reaped %q", n, got)
		}
		w.comesBack()
		time.Sleep(storeEvery + 10*time.Millisecond)
		synctest.Wait()
		if n, got := rt.starts(), rt.reapedSoFar(); n != 3 || !strings.HasPrefix(got, "-1 false") {
			t.Fatalf("%s after the store came back: %d starts, reaped %q", storeEvery, n, got)
		}
		w.wantVersion("v1")
		if st := w.s.State(); st.StoreAway || st.Restarts != 1 || st.Deployment.Generation != 1 {
			t.Errorf("with the store again: %+v", st)
		}
		time.Sleep(time.Minute)
		if st := w.s.State(); len(st.Processes) != 1 {
			t.Errorf("processes that stayed: %+v", st.Processes)
		}
	})
}

// Where the store answers, as after a pause of the whole machine, nothing is waited for.
func TestALostLeaseWithTheStoreThere(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{}, func(w *world) {
		rt.process(0).end(instance.Exit{Code: 1, Stderr: lapsedWords})
		synctest.Wait()
		w.wantVersion("v1")
		if st := w.s.State(); st.StoreAway || !strings.HasPrefix(rt.reapedSoFar(), "-1 false") {
			t.Errorf("%+v, reaped %q", st, rt.reapedSoFar())
		}
	})
}

// What fails in the stand-in is a 503, since the store is away.
func TestWhatNeedsTheStoreIsRefusedMeanwhile(t *testing.T) {
	rt := deployed("v1")
	rt.handler = func(p *fakeProcess) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "21")
			w.WriteHeader(500)
			_, _ = w.Write([]byte("Internal Server Error"))
		})
	}
	withServer(t, rt, Options{}, func(w *world) {
		if r := w.get("/"); r.status != 500 {
			t.Errorf("with the store: %d", r.status)
		}
		w.goesAway(0)
		rt.process(0).end(instance.Exit{Code: 1, Stderr: lapsedWords})
		time.Sleep(time.Minute)
		w.wantRefused(w.get("/"))
	})
}

// A stand-in that dies is replaced, and so is a member that dies for another reason
// while the store is away.
func TestAStandInIsReplaced(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{}, func(w *world) {
		w.goesAway(0)
		rt.process(0).end(instance.Exit{Code: -1, Signal: "segmentation fault"})
		for n := 1; n < 20; n++ {
			time.Sleep(2 * storeEvery)
			w.wantVersion("v1")
			rt.process(n).end(instance.Exit{Code: -1, Signal: "killed"})
		}
		w.comesBack()
		time.Sleep(2 * storeEvery)
		w.wantVersion("v1")
		if w.s.State().StoreAway {
			t.Error("the stand-in goes on though the store is back")
		}
	})
}

// A spare that is not needed goes.
func TestTroubleThatPasses(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{}, func(w *world) {
		p := rt.process(0)
		for range 9 {
			p.mu.Lock()
			p.trouble = time.Now()
			p.mu.Unlock()
			time.Sleep(time.Second)
		}
		if n := len(w.s.State().Processes); n != 2 {
			t.Errorf("%d processes in the ninth second of the trouble", n)
		}
		time.Sleep(time.Minute)
		w.wantVersion("v1")
		if st := w.s.State(); len(st.Processes) != 1 || st.StoreAway || st.Restarts != 0 {
			t.Errorf("after it: %+v", st)
		}
	})
}

// A process that alone has no store leaves the application to the peer that has it, and
// not before it can be sure of that.
func TestAPeerThatServesEndsItWith3(t *testing.T) {
	rt := deployed("v1")
	rt.peersServe = true
	var begun time.Time
	var took time.Duration
	err := ends(t, rt, time.Minute, func(w *world) {
		w.goesAway(0)
		begun = time.Now()
		rt.process(0).end(instance.Exit{Code: 1, Stderr: lapsedWords})
		time.Sleep(peersSettle - time.Second)
		w.wantVersion("v1")
		<-w.s.ctx.Done()
		took = time.Since(begun)
	})
	if exitCode(err) != 3 || took > peersSettle+2*storeEvery {
		t.Errorf("%v after %s", err, took)
	}
}

// A stop does not wait for the store.
func TestAStopWithoutTheStore(t *testing.T) {
	rt := deployed("v1")
	err := ends(t, rt, 2*time.Second, func(w *world) {
		w.goesAway(0)
		rt.process(0).end(instance.Exit{Code: 1, Stderr: lapsedWords})
		time.Sleep(time.Minute)
		w.s.Stop()
	})
	if err != nil {
		t.Error(err)
	}
}

func TestPeersThatServe(t *testing.T) {
	t.Parallel()
	serves := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ready" {
			w.WriteHeader(404)
		}
	}))
	defer serves.Close()
	leaves := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }))
	defer leaves.Close()
	at := func(u string) string { return strings.TrimPrefix(u, "http://") }
	record := func(address string, holds bool) seenMember {
		m := seenMember{member: member{Address: address, ExpiresMS: 1}}
		if !holds {
			m.ExpiresMS, m.Draining = 0, true
		}
		return m
	}
	for name, c := range map[string]struct {
		all  []seenMember
		own  map[string]bool
		want bool
	}{
		"one serves":     {[]seenMember{record(at(leaves.URL), true), record(at(serves.URL), true)}, nil, true},
		"it left":        {[]seenMember{record(at(serves.URL), false)}, nil, false},
		"it is our own":  {[]seenMember{record(at(serves.URL), true)}, map[string]bool{at(serves.URL): true}, false},
		"it is stopping": {[]seenMember{record(at(leaves.URL), true)}, nil, false},
		"nobody else":    {nil, nil, false},
	} {
		var p peers
		if p.serve(context.Background(), nil) {
			t.Error("before anything was read")
		}
		p.set(c.all)
		if got := p.serve(t.Context(), c.own); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
