// Package deletion removes applications. Only the holder of the coordinator lease
// does, since no store has a delete that asks first: a node that is not the holder
// offers itself once where there is none, and else hands the request on.
//
// What keeps the next application of a name safe is neither the lease nor a clock.
// An application's record is marked first, under the deleter's fence, and the name
// cannot live again before that record is a tombstone, which is the last step. A
// key is deleted only if it was listed before a look at the record that still found
// the mark: so it belongs to this life or an earlier one, and since its name has a
// uid or a random id in it, nobody writes that name again. Such a delete may arrive
// as late as it likes. Documents without a uid in their key (the record, the trust
// policy, the claims) are removed by compare-and-swap over what was read before that
// look.
package deletion

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/registry"
)

// Purpose names the bucket requests of a deletion to the meter.
const Purpose = "deletion"

// Lease is what a deletion needs of the coordinator lease.
type Lease interface {
	// Held is the fence, while this process may act under it.
	Held() (fence int64, ok bool)
	// Current reads the lease afresh; held is whether anyone holds it now.
	Current(ctx context.Context) (l scafo.Lease, held bool, err error)
	// Last is the lease as it was last read.
	Last() (l scafo.Lease, held bool)
	// Offer takes the lease if it is free, and reports whether this process holds it.
	Offer(ctx context.Context) (bool, error)
}

// Fleet is what a deletion needs of the nodes.
type Fleet interface {
	// Quiet has the nodes end their processes of one life of an application, and
	// returns, after that time at the latest, those that did not confirm it.
	Quiet(ctx context.Context, application, uid string, within time.Duration) (unconfirmed []string)
	// Remains are the hosts that this life claims and the deploys that have not
	// ended, as far as the fleet has heard of them.
	Remains(ctx context.Context, application, uid string) (hosts []string, deploys []scafo.DeployID, err error)
}

// Forwarder hands a request to another node, under a token of this one.
type Forwarder interface {
	Forward(ctx context.Context, to scafo.Node, r Request) (*Answer, error)
}

// Answer is what the coordinator answered to a request that was handed on to it.
type Answer struct {
	Status int
	Header map[string][]string
	Body   io.ReadCloser
}

// Request asks for the deletion of an application.
type Request struct {
	Application string // a valid name
	Caller      string // who asked first: an operator or a node
	// Force skips what is asked of the application: that it is retired, and has been
	// for its grace period.
	Force bool
	// Forwarded says that another node handed the request on; it goes no further.
	Forwarded bool
}

// Outcome is one of two: the keys of a deletion that is carried out here, or the
// coordinator's own answer. Whoever gets it closes it.
type Outcome struct {
	Keys   *Keys
	Answer *Answer
}

// Config is what a [Service] works with.
type Config struct {
	Node     string
	Registry *registry.Registry
	Lease    Lease
	Fleet    Fleet
	// Claims releases the application's hosts; nil is the registry.
	Claims Claims
	// Forwarder is nil on a node without a signing key.
	Forwarder Forwarder
	// Grace is retire.graceSeconds.
	Grace time.Duration
	Log   *slog.Logger
}

// Service carries out deletions. [Service.Run] must run for them to move.
type Service struct {
	c   Config
	log *slog.Logger

	begun chan struct{} // closed once Run runs

	mu   sync.Mutex
	ctx  context.Context // of Run; guarded by mu
	runs map[string]*run // those that are carried out, by uid; guarded by mu
	wg   sync.WaitGroup
	late lateKeys
	// deleting holds a token for each key that is being deleted.
	deleting chan struct{}
}

// New makes a service.
func New(c Config) (*Service, error) {
	if c.Node == "" || c.Registry == nil || c.Lease == nil || c.Fleet == nil {
		return nil, errors.New("deletion: a node, a registry, a lease and a fleet are needed")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Claims == nil {
		c.Claims = c.Registry
	}
	return &Service{c: c, log: c.Log, begun: make(chan struct{}), runs: map[string]*run{}, late: lateKeys{wake: make(chan struct{}, 1)}, deleting: make(chan struct{}, allDeleters)}, nil
}

// Run carries deletions out until ctx ends. It is called once. What is unfinished then is for the next
// coordinator to finish.
func (s *Service) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(meter.With(ctx, Purpose))
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	close(s.begun)
	s.sweepLate(ctx)
	s.mu.Lock()
	s.ctx = nil
	s.mu.Unlock()
	cancel()
	s.wg.Wait()
	return nil
}

// The refusals that say who coordinates.
func errNobody() error {
	return &scafo.Error{Code: scafo.CodeDraining, Title: "No node is coordinating", Detail: "nobody holds the coordinator lease, and this node could not take it; try again in a moment"}
}

func errNotCoordinator(cause error) error {
	return &scafo.Error{
		Code: scafo.CodeDraining, Title: "Not the coordinator", Err: cause,
		Detail: "this node does not hold the coordinator lease any more; try again once the lease has settled: a deletion that has begun goes on",
	}
}

func errCoordinatorSilent(node string, cause error) error {
	return &scafo.Error{
		Code: scafo.CodeDraining, Title: "The coordinator does not answer", Err: cause,
		Detail: "node " + node + " holds the coordinator lease and did not answer to the end; try again: a deletion that has begun goes on",
	}
}

// Delete deletes an application where this node coordinates, offers to do so where
// nobody does, and else asks the node that does, once. It returns when the keys
// begin to be removed, or with the coordinator's answer; ctx bounds that alone, and
// a deletion that has begun goes on without it.
func (s *Service) Delete(ctx context.Context, r Request) (Outcome, error) {
	ctx = meter.With(ctx, Purpose)
	select {
	case <-s.begun:
	case <-ctx.Done():
		return Outcome{}, scafo.Wrap(ctx.Err(), scafo.CodeDraining, "this node has only just started")
	}
	fence, held := s.c.Lease.Held()
	if !held && r.Forwarded {
		return Outcome{}, errNotCoordinator(nil)
	}
	if !held {
		holder, err := s.elect(ctx)
		if err != nil {
			return Outcome{}, err
		}
		if holder != "" {
			return s.forward(ctx, r, holder)
		}
		if fence, held = s.c.Lease.Held(); !held {
			return Outcome{}, errNobody()
		}
	}
	doc, err := s.mark(ctx, r, fence)
	if err != nil {
		return Outcome{}, err
	}
	keys := newKeys()
	if err := s.start(doc.Value, fence, r.Caller, keys); err != nil {
		return Outcome{}, err
	}
	return Outcome{Keys: keys}, nil
}

// elect finds out who coordinates; where nobody does, this node offers itself. It
// returns the other node that does, or nothing when this one may.
func (s *Service) elect(ctx context.Context) (holder string, err error) {
	l, held, err := s.c.Lease.Current(ctx)
	if err != nil {
		return "", err
	}
	if !held || l.Node == s.c.Node {
		// A lease of this node that this process may not act under is one of its
		// earlier lives.
		won, err := s.c.Lease.Offer(ctx)
		if won || err != nil {
			return "", err
		}
		l, held = s.c.Lease.Last()
	}
	if !held || l.Node == s.c.Node || l.Node == "" {
		return "", errNobody()
	}
	return l.Node, nil
}

func (s *Service) forward(ctx context.Context, r Request, holder string) (Outcome, error) {
	if s.c.Forwarder == nil {
		return Outcome{}, scafo.Errorf(scafo.CodeCapabilityMissing, "node %s coordinates, and this node holds no signing key (its node.key is none) to ask it with", holder)
	}
	to, err := s.c.Registry.Node(ctx, holder)
	if scafo.CodeOf(err) == scafo.CodeNotFound {
		return Outcome{}, errCoordinatorSilent(holder, err)
	}
	if err != nil {
		return Outcome{}, err
	}
	r.Forwarded = true
	a, err := s.c.Forwarder.Forward(ctx, to, r)
	if err != nil {
		return Outcome{}, errCoordinatorSilent(holder, err)
	}
	return Outcome{Answer: a}, nil
}

// Resume finishes a deletion that somebody began, if this node coordinates and does
// not carry it out already. It returns at once.
func (s *Service) Resume(app scafo.Application) {
	fence, held := s.c.Lease.Held()
	if !held || app.Deleting == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[app.UID] != nil {
		return
	}
	s.begin(app, fence, app.Deleting.By, nil)
}

// start carries a deletion out, or joins one that is being carried out; keys gets
// what it removes from now on.
func (s *Service) start(app scafo.Application, fence int64, by string, keys *Keys) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[app.UID]; r != nil {
		r.listeners = append(r.listeners, keys)
		return nil
	}
	if !s.begin(app, fence, by, keys) {
		return scafo.Errorf(scafo.CodeDraining, "this node is stopping")
	}
	return nil
}

// begin runs a deletion. The caller holds mu.
func (s *Service) begin(app scafo.Application, fence int64, by string, keys *Keys) bool {
	if s.ctx == nil || s.ctx.Err() != nil {
		return false
	}
	r := &run{s: s, name: app.Name, uid: app.UID, fence: fence, by: by, lives: map[string]bool{app.UID: true}}
	if keys != nil {
		r.listeners = []*Keys{keys}
	}
	s.runs[app.UID] = r
	ctx := s.ctx
	s.wg.Go(func() {
		err := r.carry(ctx)
		s.mu.Lock()
		delete(s.runs, r.uid)
		listeners := r.listeners
		r.listeners = nil
		s.mu.Unlock()
		for _, k := range listeners {
			k.end(err)
		}
	})
	return true
}
