package applog

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func entry(text string) Entry {
	return Entry{Time: time.Now().UTC(), Level: Info, Source: Worker, Message: text}
}

func open(t *testing.T, root string, b Bounds) *Store {
	t.Helper()
	s, err := NewStore(root, b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func say(t *testing.T, l *Log, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if ok, err := l.Append(entry(text)); !ok || err != nil {
			t.Fatalf("%q: %v, %v", text, ok, err)
		}
	}
}

func read(t *testing.T, root, app string) []string {
	t.Helper()
	r, err := Open(root, app)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := r.Read(time.Time{}, func(e Entry) error { got = append(got, e.Message); return nil }); err != nil {
		t.Fatal(err)
	}
	return got
}

// size is what lies on disk below dir.
func size(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			info, ierr := d.Info()
			if ierr != nil {
				return ierr
			}
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func TestAnotherStoreGoesOn(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, Bounds{})
	say(t, s.Log("shop", "u1"), "one", "two\nlines")
	s.Close()
	// An end without notice in the middle of a line.
	file := filepath.Join(root, "shop", "u1", segmentName(1))
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"time":"2026-12-`)
	f.Close()
	say(t, open(t, root, Bounds{}).Log("shop", "u1"), "three")
	if got := read(t, root, "shop"); !slices.Equal(got, []string{"one", "two\nlines", "three"}) {
		t.Errorf("%q", got)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := Open(root, "other"); err != ErrNone {
		t.Errorf("%v, want ErrNone", err)
	}
}

// Each application has its bound, and the newest lines are those that stay.
func TestEachApplicationIsBounded(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, Bounds{Application: LeastApplication, Total: 10 * LeastApplication})
	l := s.Log("shop", "u1")
	const lines = 2000
	for i := range lines {
		say(t, l, fmt.Sprintf("%05d %s", i, strings.Repeat("x", 200)))
		if i%100 == 0 {
			if n := size(t, root); n > LeastApplication {
				t.Fatalf("%d bytes on disk, the bound is %d", n, LeastApplication)
			}
		}
	}
	got := read(t, root, "shop")
	if n := size(t, root); n < LeastApplication*3/4 || n > LeastApplication {
		t.Errorf("%d bytes are kept of a bound of %d", n, LeastApplication)
	}
	for i, line := range got {
		if want := fmt.Sprintf("%05d", lines-len(got)+i); line[:5] != want {
			t.Fatalf("line %d is %s, want %s", i, line[:5], want)
		}
	}
}

// All together have a bound: the oldest lines of all go, whoever said them.
func TestAllTogetherAreBounded(t *testing.T) {
	root := t.TempDir()
	bounds := Bounds{Application: LeastApplication, Total: 4 * LeastApplication}
	s := open(t, root, bounds)
	now := time.Unix(1000, 0)
	s.now = func() time.Time { return now }
	say(t, s.Log("quiet", "q"), "said long ago")
	for i := range 8 {
		for range 300 {
			now = now.Add(time.Second)
			say(t, s.Log(fmt.Sprintf("app%d", i), "u"), strings.Repeat("x", 200))
		}
		if n := size(t, root); n > bounds.Total {
			t.Fatalf("%d bytes on disk, the bound is %d", n, bounds.Total)
		}
	}
	if _, err := Open(root, "quiet"); err != ErrNone {
		t.Errorf("the oldest line of all is still there: %v", err)
	}
	if got := read(t, root, "app7"); len(got) == 0 {
		t.Error("the newest lines are gone")
	}
	// Its owner may still speak.
	say(t, s.Log("quiet", "q"), "said now")
	if got := read(t, root, "quiet"); !slices.Equal(got, []string{"said now"}) {
		t.Errorf("%q", got)
	}
	// A store that finds too much begins by removing it.
	s.Close()
	small := Bounds{Application: LeastApplication, Total: LeastApplication}
	open(t, root, small)
	if n := size(t, root); n > small.Total {
		t.Errorf("%d bytes on disk, the bound is %d", n, small.Total)
	}
}

func TestAFloodIsCounted(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, Bounds{})
	now := time.Unix(1000, 0)
	s.now = func() time.Time { return now }
	l := s.Log("shop", "u")
	text := strings.Repeat("x", 1024-overhead)
	kept := 0
	for range 100_000 {
		ok, err := l.Append(entry(text))
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			kept++
		}
	}
	if want := burst / 1024; kept != want {
		t.Errorf("%d lines of 1 KiB were kept, want %d", kept, want)
	}
	// What the node says is kept all the same.
	if ok, err := l.Append(Entry{Time: now, Level: Error, Source: Node, Message: "it crashed", Event: Crash}); !ok || err != nil {
		t.Errorf("%v %v", ok, err)
	}
	now = now.Add(time.Minute)
	say(t, l, "calm again")
	got := read(t, root, "shop")
	want := []string{
		"lines come faster than they are kept: the next ones are left out", "it crashed",
		"83617 lines of the log were left out: they came faster than they are kept", "calm again",
	}
	if tail := got[len(got)-4:]; !slices.Equal(tail, want) {
		t.Errorf("%q", tail)
	}
}

func TestRemove(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, Bounds{})
	say(t, s.Log("shop", "old"), "old")
	say(t, s.Log("shop", "new"), "new")
	if err := s.Remove("old"); err != nil {
		t.Fatal(err)
	}
	if got := read(t, root, "shop"); !slices.Equal(got, []string{"new"}) {
		t.Errorf("%q", got)
	}
	if err := s.Remove("new"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 || s.total != 0 || s.open != 0 {
		t.Errorf("%v, %v, %d bytes, %d open", left, err, s.total, s.open)
	}
}

// A follower misses nothing and sees nothing twice: over rotations, the end of the
// writer, and the next life of the name.
func TestFollow(t *testing.T) {
	root := t.TempDir()
	b := Bounds{Application: LeastApplication}
	s := open(t, root, b)
	say(t, s.Log("shop", "u1"), "first")
	r, err := Open(root, "shop")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	lines := make(chan string, 10_000)
	done := make(chan error, 1)
	go func() {
		done <- r.Follow(ctx, func(e Entry) error { lines <- e.Message; return nil })
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if got != want {
				t.Fatalf("%.20q, want %.20q", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("%.20q did not come", want)
		}
	}
	expect("first")
	line := func(i int) string { return fmt.Sprintf("%02d", i) + strings.Repeat("x", 2000) }
	seen := 0
	for i := range 60 { // some rotations
		say(t, s.Log("shop", "u1"), line(i))
		if i%15 == 0 { // otherwise several wait together
			for ; seen <= i; seen++ {
				expect(line(seen))
			}
		}
	}
	for ; seen < 60; seen++ {
		expect(line(seen))
	}
	s.Close()
	s = open(t, root, b)
	say(t, s.Log("shop", "u1"), "after a restart")
	expect("after a restart")
	say(t, s.Log("shop", "u2"), "the next life")
	expect("the next life")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestSince(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, Bounds{})
	at := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	for i, text := range []string{"a", "b", "c"} {
		e := entry(text)
		e.Time = at.Add(time.Duration(i) * time.Hour)
		if _, err := s.Log("shop", "u").Append(e); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Open(root, "shop")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := r.Read(at.Add(time.Hour), func(e Entry) error { got = append(got, e.Message); return nil }); err != nil || !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCrashes(t *testing.T) {
	at := time.Unix(10_000, 0)
	feed := func(entries ...Entry) *Crashes {
		c := &Crashes{}
		for _, e := range entries {
			c.Add(e)
		}
		return c
	}
	said := func(text string) Entry { return Entry{Time: at, Message: text} }
	event := func(e Event, ago time.Duration) Entry {
		return Entry{Time: at.Add(-ago), Message: string(e), Event: e}
	}
	for name, c := range map[string]struct {
		have  *Crashes
		lines []string // nil: no loop
	}{
		"nothing":                 {feed(said("a")), nil},
		"ready":                   {feed(event(Ready, 1)), nil},
		"one crash, ready since":  {feed(said("a"), event(Crash, 10), said("b"), event(Ready, 5)), nil},
		"one crash, not ready":    {feed(event(Ready, 20), said("a"), event(Crash, 10), said("b")), []string{"ready", "a", "crash"}},
		"two, ready between them": {feed(event(Ready, 50), event(Crash, 40), event(Ready, 30), said("x"), event(Crash, 20), event(Ready, 10)), []string{"ready", "x", "crash"}},
		"two, long ago":           {feed(event(Crash, time.Hour), event(Crash, time.Hour), event(Ready, 50*time.Minute)), nil},
		"crashed, then stopped":   {feed(event(Crash, 9), event(Stopped, 8)), nil},
	} {
		loop, ok := c.have.Loop(at)
		var lines []string
		for _, e := range loop.Lines {
			lines = append(lines, e.Message)
		}
		if ok != (c.lines != nil) || !slices.Equal(lines, c.lines) {
			t.Errorf("%s: %v %q, want %q", name, ok, lines, c.lines)
		}
	}
}
