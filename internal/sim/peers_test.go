package sim

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/deletion"
)

// peers is a daemon's way to the others.
type peers struct{ l *life }

var errUnreachable = errors.New("connection timed out")

// pair names two machines, whoever is first.
func pair(a, b string) [2]string {
	if a > b {
		a, b = b, a
	}
	return [2]string{a, b}
}

// reach goes to the daemon of another machine. Where the way is cut, or the machine
// is off, nobody answers; a machine whose daemon does not run refuses at once.
func (p peers) reach(ctx context.Context, what, id string) (*life, error) {
	w := p.l.m.w
	d := p.l.dice(what, id)
	if !p.l.awake(ctx, what+id) || !p.l.sleep(ctx, d.between(quickest, slowest)) {
		return nil, errUnreachable
	}
	w.mu.Lock()
	to := w.machines[id]
	cut := w.cut[pair(p.l.m.id, id)] || to == nil
	var other *life
	if !cut {
		other = to.life
		if other != nil && !other.up {
			other = nil
		}
	}
	w.mu.Unlock()
	switch {
	case cut:
		select {
		case <-ctx.Done():
		case <-p.l.dead:
		}
		return nil, errUnreachable
	case other == nil:
		return nil, errors.New("connection refused")
	case !other.awake(ctx, what+p.l.m.id):
		return nil, errUnreachable
	}
	return other, nil
}

// back is the way home of an answer.
func (p peers) back(ctx context.Context, what string, other *life) error {
	w := p.l.m.w
	d := p.l.dice(what+" back", other.m.id)
	if !p.l.sleep(ctx, d.between(quickest, slowest)) || other.isDead() || !other.awake(ctx, what+p.l.m.id) || !p.l.awake(ctx, what+other.m.id) {
		return errUnreachable
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut[pair(p.l.m.id, other.m.id)] {
		return errUnreachable
	}
	return nil
}

func (p peers) Health(ctx context.Context, node scafo.Node) (string, error) {
	other, err := p.reach(ctx, "health", node.ID)
	if err != nil {
		return "", err
	}
	other.loop.Asked(p.l.m.id)
	return other.m.id, p.back(ctx, "health", other)
}

func (p peers) Hint(ctx context.Context, node scafo.Node, h scafo.PeerHint) (scafo.PeerAnswer, error) {
	what := "hint " + strings.Join(h.Keys, " ") // two that are sent at one moment are not taken for each other
	if h.Await != nil {
		what += " " + h.Await.Application
	}
	other, err := p.reach(ctx, what, node.ID)
	if err != nil {
		return scafo.PeerAnswer{}, err
	}
	a, err := other.loop.Hint(ctx, p.l.m.id, h)
	if err != nil {
		return a, err
	}
	return a, p.back(ctx, what, other)
}

// forwardWithin is how long whoever hands a deletion on waits for its end.
const forwardWithin = 5 * time.Minute

// Forward hands a deletion on, and answers when it has come to its end there.
func (p peers) Forward(ctx context.Context, node scafo.Node, r deletion.Request) (*deletion.Answer, error) {
	other, err := p.reach(ctx, "forward", node.ID)
	if err != nil {
		return nil, err
	}
	o, err := other.deletions.Delete(ctx, r)
	if err == nil {
		err = drainKeys(ctx, other, o)
	}
	if away := p.back(ctx, "forward", other); away != nil {
		return nil, away
	}
	a := &deletion.Answer{Status: http.StatusOK, Body: io.NopCloser(strings.NewReader(""))}
	if err != nil {
		a.Status = http.StatusServiceUnavailable
		a.Header = map[string][]string{"Code": {string(scafo.CodeOf(err))}}
	}
	return a, nil
}

// drainKeys reads the keys of a deletion to its end, where that daemon lives so long.
func drainKeys(ctx context.Context, at *life, o deletion.Outcome) error {
	if o.Answer != nil {
		if o.Answer.Status != http.StatusOK {
			code := scafo.CodeStoreUnavailable
			if c := o.Answer.Header["Code"]; len(c) > 0 {
				code = scafo.Code(c[0])
			}
			return scafo.Errorf(code, "the coordinator says no")
		}
		return nil
	}
	defer o.Keys.Close()
	ctx, cancel := context.WithTimeout(ctx, forwardWithin)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-at.dead:
			cancel()
		case <-stop:
		}
	}()
	for {
		_, err := o.Keys.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
