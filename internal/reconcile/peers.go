package reconcile

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/scafo/scafo"
)

const (
	// probeEvery is how often a peer's health is asked, and probeHolder how often
	// that of the one that holds the lease.
	probeEvery  = 5 * time.Second
	probeHolder = 2 * time.Second
	// probeTimeout bounds one such question.
	probeTimeout = 2 * time.Second
	// probeTick is how often it is looked whom to ask.
	probeTick = 500 * time.Millisecond
	// hintTimeout bounds one hint that awaits nothing.
	hintTimeout = 3 * time.Second
	// maxOutbox bounds the keys that wait to be told to one peer. What is beyond
	// is left to the revision.
	maxOutbox = 1024
)

// probe asks the peers for their health until the loop ends.
func (l *Loop) probe(ctx context.Context) {
	next := map[string]time.Time{}
	answered := make(chan string, 1)
	busy := map[string]bool{}
	tick := time.NewTicker(probeTick)
	defer tick.Stop()
	for {
		now := time.Now()
		l.mu.Lock()
		l.live.Tick(now)
		v := l.view
		l.mu.Unlock()
		if v != nil && l.c.Peers != nil {
			holder, _ := l.c.Lease.Last()
			for _, id := range slices.Sorted(maps.Keys(v.snap.Nodes)) {
				n := v.snap.Nodes[id]
				if id == l.c.Node || n.Removed != nil || n.Address == "" || busy[id] || now.Before(next[id]) {
					continue
				}
				every := probeEvery
				if id == holder.Node {
					every = probeHolder
				}
				next[id], busy[id] = now.Add(every), true
				if !l.tasks.start(func(ctx context.Context) {
					l.askHealth(ctx, n, id == holder.Node)
					select {
					case answered <- id:
					case <-ctx.Done():
					}
				}) {
					return
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case id := <-answered:
			delete(busy, id)
		case <-tick.C:
		}
	}
}

// askHealth asks one peer. An answer counts when the peer that was asked gave it.
func (l *Loop) askHealth(ctx context.Context, n scafo.Node, holder bool) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	id, err := l.c.Peers.Health(ctx, n)
	if err == nil && id == n.ID {
		l.heard(n.ID)
		return
	}
	if holder {
		l.c.Lease.HolderSuspect()
	}
}

// heard notes that a peer answered; one that is back begins a pass.
func (l *Loop) heard(id string) {
	l.mu.Lock()
	was := l.live.Live(id) && !l.live.Unsure(id)
	l.live.Answered(time.Now(), id)
	back := !was && l.live.Live(id)
	l.mu.Unlock()
	if back {
		signal(l.wake)
	}
}

// outbox are the keys that one peer is to be told.
type outbox struct {
	keys    map[string]bool
	sending bool
}

// tell hints at changed documents to every living peer. It returns at once.
func (l *Loop) tell(keys ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.c.Peers == nil || l.view == nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(l.view.snap.Nodes)) {
		n := l.view.snap.Nodes[id]
		if id == l.c.Node || n.Removed != nil || n.Address == "" || !l.live.Live(id) {
			continue
		}
		box := l.outboxes[id]
		if box == nil {
			box = &outbox{keys: map[string]bool{}}
			l.outboxes[id] = box
		}
		for _, k := range keys {
			if len(box.keys) < maxOutbox {
				box.keys[k] = true
			}
		}
		if !box.sending {
			box.sending = l.tasks.start(func(ctx context.Context) { l.send(ctx, id) })
		}
	}
}

// send empties a peer's outbox, and ends. A hint that does not arrive is lost.
func (l *Loop) send(ctx context.Context, id string) {
	for {
		l.mu.Lock()
		box := l.outboxes[id]
		n, known := scafo.Node{}, false
		if l.view != nil {
			n, known = l.view.snap.Nodes[id]
		}
		if len(box.keys) == 0 || !known || ctx.Err() != nil {
			delete(l.outboxes, id)
			l.mu.Unlock()
			return
		}
		keys := make([]string, 0, min(len(box.keys), MaxHintKeys))
		for _, k := range slices.Sorted(maps.Keys(box.keys)) {
			if len(keys) == MaxHintKeys {
				break
			}
			keys = append(keys, k)
			delete(box.keys, k)
		}
		l.mu.Unlock()
		hctx, cancel := context.WithTimeout(ctx, hintTimeout)
		_, err := l.c.Peers.Hint(hctx, n, scafo.PeerHint{Keys: keys})
		cancel()
		if err == nil {
			l.heard(id)
		} else {
			l.log.Debug("a hint was lost", "node", id, "err", err)
		}
	}
}
