package deploy

import (
	"context"
	"errors"
	"strings"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/registry"
)

// Status answers a poll, on any node. A deploy that nobody carries out any more is
// failed, whatever its record still says; nothing is written for that.
func (s *Service) Status(ctx context.Context, id scafo.DeployID) (scafo.DeployStatus, error) {
	carried := s.carries(id.String())
	doc, err := s.c.Registry.Deploy(ctx, id)
	if err != nil {
		return scafo.DeployStatus{}, err
	}
	status, _ := s.judge(ctx, doc, carried)
	return status, nil
}

// Changed is closed when the record of a deploy that this node carries out is another
// one than at the time of the call. It is nil for every other deploy.
func (s *Service) Changed(id scafo.DeployID) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.active[id.String()]; j != nil {
		return j.moves()
	}
	return nil
}

// scan ends the deploys of an earlier life of this node of which nothing is left
// here. It reads every record there is, so it is only done when the staging
// directory is new.
func (s *Service) scan(ctx context.Context) {
	err := bucket.Walk(ctx, s.c.Bucket, registry.DeployPrefix, func(i bucket.Info) error {
		id, ok := deployOf(i.Key)
		if !ok {
			return nil
		}
		carried := s.carries(id.String())
		doc, err := s.c.Registry.Deploy(ctx, id)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			return nil // it was removed meanwhile, or is no record
		}
		if doc.Value.Node != s.c.Node || doc.Value.State.Terminal() || carried || s.carries(id.String()) {
			return nil
		}
		return s.endLost(ctx, doc)
	})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("the deploys of an earlier life of this node could not be looked for", "cause", err)
	}
}

// endLost records that a deploy of this node is lost, and frees what it held.
func (s *Service) endLost(ctx context.Context, doc registry.Doc[scafo.Deploy]) error {
	id, _ := scafo.ParseDeployID(doc.Value.ID)
	d, err := s.move(ctx, id, func(d *scafo.Deploy) { s.terminal(d, restarted(*d)) })
	if err != nil && !errors.Is(err, registry.ErrTerminal) {
		return err
	}
	s.log.Warn("a deploy of an earlier life of this node is lost", "event", "deploy.failed", "application", d.Application, "deploy", d.ID, "code", string(d.Code))
	return s.Abandoned(ctx, d)
}

// deployOf is the deploy whose record a key is.
func deployOf(key string) (scafo.DeployID, bool) {
	name, found := strings.CutPrefix(key, registry.DeployPrefix)
	if !found {
		return scafo.DeployID{}, false
	}
	name, found = strings.CutSuffix(name, ".json")
	app, hex, _ := strings.Cut(name, "/")
	if !found {
		return scafo.DeployID{}, false
	}
	return scafo.ParseDeployID(app + "." + hex)
}
