package server

import (
	"context"
	"errors"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
)

// Kind is what a look at the pointer came to.
type Kind string

// The kinds, as /reload spells them.
const (
	Adopted     Kind = "adopted"
	Unchanged   Kind = "unchanged"
	Failed      Kind = "failed"      // the old deployment goes on
	Unavailable Kind = "unavailable" // it could not look
)

// Outcome is the answer to POST /reload.
type Outcome struct {
	OK         bool   `json:"ok"`
	Kind       Kind   `json:"outcome"`
	Generation int64  `json:"generation,omitempty"`
	Version    string `json:"version,omitempty"`
	Prefix     string `json:"prefix,omitempty"`
	Error      string `json:"error,omitempty"`

	err error
}

// Reload looks at the pointer and, when it names another deployment than the one
// served, brings that up beside it and moves the traffic. One runs at a time; ctx
// bounds the wait for its turn alone.
func (s *Server) Reload(ctx context.Context) Outcome {
	if !s.lockSwap(ctx) {
		return unavailable(errors.New("the server is busy or stops"))
	}
	defer s.unlockSwap()
	p, err := s.rt.Load(s.ctx)
	if errors.Is(err, layout.ErrPointer) {
		return s.refuse(p, err)
	}
	if err != nil {
		return unavailable(err)
	}
	s.mu.Lock()
	served := s.served
	stopping := s.stopping
	s.mu.Unlock()
	if stopping || s.ctx.Err() != nil {
		return unavailable(errors.New("the server stops"))
	}
	if served != nil && served.pointer.Version == p.Version && served.pointer.Prefix == p.Prefix {
		s.setRefused(nil)
		return Outcome{OK: true, Kind: Unchanged, Generation: served.generation, Version: p.Version, Prefix: p.Prefix}
	}
	return s.adopt(p)
}

// adopt brings up what p names. The caller holds swap.
func (s *Server) adopt(p layout.Pointer) Outcome {
	s.setSwapping(true)
	defer s.setSwapping(false)
	begun := time.Now()
	d, err := s.rt.Fetch(s.ctx, p)
	if err != nil {
		if transient(err) || s.ctx.Err() != nil {
			return unavailable(err)
		}
		return s.refuse(p, err)
	}
	a := adoption{pointer: p, deployment: d}
	s.mu.Lock()
	a.generation = s.generation + 1
	s.mu.Unlock()
	b, err := s.launch(a)
	if err != nil {
		s.keepServed()
		if s.ctx.Err() != nil || errors.Is(err, errStop) {
			return unavailable(errors.New("the server stops"))
		}
		if errors.Is(err, instance.ErrDatabaseAway) {
			return unavailable(err)
		}
		return s.refuse(p, err)
	}
	s.switchTo(b)
	s.log.Info("adopted", "version", p.Version, "generation", a.generation, "pid", b.proc.PID(), "took", time.Since(begun).Round(time.Millisecond))
	return Outcome{OK: true, Kind: Adopted, Generation: a.generation, Version: p.Version, Prefix: p.Prefix}
}

// refuse keeps what is served, and says why.
func (s *Server) refuse(p layout.Pointer, err error) Outcome {
	s.log.Error("the deployment was not adopted", "version", p.Version, "err", err)
	o := Outcome{Kind: Failed, Version: p.Version, Prefix: p.Prefix, Error: err.Error(), err: err}
	s.setRefused(&o)
	return o
}

func unavailable(err error) Outcome {
	return Outcome{Kind: Unavailable, Error: err.Error(), err: err}
}

// transient reports whether the store, not the deployment, is to blame.
func transient(err error) bool {
	return errors.Is(err, bucket.ErrUnavailable) || errors.Is(err, bucket.ErrUnknown) || errors.Is(err, bucket.ErrDenied) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// switchTo moves the traffic to b, and lets the one before it leave.
func (s *Server) switchTo(b *backend) {
	s.mu.Lock()
	old := s.current
	s.current = b
	a := b.adoption
	s.served, s.generation, s.refused = &a, a.generation, nil
	s.mu.Unlock()
	if old != nil {
		s.work.Go(func() { s.leave(old, time.Now().Add(max(s.o.DeployMaxAge, time.Second))) })
	}
	s.keepServed()
}

// keepServed drops the local copies of deployments that no workerd needs. The
// caller holds swap.
func (s *Server) keepServed() {
	s.mu.Lock()
	var keep []*layout.Deployment
	if s.served != nil {
		keep = append(keep, s.served.deployment)
	}
	for b := range s.backends {
		keep = append(keep, b.deployment)
	}
	s.mu.Unlock()
	s.rt.Keep(keep...)
}

func (s *Server) setSwapping(on bool) {
	s.mu.Lock()
	s.swapping = on
	s.mu.Unlock()
}

func (s *Server) setRefused(o *Outcome) {
	s.mu.Lock()
	s.refused = o
	s.mu.Unlock()
}

func (s *Server) lockSwap(ctx context.Context) bool {
	select {
	case s.swap <- struct{}{}:
		return true
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return false
}

func (s *Server) unlockSwap() { <-s.swap }

// poll looks at the pointer now and then. A deployment that was refused is not
// tried again until the pointer names another one, or somebody asks for it.
func (s *Server) poll() {
	for s.sleep(s.o.DeployPoll) {
		p, err := s.rt.Load(s.ctx)
		if err != nil {
			if !errors.Is(err, layout.ErrNoPointer) && s.ctx.Err() == nil {
				s.log.Warn("the pointer cannot be read", "err", err)
			}
			continue
		}
		s.mu.Lock()
		same := s.served != nil && s.served.pointer.Version == p.Version && s.served.pointer.Prefix == p.Prefix
		refused := s.refused != nil && s.refused.Version == p.Version && s.refused.Prefix == p.Prefix
		s.mu.Unlock()
		if !same && !refused {
			s.Reload(s.ctx)
		}
	}
}

func isNoPointer(err error) bool { return errors.Is(err, layout.ErrNoPointer) }
