package supervise

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/celld"
)

// A process whose record is gone is found by its lock and stopped, though its daemon
// knows nothing of it; then what it left is removed. One that drains for longer than it
// may is killed.
func TestAForgottenProcessIsStopped(t *testing.T) {
	for name, c := range map[string]struct {
		script script
		record func(t *testing.T, dir string)
		within time.Duration
	}{
		"the record is gone": {script{Pointer: v1}, func(t *testing.T, dir string) {
			if err := removeRecord(dir); err != nil {
				t.Fatal(err)
			}
		}, 10 * time.Second},
		"the record is torn": {script{Pointer: v1}, func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, recordFile), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, 10 * time.Second},
		"it does not drain": {script{Pointer: v1, IgnoreTerm: true}, func(t *testing.T, dir string) {
			if err := removeRecord(dir); err != nil {
				t.Fatal(err)
			}
		}, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.script("app", c.script)
			s, stop := w.supervise()
			s.Set(one(v1))
			st := until(t, s, "app", "ready", ready(v1))
			ticks := ticksOf(t, st.PID)
			stop()
			dir := filepath.Join(w.dir, "state", "apps", "u1")
			c.record(t, dir)
			s, _ = w.supervise()
			s.Set(nil)
			if kept := s.Kept(); !slices.Equal(kept, []string{"u1"}) {
				t.Errorf("kept %v", kept)
			}
			if err := s.Forget("u1"); err == nil {
				t.Error("it runs, and was forgotten")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := s.Stop(ctx, "u1", c.within); err != nil {
				t.Fatal(err)
			}
			if alive(record{PID: st.PID, BootID: bootID(), StartTicks: ticks}) != nil {
				t.Error("it still runs")
			}
			// Right after Stop, and once more.
			for range 2 {
				if err := s.Forget("u1"); err != nil {
					t.Error(err)
				}
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("its directory stays: %v", err)
			}
			if kept := s.Kept(); len(kept) != 0 {
				t.Errorf("kept %v", kept)
			}
		})
	}
}

// What nobody knows needs no stopping, and no name leads out of the directory.
func TestStopOfWhatIsNotThere(t *testing.T) {
	w := newWorld(t)
	s, _ := w.supervise()
	for _, uid := range []string{"u1", "../state", "", "."} {
		if err := s.Stop(t.Context(), uid, time.Second); err != nil {
			t.Errorf("%q: %v", uid, err)
		}
	}
	dir := filepath.Join(w.dir, "state", "apps", "u2")
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context(), "u2", time.Second); err != nil {
		t.Error(err)
	}
	if err := s.Forget("u2"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Error("an old directory stays")
	}
}

// A process that is told tells where its internal listener is, for other nodes.
func TestStatusNamesTheInternalListener(t *testing.T) {
	w := newWorld(t)
	w.script("app", script{Pointer: v1})
	s, _ := w.supervise()
	s.Set(one(v1))
	st := until(t, s, "app", "ready", ready(v1))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if st.Internal == "" || st.Internal == st.URL {
		t.Fatalf("%+v", st)
	}
	got, err := celld.Internal{URL: st.Internal}.State(ctx)
	if err != nil || got.Version != v1 {
		t.Errorf("%+v %v", got, err)
	}
}
