package deploy

import (
	"context"
	"errors"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/mistake"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

// errHeld says that another deploy holds the application's slot.
var errHeld = errors.New("another deploy holds the slot")

// takeSlot makes this deploy the only one that may publish the application. It
// waits for one that has the slot, takes it from one that nobody carries out any
// more, and gives up when a later deploy was faster.
func (s *Service) takeSlot(ctx context.Context, j *job) (scafo.Application, error) {
	cleared := ""
	for {
		// Whoever is freed after this look wakes this one.
		freed := s.whenFreed(j.id.Application)
		var holder scafo.Publishing
		app, err := j.update(ctx, s.c.Registry, func(d *registry.Doc[scafo.Application]) error {
			if err := mayPublish(d, j.deploy); err != nil {
				return err
			}
			switch p := d.Value.Publishing; {
			case p == nil || mistake.Made(mistake.SlotIgnored):
				d.Value.Publishing = &scafo.Publishing{Deploy: j.id.String(), Seq: j.deploy.Seq}
				return nil
			case p.Deploy == j.id.String():
				return registry.ErrKeep
			default:
				holder = *p
				return errHeld
			}
		})
		if !errors.Is(err, errHeld) {
			return app, err
		}
		gone, err := s.clearHolder(ctx, holder, app)
		switch {
		case err != nil:
			return app, err
		case gone && cleared != holder.Deploy:
			cleared = holder.Deploy
			continue
		case gone: // and it is there again: whoever frees it for good, this node does not
			if err := wait(ctx, freed, slotPoll); err != nil {
				return app, err
			}
			continue
		case holder.Seq > j.deploy.Seq && !mistake.Made(mistake.OrderIgnored):
			return app, superseded(holder.Deploy)
		}
		j.note("waiting for deploy "+holder.Deploy, nil)
		if err := wait(ctx, freed, slotPoll); err != nil {
			return app, err
		}
	}
}

func wait(ctx context.Context, freed <-chan struct{}, most time.Duration) error {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-freed:
	case <-t.C:
	}
	return nil
}

func superseded(by string) error {
	return scafo.Errorf(scafo.CodeDeploySuperseded, "deploy %s, which was accepted later, was published first", by)
}

// mayPublish looks at the application once more.
func mayPublish(d *registry.Doc[scafo.Application], deploy scafo.Deploy) error {
	switch app := d.Value; {
	case !d.Exists, app.UID != deploy.UID, app.Deleting != nil:
		return errReplaced(deploy.Application)
	case app.Blocked != nil:
		return blocked(app)
	case app.DeploymentSeq > deploy.Seq && !mistake.Made(mistake.OrderIgnored):
		return scafo.Errorf(scafo.CodeDeploySuperseded, "a deploy that was accepted later was published first")
	}
	return nil
}

// clearHolder looks whether the deploy that has the slot is being carried out. If
// not, its record ends and what it held is freed.
func (s *Service) clearHolder(ctx context.Context, holder scafo.Publishing, app scafo.Application) (gone bool, err error) {
	id, ok := scafo.ParseDeployID(holder.Deploy)
	if !ok {
		return true, s.release(ctx, scafo.Deploy{DeployStatus: scafo.DeployStatus{ID: holder.Deploy, Application: app.Name}, UID: app.UID})
	}
	carried := s.carries(holder.Deploy)
	doc, err := s.c.Registry.Deploy(ctx, id)
	if scafo.CodeOf(err) == scafo.CodeNotFound {
		return true, s.release(ctx, scafo.Deploy{DeployStatus: scafo.DeployStatus{ID: holder.Deploy, Application: app.Name}, UID: app.UID})
	}
	if err != nil {
		return false, err
	}
	d := doc.Value
	if !d.State.Terminal() {
		status, dead := s.judge(ctx, doc, carried)
		if !dead {
			return false, nil
		}
		if d, err = s.move(ctx, id, func(d *scafo.Deploy) { s.terminal(d, status) }); err != nil && !errors.Is(err, registry.ErrTerminal) {
			return false, err
		}
	}
	return true, s.Abandoned(ctx, d)
}

// judge says whether nobody carries the deploy out any more, and what its status
// is then. carried is what carries said before the record was read: a deploy
// leaves this node's hands after its record has ended.
func (s *Service) judge(ctx context.Context, doc registry.Doc[scafo.Deploy], carried bool) (scafo.DeployStatus, bool) {
	d := doc.Value
	if d.State.Terminal() {
		return d.DeployStatus, false
	}
	if d.Node == s.c.Node {
		if carried || s.carries(d.ID) {
			return d.DeployStatus, false
		}
		return restarted(d), true
	}
	age, known := doc.Age()
	if !known || !plan.MayBeAbandoned(d, age) || s.c.Fleet.NodeAnswers(ctx, d.Node) {
		return d.DeployStatus, false
	}
	return plan.Abandoned(d), true
}

// restarted is the status of a deploy of this node that its present life does not
// have.
func restarted(d scafo.Deploy) scafo.DeployStatus {
	st := d.DeployStatus
	st.State, st.Code, st.Step = scafo.DeployFailed, scafo.CodeDeployTimeout, ""
	st.Detail = "node " + d.Node + ", which accepted the deploy, was restarted and does not have it any more"
	return st
}
