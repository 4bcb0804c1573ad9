package supervise

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// tape is a follower over files that the test writes itself.
type tape struct {
	t         *testing.T
	dir       string
	out, errs *os.File
	polls     bool // watches cost time to close
	mu        sync.Mutex
	got       []string // guarded by mu
}

func newTape(t *testing.T) *tape {
	t.Helper()
	tp := &tape{t: t, dir: t.TempDir()}
	var err error
	if tp.out, tp.errs, err = createOutput(tp.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(tp.out, tp.errs) })
	return tp
}

func (tp *tape) line(s string) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	tp.got = append(tp.got, s)
}

func (tp *tape) lines() []string {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	return slices.Clone(tp.got)
}

// follow runs a follower until the returned function is called: with true, the
// process is gone; with false, the daemon goes.
func (tp *tape) follow() (stop func(gone bool)) {
	tp.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := newWatcher(slog.New(slog.DiscardHandler))
	if !tp.polls {
		w.open()
	}
	var group sync.WaitGroup
	group.Go(func() { w.run(ctx) })
	f, err := newFollower(tp.dir, w, tp.line)
	if err != nil {
		tp.t.Fatal(err)
	}
	end := make(chan struct{})
	done := make(chan struct{})
	go func() { defer close(done); f.run(ctx, end) }()
	return func(gone bool) {
		if gone {
			close(end)
			<-done
		}
		cancel()
		<-done
		group.Wait()
	}
}

func TestFollowWholeLines(t *testing.T) {
	tp := newTape(t)
	stop := tp.follow()
	fmt.Fprint(tp.out, "one\r\ntw")
	waitFor(t, "the first line", func() bool { return slices.Equal(tp.lines(), []string{"one"}) })
	fmt.Fprint(tp.errs, "from the other\n")
	waitFor(t, "the other stream", func() bool { return slices.Contains(tp.lines(), "from the other") })
	fmt.Fprint(tp.out, "o\n\nbad \xff\xfe bytes\nno end")
	stop(true)
	if want := []string{"one", "from the other", "two", "", "bad \uFFFD bytes", "no end"}; !slices.Equal(tp.lines(), want) {
		t.Errorf("%q", tp.lines())
	}
}

func TestFollowGoesOnWhereItStopped(t *testing.T) {
	tp := newTape(t)
	stop := tp.follow()
	fmt.Fprint(tp.out, "one\nhalf")
	waitFor(t, "a line", func() bool { return len(tp.lines()) == 1 })
	stop(false)
	fmt.Fprint(tp.out, " and half\nthree\n")
	stop = tp.follow()
	waitFor(t, "the rest", func() bool { return len(tp.lines()) == 3 })
	stop(true)
	if want := []string{"one", "half and half", "three"}; !slices.Equal(tp.lines(), want) {
		t.Errorf("%q", tp.lines())
	}
}

// A line of the bound goes whole, one byte more in two pieces.
func TestFollowBoundsLines(t *testing.T) {
	tp := newTape(t)
	stop := tp.follow()
	fmt.Fprintf(tp.out, "%s\n%s\n", strings.Repeat("a", maxLine), strings.Repeat("b", maxLine+1))
	stop(true)
	got := tp.lines()
	if len(got) != 3 || len(got[0]) != maxLine || len(got[1]) != maxLine || got[2] != "b" {
		t.Errorf("%d lines", len(got))
	}
}

// What was passed on is freed on disk while the process goes on writing, and
// nothing is lost by it.
func TestFollowFreesTheDisk(t *testing.T) {
	tp := newTape(t)
	stop := tp.follow()
	const total = 40_000
	pad := strings.Repeat("x", 500)
	for i := range total { // 20 MB
		fmt.Fprintf(tp.out, "%d %s\n", i, pad)
	}
	waitFor(t, "all lines", func() bool { return len(tp.lines()) == total })
	stop(true)
	for i, line := range tp.lines() {
		if !strings.HasPrefix(line, fmt.Sprintf("%d ", i)) {
			t.Fatalf("line %d is %.20q", i, line)
		}
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(tp.dir, outFile), &st); err != nil {
		t.Fatal(err)
	}
	if used := st.Blocks * 512; used > 2*punchEvery {
		t.Errorf("%d bytes on disk", used)
	}
}

// More than the disk should hold is given up, oldest first, and said so.
func TestFollowBoundsTheBacklog(t *testing.T) {
	tp := newTape(t)
	// A sparse file: this much was written while nobody followed.
	if err := tp.out.Truncate(maxBacklog + 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(tp.out, "\nthe newest\n")
	stop := tp.follow()
	waitFor(t, "the newest line", func() bool { return slices.Contains(tp.lines(), "the newest") })
	stop(true)
	if !strings.Contains(tp.lines()[0], "were skipped") {
		t.Errorf("first line %.80q", tp.lines()[0])
	}
}

func TestFollowIsIdleWithoutOutput(t *testing.T) {
	tp := newTape(t)
	stop := tp.follow()
	fmt.Fprint(tp.out, "one\n")
	waitFor(t, "a line", func() bool { return len(tp.lines()) == 1 })
	before := cpu(t)
	time.Sleep(300 * time.Millisecond)
	if used := cpu(t) - before; used > 100*time.Millisecond {
		t.Errorf("%v of CPU without output", used)
	}
	stop(true)
}

func cpu(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// However the output is cut into writes, the lines are the same.
func TestFollowProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tp := &tape{t: t, dir: t.TempDir(), polls: true}
		var err error
		if tp.out, tp.errs, err = createOutput(tp.dir); err != nil {
			rt.Fatal(err)
		}
		defer closeAll(tp.out, tp.errs)
		lines := rapid.SliceOfN(rapid.StringMatching(`[a-z ]{0,40}`), 0, 20).Draw(rt, "lines")
		text := strings.Join(append(slices.Clone(lines), ""), "\n")
		for text != "" {
			stop := tp.follow()
			n := rapid.IntRange(1, len(text)).Draw(rt, "piece")
			fmt.Fprint(tp.out, text[:n])
			text = text[n:]
			stop(false)
		}
		tp.follow()(true)
		if got := tp.lines(); !slices.Equal(got, lines) && len(got)+len(lines) > 0 {
			rt.Fatalf("%q, want %q", got, lines)
		}
	})
}

func TestLastLines(t *testing.T) {
	var l lines
	for i := range keptLines + 5 {
		l.add(fmt.Sprint(i))
	}
	l.add(strings.Repeat("é", keptLineSize))
	got := l.last()
	if len(got) != keptLines || got[0] != "6" || len(got[keptLines-1]) > keptLineSize+len("…") {
		t.Errorf("%q", got)
	}
}
