package reconcile

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

const (
	// settleAwait is how long one question to a peer may wait for the version. It is
	// shorter than the time after which a node counts as silent.
	settleAwait = 4 * time.Second
	// settleTimeout bounds one question with its way there and back.
	settleTimeout = settleAwait + 2*time.Second
	// settleAgain is the pause after a question that failed, or that was answered
	// before the node had come to an end with the version.
	settleAgain = 250 * time.Millisecond
	// settleTick is how often silence is measured.
	settleTick = time.Second
)

// settling is one deploy that waits for its nodes.
type settling struct {
	l       *Loop
	app     scafo.Application
	seq     int64
	version string
	began   time.Time
	news    chan struct{}

	mu     sync.Mutex
	truths map[string]*heardTruth // guarded by mu; by node
}

// heardTruth is what a peer last said, and when.
type heardTruth struct {
	since   time.Time // since when it is asked
	heard   time.Time // zero until it answered
	process *scafo.ProcessStatus
}

// Settle waits until version is what the application's nodes serve. It returns
// nil then, and a *scafo.Error of publish-failed, with the node and the runtime's
// sentence, when one refuses it. report is told whenever a node's part changed, or
// when the deploy waits for more than nodes: step then says for what.
func (l *Loop) Settle(ctx context.Context, app scafo.Application, seq int64, version string, report func(step string, nodes []scafo.DeployNode)) error {
	ctx, cancel := context.WithCancel(ctx)
	s := &settling{
		l: l, app: app, seq: seq, version: version, began: time.Now(),
		news: make(chan struct{}, 1), truths: map[string]*heardTruth{},
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	l.c.Store.Hint(s.keys()...)
	l.tell(s.keys()...)
	if _, ok := l.fresh(ctx); !ok {
		return s.ended(ctx, plan.Verdict{Step: "the first pass"})
	}
	tick := time.NewTicker(settleTick)
	defer tick.Stop()
	var told []scafo.DeployNode
	said := ""
	for {
		l.mu.Lock()
		passed := l.passed
		v := l.view
		l.mu.Unlock()
		s.ask(ctx, &asking, v)
		verdict := s.verdict(v)
		step := l.uncoordinated(verdict)
		if report != nil && (step != said || !reflect.DeepEqual(told, verdict.Nodes)) {
			said, told = step, verdict.Nodes
			report(step, verdict.Nodes)
		}
		switch verdict.Outcome {
		case plan.Deployed:
			return nil
		case plan.Failed:
			return failed(verdict)
		}
		select {
		case <-ctx.Done():
			return s.ended(ctx, verdict)
		case <-passed:
		case <-s.news:
		case <-tick.C:
		}
		if !l.tasks.running() {
			return s.ended(ctx, verdict)
		}
	}
}

// stepUncoordinated is what a deploy waits for that nobody can place.
const stepUncoordinated = "waiting for a coordinator: the lease of the last one has to run out"

// uncoordinated is the step of a deploy that waits for a placement while nobody is
// there to decide it; empty otherwise. A lease in this node's own name that this
// process does not hold is that of a daemon that was killed.
func (l *Loop) uncoordinated(v plan.Verdict) string {
	if v.Outcome != plan.Waiting || v.Step != plan.StepPlacement {
		return ""
	}
	if _, held := l.c.Lease.Held(); held {
		return ""
	}
	if holder, held := l.c.Lease.Last(); held && holder.Node != l.c.Node {
		return ""
	}
	return stepUncoordinated
}

func (s *settling) keys() []string {
	return []string{registry.ApplicationKey(s.app.Name), registry.PlacementKey(s.app.Name, s.app.UID)}
}

func failed(v plan.Verdict) error {
	if v.Node == "" {
		return scafo.Errorf(scafo.CodePublishFailed, "%s", v.Detail)
	}
	return scafo.Errorf(scafo.CodePublishFailed, "node %s: %s", v.Node, v.Detail)
}

// ended is the error of a wait that was ended from outside.
func (s *settling) ended(ctx context.Context, v plan.Verdict) error {
	cause := ctx.Err()
	if cause == nil {
		cause = errors.New("the reconcile loop has ended")
	}
	step := v.Step
	if step == "" {
		step = "the nodes"
	}
	return scafo.Wrap(cause, scafo.CodeDeployTimeout, "the deploy still waits for %s", step)
}

// ask sees to it that every placed peer is being asked.
func (s *settling) ask(ctx context.Context, asking *sync.WaitGroup, v *view) {
	pl, ok := v.placements[s.app.Name]
	if !ok || pl.UID != s.app.UID || s.l.c.Peers == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range pl.Nodes {
		if id == s.l.c.Node || s.truths[id] != nil {
			continue
		}
		n, known := v.snap.Nodes[id]
		if !known {
			continue
		}
		s.truths[id] = &heardTruth{since: time.Now()}
		asking.Go(func() { s.follow(ctx, n) })
	}
}

// follow asks one peer again and again until it has come to an end with the
// version, or nobody waits any more.
func (s *settling) follow(ctx context.Context, n scafo.Node) {
	for ctx.Err() == nil {
		actx, cancel := context.WithTimeout(ctx, settleTimeout)
		a, err := s.l.c.Peers.Hint(actx, n, scafo.PeerHint{Keys: s.keys(), Await: &scafo.PeerAwait{
			Application: s.app.Name, Version: s.version, DeploySeq: s.seq, TimeoutMS: settleAwait.Milliseconds(),
		}})
		cancel()
		final := false
		if err == nil && a.Node == n.ID {
			s.l.heard(n.ID)
			final = s.note(n.ID, a)
		}
		if final {
			// It may still change its mind: a process can crash after it was ready.
			if !sleep(ctx, settleTick) {
				return
			}
			continue
		}
		if !sleep(ctx, settleAgain) {
			return
		}
	}
}

// note keeps a peer's answer; it reports whether that is its last word.
func (s *settling) note(id string, a scafo.PeerAnswer) bool {
	var process *scafo.ProcessStatus
	for i := range a.Processes {
		if a.Processes[i].UID == s.app.UID {
			process = &a.Processes[i]
		}
	}
	s.mu.Lock()
	t := s.truths[id]
	t.heard, t.process = time.Now(), process
	s.mu.Unlock()
	signal(s.news)
	return process != nil && plan.Answered(*process, s.version)
}

// verdict judges by what is known now.
func (s *settling) verdict(v *view) plan.Verdict {
	now := time.Now()
	app, ok := v.snap.Applications[s.app.Name]
	if !ok {
		app = scafo.Application{Name: s.app.Name}
	}
	in := plan.Settling{Application: app, UID: s.app.UID, Seq: s.seq, Version: s.version, Truths: map[string]plan.Truth{}}
	pl, ok := v.placements[s.app.Name]
	if !ok {
		return in.Verdict()
	}
	in.Placement = &pl
	for _, id := range pl.Nodes {
		m, known := v.machine(id)
		if id == s.l.c.Node {
			in.Truths[id] = plan.Truth{Live: known, Heard: true, Process: s.own()}
			continue
		}
		t := plan.Truth{Live: known && m.Live, Silent: now.Sub(s.began)}
		s.mu.Lock()
		if h := s.truths[id]; h != nil {
			t.Silent = now.Sub(h.since)
			if !h.heard.IsZero() {
				t.Heard, t.Silent, t.Process = true, now.Sub(h.heard), h.process
			}
		}
		s.mu.Unlock()
		in.Truths[id] = t
	}
	return in.Verdict()
}

// own is this node's process of the application, as it is at this moment.
func (s *settling) own() *scafo.ProcessStatus {
	for _, p := range s.l.statuses() {
		if p.UID == s.app.UID {
			return &p
		}
	}
	return nil
}

// CelldVersions maps the answering nodes that serve the application, or
// crash-loop on it, to the version of their runtime.
func (l *Loop) CelldVersions(_ context.Context, app string) map[string]string {
	l.mu.Lock()
	v := l.view
	l.mu.Unlock()
	out := map[string]string{}
	if v == nil {
		return out
	}
	uid := v.snap.Applications[app].UID
	for _, m := range v.machines {
		processes, version := m.Processes, v.snap.Heartbeats[m.ID].CelldVersion
		if m.ID == l.c.Node {
			processes, version = l.statuses(), l.c.CelldVersion
		}
		for _, p := range processes {
			if !m.Live || uid == "" || p.UID != uid || p.State == scafo.ProcessStopped {
				continue
			}
			if p.CelldVersion != "" {
				version = p.CelldVersion
			}
			out[m.ID] = version
		}
	}
	return out
}

// NodeAnswers reports whether the node answers now: it is asked, and one that
// cannot be reached from here answers while its heartbeat says so.
func (l *Loop) NodeAnswers(ctx context.Context, node string) bool {
	if node == l.c.Node {
		return true
	}
	l.mu.Lock()
	v := l.view
	l.mu.Unlock()
	if v == nil {
		return true // nothing is known of anybody
	}
	n, ok := v.snap.Nodes[node]
	if !ok || n.Removed != nil {
		return false
	}
	if l.c.Peers != nil {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		if id, err := l.c.Peers.Health(ctx, n); err == nil && id == node {
			return true
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.live.Live(node)
}
