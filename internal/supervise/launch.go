package supervise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/scafo/scafo/internal/celld"
)

const (
	credentialsTimeout = 15 * time.Second
	// leftTimeout is how long what is left of an ended process may hold its data
	// directory before it is killed; it is what a workerd takes to notice.
	leftTimeout = 5 * time.Second
	leftLook    = 50 * time.Millisecond
)

// launch starts a process, or finds the one that has the data directory already.
func (p *process) launch(ctx context.Context, before pair, m machine) event {
	c, err := p.start(ctx, before, m)
	if err != nil {
		p.s.ports.release(p.uid)
		return event{kind: evStartFailed, err: err}
	}
	if c.adopted {
		return event{kind: evAdopted, child: c, at: c.startedAt, version: c.version}
	}
	return event{kind: evStarted, child: c}
}

func (p *process) start(ctx context.Context, before pair, m machine) (*child, error) {
	for _, d := range []string{p.dir, filepath.Join(p.dir, dataDir), filepath.Join(p.dir, assetsDir)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	lock, found, err := p.claim(ctx)
	if err != nil || found != nil {
		return found, err
	}
	defer lock.Close() //nolint:errcheck // the child's copy counts

	cctx, cancel := context.WithTimeout(ctx, credentialsTimeout)
	credentials, err := p.s.cfg.Credentials(cctx)
	cancel()
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	version, err := p.s.versions.of(ctx)
	if err != nil {
		return nil, err
	}
	addr, err := p.s.ports.take(p.uid, before)
	if err != nil {
		return nil, err
	}
	// Known before it runs: a daemon that dies in between finds it by its lock.
	r := record{
		Application: p.app, UID: p.uid, BootID: bootID(), StartedAt: time.Now().UTC(),
		Listen: addr.public.String(), Internal: addr.internal.String(), Celld: version,
		Version: m.startedFor, Restarts: m.restarts, Crashes: m.crashes,
	}
	if err := writeRecord(p.dir, r); err != nil {
		return nil, err
	}
	h, err := p.fork(addr, credentials, lock)
	if err != nil {
		return nil, err
	}
	r.PID, r.StartTicks = h.pid, h.ticks
	if err := writeRecord(p.dir, r); err != nil {
		p.log.Warn("the record of a runtime could not be written; it would be found by its lock", "error", err)
	}
	return &child{handle: h, addr: addr, celld: version, startedAt: r.StartedAt}, nil
}

// claim takes the lock on the data directory. When a process has it, that one is
// returned instead: there is never a second one.
func (p *process) claim(ctx context.Context) (*os.File, *child, error) {
	deadline := time.Now().Add(leftTimeout)
	for {
		lock, err := lockData(p.dir)
		if !errors.Is(err, errHeld) {
			return lock, nil, err
		}
		leader, left, err := heldBy(p.dir)
		if err != nil {
			return nil, nil, err
		}
		overdue := time.Now().After(deadline)
		for _, h := range left {
			if leader == nil && overdue {
				p.log.Warn("what was left of an ended runtime is killed", "pid", h.pid)
				h.signal(syscall.SIGKILL) //nolint:errcheck,gosec // looked at again
			}
			h.close()
		}
		if leader != nil {
			return nil, p.found(leader), nil
		}
		if overdue && len(left) == 0 {
			return nil, nil, fmt.Errorf("%w, by a process that cannot be seen", errHeld)
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(leftLook):
		}
	}
}

// found makes a child of the process that has the data directory, and notes it.
func (p *process) found(h *handle) *child {
	r, err := readRecord(p.dir)
	if err != nil {
		r = record{Application: p.app, UID: p.uid, StartedAt: time.Now().UTC()}
	}
	// What it was told is the truth about where it listens.
	args := arguments(h.pid)
	if v := valueOf(args, celld.FlagListen); v != "" {
		r.Listen = v
	}
	if v := valueOf(args, celld.FlagInternalListen); v != "" {
		r.Internal = v
	}
	r.PID, r.StartTicks, r.BootID, r.Exit = h.pid, h.ticks, bootID(), nil
	if err := writeRecord(p.dir, r); err != nil {
		p.log.Warn("the record of a runtime could not be written", "error", err)
	}
	p.log.Info("a running runtime was found by its lock", "pid", h.pid)
	return p.adopt(r, h)
}

func (p *process) adopt(r record, h *handle) *child {
	c := &child{handle: h, addr: r.addresses(), celld: r.Celld, startedAt: r.StartedAt, version: r.Version, adopted: true}
	p.s.ports.keep(p.uid, c.addr)
	return c
}

// fork starts the process in a session of its own, with its output in files and
// nothing that ties its life to this one's.
func (p *process) fork(addr pair, credentials celld.Credentials, lock *os.File) (*handle, error) {
	s := p.s
	serve := celld.Serve{
		Target:         s.cfg.Target(p.app, p.uid),
		Listen:         addr.public.String(),
		InternalListen: addr.internal.String(),
		Advertise:      net.JoinHostPort(s.cfg.InternalHost, strconv.Itoa(int(addr.internal.Port()))),
		TrustForwarded: true,
	}
	env := celld.Env(credentials, celld.EnvParams{
		Node: nodeName(s.cfg.MachineID, p.uid), Durability: s.cfg.Durability,
		Watch:      filepath.Join(p.dir, dataDir),
		AssetCache: filepath.Join(p.dir, assetsDir),
		Extra:      s.extra(), Inherit: os.LookupEnv,
	})
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close() //nolint:errcheck // read only
	out, errs, err := createOutput(p.dir)
	if err != nil {
		return nil, err
	}
	defer closeAll(out, errs)
	p.lines.reset()

	fd := -1
	child, err := os.StartProcess(s.command, append([]string{s.command}, serve.Args()...), &os.ProcAttr{
		Dir: filepath.Join(p.dir, dataDir), Env: env,
		Files: []*os.File{null, out, errs, lock},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &fd},
	})
	if err != nil {
		return nil, err
	}
	pid := child.Pid
	h, err := newHandle(pid, fd, 0)
	if errors.Is(err, os.ErrProcessDone) {
		// Ended already: let it be waited for like any other.
		child.Wait() //nolint:errcheck,gosec // its exit is reported below
		return nil, fmt.Errorf("the runtime ended at once")
	}
	if err != nil {
		child.Kill() //nolint:errcheck,gosec // it cannot be held, so it must not run
		child.Wait() //nolint:errcheck,gosec // likewise
		return nil, err
	}
	if err := child.Release(); err != nil {
		p.log.Debug("releasing a process", "error", err)
	}
	return h, nil
}

// The variables of celld-workerd by which an operator opens private networks to Workers,
// and what of them stays closed.
const (
	envPrivateNetworks = "CELLD_WORKERD_PRIVATE_NETWORKS"
	envDeny            = "CELLD_WORKERD_DENY"
)

// extra is the operator's celld.env. Where that opens private networks, the machines of
// the fleet stay closed.
func (s *Supervisor) extra() map[string]string {
	env := maps.Clone(s.cfg.Env)
	if env[envPrivateNetworks] == "" || s.cfg.Fleet == nil {
		return env
	}
	deny := s.cfg.Fleet()
	if own := env[envDeny]; own != "" {
		deny = append([]string{own}, deny...)
	}
	env[envDeny] = strings.Join(deny, ",")
	return env
}

// versions remembers what the program printed for --version while its file stays
// the same.
type versions struct {
	command string
	env     []string

	mu   sync.Mutex
	info os.FileInfo // guarded by mu
	line string      // guarded by mu
}

func (v *versions) of(ctx context.Context) (string, error) {
	fi, err := os.Stat(v.command)
	if err != nil {
		return "", err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.line != "" && os.SameFile(fi, v.info) && fi.ModTime().Equal(v.info.ModTime()) && fi.Size() == v.info.Size() {
		return v.line, nil
	}
	line, err := celld.Version(ctx, v.command, v.env...)
	if err != nil {
		return "", err
	}
	v.info, v.line = fi, line
	return line, nil
}
