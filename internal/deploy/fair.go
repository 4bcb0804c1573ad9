package deploy

import (
	"sync"

	"github.com/scafo/scafo"
)

// How much of a node one application and one caller may have: of the places for
// deploys, and of the room for artifacts. Two places they may always have, where
// there are two: one deploy that is published and one that waits. An artifact that
// is the only one of its party may take all the room that there is.
const (
	appShare    = 4 // a quarter of the places
	callerShare = 2 // a half of the places
	roomShare   = 2 // a half of the room
	leastPlaces = 2
)

// fair keeps one application, and one caller, from taking all of a node: others
// find a place and room however many deploys come for one of them.
type fair struct {
	places int   // of the node
	bytes  int64 // of the node

	mu   sync.Mutex
	held map[party]holding // what is not nothing; guarded by mu
}

// party is who shares a node with others.
type party struct{ kind, name string }

func (p party) most(places int) int {
	share := appShare
	if p.kind == "caller" {
		share = callerShare
	}
	return min(places, max(leastPlaces, (places+share-1)/share))
}

type holding struct {
	places int
	bytes  int64
}

// seat is one deploy's part of what its parties hold.
type seat struct {
	f       *fair
	parties [2]party
	bytes   int64 // guarded by f.mu
	left    bool  // its place was given back; guarded by f.mu
}

// enter takes a place for a deploy.
func (f *fair) enter(app, caller string) (*seat, error) {
	s := &seat{f: f, parties: [2]party{{"application", app}, {"caller", caller}}}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range s.parties {
		if most := p.most(f.places); f.held[p].places >= most {
			return nil, scafo.Errorf(scafo.CodeDeployOverloaded, "this node already has %d deploys of %s %s to publish, and keeps its other places for others", most, p.kind, p.name)
		}
	}
	s.change(1, 0)
	return s, nil
}

// take takes room, unless the others of a party leave it too little. A deploy of
// an earlier life of the node has no seat: it was within its share then.
func (s *seat) take(n int64) error {
	if s == nil {
		return nil
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	for _, p := range s.parties {
		if all := s.f.held[p].bytes; all > s.bytes && all+n > s.f.bytes/roomShare {
			return scafo.Errorf(scafo.CodeDeployOverloaded, "the artifacts of %s %s that this node has staged leave no room for another one of theirs", p.kind, p.name)
		}
	}
	s.change(0, n)
	return nil
}

// give returns room.
func (s *seat) give(n int64) {
	if s == nil {
		return
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.change(0, -n)
}

// leave gives the place back, once.
func (s *seat) leave() {
	if s == nil {
		return
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if !s.left {
		s.left = true
		s.change(-1, 0)
	}
}

// change is called with f.mu held.
func (s *seat) change(places int, bytes int64) {
	s.bytes += bytes
	for _, p := range s.parties {
		h := s.f.held[p]
		h.places += places
		h.bytes += bytes
		if s.f.held[p] = h; h == (holding{}) {
			delete(s.f.held, p)
		}
	}
}
