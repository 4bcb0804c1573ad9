package registry

import (
	"context"
	"slices"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/mistake"
)

// CreateDeploy records a deploy that was accepted.
func (r *Registry) CreateDeploy(ctx context.Context, d scafo.Deploy) error {
	id, ok := scafo.ParseDeployID(d.ID)
	if !ok || id.Application != d.Application {
		return scafo.Errorf(scafo.CodeInternal, "%q is no deploy of %s", d.ID, d.Application)
	}
	_, err := updateFrom(ctx, r, fresh[scafo.Deploy](DeployKey(id)), DeployKey(id), func(doc *Doc[scafo.Deploy]) error {
		if doc.ETag != "" {
			return scafo.Errorf(scafo.CodeCASConflict, "there is a deploy %s already", d.ID)
		}
		doc.Value = d
		return nil
	})
	if err != nil {
		return err
	}
	return r.Announce(ctx, DeployKey(id))
}

// UpdateDeploy moves a deploy. One that has ended does not move any more: the
// change is not asked, and the error is ErrTerminal with the record beside it.
func (r *Registry) UpdateDeploy(ctx context.Context, id scafo.DeployID, change func(*scafo.Deploy) error) (scafo.Deploy, error) {
	wrote := false
	d, err := Update(ctx, r, DeployKey(id), func(d *Doc[scafo.Deploy]) error {
		wrote = false
		if !d.Exists || d.Value.Application != id.Application || d.Value.ID != id.String() {
			return errNoDeploy()
		}
		if d.Value.State.Terminal() {
			return scafo.Wrap(ErrTerminal, scafo.CodeCASConflict, "the deploy has ended: %s", d.Value.State)
		}
		if err := change(&d.Value); err != nil {
			return err
		}
		wrote = true
		return nil
	})
	if err != nil || !wrote {
		return d.Value, err
	}
	return d.Value, r.Announce(ctx, DeployKey(id))
}

func errNoDeploy() error { return scafo.Errorf(scafo.CodeNotFound, "no such deploy") }

// Deploy is a deploy's record with its age by the store's clock, or not-found; a
// record whose id is not that of its key is none.
func (r *Registry) Deploy(ctx context.Context, id scafo.DeployID) (Doc[scafo.Deploy], error) {
	d, err := Load[scafo.Deploy](ctx, r, DeployKey(id))
	if err == nil && (!d.Exists || d.Value.Application != id.Application || d.Value.ID != id.String()) {
		err = errNoDeploy()
	}
	return d, err
}

// Deploys are the deploys of an application's present and past lives, newest
// first.
func (r *Registry) Deploys(ctx context.Context, application string) ([]scafo.Deploy, error) {
	if _, err := scafo.ParseApplicationName(application); err != nil {
		return nil, err
	}
	docs, err := loadAll[scafo.Deploy](ctx, r, DeploysPrefix(application))
	if err != nil {
		return nil, err
	}
	out := make([]scafo.Deploy, 0, len(docs))
	for _, d := range docs {
		out = append(out, d.Value)
	}
	slices.SortFunc(out, func(a, b scafo.Deploy) int {
		if c := b.AcceptedAt.Compare(a.AcceptedAt); c != 0 {
			return c
		}
		return int(max(-1, min(1, b.Seq-a.Seq)))
	})
	return out, nil
}

// DeleteDeploy forgets a deploy that has ended. Its id is random and never comes
// again, so nothing is left behind.
func (r *Registry) DeleteDeploy(ctx context.Context, id scafo.DeployID) error {
	d, err := r.Deploy(ctx, id)
	if err != nil {
		return err
	}
	if !d.Value.State.Terminal() {
		return scafo.Errorf(scafo.CodeCASConflict, "the deploy has not ended")
	}
	if err := r.b.Delete(ctx, d.Key); err != nil {
		return unavailable(err, "deleting "+d.Key)
	}
	return nil
}

// RecordDeployment records a version that the runtime accepted. The first record
// of a version stays, with its provenance.
func (r *Registry) RecordDeployment(ctx context.Context, d scafo.Deployment) error {
	if !ValidVersion(d.Version) {
		return scafo.Errorf(scafo.CodePublishFailed, "the runtime named a version that is none")
	}
	key := DeploymentKey(d.Application, d.UID, d.Version)
	wrote := false
	_, err := updateFrom(ctx, r, fresh[scafo.Deployment](key), key, func(doc *Doc[scafo.Deployment]) error {
		wrote = false
		if doc.Exists {
			return ErrKeep
		}
		doc.Value, wrote = d, true
		return nil
	})
	if err != nil || !wrote {
		return err
	}
	return r.Announce(ctx, key)
}

// Deployment is the record of a version, or not-found.
func (r *Registry) Deployment(ctx context.Context, application, uid, version string) (scafo.Deployment, error) {
	if !ValidVersion(version) {
		return scafo.Deployment{}, scafo.Errorf(scafo.CodeNotFound, "no such deployment")
	}
	d, err := Load[scafo.Deployment](ctx, r, DeploymentKey(application, uid, version))
	if err == nil && !d.Exists {
		err = scafo.Errorf(scafo.CodeNotFound, "no such deployment")
	}
	return d.Value, err
}

// PutPlacement writes a coordinator's decision. It refuses to write over a
// decision of a higher fence: ErrFenced then. A decision that stands already is
// not written again.
func (r *Registry) PutPlacement(ctx context.Context, p scafo.Placement) (scafo.Placement, error) {
	written, wrote, err := r.DecidePlacement(ctx, p, nil)
	if err != nil || !wrote {
		return written, err
	}
	return written, r.Announce(ctx, PlacementKey(p.Application, p.UID))
}

// DecidePlacement is PutPlacement for who announces it with what else changes. held,
// which may be nil, says at each try whether the writer still coordinates; where it
// does not, that is ErrFenced too.
func (r *Registry) DecidePlacement(ctx context.Context, p scafo.Placement, held func() bool) (written scafo.Placement, wrote bool, err error) {
	d, err := Update(ctx, r, PlacementKey(p.Application, p.UID), func(d *Doc[scafo.Placement]) error {
		wrote = false
		was := d.Value
		if held != nil && !held() && !mistake.Made(mistake.FenceNotChecked) {
			return scafo.Wrap(ErrFenced, scafo.CodeCASConflict, "the placement of %s is another coordinator's to decide", p.Application)
		}
		if d.Exists && was.Fence > p.Fence && !mistake.Made(mistake.FenceNotChecked) {
			return scafo.Wrap(ErrFenced, scafo.CodeCASConflict, "the placement of %s was decided under fence %d, this is %d", p.Application, was.Fence, p.Fence)
		}
		if d.Exists && was.Fence == p.Fence && was.DeploySeq == p.DeploySeq && was.Reason == p.Reason && slices.Equal(was.Nodes, p.Nodes) {
			return ErrKeep
		}
		d.Value = p
		if d.Value.Nodes == nil {
			d.Value.Nodes = []string{}
		}
		if d.Value.DecidedAt.IsZero() {
			d.Value.DecidedAt = r.Now()
		}
		wrote = true
		return nil
	})
	return d.Value, wrote && err == nil, err
}
