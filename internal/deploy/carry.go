package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/artifact"
	"github.com/scafo/scafo/internal/mistake"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

// The steps that a deploy's status names.
const (
	stepQueued     = "queued"
	stepPublishing = "publishing"
	stepSettling   = "waiting for the nodes"
)

// errJudged ends the work on a deploy whose record somebody else has ended.
var errJudged = errors.New("the deploy was judged to be abandoned")

// carry carries one deploy out to its end, unless ctx ends before: then
// everything stays as it is, for the node's next life.
func (s *Service) carry(ctx context.Context, j *job) {
	defer j.telling.Wait() // after it was forgotten: nobody waits for what it tells
	defer s.forget(j)
	j.life = ctx
	s.tell(j)
	if j.resumed && !s.load(ctx, j) {
		return
	}
	work, cancel := context.WithCancelCause(ctx)
	s.endable(j, cancel)
	stop := s.keepRecord(work, j, cancel)
	err := s.perform(work, j)
	if deleted := (*scafo.Error)(nil); err != nil && errors.As(context.Cause(work), &deleted) {
		err = deleted
	}
	stop()
	cancel(nil)
	if ctx.Err() != nil {
		return
	}
	if err != nil && j.published && !mistake.Made(mistake.RevertForgotten) {
		s.revert(ctx, j)
	}
	if err := s.finish(ctx, j, err); err != nil {
		s.log.Error("how a deploy ended could not be recorded", "deploy", j.id.String(), "cause", err)
		return
	}
	s.clear(j)
}

func (s *Service) clear(j *job) {
	if err := j.stage.remove(); err != nil {
		s.log.Error("a staged artifact could not be removed", "dir", j.stage.dir, "cause", err)
	}
}

// load reads the record of a deploy that was left behind, and says whether it is
// still to be carried out.
func (s *Service) load(ctx context.Context, j *job) bool {
	var doc registry.Doc[scafo.Deploy]
	err := s.insist(ctx, "reading a deploy that was left behind", func() (err error) {
		doc, err = s.c.Registry.Deploy(ctx, j.id)
		return err
	})
	if ctx.Err() != nil {
		return false
	}
	d := doc.Value
	if err != nil || d.Node != s.c.Node || d.State.Terminal() {
		if err == nil {
			if err := s.Abandoned(ctx, d); err != nil {
				s.log.Warn("what a deploy held could not be freed", "deploy", j.id.String(), "cause", err)
			}
		}
		s.clear(j)
		return false
	}
	j.deploy, j.version = d, d.Deployment
	_, j.published = keptPointer(d.Previous)
	// Others may have told whoever asked that it failed.
	if age, known := doc.Age(); known && plan.MayBeAbandoned(d, age) && j.fault == nil {
		j.fault = scafo.Errorf(scafo.CodeDeployTimeout, "%s", restarted(d).Detail)
	}
	s.event("deploy.resumed", j)
	return true
}

// perform is the way of a deploy from the queue to its end.
func (s *Service) perform(ctx context.Context, j *job) error {
	if j.fault != nil {
		return j.fault
	}
	config, err := artifact.FindConfig(j.stage.path(treeDir))
	if err != nil {
		return err
	}
	app, err := s.turn(ctx, j)
	if err != nil {
		return err
	}
	defer j.freeWorker()
	task, cancel := context.WithTimeout(ctx, s.c.Limits.Task)
	defer cancel()
	err = s.task(task, j, app, filepath.Join(j.stage.path(treeDir), config))
	if err != nil && task.Err() != nil && ctx.Err() == nil {
		return scafo.Wrap(err, scafo.CodeDeployTimeout, "%s", j.unfinished(s.c.Limits.Task))
	}
	return err
}

// turn waits until the application and one of the node's runners are this
// deploy's.
func (s *Service) turn(ctx context.Context, j *job) (scafo.Application, error) {
	queue, cancel := context.WithTimeout(ctx, s.c.Limits.Wait)
	defer cancel()
	app, err := s.takeSlot(queue, j)
	if err == nil {
		select {
		case s.workers <- struct{}{}:
			j.freeWorker = s.workerOf()
		default:
			j.note(stepQueued, nil)
			select {
			case s.workers <- struct{}{}:
				j.freeWorker = s.workerOf()
				// It may have been blocked, or judged, in that time: a fresh look.
				j.app = nil
				if app, err = s.takeSlot(queue, j); err != nil {
					j.freeWorker()
				}
			case <-queue.Done():
				err = queue.Err()
			}
		}
	}
	if err != nil && queue.Err() != nil && ctx.Err() == nil {
		step, _ := j.noted()
		return app, scafo.Wrap(err, scafo.CodeDeployTimeout, "the deploy did not have its turn within %d seconds; it was %s", int(s.c.Limits.Wait/time.Second), step)
	}
	return app, err
}

// workerOf gives the runner back once.
func (s *Service) workerOf() func() {
	free := true
	return func() {
		if free {
			free = false
			<-s.workers
		}
	}
}

// task publishes the deploy, records what it published, and waits for the fleet.
func (s *Service) task(ctx context.Context, j *job, app scafo.Application, config string) error {
	err := s.publish(ctx, j, app, config)
	j.freeWorker()
	s.leave(j)
	if err != nil {
		return err
	}
	if app, err = s.record(ctx, j); err != nil {
		return err
	}
	j.noteDeployment(j.version)
	j.note(stepSettling, nil)
	s.tell(j) // the fleet tells the nodes itself; this makes it durable news
	return s.c.Fleet.Settle(ctx, app, j.deploy.Seq, j.version, func(step string, nodes []scafo.DeployNode) {
		if step == "" {
			step = stepOf(nodes, j.version)
		}
		j.note(step, nodes)
	})
}

// tell announces, in the background, that the deploy and its application changed.
// No step waits for it: announcements are merged to one a second when there are
// many. What cannot be told is told with the node's next announcement.
func (s *Service) tell(j *job) {
	j.telling.Go(func() {
		err := s.c.Registry.Announce(j.life, registry.ApplicationKey(j.id.Application), registry.DeployKey(j.id))
		if err != nil && j.life.Err() == nil {
			s.log.Warn("a deploy could not be announced yet", "deploy", j.id.String(), "cause", err)
		}
	})
}

// publish remembers what the application was and runs the deploy command.
func (s *Service) publish(ctx context.Context, j *job, app scafo.Application, config string) error {
	kept, deployment, seq := j.deploy.Previous, j.deploy.PreviousDeployment, j.deploy.PreviousSeq
	if !j.published {
		previous, err := s.pointer(ctx, app.Name, app.UID)
		if err != nil {
			return err
		}
		if kept, err = keepPointer(previous); err != nil {
			return err
		}
		deployment, seq = app.Deployment, app.DeploymentSeq
	}
	d, err := j.move(ctx, s.c.Registry, func(d *scafo.Deploy) {
		d.State, d.Step, d.MovedAt = scafo.DeployUploading, stepPublishing, s.c.Registry.Now()
		d.Previous, d.PreviousDeployment, d.PreviousSeq = kept, deployment, seq
	})
	if err != nil {
		return err
	}
	j.deploy = d
	j.note(stepPublishing, nil)
	scratch := j.stage.path(scratchDir)
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return artifact.DiskError(err)
	}
	j.published = true
	result, err := s.c.Publisher.Publish(ctx, app, j.stage.path(treeDir), config, scratch)
	if err != nil {
		return err
	}
	if !registry.ValidVersion(result.Version) {
		return scafo.Errorf(scafo.CodePublishFailed, "the runtime named %q as the version, which is none", result.Version)
	}
	j.version = result.Version
	s.event("deploy.published", j, "version", j.version)
	return nil
}

// record makes the published version the application's, its own record first. It
// announces nothing.
func (s *Service) record(ctx context.Context, j *job) (scafo.Application, error) {
	d := j.deploy
	runtime, _ := s.c.Publisher.Version(ctx)
	key := registry.DeploymentKey(d.Application, d.UID, j.version)
	_, err := change(ctx, s.c.Registry, key, &registry.Doc[scafo.Deployment]{Key: key}, func(doc *registry.Doc[scafo.Deployment]) error {
		if doc.Exists {
			return registry.ErrKeep // the first provenance of a version stays
		}
		doc.Value = scafo.Deployment{
			Application: d.Application, UID: d.UID, Version: j.version, Deploy: d.ID, Source: d.Source, OIDC: d.OIDC,
			ArtifactHash: d.ArtifactHash, ArtifactSize: d.ArtifactSize, CelldVersion: runtime, At: s.c.Registry.Now(), By: d.Caller,
		}
		return nil
	})
	if err != nil {
		return scafo.Application{}, err
	}
	return j.update(ctx, s.c.Registry, func(doc *registry.Doc[scafo.Application]) error {
		switch a := &doc.Value; {
		case !doc.Exists, a.UID != d.UID, a.Deleting != nil:
			return errReplaced(d.Application)
		case a.Publishing == nil || a.Publishing.Deploy != d.ID:
			return errJudged
		case a.Deployment == j.version && a.DeploymentSeq == d.Seq:
			return registry.ErrKeep
		default:
			a.Deployment, a.DeploymentSeq = j.version, d.Seq
			return nil
		}
	})
}

// revert makes the application again what it was before the deploy published.
// Where the bucket does not let it, the deploy keeps the application's slot: the
// next deploy finds it there, and does what is left to do. The record goes back
// before the pointer does: should this node die in between, whoever frees the slot
// puts a pointer back that the record does not agree with, and never the other way
// round.
func (s *Service) revert(ctx context.Context, j *job) {
	ctx, cancel := context.WithTimeout(ctx, revertTime)
	defer cancel()
	err := s.insist(ctx, "undoing a deploy that failed", func() error {
		if err := s.unrecord(ctx, j.deploy, j.version); err != nil {
			return err
		}
		return s.putBack(ctx, j.deploy, j.version)
	})
	if err != nil {
		j.keepsSlot = true
		s.log.Error("what was before a deploy that failed could not be put back", "deploy", j.id.String(), "cause", err)
	}
}

// unrecord gives the application its earlier deployment back, unless another deploy
// holds it by now: that one counts on what it found. version is what the deploy
// published, empty where nobody knows.
func (s *Service) unrecord(ctx context.Context, d scafo.Deploy, version string) error {
	_, err := s.c.Registry.UpdateApplication(ctx, d.Application, func(a *scafo.Application) error {
		another := a.Publishing != nil && a.Publishing.Deploy != d.ID
		// An earlier life of this node may have recorded a version that this one never
		// heard of: the seq says whose it is.
		recorded := a.DeploymentSeq == d.Seq && (version == "" || a.Deployment == version)
		switch {
		case a.UID != d.UID || another || !recorded && a.Publishing == nil:
			return registry.ErrKeep
		case !recorded:
			return nil // written anew, so that a late write of an earlier life is refused
		}
		a.Deployment, a.DeploymentSeq = d.PreviousDeployment, d.PreviousSeq
		return nil
	})
	if code := scafo.CodeOf(err); code == scafo.CodeNotFound || code == scafo.CodeApplicationDeleting {
		return nil
	}
	return err
}

// finish records how the deploy ended, and gives the application free.
func (s *Service) finish(ctx context.Context, j *job, cause error) error {
	status := s.outcome(j, cause)
	err := s.insist(ctx, "recording how a deploy ended", func() error {
		d, err := j.move(ctx, s.c.Registry, func(d *scafo.Deploy) { s.terminal(d, status) })
		switch {
		case err == nil:
			j.deploy = d
		case errors.Is(err, registry.ErrTerminal):
			status = d.DeployStatus
		case scafo.CodeOf(err) != scafo.CodeNotFound:
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	if status.State == scafo.DeployDeployed {
		s.event("deploy.deployed", j, "version", j.version)
	} else {
		s.event("deploy.failed", j, "code", string(status.Code), "detail", status.Detail, "cause", cause)
	}
	if s.c.Ended != nil {
		s.c.Ended(status, s.c.Registry.Now().Sub(j.deploy.AcceptedAt))
	}
	if !j.keepsSlot {
		if _, err := j.update(ctx, s.c.Registry, releasing(j.deploy)); err != nil {
			s.log.Warn("a deploy that has ended still holds its application; the next one frees it", "deploy", j.id.String(), "cause", err)
		}
	}
	s.tell(j)
	return nil
}

// outcome is the status of a deploy that ended so.
func (s *Service) outcome(j *job, cause error) scafo.DeployStatus {
	_, nodes := j.noted()
	status := scafo.DeployStatus{State: scafo.DeployDeployed, Deployment: j.version, Nodes: nodes}
	if cause == nil {
		return status
	}
	status.State, status.Code, status.Detail = scafo.DeployFailed, scafo.CodeOf(cause), detailOf(cause)
	if status.Code == scafo.CodeInternal {
		status.Detail = strings.TrimPrefix(status.Detail+"; the log of node "+s.c.Node+" has the rest under "+j.id.String(), "; ")
	}
	return status
}

// detailOf is what a caller may be told of an error.
func detailOf(err error) string {
	var e *scafo.Error
	if !errors.As(err, &e) {
		return ""
	}
	if e.Detail == "" {
		return e.Title
	}
	return e.Detail
}

// terminal makes a record say that its deploy has ended.
func (s *Service) terminal(d *scafo.Deploy, status scafo.DeployStatus) {
	now := s.c.Registry.Now()
	d.State, d.Code, d.Detail, d.Step = status.State, status.Code, status.Detail, ""
	if status.Deployment != "" && status.State == scafo.DeployDeployed {
		d.Deployment = status.Deployment
	}
	if status.Nodes != nil {
		d.Nodes = status.Nodes
	}
	d.FinishedAt, d.MovedAt = &now, now
}

// insist does something again and again while the bucket is away.
func (s *Service) insist(ctx context.Context, what string, do func() error) error {
	pause := firstPause
	for {
		err := do()
		if scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
			return err
		}
		s.log.Warn("the bucket is away: "+what+" is tried again", "cause", err)
		if err := wait(ctx, nil, pause); err != nil {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// keepRecord writes in the background what the deploy notes of itself, and
// something now and then, so that its record does not stand still. When it finds
// that somebody ended the record, it ends the work.
func (s *Service) keepRecord(ctx context.Context, j *job, end context.CancelCauseFunc) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		alive := time.NewTicker(keepAlive)
		defer alive.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-j.noteSignal:
				select {
				case <-alive.C: // one write says both
				default:
					if wait(ctx, nil, reportPause) != nil {
						return
					}
				}
			case <-alive.C:
				select {
				case <-j.noteSignal:
				default:
				}
			}
			_, err := j.move(ctx, s.c.Registry, j.report)
			if errors.Is(err, registry.ErrTerminal) || scafo.CodeOf(err) == scafo.CodeNotFound {
				end(errJudged) // or it went with its application
				return
			}
			if err != nil && ctx.Err() == nil {
				s.log.Warn("a deploy's record could not be written", "deploy", j.id.String(), "cause", err)
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// report makes a record say what the deploy noted.
func (j *job) report(d *scafo.Deploy) {
	j.noteMu.Lock()
	defer j.noteMu.Unlock()
	if j.step != "" {
		d.Step = j.step
	}
	if j.nodes != nil {
		d.Nodes = j.nodes
	}
	if j.recorded != "" {
		d.Deployment = j.recorded
	}
}

func (j *job) noteDeployment(version string) {
	j.noteMu.Lock()
	defer j.noteMu.Unlock()
	j.recorded = version
}

// stepOf names the nodes that a deploy waits for.
func stepOf(nodes []scafo.DeployNode, version string) string {
	var lag []string
	for _, n := range nodes {
		if n.Version != version || n.Detail != "" {
			lag = append(lag, n.Node)
		}
	}
	if len(lag) == 0 {
		return stepSettling
	}
	return "waiting for " + strings.Join(lag, ", ")
}

// unfinished says where a deploy was when its time ended.
func (j *job) unfinished(within time.Duration) string {
	step, nodes := j.noted()
	detail := fmt.Sprintf("the deploy was not done within %d seconds; it was %s", int(within/time.Second), step)
	for _, n := range nodes {
		if n.Detail != "" {
			detail += "; " + n.Node + ": " + n.Detail
		}
	}
	return detail
}
