// Package supervise keeps one runtime process for each application that is
// placed on this node: it starts, probes, reloads, drains and replaces them.
//
// The processes outlive the daemon. A daemon that was killed, or that executed
// itself anew, finds them again by their records on disk and by the lock that
// each holds on its data directory, and goes on without a restart, a lost line
// of output or a dropped connection.
//
// What to do when is decided in machine.go, without a clock or I/O; the runner
// around it (process.go) does what it says.
package supervise

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/applog"
	"github.com/scafo/scafo/internal/celld"
)

// Want is one application that shall run here, with the version that it is.
type Want struct {
	Application string
	UID         string
	// Version is the application's recorded deployment; empty asks for no
	// particular one.
	Version string
}

// Config is what a supervisor needs to know.
type Config struct {
	Node      string
	MachineID string // stable for the machine; with the uid it makes CELLD_NODE
	StateDir  string
	Command   string // celld.command: a path, or a name on PATH

	Bind         netip.Addr // the literal IP on which runtimes listen
	Address      string     // where the ingress reaches them; empty takes Bind
	InternalHost string     // where other nodes reach their internal listeners; empty takes Bind
	Ports        Range

	// Target says where an application's objects lie.
	Target func(application, uid string) celld.Target
	// Credentials are asked for at each start of a process.
	Credentials func(ctx context.Context) (celld.Credentials, error)
	// Env is the operator's celld.env.
	Env        map[string]string
	Durability string

	Log *slog.Logger
	// Fleet names the hosts of the fleet's machines as they are known now: Workers never
	// reach them.
	Fleet func() []string
	// Counted, when set, is told of what happens to processes. It must be quick.
	Counted func(Happening)
	// Logs keeps what the applications say; nil keeps nothing.
	Logs *applog.Store
	// Policy is for tests; the zero value takes DefaultPolicy.
	Policy Policy
}

// Happening is what happened to a process.
type Happening string

// What happens to processes. Fenced is the end of one that lost its lease, or whose
// end nobody saw; Silent one that does not answer its health and is taken out.
const (
	Started     Happening = "started"
	Adopted     Happening = "adopted"
	StartFailed Happening = "start_failed"
	Ready       Happening = "ready"
	Silent      Happening = "silent"
	Stopped     Happening = "stopped"
	Crashed     Happening = "crashed"
	Fenced      Happening = "fenced"
	Killed      Happening = "killed"
)

// Happenings are all of them.
func Happenings() []Happening {
	return []Happening{Started, Adopted, StartFailed, Ready, Silent, Stopped, Crashed, Fenced, Killed}
}

// Supervisor owns the runtime processes of this node.
type Supervisor struct {
	cfg      Config
	policy   Policy
	command  string
	ports    *ports
	versions *versions
	watch    *watcher
	changes  chan struct{}

	mu       sync.Mutex
	procs    map[string]*process // guarded by mu; by uid
	wanted   map[string]Want     // guarded by mu; nil until the first Set
	running  context.Context     // guarded by mu; set while Run runs
	stopping bool                // guarded by mu; StopAll was called
	group    sync.WaitGroup
}

// New checks the configuration and makes the state directory. Nothing runs yet.
func New(c Config) (*Supervisor, error) {
	if err := celld.CheckExtra(c.Env); err != nil {
		return nil, err
	}
	if !c.Bind.IsValid() {
		return nil, scafo.Errorf(scafo.CodeInvalidInput, "node.bind is no IP address")
	}
	if err := c.Ports.check(); err != nil {
		return nil, err
	}
	if c.Target == nil {
		return nil, scafo.Errorf(scafo.CodeInternal, "supervise: no Target")
	}
	if c.Credentials == nil {
		c.Credentials = func(context.Context) (celld.Credentials, error) { return celld.Credentials{}, nil }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Address == "" {
		c.Address = c.Bind.String()
	}
	if c.InternalHost == "" {
		c.InternalHost = c.Bind.String()
	}
	command, err := exec.LookPath(c.Command)
	if err != nil {
		return nil, scafo.Wrap(err, scafo.CodeCapabilityMissing, "celld.command: there is no program %q", c.Command)
	}
	if command, err = filepath.Abs(command); err != nil {
		return nil, scafo.Wrap(err, scafo.CodeCapabilityMissing, "celld.command: %q", c.Command)
	}
	policy := c.Policy
	if policy == (Policy{}) {
		policy = DefaultPolicy(c.Env)
	}
	if err := os.MkdirAll(filepath.Join(c.StateDir, appsDir), 0o700); err != nil {
		return nil, fmt.Errorf("supervise: %w", err)
	}
	return &Supervisor{
		cfg: c, policy: policy, command: command,
		ports:    newPorts(c.Ports, c.Bind, internalBind(c)),
		versions: &versions{command: command, env: celld.Pairs(c.Env)},
		watch:    newWatcher(c.Log),
		changes:  make(chan struct{}, 1),
		procs:    map[string]*process{},
	}, nil
}

// internalBind is where internal listeners listen. They have no authentication,
// so the address that other nodes use is the only one they should be on.
func internalBind(c Config) netip.Addr {
	if a, err := netip.ParseAddr(c.InternalHost); err == nil {
		return a
	}
	return c.Bind
}

// Changes fires, coalesced, when something in Statuses changed.
func (s *Supervisor) Changes() <-chan struct{} { return s.changes }

func (s *Supervisor) changed() {
	select {
	case s.changes <- struct{}{}:
	default:
	}
}

// Statuses is every process, by application and uid.
func (s *Supervisor) Statuses() []scafo.ProcessStatus {
	s.mu.Lock()
	procs := make([]*process, 0, len(s.procs))
	for _, p := range s.procs {
		procs = append(procs, p)
	}
	s.mu.Unlock()
	list := make([]scafo.ProcessStatus, 0, len(procs))
	for _, p := range procs {
		if !p.ended() { // it is about to be forgotten
			list = append(list, p.status())
		}
	}
	slices.SortFunc(list, func(a, b scafo.ProcessStatus) int {
		if c := strings.Compare(a.Application, b.Application); c != 0 {
			return c
		}
		return strings.Compare(a.UID, b.UID)
	})
	return list
}

// Set says which applications shall run here. What is not named is drained and
// stopped; what is new is started. Until the first call, whatever TakeOver found
// goes on untouched.
func (s *Supervisor) Set(wants []Want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return
	}
	s.wanted = make(map[string]Want, len(wants))
	for _, w := range wants {
		if !validUID(w.UID) {
			s.cfg.Log.Error("an application's uid cannot name a directory", "application", w.Application, "uid", w.UID)
			continue
		}
		s.wanted[w.UID] = w
		if _, ok := s.procs[w.UID]; !ok {
			p := newProcess(s, w.Application, w.UID)
			p.recall()
			s.addLocked(p)
		}
	}
	for uid, p := range s.procs {
		w, ok := s.wanted[uid]
		p.send(event{kind: evWant, wanted: ok, version: w.Version})
	}
}

// addLocked registers p, and starts it when Run runs.
func (s *Supervisor) addLocked(p *process) {
	s.procs[p.uid] = p
	if s.running != nil {
		s.startLocked(p)
	}
}

func (s *Supervisor) startLocked(p *process) {
	ctx := s.running
	s.group.Add(1)
	go func() {
		defer s.group.Done()
		p.run(ctx)
		s.forget(p)
	}()
}

// forget drops a process that has ended for good. One that was wanted again in
// the meantime gets a successor.
func (s *Supervisor) forget(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !p.ended() || s.procs[p.uid] != p {
		return // Run ended: the record on disk is for the next daemon
	}
	delete(s.procs, p.uid)
	if w, ok := s.wanted[p.uid]; ok && !s.stopping {
		next := newProcess(s, w.Application, w.UID)
		next.recall()
		s.addLocked(next)
		next.send(event{kind: evWant, wanted: true, version: w.Version})
	}
	s.changed()
}

// Run supervises until ctx ends, and leaves the processes running.
func (s *Supervisor) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := s.begin(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	s.finish()
	return nil
}

// End stops what [Supervisor.TakeOver] found, in place of Run, as StopAll does.
func (s *Supervisor) End(ctx context.Context) error {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if err := s.begin(running); err != nil {
		return err
	}
	err := s.StopAll(ctx)
	cancel()
	s.finish()
	return err
}

// begin makes the processes act until ctx ends.
func (s *Supervisor) begin(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return fmt.Errorf("supervise: Run was called twice")
	}
	s.running = ctx
	s.watch.open()
	for _, p := range s.procs {
		s.startLocked(p)
	}
	s.group.Go(func() { s.watch.run(ctx) })
	return nil
}

// finish waits, once the context of begin has ended, until nothing acts any more.
func (s *Supervisor) finish() {
	s.mu.Lock()
	s.running = nil
	s.wanted = nil
	s.mu.Unlock()
	s.group.Wait()
	if s.cfg.Logs != nil {
		s.cfg.Logs.Close()
	}
}

// Reload makes the process of that uid look at its pointer now and tells what it
// serves then. One that waits for its next start is started at once.
func (s *Supervisor) Reload(ctx context.Context, uid string) (celld.Reload, error) {
	p, err := s.find(uid)
	if err != nil {
		return celld.Reload{}, err
	}
	answer := make(chan reloadAnswer, 1)
	p.send(event{kind: evReloadAsked, answer: answer})
	select {
	case a := <-answer:
		return a.reload, a.err
	case <-p.done:
		return celld.Reload{}, scafo.Errorf(scafo.CodeNotFound, "the application's process has ended")
	case <-ctx.Done():
		return celld.Reload{}, ctx.Err()
	}
}

func (s *Supervisor) find(uid string) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.procs[uid]; ok {
		return p, nil
	}
	return nil, scafo.Errorf(scafo.CodeNotFound, "the application does not run here")
}

// killPatience is how long StopAll waits for processes that were killed.
const killPatience = 10 * time.Second

// StopAll drains and stops every process and returns when all are gone. When ctx
// ends first, it kills what is left. Nothing starts after it. Run must run.
func (s *Supervisor) StopAll(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	s.wanted = map[string]Want{}
	procs := make([]*process, 0, len(s.procs))
	for _, p := range s.procs {
		procs = append(procs, p)
	}
	running := s.running
	s.mu.Unlock()
	if running == nil && len(procs) > 0 {
		return fmt.Errorf("supervise: StopAll without Run")
	}
	for _, p := range procs {
		p.send(event{kind: evStop, within: s.policy.StopBound})
	}
	if waitAll(ctx.Done(), procs) {
		return nil
	}
	for _, p := range procs {
		p.send(event{kind: evStop, within: 0})
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPatience)
	defer cancel()
	if !waitAll(patience.Done(), procs) {
		return fmt.Errorf("supervise: a process is still there %v after it was killed", killPatience)
	}
	return nil
}

// waitAll is false when stop comes before the last of them is done.
func waitAll(stop <-chan struct{}, procs []*process) bool {
	for _, p := range procs {
		select {
		case <-p.done:
		case <-stop:
			return false
		}
	}
	return true
}
