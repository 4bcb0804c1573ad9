// Package deploy takes deploys in, publishes them one after another for each
// application, and sees each through until the fleet serves it or refuses it.
package deploy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/registry"
)

// Purpose names the bucket requests of deploys to the meter.
const Purpose = "deploy"

// Request is one deploy as the API hands it over, its caller verified.
type Request struct {
	Application string // a valid name
	Caller      string // operator id, node id, or the subject of a workload token
	OIDC        *scafo.Provenance
	Metadata    scafo.DeployMetadata
	// Body is the artifact. It is not read before intake has agreed to the deploy;
	// nil is a request without one. Where it has a Size, that is how long it will be
	// (-1: nobody knows), and where it has a SetReadDeadline, its reads are bounded
	// by that.
	Body io.Reader
}

// Fleet is what a deploy needs to know of the nodes.
type Fleet interface {
	// Settle waits until version is what the application's nodes serve. It returns
	// nil then, and a *scafo.Error of publish-failed, with the node and the
	// runtime's sentence, when one refuses it.
	Settle(ctx context.Context, app scafo.Application, seq int64, version string, report func(step string, nodes []scafo.DeployNode)) error
	// CelldVersions maps the answering nodes that serve the application, or
	// crash-loop on it, to the version of their runtime.
	CelldVersions(ctx context.Context, app string) map[string]string
	// NodeAnswers reports whether the node answers now.
	NodeAnswers(ctx context.Context, node string) bool
}

// Published is what the runtime's deploy command answered.
type Published struct {
	Version string
}

// Publisher runs the runtime's deploy command for a project.
type Publisher interface {
	// Publish deploys the project, a directory, by its configuration, a file in it,
	// to the application's own prefix of the bucket. Its refusal carries the
	// runtime's own sentence. scratch is a directory of its own that it may write.
	Publish(ctx context.Context, app scafo.Application, project, config, scratch string) (Published, error)
	// Version is what the runtime prints for --version.
	Version(ctx context.Context) (string, error)
}

// Limits bound what a node takes in at once.
type Limits struct {
	ArtifactBytes  int64         // of one artifact, compressed and unpacked
	ArchiveEntries int           // of one artifact
	Concurrency    int           // deploys that publish at the same time
	Queue          int           // deploys that wait for that
	StagedBytes    int64         // on the staging disk, all deploys together
	Receive        time.Duration // for the body
	Wait           time.Duration // in the queue
	Task           time.Duration // from the queue to the end
}

// Config is what a [Service] works with.
type Config struct {
	Node     string
	Registry *registry.Registry
	Bucket   bucket.Bucket
	Fleet    Fleet
	// Publisher is nil on a node without a runner.
	Publisher Publisher
	// Staging is a directory of the node's own, emptied at the start; empty on a
	// node that cannot stage artifacts.
	Staging string
	Limits  Limits
	// MayServeTogether says whether two runtime versions may serve one
	// application; RollingPairs names those that a version allows.
	MayServeTogether func(a, b string) bool
	RollingPairs     func(version string) []string
	// Ended and Refused, when set, are told of each deploy that this node saw to its
	// end, with the time since it was accepted, and of each that its intake refused.
	Ended   func(status scafo.DeployStatus, took time.Duration)
	Refused func(code scafo.Code)
	Log     *slog.Logger
}

// The service's own times.
const (
	// acceptTime bounds what follows the body: the deploy's place in the order and
	// its record. It does not end with the request, so that it is known whether
	// there is a deploy.
	acceptTime = 30 * time.Second
	// slotPoll is how often another node's deploy of the same application is looked
	// at by one that waits for it; deploys of this node wake each other.
	slotPoll = 500 * time.Millisecond
	// keepAlive is how often the record of a deploy that is carried out is written
	// at least, and reportPause what lies between two reports at least: less than the
	// second in which the silence of nodes is measured, so that the report of one change
	// does not meet the next.
	keepAlive   = 30 * time.Second
	reportPause = 900 * time.Millisecond
	// revertTime bounds putting back what was before a failed deploy.
	revertTime = 60 * time.Second
	// The pauses between the tries to record how a deploy ended.
	firstPause   = 100 * time.Millisecond
	longestPause = 10 * time.Second
)

// Service carries out the deploys that this node accepted.
type Service struct {
	c        Config
	log      *slog.Logger
	stages   *stages
	jobs     chan *job
	admitted chan struct{} // a token each deploy between its intake and the end of its publishing
	workers  chan struct{} // a token each deploy that publishes
	fair     *fair
	pace     time.Duration // paceWindow; tests do not wait that long

	begun chan struct{} // closed once unfinished deploys of an earlier life are in active

	mu     sync.Mutex
	active map[string]*job          // by deploy id; guarded by mu
	freed  map[string]chan struct{} // by application: closed when a deploy of this node ends; guarded by mu
	ended  bool                     // no deploy is taken any more; guarded by mu
}

// New makes a service. [Service.Run] must run for its deploys to move.
func New(c Config) (*Service, error) {
	switch {
	case c.Node == "" || c.Registry == nil || c.Bucket == nil || c.Fleet == nil:
		return nil, errors.New("deploy: a node, a registry, a bucket and a fleet are needed")
	case c.Limits.Concurrency < 1 || c.Limits.Queue < 0 || c.Limits.ArtifactBytes < 1 || c.Limits.ArchiveEntries < 1 || c.Limits.StagedBytes < 1:
		return nil, errors.New("deploy: a limit is missing")
	case c.Limits.Receive <= 0 || c.Limits.Wait <= 0 || c.Limits.Task <= 0:
		return nil, errors.New("deploy: a time limit is missing")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	most := c.Limits.Queue + c.Limits.Concurrency
	s := &Service{
		c: c, log: c.Log,
		jobs:     make(chan *job, most),
		admitted: make(chan struct{}, most),
		workers:  make(chan struct{}, c.Limits.Concurrency),
		pace:     paceWindow,
		fair:     &fair{places: most, bytes: c.Limits.StagedBytes, held: map[party]holding{}},
		begun:    make(chan struct{}),
		active:   map[string]*job{},
		freed:    map[string]chan struct{}{},
	}
	if c.Staging != "" {
		s.stages = &stages{dir: c.Staging, quota: quota{most: c.Limits.StagedBytes}}
	}
	return s, nil
}

// job is a deploy that this node carries out.
type job struct {
	id     scafo.DeployID
	deploy scafo.Deploy // as it was last written here; only its carrier touches it
	stage  *stage
	// fault is what was found wrong with the artifact while it was taken in.
	fault   error
	resumed bool
	admit   sync.Once // gives its place among the admitted back
	seat    *seat     // nil for a deploy that was resumed

	// uid is that of the application's life, and end gives the work on the deploy up
	// for that reason; both are guarded by the service's mu, and set once it begins.
	uid string
	end context.CancelCauseFunc

	life    context.Context // Run's
	telling sync.WaitGroup  // what it announces in the background

	app *registry.Doc[scafo.Application] // as it was last seen; nil: read it

	turn   chan struct{}               // holds a token while the record is written: that may take a while
	record *registry.Doc[scafo.Deploy] // as it was last seen; nil: read it; guarded by turn

	movedMu sync.Mutex
	moved   chan struct{} // closed by the next change of the record; guarded by movedMu

	published  bool   // the deploy command was started: the pointer may have moved
	version    string // what it published
	keepsSlot  bool   // what was before it could not be put back
	freeWorker func() // gives the runner back

	noteMu     sync.Mutex
	step       string             // guarded by noteMu
	nodes      []scafo.DeployNode // guarded by noteMu
	recorded   string             // the version, once it is recorded; guarded by noteMu
	noteSignal chan struct{}      // holds one token after a change
}

func newJob(id scafo.DeployID) *job {
	return &job{id: id, step: stepQueued, turn: make(chan struct{}, 1), noteSignal: make(chan struct{}, 1), moved: make(chan struct{})}
}

// Run carries deploys out until ctx ends. It first takes over the deploys that an
// earlier life of this node left unfinished, and clears what else is staged. What
// is unfinished when ctx ends stays staged for the next life.
func (s *Service) Run(ctx context.Context) error {
	ctx = meter.With(ctx, Purpose)
	var running sync.WaitGroup
	defer running.Wait()
	defer s.end()
	carry := func(j *job) { running.Go(func() { s.carry(ctx, j) }) }
	look := false
	if s.stages != nil {
		left, complete, err := s.stages.begin()
		if err != nil {
			return err
		}
		for _, j := range left {
			s.activate(j)
			carry(j)
		}
		look = !complete
	}
	close(s.begun)
	if look { // after that: it takes what is not known to be carried for lost
		running.Go(func() { s.scan(ctx) })
	}
	for {
		select {
		case j := <-s.jobs:
			carry(j)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Service) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

func (s *Service) activate(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active[j.id.String()] = j
}

// carries says whether this node is carrying the deploy out, as far as it knows:
// before it has looked at what its earlier life left, it knows nothing.
func (s *Service) carries(id string) bool {
	select {
	case <-s.begun:
	default:
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active[id] != nil
}

// Active is how many deploys this node carries out now.
func (s *Service) Active() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.active)
}

// forget ends a deploy's part in this process and wakes who waits for its
// application.
func (s *Service) forget(j *job) {
	s.leave(j)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.active, j.id.String())
	j.wake()
	if c, ok := s.freed[j.id.Application]; ok {
		close(c)
		delete(s.freed, j.id.Application)
	}
}

// leave gives a deploy's place among the admitted back.
func (s *Service) leave(j *job) {
	j.admit.Do(func() {
		if !j.resumed {
			<-s.admitted
			j.seat.leave()
		}
	})
}

// whenFreed is closed when the next deploy of the application ends here.
func (s *Service) whenFreed(application string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.freed[application]
	if !ok {
		c = make(chan struct{})
		s.freed[application] = c
	}
	return c
}

// note keeps what the deploy does for its record, which is written in the
// background.
func (j *job) note(step string, nodes []scafo.DeployNode) {
	j.noteMu.Lock()
	j.step, j.nodes = step, slices.Clone(nodes)
	j.noteMu.Unlock()
	select {
	case j.noteSignal <- struct{}{}:
	default:
	}
}

func (j *job) noted() (step string, nodes []scafo.DeployNode) {
	j.noteMu.Lock()
	defer j.noteMu.Unlock()
	return j.step, j.nodes
}

// event logs what happened to a deploy.
func (s *Service) event(name string, j *job, args ...any) {
	s.log.Info(name, append([]any{"event", name, "actor", j.deploy.Caller, "application", j.id.Application, "deploy", j.id.String()}, args...)...)
}
