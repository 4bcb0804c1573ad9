package sim

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/deletion"
	"github.com/scafo/scafo/internal/deploy"
	"github.com/scafo/scafo/internal/lease"
	"github.com/scafo/scafo/internal/reconcile"
	"github.com/scafo/scafo/internal/registry"
)

const (
	runtimeVersion = "celld 0.6.2"
	platform       = "apps.example"
	// badVersion is how the versions begin that no runtime takes.
	badVersion = "bad-"
	// again is how soon a daemon that could not join is started again.
	again = 2 * time.Second
)

// life is one execution of the daemon on a machine: production's parts, tied together
// as a node ties them, over the simulated store, network and processes.
type life struct {
	m       *machine
	name    string // machine and number, as the trace has it
	process string // as the lease names it
	dead    chan struct{}
	die     func() // closes dead, once
	changes chan struct{}

	// Guarded by the world's mu.
	stopped time.Time // until when it is stopped, as by SIGSTOP
	up      bool      // its parts run
	leaves  bool      // it was asked to stop
	refused bool      // the fleet does not let it join: its machine was removed

	mu     sync.Mutex
	counts map[string]int // guarded by mu; of the calls, by what they are

	reg       *registry.Registry
	lease     *lease.Runner
	loop      *reconcile.Loop
	deploys   *deploy.Service
	deletions *deletion.Service
	wg        sync.WaitGroup
}

// dice of the next call of its kind.
func (l *life) dice(op, key string) dice {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[op+key]++
	return newDice(l.m.w.seed, l.name, op, key, fmt.Sprint(l.counts[op+key]))
}

// isDead is whether the daemon was ended.
func (l *life) isDead() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

// awake waits while the daemon is stopped; false when it or the caller is gone. What
// waited goes on one after another, each at its own moment.
func (l *life) awake(ctx context.Context, what string) bool {
	for d, drawn := (dice{}), false; ; {
		l.m.w.mu.Lock()
		wait := time.Until(l.stopped)
		l.m.w.mu.Unlock()
		if wait <= 0 {
			return ctx.Err() == nil && !l.isDead()
		}
		if !drawn {
			d, drawn = l.dice("awake", what), true
		}
		if !l.sleep(ctx, wait+d.between(0, 5*time.Millisecond)) {
			return false
		}
	}
}

// sleep waits; false when the daemon or the caller is gone.
func (l *life) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return !l.isDead()
	case <-ctx.Done():
		return false
	case <-l.dead:
		return false
	}
}

// clock is a machine's clock that runs through suspend, at its own rate.
type clock struct{ m *machine }

func (c clock) Now() time.Duration {
	return time.Hour + time.Duration(float64(time.Since(c.m.w.begin))*c.m.rate)
}

// wall is the machine's time of day.
func (m *machine) wall() time.Time {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return time.Now().Add(m.skew)
}

func publicKey(id string) scafo.PublicKey {
	seed := sha256.Sum256([]byte(id))
	public := ed25519.NewKeyFromSeed(seed[:]).Public().(ed25519.PublicKey) //nolint:errcheck // it is one
	return scafo.PublicKey{Kty: "OKP", Crv: "Ed25519", X: base64.RawURLEncoding.EncodeToString(public)}
}

// start begins a life of the daemon, unless one runs.
func (w *world) start(m *machine) {
	w.mu.Lock()
	if m.life != nil {
		w.mu.Unlock()
		return
	}
	m.lives++
	l := &life{m: m, name: fmt.Sprintf("%s/%d", m.id, m.lives), dead: make(chan struct{}), changes: make(chan struct{}, 1), counts: map[string]int{}}
	l.die = sync.OnceFunc(func() { close(l.dead) })
	m.life = l
	w.mu.Unlock()
	w.trace.say(l.name, "starts")
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-l.dead; cancel() }()
	l.wg.Go(func() { l.run(ctx) })
}

// end is kill -9 of the daemon. What it has begun ends, and nothing of it acts any
// more.
func (w *world) end(l *life) {
	w.mu.Lock()
	if l.m.life == l {
		l.m.life = nil
	}
	l.up = false
	w.mu.Unlock()
	l.die()
	l.wg.Wait()
}

// run is the daemon's whole life.
func (l *life) run(ctx context.Context) {
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("SCAFO_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("life", l.name)
	}
	l.reg = registry.New(wire{l}, registry.Options{Now: l.m.wall, Rand: &moments{l: l}, Log: log})
	for {
		_, err := l.reg.RegisterNode(ctx, scafo.Node{
			ID: l.m.id, Address: "http://" + l.m.id + ".example:7420", Version: scafo.Version, PublicKey: publicKey(l.m.id),
		})
		if err == nil {
			break
		}
		l.m.w.trace.say(l.name, "cannot join: %v", scafo.CodeOf(err))
		if errors.Is(err, registry.ErrRemoved) {
			l.exiled()
		}
		if !l.sleep(ctx, again) {
			return
		}
	}
	if err := l.assemble(log); err != nil {
		l.m.w.violate("%s: %v", l.name, err)
		return
	}
	l.m.w.mu.Lock()
	l.refused = false
	l.m.w.mu.Unlock()
	go l.watchRemoval()
	l.wg.Go(func() { _ = l.lease.Run(ctx) })     //nolint:errcheck // it ends with the daemon
	l.wg.Go(func() { _ = l.loop.Run(ctx) })      //nolint:errcheck // it ends with the daemon
	l.wg.Go(func() { _ = l.deploys.Run(ctx) })   //nolint:errcheck // it ends with the daemon
	l.wg.Go(func() { _ = l.deletions.Run(ctx) }) //nolint:errcheck // it ends with the daemon
	l.m.w.mu.Lock()
	l.up = !l.isDead()
	l.m.w.mu.Unlock()
}

// exiled ends what runs on a machine that was removed while no daemon ran on it. What
// its daemon forgot it cannot end.
func (l *life) exiled() {
	m := l.m
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.life != l {
		return
	}
	l.refused = true
	for _, uid := range slices.Sorted(maps.Keys(m.procs)) {
		if p := m.procs[uid]; !p.forgotten {
			m.stop(p)
		}
	}
}

// watchRemoval has the daemon drain and end once it hears that its machine was removed.
func (l *life) watchRemoval() {
	select {
	case <-l.loop.Removed():
		l.m.w.sigterm(l)
	case <-l.dead:
	}
}

// assemble makes the parts and ties them together.
func (l *life) assemble(log *slog.Logger) (err error) {
	l.process = l.reg.Nonce(8)
	l.lease = lease.New(l.reg, lease.Config{Node: l.m.id, Process: l.process, Clock: clock{l.m}, Log: log})
	l.loop, err = reconcile.New(reconcile.Config{
		Node: l.m.id, BootID: fmt.Sprint("boot-", l.m.boot), CelldVersion: runtimeVersion,
		Store: reconcile.RegistryStore(l.reg, registry.NewFollower(l.reg)), Lease: l.lease, Supervisor: supervisor{l},
		Peers: peers{l}, Runtimes: runtimes{l}, PlatformDomains: []string{platform}, Log: log,
		Times:     reconcile.Times{DrainReplace: 30 * time.Second, DrainRoute: 8 * time.Second},
		Abandoned: func(ctx context.Context, d scafo.Deploy) error { return l.deploys.Abandoned(ctx, d) },
		Deleting:  func(app scafo.Application) { l.deletions.Resume(app) },
		Ending:    func(app scafo.Application) { l.deploys.End(app) },
	})
	if err != nil {
		return err
	}
	l.deploys, err = deploy.New(deploy.Config{
		Node: l.m.id, Registry: l.reg, Bucket: wire{l}, Fleet: l.loop, Publisher: publisher{l}, Staging: l.m.disk,
		Limits: deploy.Limits{
			ArtifactBytes: 1 << 20, ArchiveEntries: 100, Concurrency: 2, Queue: 16, StagedBytes: 8 << 20,
			Receive: 300 * time.Second, Wait: 120 * time.Second, Task: 300 * time.Second,
		},
		MayServeTogether: func(string, string) bool { return true },
		RollingPairs:     func(string) []string { return nil },
		Log:              log,
	})
	if err != nil {
		return err
	}
	l.deletions, err = deletion.New(deletion.Config{
		Node: l.m.id, Registry: l.reg, Lease: l.lease, Fleet: l.loop, Forwarder: peers{l}, Log: log,
	})
	return err
}

// publisher is the runtime's deploy command: it moves the pointer by compare-and-swap.
// A project's configuration is the version that it becomes.
type publisher struct{ l *life }

func (publisher) Version(context.Context) (string, error) { return runtimeVersion, nil }

func (p publisher) Publish(ctx context.Context, app scafo.Application, _, config, _ string) (deploy.Published, error) {
	b, err := os.ReadFile(filepath.Clean(config))
	if err != nil {
		return deploy.Published{}, err
	}
	version, key := string(b), registry.RuntimePrefix(app.Name, app.UID)+"deploy/current.json"
	body := fmt.Appendf(nil, `{"version":%q}`, version)
	b2 := wire(p)
	for range 8 {
		o, err := b2.Get(ctx, key)
		switch {
		case errors.Is(err, bucket.ErrNotFound):
			_, err = b2.Create(ctx, key, body)
		case err == nil:
			_, err = b2.Replace(ctx, key, o.ETag, body)
		}
		if err == nil {
			return deploy.Published{Version: version}, nil
		}
		if !errors.Is(err, bucket.ErrRefused) {
			return deploy.Published{}, scafo.Wrap(err, scafo.CodePublishFailed, "Error: the bucket failed")
		}
	}
	return deploy.Published{}, scafo.Errorf(scafo.CodePublishFailed, "Error: the pointer keeps moving")
}

// moments is a source of random bytes that are those of the moment: whoever draws does
// not move what others draw later.
type moments struct {
	l  *life
	mu sync.Mutex
	at time.Duration // guarded by mu
	d  dice          // guarded by mu
}

func (m *moments) Read(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at := time.Since(m.l.m.w.begin); m.d.Rand == nil || at != m.at {
		m.at, m.d = at, newDice(m.l.m.w.seed, "random", m.l.name, at.String())
	}
	return m.d.Read(b)
}
