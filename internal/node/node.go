package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/celld"
	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/confine"
	"github.com/scafo/scafo/internal/deletion"
	"github.com/scafo/scafo/internal/deploy"
	"github.com/scafo/scafo/internal/lease"
	"github.com/scafo/scafo/internal/metrics"
	"github.com/scafo/scafo/internal/oidc"
	"github.com/scafo/scafo/internal/reconcile"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/storage"
	"github.com/scafo/scafo/internal/supervise"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// Bounds of the API's listener.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	// closeWithin bounds how long requests that run may take to end at a stop.
	closeWithin = 10 * time.Second
)

// Options are what a node is given beside its configuration.
type Options struct {
	// Executable is the scafo program itself: it serves the embedded store and
	// confines deploys.
	Executable string
	Log        *slog.Logger
	// Listener is the API's, where it was inherited; nil opens node.listen.
	Listener net.Listener
	// Hurry ends when whoever stops the node has no patience: what still drains is
	// then killed. Nil never hurries.
	Hurry context.Context
	// Handover, when it fires, ends the node without stopping anything that it
	// started: Run then returns a *Handover.
	Handover <-chan struct{}
	// Ready, when set, is called once the node answers and its first pass is done.
	Ready func(*Node)
}

// Node is a running node.
type Node struct {
	c   *config.Loaded
	o   Options
	log *slog.Logger

	Store    *Store
	Registry *registry.Registry
	ID       string
	// Command is the runtime's program, an absolute path; empty where there is none.
	Command       string
	CelldVersion  string
	IngressTokens []string
	Fleet         scafo.Fleet
	Listener      net.Listener

	key        *keyfile.Key // nil with node.key: none
	peers      *peers
	lease      *lease.Runner
	supervisor *supervise.Supervisor
	loop       *reconcile.Loop
	deploys    *deploy.Service
	deletions  *deletion.Service
	handler    http.Handler
	front      *front
	metrics    *metrics.Metrics // nil where nobody may ask
	told       *metrics.Server  // likewise
	usage      *meter.Window
	bootID     string
	machineID  string
	closing    chan struct{} // closed when the API shuts down
}

// Run runs a node until ctx ends; then it drains, and stops everything that it
// started, the embedded store last. The state directory must be locked.
func Run(ctx context.Context, c *config.Loaded, o Options) error {
	n := &Node{c: c, o: o, log: o.Log, ID: c.Node.ID, closing: make(chan struct{})}
	if err := n.open(ctx); err != nil {
		if ctx.Err() != nil { // what failed was told to
			n.log.Info("stopped before the node answered", "cause", err)
			err = nil
		}
		return errors.Join(err, n.abandon())
	}
	err := n.serve(ctx)
	n.closeMetrics()
	if errors.As(err, new(*Handover)) {
		n.Store.Release()
		return err // the store goes on, as the runtimes do
	}
	// The store goes last: everything before may still write.
	if n.Store != nil {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		err = errors.Join(err, n.Store.StopEmbedded(stopCtx, n.hurry()))
	}
	return err
}

// abandon gives back what a start that failed had begun.
func (n *Node) abandon() error {
	if n.front != nil {
		n.front.server.Close()
	}
	n.closeMetrics()
	if n.Store == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	return n.Store.StopEmbedded(ctx, n.hurry())
}

// open prepares everything that serving needs: the listener first, since a taken
// port is the most likely mistake.
func (n *Node) open(ctx context.Context) error {
	var err error
	if err := n.listen(); err != nil {
		return err
	}
	n.front = answer(n.Listener, n.log, n.closing)
	if err := n.openMetrics(); err != nil {
		return err
	}
	if n.IngressTokens, err = IngressTokens(n.c.Node.State, n.c.Ingress.Token); err != nil {
		return err
	}
	if n.bootID, err = BootID(); err != nil {
		return err
	}
	if n.machineID, err = MachineID(n.c.Node.State); err != nil {
		return fmt.Errorf("the machine's id: %w", err)
	}
	if err := n.openKey(); err != nil {
		return err
	}
	if err := n.openRuntime(ctx); err != nil {
		return err
	}
	if n.Store, err = OpenStore(ctx, n.c, n.o.Executable, n.log); err != nil {
		return err
	}
	n.usage = meter.NewWindow(n.Store.Bucket)
	n.Store.Keep()
	if n.metrics != nil {
		n.Store.Bucket.OnAnswer(n.metrics.Bucket)
	}
	if err := n.Store.Prove(ctx, n.log, n.front.door.setAway); err != nil {
		return err
	}
	n.Registry = registry.New(n.Store.Bucket, registry.Options{Log: n.log, Node: n.ID})
	if n.Fleet, err = n.Registry.Fleet(ctx); err != nil {
		if scafo.CodeOf(err) == scafo.CodeNotFound {
			return fmt.Errorf("the bucket %s holds no fleet: run `scafo init` with the same bucket first", n.Store.Name)
		}
		return err
	}
	if err := n.register(ctx); err != nil {
		return errors.Join(err, n.leaveRuntimes(ctx, err))
	}
	return n.assemble(ctx)
}

func (n *Node) listen() error {
	if n.Listener = n.o.Listener; n.Listener != nil {
		return nil
	}
	l, err := net.Listen("tcp", n.c.Node.Listen)
	if err != nil {
		return fmt.Errorf("the API cannot listen on %s: %w (node.listen, --listen under `scafo up`)", n.c.Node.Listen, err)
	}
	n.Listener = l
	return nil
}

// openKey reads the node's signing key, or makes it at the first start.
func (n *Node) openKey() error {
	path := n.c.Node.Key
	if path == config.None {
		return nil
	}
	k, othersCanRead, err := keyfile.Load(path)
	if errors.Is(err, os.ErrNotExist) {
		if k, err = keyfile.New(n.ID); err == nil {
			err = keyfile.Save(path, k)
		}
	}
	if err != nil {
		return fmt.Errorf("the node's key: %w", err)
	}
	if k.ID != n.ID {
		return fmt.Errorf("the node's key %s is the key of node %q, and node.id is %q", path, k.ID, n.ID)
	}
	if othersCanRead {
		n.log.Warn("others can read the node's key; chmod 600 it", "file", path)
	}
	n.key = &k
	n.peers = newPeers(k, time.Now)
	return nil
}

// openRuntime finds the runtime's program and its version.
func (n *Node) openRuntime(ctx context.Context) error {
	if n.c.Celld.Command == config.None {
		return nil
	}
	path, err := exec.LookPath(n.c.Celld.Command)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return fmt.Errorf("the runtime (celld.command): %w", err)
	}
	n.Command = path
	if err := celld.CheckExtra(n.c.Celld.Env); err != nil {
		return fmt.Errorf("celld.env: %w", err)
	}
	if n.CelldVersion, err = celld.Version(ctx, path, celld.Pairs(n.c.Celld.Env)...); err != nil {
		return fmt.Errorf("the runtime (celld.command) %s: %w", path, err)
	}
	if err := confine.Supported(); err != nil {
		n.log.Warn("deploys run unconfined: a hostile project could read what this user can", "cause", err)
	}
	return nil
}

// register makes the node known to the fleet, or brings its record up to date.
func (n *Node) register(ctx context.Context) error {
	r := scafo.Node{ID: n.ID, Address: n.c.Node.Advertise, Labels: n.c.Node.Labels, Version: scafo.Version}
	if n.key == nil {
		return nil // without a key nobody could tell it from another one
	}
	r.PublicKey = n.key.Public()
	if _, err := n.Registry.RegisterNode(ctx, r); err != nil {
		return fmt.Errorf("this node cannot join: %w", err)
	}
	return nil
}

// assemble makes the parts and ties them together.
func (n *Node) assemble(ctx context.Context) error {
	seconds := func(s int) time.Duration { return time.Duration(s) * time.Second }
	follower := registry.NewFollower(n.Registry)
	n.lease = lease.New(n.Registry, lease.Config{
		Node: n.ID, Process: n.Registry.Nonce(8), TTL: seconds(n.c.Lease.TTLSeconds), Log: n.log,
	})
	var sup reconcile.Supervisor
	var pub deploy.Publisher
	if n.Command != "" {
		s, err := n.newSupervisor()
		if err != nil {
			return err
		}
		if err := s.TakeOver(ctx); err != nil {
			return fmt.Errorf("running applications cannot be taken over: %w", err)
		}
		n.supervisor, sup = s, s
		pub = newPublisher(n.Command, n.Store, n.c.Celld.Env, n.log)
	}
	rc := reconcile.Config{
		Node: n.ID, BootID: n.bootID, CelldVersion: n.CelldVersion,
		Store: reconcile.RegistryStore(n.Registry, follower), Lease: n.lease, Supervisor: sup,
		PlatformDomains: n.c.Platform.Domains, APIPublic: n.c.API.Public,
		Times: reconcile.Times{
			Interval: seconds(n.c.Reconcile.IntervalSeconds), Heartbeat: seconds(n.c.Heartbeat.Seconds),
			HeartbeatStale: seconds(n.c.Heartbeat.StaleSeconds), LeaseTTL: seconds(n.c.Lease.TTLSeconds),
			DrainReplace: seconds(n.c.Drain.ReplaceSeconds), DrainRoute: seconds(n.c.Drain.RouteSeconds),
		},
		Abandoned: func(ctx context.Context, d scafo.Deploy) error { return n.deploys.Abandoned(ctx, d) },
		Deleting:  func(app scafo.Application) { n.deletions.Resume(app) },
		Ending:    func(app scafo.Application) { n.deploys.End(app) },
		Runtimes:  runtimes{},
		Used:      n.used,
		Passed:    n.metrics.Pass,
		Log:       n.log,
	}
	if n.peers != nil {
		rc.Peers = n.peers
	}
	var err error
	if n.loop, err = reconcile.New(rc); err != nil {
		return err
	}
	n.deploys, err = deploy.New(deploy.Config{
		Node: n.ID, Registry: n.Registry, Bucket: n.Store.Bucket, Fleet: n.loop, Publisher: pub,
		Staging: filepath.Join(n.c.Node.State, stagingDir),
		Limits: deploy.Limits{
			ArtifactBytes: n.c.Deploy.ArtifactBytes, ArchiveEntries: n.c.Deploy.ArchiveEntries,
			Concurrency: n.c.Deploy.Concurrency, Queue: n.c.Deploy.Queue, StagedBytes: n.c.Deploy.StagedBytes,
			Receive: seconds(n.c.Deploy.ReceiveSeconds), Wait: seconds(n.c.Deploy.QueueSeconds), Task: seconds(n.c.Deploy.TaskSeconds),
		},
		MayServeTogether: func(a, b string) bool { return celld.MayServeTogether(a, b, n.durability()) },
		RollingPairs:     celld.RollingPairs,
		Ended:            n.metrics.Deploy,
		Refused:          n.metrics.DeployRefused,
		Log:              n.log,
	})
	if err != nil {
		return err
	}
	n.watchMetrics()
	if err := n.newDeletions(); err != nil {
		return err
	}
	verifier := auth.New(n.Registry, auth.Options{
		Log: n.log, IngressTokens: n.IngressTokens, Verdict: n.metrics.Token,
		Workloads: &auth.Workloads{
			Trust: n.Registry.TrustPolicy,
			OIDC:  oidc.New(oidc.Options{AllowLoopback: n.c.OIDC.AllowLoopback, AllowPrivate: n.c.OIDC.AllowPrivate}),
		},
	})
	follower.OnAnnounced(func(keys []string) { forgetKeys(verifier, keys) })
	n.handler, err = api.New(api.Deps{
		Node: n.ID, JSONBytes: n.c.API.JSONBytes, Verifier: verifier,
		Closing: n.closing, Applications: api.Following(n.Registry, follower), Setters: n.Registry, Freezes: n.Registry, Operators: n.Registry,
		Domains: n.Registry, PlatformDomains: n.c.Platform.Domains,
		Deploys: n.deploys, Loop: n.loop, Log: n.log,
		Storage:    storage.New(n.Registry, storage.Options{Lock: seconds(n.c.Storage.LockSeconds), Log: n.log}),
		Renderings: n.renderings(),
		Deletions:  n.deletions,
	})
	return err
}

// forgetKeys drops what a verifier knows of the keys whose records changed, so that
// a revoked one is refused as soon as this node hears of it.
func forgetKeys(v *auth.Verifier, changed []string) {
	if changed == nil {
		v.ForgetAll()
	}
	for _, k := range changed {
		for _, prefix := range []string{registry.OperatorPrefix, registry.NodePrefix} {
			if id, ok := registry.KeyID(prefix, k); ok {
				v.Forget(id)
			}
		}
	}
}

// durability is what the runtimes are started with.
func (n *Node) durability() string {
	if d := n.c.Celld.Env["CELLD_DURABILITY"]; d != "" {
		return d
	}
	return "bucket"
}

// serve runs the parts until ctx ends, then drains and stops them in order.
func (n *Node) serve(ctx context.Context) error {
	// The parts end when this context does, which is after the drain.
	parts, stopParts := context.WithCancel(context.WithoutCancel(ctx))
	defer stopParts()
	g, failed := errgroup.WithContext(parts)
	run := func(name string, f func(context.Context) error) {
		g.Go(func() error {
			err := f(failed)
			if err != nil && !errors.Is(err, context.Canceled) {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	run("lease", n.lease.Run)
	if n.supervisor != nil {
		run("supervisor", n.supervisor.Run)
	}
	run("reconcile", n.loop.Run)
	run("deploys", n.deploys.Run)
	run("deletions", n.deletions.Run)
	run("meter", n.usage.Run)
	if n.o.Listener != nil {
		n.awaitRoutes(ctx)
	}
	n.front.door.open(n.handler)
	g.Go(n.front.wait)
	n.log.Info("the node answers", "node", n.ID, "api", n.Listener.Addr().String(), "version", scafo.Version, "runtime", n.CelldVersion, "bucket", n.Store.Name)
	if n.o.Ready != nil {
		n.o.Ready(n)
	}
	var out error
	select {
	case <-ctx.Done():
	case <-failed.Done():
	case <-n.loop.Removed():
		out = errRemoved(n.ID)
	case <-n.o.Handover:
		h, err := n.keepSocket()
		if err == nil {
			n.front.leave(n.Listener)
			n.handOver(stopParts)
			return errors.Join(g.Wait(), h)
		}
		n.log.Error("the node cannot hand over; it stops", "cause", err)
	}
	n.stop(stopParts)
	return errors.Join(g.Wait(), out)
}

// hurry is Options.Hurry, which never ends where there is none.
func (n *Node) hurry() context.Context {
	if n.o.Hurry == nil {
		return context.Background()
	}
	return n.o.Hurry
}

// stop drains, while the API still answers, and ends the parts.
func (n *Node) stop(stopParts func()) {
	ctx := n.hurry()
	n.log.Info("stopping", "node", n.ID)
	if err := n.loop.Drain(ctx); err != nil {
		n.log.Error("the drain was cut short", "cause", err)
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	n.front.shutdown(closing)
	stopParts()
	if n.peers != nil {
		n.peers.close()
	}
}
