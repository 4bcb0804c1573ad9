package deploy

import (
	"context"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// change is registry.Update that first tries on the document as it was last seen,
// which saves reading it again. seen may be nil. Whatever speaks against the write
// on an old look is looked at again on a fresh one.
//
// The change must not write into maps and lists of the document, which it shares
// with the one that was seen.
func change[T any, P registry.Record[T]](ctx context.Context, r *registry.Registry, key string, seen *registry.Doc[T], f func(d *registry.Doc[T]) error) (registry.Doc[T], error) {
	if seen != nil {
		d := *seen
		if f(&d) == nil {
			if after, err := registry.Swap[T, P](ctx, r, d); err == nil {
				return after, nil
			}
		}
	}
	return registry.Update[T, P](ctx, r, key, f)
}

// update changes the application's record, which the job keeps as it last saw it.
func (j *job) update(ctx context.Context, r *registry.Registry, f func(d *registry.Doc[scafo.Application]) error) (scafo.Application, error) {
	doc, err := change(ctx, r, registry.ApplicationKey(j.id.Application), j.app, f)
	j.app = nil
	if err == nil && doc.ETag != "" {
		j.app = &doc
	}
	return doc.Value, err
}

// move changes the record of a deploy that has not ended. It announces nothing:
// who wants to know reads the record itself.
func (s *Service) move(ctx context.Context, id scafo.DeployID, f func(*scafo.Deploy)) (scafo.Deploy, error) {
	doc, err := registry.Update(ctx, s.c.Registry, registry.DeployKey(id), moving(id, f))
	return doc.Value, err
}

func moving(id scafo.DeployID, f func(*scafo.Deploy)) func(d *registry.Doc[scafo.Deploy]) error {
	return func(d *registry.Doc[scafo.Deploy]) error {
		if !d.Exists || d.Value.ID != id.String() {
			return scafo.Errorf(scafo.CodeNotFound, "no such deploy")
		}
		if d.Value.State.Terminal() {
			return registry.ErrTerminal
		}
		f(&d.Value)
		return nil
	}
}

// move is Service.move for a deploy that is carried out here: its record is kept
// as it was last seen. Its carrier and its reporter take turns.
func (j *job) move(ctx context.Context, r *registry.Registry, f func(*scafo.Deploy)) (scafo.Deploy, error) {
	select {
	case j.turn <- struct{}{}:
	case <-ctx.Done():
		return scafo.Deploy{}, scafo.Wrap(ctx.Err(), scafo.CodeStoreUnavailable, "the deploy's record is being written")
	}
	defer func() { <-j.turn }()
	doc, err := change(ctx, r, registry.DeployKey(j.id), j.record, moving(j.id, f))
	j.record = nil
	if err == nil {
		j.record = &doc
		j.wake()
	}
	return doc.Value, err
}

// wake tells who waits that the record has changed, or that this node carries the
// deploy no more.
func (j *job) wake() {
	j.movedMu.Lock()
	defer j.movedMu.Unlock()
	close(j.moved)
	j.moved = make(chan struct{})
}

func (j *job) moves() <-chan struct{} {
	j.movedMu.Lock()
	defer j.movedMu.Unlock()
	return j.moved
}

// create writes the deploy's first record.
func (j *job) create(ctx context.Context, r *registry.Registry) error {
	key := registry.DeployKey(j.id)
	doc, err := change(ctx, r, key, &registry.Doc[scafo.Deploy]{Key: key}, func(d *registry.Doc[scafo.Deploy]) error {
		switch {
		case d.ETag == "":
			d.Value = j.deploy
			return nil
		case d.Exists && d.Value.ID == j.deploy.ID && d.Value.UID == j.deploy.UID && d.Value.Seq == j.deploy.Seq:
			return registry.ErrKeep // it was written before an answer was lost
		}
		return scafo.Errorf(scafo.CodeCASConflict, "there is a deploy %s already", j.id)
	})
	if err == nil {
		j.record = &doc
	}
	return err
}
