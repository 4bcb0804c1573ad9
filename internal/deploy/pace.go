package deploy

import (
	"errors"
	"io"
	"time"

	"github.com/scafo/scafo"
)

// The floor of an upload's rate: within each paceWindow what paceRate makes of it
// arrives at least, or the rest of the body. Without it a body that trickles would keep its place
// until the deadline of the whole upload.
const (
	paceWindow = 30 * time.Second
	paceRate   = 8 << 10 // bytes a second
)

// paced reads a body that must keep its pace. It is used by one goroutine.
type paced struct {
	body io.Reader
	// until bounds the reads of the body, where it has such bounds, at a time that is
	// never behind the whole upload's deadline; zero is that deadline.
	until  func(t time.Time)
	window time.Duration

	began time.Time // of this window; zero before the first read
	got   int64     // in this window
	slow  bool
}

func (p *paced) Read(b []byte) (int, error) {
	if p.began.IsZero() {
		p.next()
	}
	n, err := p.body.Read(b)
	p.got += int64(n)
	switch {
	case err != nil:
		if p.late() {
			p.slow = !errors.Is(err, io.EOF)
		}
		p.until(time.Time{})
	case p.got >= p.least():
		p.next()
	case p.late():
		p.slow = true
		return n, errSlow()
	}
	return n, err
}

func (p *paced) least() int64 { return int64(paceRate * p.window / time.Second) }

func (p *paced) late() bool { return p.got < p.least() && time.Since(p.began) >= p.window }

// next begins a window.
func (p *paced) next() {
	p.began, p.got = time.Now(), 0
	p.until(p.began.Add(p.window))
}

func errSlow() error {
	return scafo.Errorf(scafo.CodeDeployTimeout, "the artifact arrives more slowly than %d KiB a second", paceRate>>10)
}
