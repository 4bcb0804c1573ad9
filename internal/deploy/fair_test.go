package deploy

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
)

func TestShares(t *testing.T) {
	for _, c := range []struct{ places, app, caller int }{
		{1, 1, 1}, {2, 2, 2}, {3, 2, 2}, {4, 2, 2}, {5, 2, 3}, {8, 2, 4}, {9, 3, 5}, {18, 5, 9},
	} {
		app, caller := party{"application", "x"}.most(c.places), party{"caller", "x"}.most(c.places)
		if app != c.app || caller != c.caller {
			t.Errorf("of %d places an application has %d and a caller %d, want %d and %d", c.places, app, caller, c.app, c.caller)
		}
	}
}

// One application and one caller leave places to others, and what waits says so in
// its record.
func TestFairShares(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a", limited(func(l *Limits) { l.Concurrency, l.Queue = 1, 7 })).run()
		defer n.stop()
		letThem := n.holdPublishing()
		first := n.mustAccept("one", project(t, "v1"))
		synctest.Wait()
		second := n.mustAccept("one", project(t, "v2"))
		if _, err := n.accept("one", project(t, "v3")); scafo.CodeOf(err) != scafo.CodeDeployOverloaded || !strings.Contains(err.Error(), "application one") {
			t.Errorf("the third of a quarter of eight: %v", err)
		}
		two, three := n.mustAccept("two", project(t, "v1")), n.mustAccept("three", project(t, "v1"))
		if _, err := n.accept("four", project(t, "v1")); scafo.CodeOf(err) != scafo.CodeDeployOverloaded || !strings.Contains(err.Error(), "caller op-a") {
			t.Errorf("the fifth of a half of eight: %v", err)
		}
		other, err := n.accept("four", project(t, "v1"), func(r *Request) { r.Caller = "op-b" })
		if err != nil {
			t.Fatalf("another caller: %v", err)
		}
		time.Sleep(5 * time.Second)
		if step := w.record(second).Step; step != "waiting for deploy "+first.String() {
			t.Errorf("the second one of the application waits for %q", step)
		}
		if step := w.record(two).Step; step != stepQueued {
			t.Errorf("one without a runner waits for %q", step)
		}
		letThem()
		id, _ := scafo.ParseDeployID(other.ID)
		for _, id := range []scafo.DeployID{first, second, two, three, id} {
			if st := n.await(id); st.State != scafo.DeployDeployed {
				t.Errorf("ended as %+v", st)
			}
		}
		n.idle()
		w.check(n)
		// Its places are free again.
		n.deploy("one", "v4")
		w.check(n)
	})
}

// Half of the room is for the others of a party; one that is alone may have all.
func TestFairRoom(t *testing.T) {
	f := &fair{places: 18, bytes: 100, held: map[party]holding{}}
	enter := func(app, caller string) *seat {
		t.Helper()
		s, err := f.enter(app, caller)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	alone := enter("one", "op-a")
	if err := alone.take(100); err != nil {
		t.Errorf("alone: %v", err)
	}
	alone.give(60)
	second := enter("one", "op-b")
	if err := second.take(10); err != nil {
		t.Errorf("exactly the half: %v", err)
	}
	if err := second.take(1); scafo.CodeOf(err) != scafo.CodeDeployOverloaded || !strings.Contains(err.Error(), "application one") {
		t.Errorf("one byte more: %v", err)
	}
	if err := enter("two", "op-a").take(11); scafo.CodeOf(err) != scafo.CodeDeployOverloaded || !strings.Contains(err.Error(), "caller op-a") {
		t.Errorf("another application of the caller: %v", err)
	}
	if err := enter("two", "op-c").take(50); err != nil {
		t.Errorf("somebody else: %v", err)
	}
	alone.leave()
	alone.leave()
	alone.give(40)
	if h := f.held[party{"application", "one"}]; h != (holding{places: 1, bytes: 10}) {
		t.Errorf("%+v is left", h)
	}
}

// drip is a connection over which a few bytes come now and then.
type drip struct {
	every time.Duration
	bytes int

	mu       sync.Mutex
	deadline time.Time // guarded by mu
}

func (d *drip) SetReadDeadline(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deadline = t
	return nil
}

func (d *drip) Read(b []byte) (int, error) {
	d.mu.Lock()
	until := time.Until(d.deadline)
	d.mu.Unlock()
	if until < d.every {
		time.Sleep(until)
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(d.every)
	n := min(d.bytes, len(b))
	clear(b[:n])
	return n, nil
}

func TestPace(t *testing.T) {
	for name, c := range map[string]struct {
		body *drip
		took time.Duration
		says string
	}{
		"silence":          {&drip{every: time.Hour}, paceWindow, "8 KiB a second"},
		"a trickle":        {&drip{every: time.Second, bytes: 1}, paceWindow, "8 KiB a second"},
		"just too slow":    {&drip{every: time.Second, bytes: paceRate - 1}, paceWindow, "8 KiB a second"},
		"just fast enough": {&drip{every: time.Second, bytes: paceRate}, testLimits.Receive, "300 seconds"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				n := w.start("a", limited(func(l *Limits) { l.ArtifactBytes, l.StagedBytes = 8<<20, 16<<20 })).run()
				defer n.stop()
				begin := time.Now()
				_, err := n.Accept(t.Context(), Request{Application: "shop", Caller: "op", Body: c.body})
				if took := time.Since(begin); scafo.CodeOf(err) != scafo.CodeDeployTimeout || !strings.Contains(err.Error(), c.says) || took != c.took {
					t.Errorf("%v after %v, want %q after %v", err, took, c.says, c.took)
				}
				w.check(n)
			})
		})
	}
}

// The rest of a body may be as short as it is, and once a body has ended no window
// bounds what follows.
func TestPaceOfTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bounds []time.Time
		p := &paced{body: bytes.NewReader([]byte("abc")), window: paceWindow, until: func(at time.Time) { bounds = append(bounds, at) }}
		b := make([]byte, 8)
		if n, err := p.Read(b); n != 3 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		time.Sleep(2 * paceWindow)
		if _, err := p.Read(b); err == nil || p.slow {
			t.Errorf("%v, slow is %v", err, p.slow)
		}
		if len(bounds) != 2 || bounds[0].IsZero() || !bounds[1].IsZero() {
			t.Errorf("bounds were set to %v", bounds)
		}
	})
}

// connection is the body of a request as the API hands it over.
type connection struct {
	io.Reader
	*http.ResponseController
}

// trickle is a body of which a byte comes now and then, until the test has ended.
type trickle struct{ end <-chan struct{} }

func (r trickle) Read(b []byte) (int, error) {
	select {
	case <-r.end:
		return 0, io.ErrUnexpectedEOF
	case <-time.After(20 * time.Millisecond):
		b[0] = 'x'
		return 1, nil
	}
}

// Over a real connection, whose server ends the request's context when a read ends
// at its deadline: each of the two bounds says what it is, and a connection whose
// upload was in time is of use afterwards.
func TestPaceOfAConnection(t *testing.T) {
	for name, c := range map[string]struct {
		pace, receive time.Duration
		says          string
	}{
		"floor":    {200 * time.Millisecond, time.Minute, "8 KiB a second"},
		"deadline": {time.Minute, time.Second, "did not arrive within"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			n := w.start("a", limited(func(l *Limits) { l.Receive = c.receive }))
			n.pace = c.pace
			n.run()
			defer n.stop()
			refused := make(chan error, 3)
			srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				_, err := n.Accept(r.Context(), Request{Application: "shop", Caller: "op", Body: connection{r.Body, http.NewResponseController(rw)}})
				refused <- err
			}))
			defer srv.Close()
			post := func(body io.Reader) error {
				t.Helper()
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, body)
				if err != nil {
					t.Fatal(err)
				}
				if res, err := srv.Client().Do(r); err == nil {
					_ = res.Body.Close()
				}
				return <-refused
			}
			for range 2 {
				if err := post(bytes.NewReader(project(t, "v1"))); err != nil {
					t.Error(err)
				}
				time.Sleep(300 * time.Millisecond) // longer than the window of what is over
			}
			end := make(chan struct{})
			if err := post(trickle{end}); scafo.CodeOf(err) != scafo.CodeDeployTimeout || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want it to say %q", err, c.says)
			}
			close(end)
			n.idle()
			w.check(n)
		})
	}
}
