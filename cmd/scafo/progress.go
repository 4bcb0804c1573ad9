package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// barAfter is how long an upload takes before it gets a bar.
const barAfter = 250 * time.Millisecond

// isTerminal reports whether a person looks at what is written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// progress tells a person at a terminal how far a long work is, on one line, and
// everybody else in plain lines.
type progress struct {
	w    io.Writer
	live bool

	mu     sync.Mutex // guards all below
	past   []string   // the steps that are done
	now    string     // the one that runs
	drawn  bool       // the line is on the screen
	ended  bool
	bars   *mpb.Progress
	bar    *mpb.Bar
	sentAt time.Time // when the upload began
}

func newProgress(w io.Writer) *progress {
	return &progress{w: w, live: isTerminal(w) && os.Getenv("TERM") != "dumb"}
}

// step says what begins.
func (p *progress) step(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeBar()
	p.sentAt = time.Time{}
	if p.now == what && p.drawn {
		return
	}
	p.now = what
	p.draw()
}

// done says what was done.
func (p *progress) done(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeBar()
	p.now = ""
	p.past = append(p.past, what)
	if !p.live {
		fmt.Fprintln(p.w, what)
		return
	}
	p.draw()
}

// note prints a line of its own.
func (p *progress) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeBar()
	p.clear()
	text = strings.ReplaceAll(text, "\n", "\n  ")
	if p.live {
		text = "  " + text
	}
	fmt.Fprintln(p.w, text)
	p.draw()
}

// end finishes the line.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.ended = true
	p.closeBar()
	if !p.live {
		return
	}
	p.clear()
	if len(p.past) > 0 {
		fmt.Fprintln(p.w, "  "+strings.Join(p.past, " · "))
	}
}

// upload tells how much was sent; what takes a while gets a bar.
func (p *progress) upload(sent, total int64) {
	if !p.live {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sentAt.IsZero() {
		p.sentAt = time.Now()
	}
	if p.bar == nil && time.Since(p.sentAt) > barAfter && sent < total {
		p.clear()
		p.bars = mpb.New(mpb.WithOutput(p.w))
		p.bar = p.bars.New(total, mpb.BarStyle(), mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Name("  uploading ")),
			mpb.AppendDecorators(decor.Counters(decor.SizeB1000(0), " % .1f / % .1f")))
	}
	if p.bar != nil {
		p.bar.SetCurrent(sent)
	}
}

// closeBar takes the bar away. p.mu is held.
func (p *progress) closeBar() {
	if p.bar == nil {
		return
	}
	p.bar.Abort(true)
	p.bars.Wait()
	p.bars, p.bar = nil, nil
}

// clear takes the line off the screen. p.mu is held.
func (p *progress) clear() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}

// draw puts the line on the screen. p.mu is held.
func (p *progress) draw() {
	if !p.live || p.ended {
		return
	}
	p.clear()
	parts := p.past
	if p.now != "" {
		parts = append(parts[:len(parts):len(parts)], p.now+" …")
	}
	if len(parts) == 0 {
		return
	}
	fmt.Fprint(p.w, fit("  "+strings.Join(parts, " · "), p.w))
	p.drawn = true
}

// fit shortens a line that the terminal would break: it could not be taken off.
func fit(line string, w io.Writer) string {
	f, ok := w.(*os.File)
	if !ok {
		return line
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if r := []rune(line); err == nil && width > 1 && len(r) >= width {
		return string(r[:width-2]) + "…"
	}
	return line
}

// output is where a child prints during the work: the line makes way for it.
func (p *progress) output() io.Writer { return &underProgress{p} }

type underProgress struct{ p *progress }

func (u *underProgress) Write(b []byte) (int, error) {
	u.p.mu.Lock()
	defer u.p.mu.Unlock()
	u.p.clear()
	return u.p.w.Write(b)
}
