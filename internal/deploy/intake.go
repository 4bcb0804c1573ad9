package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/artifact"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/registry"
)

// Accept takes a deploy in: it answers once the artifact is staged, the deploy
// has its place in the order and its record, and a place in the queue.
//
// The order of the steps is part of the API: the freeze, the application, the
// versions of the runtimes, and only then the body.
func (s *Service) Accept(ctx context.Context, r Request) (scafo.DeployStatus, error) {
	status, err := s.accept(meter.With(ctx, Purpose), r)
	if err != nil && s.c.Refused != nil {
		s.c.Refused(scafo.CodeOf(err))
	}
	return status, err
}

func (s *Service) accept(ctx context.Context, r Request) (scafo.DeployStatus, error) {
	if err := s.mayDeploy(ctx); err != nil {
		return scafo.DeployStatus{}, err
	}
	if r.Body == nil {
		return scafo.DeployStatus{}, scafo.Malformed("the request has no body: it is to be the artifact")
	}
	doc, created, err := s.application(ctx, r)
	if err != nil {
		return scafo.DeployStatus{}, err
	}
	status, err := s.acceptFor(ctx, r, doc)
	if created && err != nil {
		// There is no deploy that tells of the new application, and maybe nobody who
		// waits for the answer.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), acceptTime)
		defer cancel()
		told := s.c.Registry.Announce(ctx, registry.ApplicationKey(r.Application))
		if told != nil {
			s.log.Warn("an application could not be announced yet", "application", r.Application, "cause", told)
		}
	}
	return status, err
}

// acceptFor takes a deploy of the application in.
func (s *Service) acceptFor(ctx context.Context, r Request, doc registry.Doc[scafo.Application]) (scafo.DeployStatus, error) {
	app := doc.Value
	if err := s.sameRuntime(ctx, app.Name); err != nil {
		return scafo.DeployStatus{}, err
	}
	seat, err := s.fair.enter(app.Name, r.Caller)
	if err != nil {
		return scafo.DeployStatus{}, err
	}
	select {
	case s.admitted <- struct{}{}:
	default:
		seat.leave()
		return scafo.DeployStatus{}, scafo.Errorf(scafo.CodeDeployOverloaded, "this node already has %d deploys to publish", cap(s.admitted))
	}
	j := newJob(scafo.DeployID{Application: app.Name, Hex: s.c.Registry.Nonce(8)})
	j.seat = seat
	if doc.ETag != "" {
		j.app = &doc
	}
	status, err := s.takeIn(ctx, r, app, j)
	var kept keptJob
	switch {
	case errors.As(err, &kept):
		return scafo.DeployStatus{}, kept.error
	case err != nil:
		s.drop(j)
		return scafo.DeployStatus{}, err
	}
	return status, nil
}

// mayDeploy refuses before anything is created.
func (s *Service) mayDeploy(ctx context.Context) error {
	freeze, err := s.c.Registry.Freeze(ctx)
	if err != nil {
		return err
	}
	if freeze != nil {
		detail := fmt.Sprintf("%s froze the deploys of this fleet at %s", freeze.By, freeze.FrozenAt.UTC().Format(time.RFC3339))
		if freeze.Reason != "" {
			detail += ": " + freeze.Reason
		}
		return scafo.Errorf(scafo.CodeDeploysFrozen, "%s", detail)
	}
	if s.c.Publisher == nil {
		return scafo.Errorf(scafo.CodeCapabilityMissing, "this node has no deploy runner (its celld.command is none)")
	}
	if s.stages == nil {
		return scafo.Errorf(scafo.CodeCapabilityMissing, "this node has no directory to stage artifacts in")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return scafo.Errorf(scafo.CodeDraining, "this node is stopping")
	}
	return nil
}

// application creates the application, or checks it and gives it what the
// metadata says of its placement. It returns the record as it is then.
func (s *Service) application(ctx context.Context, r Request) (doc registry.Doc[scafo.Application], created bool, err error) {
	doc, err = registry.Load[scafo.Application](ctx, s.c.Registry, registry.ApplicationKey(r.Application))
	if err != nil {
		return doc, false, err
	}
	if !doc.Exists {
		doc, created, err = s.c.Registry.AddApplication(ctx, r.Application, r.Caller, func(a *scafo.Application) { intend(a, r.Metadata) })
		if err != nil {
			return doc, false, err
		}
		if created {
			s.log.Info("application.created", "event", "application.created", "actor", r.Caller, "application", r.Application)
			return doc, true, nil
		}
		// Somebody else was faster.
	}
	if err := open(doc.Value); err != nil {
		return doc, false, err
	}
	if probe := doc.Value; !intend(&probe, r.Metadata) {
		return doc, false, nil
	}
	app, err := s.c.Registry.UpdateApplication(ctx, r.Application, func(a *scafo.Application) error {
		if err := open(*a); err != nil {
			return err
		}
		if !intend(a, r.Metadata) {
			return registry.ErrKeep
		}
		return nil
	})
	return registry.Doc[scafo.Application]{Exists: true, Value: app}, false, err
}

// intend gives an application what the metadata says of its placement.
func intend(a *scafo.Application, m scafo.DeployMetadata) (changed bool) {
	if m.Replicas != nil && *m.Replicas != a.Replicas {
		a.Replicas, changed = *m.Replicas, true
	}
	if m.NodeSelector != nil && !maps.Equal(m.NodeSelector, a.Selector) {
		a.Selector, changed = maps.Clone(m.NodeSelector), true
	}
	return changed
}

// open refuses an application that takes no deploys.
func open(a scafo.Application) error {
	if a.Deleting != nil {
		return scafo.Errorf(scafo.CodeApplicationDeleting, "application %s is being deleted", a.Name)
	}
	return blocked(a)
}

func blocked(a scafo.Application) error {
	if a.Blocked != nil {
		return scafo.Errorf(scafo.CodeApplicationBlocked, "an admin has blocked application %s", a.Name)
	}
	return nil
}

// sameRuntime refuses a deploy that nodes would serve with runtimes that must not
// serve one application together.
func (s *Service) sameRuntime(ctx context.Context, app string) error {
	mine, err := s.c.Publisher.Version(ctx)
	if err != nil {
		return scafo.Wrap(err, scafo.CodeCapabilityMissing, "this node's runtime does not say its version")
	}
	others := s.c.Fleet.CelldVersions(ctx, app)
	var stop []string
	for _, node := range slices.Sorted(maps.Keys(others)) {
		theirs := others[node]
		if node == s.c.Node || theirs == "" || theirs == mine || s.together(theirs, mine) {
			continue
		}
		stop = append(stop, fmt.Sprintf("%s (%s)", node, theirs))
	}
	if len(stop) == 0 {
		return nil
	}
	rolls := "this build knows no version that may serve beside it"
	if s.c.RollingPairs != nil {
		if pairs := s.c.RollingPairs(mine); len(pairs) > 0 {
			rolls = "it may serve together with " + strings.Join(pairs, ", ")
		}
	}
	return scafo.Errorf(scafo.CodeVersionSkew, "this node runs %s, and these nodes have to stop serving %s first: %s; %s",
		mine, app, strings.Join(stop, ", "), rolls)
}

func (s *Service) together(a, b string) bool {
	return s.c.MayServeTogether != nil && (s.c.MayServeTogether(a, b) || s.c.MayServeTogether(b, a))
}

// takeIn stages the body and makes the deploy.
func (s *Service) takeIn(ctx context.Context, r Request, app scafo.Application, j *job) (scafo.DeployStatus, error) {
	select {
	case <-s.begun:
	case <-ctx.Done():
		return scafo.DeployStatus{}, scafo.Wrap(ctx.Err(), scafo.CodeDraining, "this node has only just started")
	}
	received, err := s.receive(ctx, r.Body, j)
	if err != nil {
		return scafo.DeployStatus{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), acceptTime)
	defer cancel()
	seq, err := s.nextSeq(ctx, j, app.UID)
	if err != nil {
		return scafo.DeployStatus{}, err
	}
	now := s.c.Registry.Now()
	j.deploy = scafo.Deploy{
		DeployStatus: scafo.DeployStatus{
			ID: j.id.String(), Application: app.Name, State: scafo.DeployAccepted, Step: stepQueued,
			OIDC: r.OIDC, ArtifactHash: received.SHA256, ArtifactSize: received.Size,
		},
		UID: app.UID, Seq: seq, Node: s.c.Node, Caller: r.Caller, AcceptedAt: now, MovedAt: now, Source: r.Metadata.Source,
	}
	if err := j.stage.save(j.id, j.fault); err != nil {
		return scafo.DeployStatus{}, err
	}
	s.activate(j)
	if err := j.create(ctx, s.c.Registry); err != nil {
		// There may be a record all the same, and then it must come to an end.
		j.fault = err
		s.jobs <- j
		return scafo.DeployStatus{}, keptJob{err}
	}
	status := j.deploy.DeployStatus
	s.event("deploy.accepted", j, "seq", seq, "bytes", received.Size, "sha256", received.SHA256)
	s.jobs <- j // it has room for all that are admitted
	return status, nil
}

// keptJob is the error of an intake whose job goes on: to its end.
type keptJob struct{ error }

// drop removes what a deploy left that was not accepted.
func (s *Service) drop(j *job) {
	if j.stage != nil {
		if err := j.stage.remove(); err != nil {
			s.log.Error("a staged artifact could not be removed", "dir", j.stage.dir, "cause", err)
		}
	}
	s.forget(j)
}

// receive writes the body to a file, unpacks it, and removes the file. What is
// wrong with the archive's content is not an error here: it is the deploy's own
// failure, and its record will say so.
func (s *Service) receive(ctx context.Context, body io.Reader, j *job) (artifact.Received, error) {
	if sized, ok := body.(interface{ Size() int64 }); ok && sized.Size() > s.c.Limits.ArtifactBytes {
		return artifact.Received{}, scafo.Errorf(scafo.CodeResourceLimit, "the artifact is larger than %d bytes", s.c.Limits.ArtifactBytes)
	}
	ctx, until, done := s.bounded(ctx, body)
	defer done()
	pace := &paced{body: body, until: until, window: s.pace}
	received, err := s.stage(ctx, pace, j)
	// A server ends the request's context as well when a read of its connection ends
	// at its deadline, so the context does not say what came first.
	last, _ := ctx.Deadline()
	over := !time.Now().Before(last)
	switch ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled); {
	case err != nil && pace.slow && !over:
		return received, errSlow()
	case ended && over:
		return received, scafo.Wrap(err, scafo.CodeDeployTimeout, "the artifact did not arrive within %d seconds", int(s.c.Limits.Receive/time.Second))
	case ended:
		return received, scafo.Wrap(err, scafo.CodeInvalidInput, "the caller left before the artifact was whole")
	}
	return received, err
}

// bounded bounds the reads of a body by the time that a deploy may take to
// arrive, and by the end of ctx. until bounds them by an earlier time; the zero time
// lifts that again.
func (s *Service) bounded(ctx context.Context, body io.Reader) (_ context.Context, until func(time.Time), done func()) {
	ctx, cancel := context.WithTimeout(ctx, s.c.Limits.Receive)
	conn, ok := body.(interface{ SetReadDeadline(t time.Time) error })
	if !ok {
		return ctx, func(time.Time) {}, cancel
	}
	last, _ := ctx.Deadline()
	var mu sync.Mutex // a bound that is moved does not undo the end of ctx
	set := func(t time.Time) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil {
			t = time.Unix(1, 0)
		}
		_ = conn.SetReadDeadline(t)
	}
	until = func(t time.Time) {
		if t.IsZero() || t.After(last) {
			t = last
		}
		set(t)
	}
	until(last)
	stop := context.AfterFunc(ctx, func() { set(time.Time{}) })
	return ctx, until, func() {
		if stop() {
			_ = conn.SetReadDeadline(time.Time{})
		}
		cancel()
	}
}

func (s *Service) stage(ctx context.Context, body io.Reader, j *job) (artifact.Received, error) {
	st, err := s.stages.open(j.id, j.seat)
	if err != nil {
		return artifact.Received{}, err
	}
	j.stage = st
	limits := artifact.Limits{Bytes: s.c.Limits.ArtifactBytes, Entries: s.c.Limits.ArchiveEntries, Take: st.take}
	f, err := os.OpenFile(st.path(artifactFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return artifact.Received{}, artifact.DiskError(err)
	}
	defer f.Close()
	received, err := artifact.Receive(ctx, f, body, limits)
	if err != nil {
		return received, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return received, artifact.DiskError(err)
	}
	_, err = artifact.Unpack(ctx, f, st.path(treeDir), limits)
	if scafo.CodeOf(err) == scafo.CodeInvalidInput {
		j.fault, err = err, nil
	}
	if err != nil {
		return received, err
	}
	if err := os.Remove(st.path(artifactFile)); err != nil {
		return received, artifact.DiskError(err)
	}
	if j.fault != nil {
		st.give(st.taken) // nothing was left of a tree that was refused
		return received, nil
	}
	st.give(received.Size)
	return received, nil
}

// nextSeq takes the deploy's place in the order of the application's deploys.
func (s *Service) nextSeq(ctx context.Context, j *job, uid string) (int64, error) {
	app, err := j.update(ctx, s.c.Registry, func(d *registry.Doc[scafo.Application]) error {
		if !d.Exists || d.Value.UID != uid {
			return errReplaced(j.id.Application)
		}
		if err := open(d.Value); err != nil {
			return err
		}
		d.Value.DeploySeq++
		return nil
	})
	return app.DeploySeq, err
}

func errReplaced(app string) error {
	return scafo.Errorf(scafo.CodeApplicationDeleting, "application %s is being deleted, or was", app)
}
