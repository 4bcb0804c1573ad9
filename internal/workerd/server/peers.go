package server

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// A member that lost its lease wants to know whether the store is away for everybody or
// only for itself. It cannot read the others' records then, so it has read them before.
const (
	// peersFirst is how long after the start the records are read. The others of an
	// application that starts everywhere at once are not there yet: each pause is twice
	// the one before it, up to peersEvery. A member's own workerd lists them some twenty
	// times in that time.
	peersFirst = 2 * time.Second
	peersEvery = time.Minute
	// peersRecent is how old a record may be: whoever lives renews it every few seconds.
	peersRecent = time.Minute
	// peersTimeout bounds one reading.
	peersTimeout = 20 * time.Second
)

// peers are the addresses of the cluster's other members, as they were last read.
type peers struct {
	at atomic.Pointer[[]string]
}

// followPeers reads the records now and then, while a member runs here.
func (w *workerdRuntime) followPeers() {
	for wait := peersFirst; ; wait = nextPeers(wait) {
		select {
		case <-w.ctx.Done():
			return
		case <-time.After(wait):
		}
		if len(w.ownAddresses()) > 0 {
			w.readPeers()
		}
	}
}

// nextPeers is the pause after one.
func nextPeers(pause time.Duration) time.Duration { return min(2*pause, peersEvery) }

// readPeers reads who else is in the cluster. What cannot be read stays as it was.
func (w *workerdRuntime) readPeers() {
	ctx, cancel := context.WithTimeout(w.ctx, peersTimeout)
	defer cancel()
	all, err := members(ctx, w.store, stateKey+"/", peersRecent, time.Now())
	if err != nil {
		w.log.Debug("the peers' records cannot be read", "err", err)
		return
	}
	w.peers.set(all)
}

func (p *peers) set(all []seenMember) {
	at := []string{}
	for _, m := range all {
		if m.holds() {
			at = append(at, m.Address)
		}
	}
	p.at.Store(&at)
}

// ownAddresses are those of the members that this process started.
func (w *workerdRuntime) ownAddresses() map[string]bool {
	own := map[string]bool{}
	for _, c := range w.dir.saved().Children {
		if c.Address != "" {
			own[c.Address] = true
		}
	}
	return own
}

// PeersServe asks the peers whether one of them serves and holds its lease.
func (w *workerdRuntime) PeersServe(ctx context.Context) bool {
	return w.peers.serve(ctx, w.ownAddresses())
}

func (p *peers) serve(ctx context.Context, own map[string]bool) bool {
	at := p.at.Load()
	if at == nil {
		return false
	}
	var all sync.WaitGroup
	var serves atomic.Bool
	for _, address := range *at {
		if !own[address] {
			all.Go(func() {
				if memberReady(ctx, address) {
					serves.Store(true)
				}
			})
		}
	}
	all.Wait()
	return serves.Load()
}

// peerClient asks on a connection of its own each time.
var peerClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}

// memberReady asks GET /ready of a member: 200 while it serves and holds its lease.
func memberReady(ctx context.Context, address string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/ready", nil)
	if err != nil {
		return false
	}
	resp, err := peerClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
