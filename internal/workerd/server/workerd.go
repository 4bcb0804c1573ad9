package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/qualify"
	"github.com/scafo/scafo/internal/bucket/s3"
	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
)

// store is what the real runtime needs of the S3 driver.
type store interface {
	bucket.Bucket
	Credentials(ctx context.Context) (access, secret, session string, expires time.Time, err error)
}

var _ store = (*s3.Store)(nil)

// workerdRuntime is the Runtime that runs real workerds from a real store.
type workerdRuntime struct {
	store   store
	workerd string
	dir     *dataDir
	c       Command
	env     Env
	log     *slog.Logger
	lines   *lineLog
	cache   *instance.Cache // of the Worker; set before the first start

	stopTimeout time.Duration

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	work   sync.WaitGroup // refresh, and the searches of Joined

	mu          sync.Mutex // guards the rest
	key         string
	running     map[*instance.Instance]struct{}
	lastNetwork *instance.Network // of the last start
	migrated    string            // key of the deployment whose migrations are known to be applied

	peers peers
}

func newWorkerdRuntime(st store, workerd string, dir *dataDir, c Command, env Env, log *slog.Logger, lines *lineLog) *workerdRuntime {
	w := &workerdRuntime{
		store: st, workerd: workerd, dir: dir, c: c, env: env, log: log, lines: lines,
		stopTimeout: stopFactor * max(env.ShutdownTotal, env.DeployMaxAge, minStop),
		running:     map[*instance.Instance]struct{}{},
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.work.Go(w.refresh)
	w.work.Go(w.followPeers)
	return w
}

// close ends what goes on beside the requests. The data directory is not used
// after it.
func (w *workerdRuntime) close() {
	w.cancel()
	w.work.Wait()
}

// minStop is the least stop time that leaves workerd room for its own steps.
const minStop = 8 * time.Second

// stopFactor: workerd cuts the requests on an object at half its stop time. The
// supervisor has its own bound, so that half must not come before it.
const stopFactor = 2

func openStore(ctx context.Context, c Command, e Env) (*s3.Store, error) {
	return s3.Open(ctx, s3.Config{Bucket: c.Bucket, Prefix: c.Prefix, Endpoint: c.Endpoint, Region: region(c, e), PathStyle: c.Endpoint != ""})
}

// region falls back to what every store without regions takes.
func region(c Command, e Env) string {
	switch {
	case c.Region != "":
		return c.Region
	case e.Region != "":
		return e.Region
	}
	return "us-east-1"
}

// target tells one store and prefix from another.
func target(c Command) string { return c.Endpoint + " " + c.Bucket + "/" + c.Prefix }

// provenFor is how long a store that kept its conditions is believed to.
const provenFor = 24 * time.Hour

// provePrefix is where the proof writes.
const provePrefix = "cluster/probe/"

// Prepare ends the leases of workerds that an earlier run of this program left and
// that are gone. That relies on the store; where nothing is left, the proof of the
// store may go on beside whatever does not.
func (w *workerdRuntime) Prepare(ctx context.Context) (prove func(context.Context) error, err error) {
	saved := w.dir.saved()
	age := time.Since(saved.Proven)
	proven := age >= 0 && age <= provenFor
	if len(saved.Children) == 0 {
		if proven {
			return nil, nil
		}
		return w.prove, nil
	}
	if !proven {
		if err := w.prove(ctx); err != nil {
			return nil, err
		}
	}
	w.releaseLeftovers(ctx, saved.Children)
	return nil, nil
}

// prove proves that the store keeps its conditions, and remembers it.
func (w *workerdRuntime) prove(ctx context.Context) error {
	if err := qualify.Prove(ctx, w.store, provePrefix); err != nil {
		return fmt.Errorf("the bucket: %w", err)
	}
	return w.dir.update(func(s *savedState) { s.Proven = time.Now().UTC() })
}

// leftoverWait is how long a workerd of an earlier run may take to follow it.
const leftoverWait = 2 * time.Second

func (w *workerdRuntime) releaseLeftovers(ctx context.Context, children []savedChild) {
	for _, c := range children {
		for deadline := time.Now().Add(leftoverWait); !c.provenGone() && time.Now().Before(deadline) && ctx.Err() == nil; {
			time.Sleep(10 * time.Millisecond) // there is nothing to be told by: it is no child of ours
		}
		if !c.provenGone() {
			w.log.Info("an earlier workerd cannot be seen to be gone: its lease is waited out", "pid", c.PID)
		} else if c.Record != "" {
			w.release(ctx, c)
		}
	}
	if err := w.dir.update(func(s *savedState) { s.Children = nil }); err != nil {
		w.log.Warn("the state file", "err", err)
	}
}

// release ends the lease of a workerd that is known to be gone.
func (w *workerdRuntime) release(ctx context.Context, c savedChild) {
	if w.env.WaitOutLeases {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	if err := releaseMember(ctx, w.store, c.Record, c.Address); err != nil {
		w.log.Warn("the lease of a dead workerd could not be ended and is waited out", "pid", c.PID, "err", err)
		return
	}
	w.log.Info("ended the lease of a dead workerd", "pid", c.PID)
}

// Load reads the pointer.
func (w *workerdRuntime) Load(ctx context.Context) (layout.Pointer, error) {
	p, _, err := layout.Load(ctx, w.store)
	return p, err
}

// Fetch brings a deployment to this machine.
func (w *workerdRuntime) Fetch(ctx context.Context, p layout.Pointer) (*layout.Deployment, error) {
	assets := w.env.AssetCache
	if assets == "" {
		assets = w.dir.file("assets")
	}
	return layout.Fetch(ctx, w.store, p, layout.FetchOptions{Root: w.dir.file("deployments"), Assets: assets})
}

// maxFiles is how many files and sockets a workerd may have open. It is more than the
// default of most systems: each request and each WebSocket takes one.
const maxFiles = 16384

// Start starts a workerd.
func (w *workerdRuntime) Start(ctx context.Context, d *layout.Deployment, slot int) (Process, error) {
	disk, err := w.dir.disk(slot)
	if err != nil {
		return nil, err
	}
	spec := instance.Spec{
		Workerd: w.workerd, Deployment: d, Run: w.dir.newRun(), Disk: disk,
		Limits:         instance.Limits{Memory: w.env.HardMemory, Files: maxFiles},
		ForwardedProto: w.c.TrustForwarded, Log: w.lines.of(d.Manifest.Version, w.stacksOf(d.Manifest)), Cache: w.cache,
	}
	if spec.Network, err = w.network(ctx); err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.lastNetwork = spec.Network
	w.mu.Unlock()
	if d.Durable() {
		if spec.Cluster, err = w.cluster(ctx); err != nil {
			return nil, err
		}
	}
	i, err := instance.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.running[i] = struct{}{}
	w.mu.Unlock()
	w.remember(i, slot)
	return i, nil
}

// StandIn starts a workerd without the deployment's state. Names may not be found while
// the store is away: its network is that of the last start.
func (w *workerdRuntime) StandIn(ctx context.Context, d *layout.Deployment) (Process, error) {
	w.mu.Lock()
	network := w.lastNetwork
	w.mu.Unlock()
	i, err := instance.Start(ctx, instance.Spec{
		Workerd: w.workerd, Deployment: d, Run: w.dir.newRun(), StandIn: true,
		Limits:         instance.Limits{Memory: w.env.HardMemory, Files: maxFiles},
		ForwardedProto: w.c.TrustForwarded, Log: w.lines.of(d.Manifest.Version, w.stacksOf(d.Manifest)), Cache: w.cache, Network: network,
	})
	if err != nil {
		return nil, err
	}
	return i, nil
}

func (w *workerdRuntime) cluster(ctx context.Context) (*instance.Cluster, error) {
	key, err := w.sharedKey(ctx)
	if err != nil {
		return nil, err
	}
	creds, _, err := w.credentials(ctx)
	if err != nil {
		return nil, err
	}
	address := "s3://" + w.c.Bucket + "/"
	if w.c.Prefix != "" {
		address += w.c.Prefix + "/"
	}
	cluster := &instance.Cluster{
		Bucket: address + stateKey, Endpoint: w.c.Endpoint, Region: region(w.c, w.env), Credentials: creds,
		Listen: netip.AddrPortFrom(w.c.InternalListen.Addr(), 0).String(), Key: key,
		StopTimeout: w.stopTimeout, TimeDivisor: w.env.LeaseDivisor, UnsafePublicAddress: w.c.UnsafePublic,
	}
	if w.c.Advertise != "" {
		// Several workerds may run at once, so each has a port of its own behind
		// the advertised host.
		cluster.Advertise = net.JoinHostPort(w.advertisedHost(), "0")
	}
	return cluster, nil
}

// advertisedHost is the host under which peers reach this machine.
func (w *workerdRuntime) advertisedHost() string {
	if w.c.Advertise != "" {
		if host, _, err := splitHostPort(w.c.Advertise); err == nil {
			return host
		}
	}
	return w.c.InternalListen.Addr().String()
}

func (w *workerdRuntime) sharedKey(ctx context.Context) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.key == "" {
		k, err := clusterKey(ctx, w.store)
		if err != nil {
			return "", err
		}
		w.key = k
	}
	return w.key, nil
}

func (w *workerdRuntime) credentials(ctx context.Context) (instance.Credentials, time.Time, error) {
	a, s, t, expires, err := w.store.Credentials(ctx)
	if err != nil {
		return instance.Credentials{}, time.Time{}, fmt.Errorf("the bucket's credentials: %w", err)
	}
	return instance.Credentials{AccessKey: a, SecretKey: s, SessionToken: t}, expires, nil
}

// refreshAhead is how long before its end a short-lived credential is replaced;
// refreshLeast keeps a broken clock from spinning.
const (
	refreshAhead = 5 * time.Minute
	refreshLeast = 15 * time.Second
	refreshMost  = 15 * time.Minute
)

// refresh hands new credentials to the workerds.
func (w *workerdRuntime) refresh() {
	ctx := w.ctx
	var last instance.Credentials
	for {
		creds, expires, err := w.credentials(ctx)
		wait := refreshMost
		if err != nil {
			wait = refreshLeast
		} else {
			if creds != last && last != (instance.Credentials{}) {
				w.setCredentials(creds)
			}
			last = creds
			if !expires.IsZero() {
				wait = min(max(time.Until(expires)-refreshAhead, refreshLeast), refreshMost)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (w *workerdRuntime) setCredentials(c instance.Credentials) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.running {
		if err := i.SetCredentials(c); err != nil {
			w.log.Warn("new credentials", "pid", i.PID(), "err", err)
		}
	}
}

// remember notes a started workerd, so that the next run can tell whether it is
// gone.
func (w *workerdRuntime) remember(i *instance.Instance, slot int) {
	id, err := identify(i.PID())
	if err != nil {
		return // it has ended already
	}
	if err := w.dir.update(func(s *savedState) {
		s.Slot = slot
		s.Children = append(s.Children, savedChild{identity: id, Slot: slot})
	}); err != nil {
		w.log.Warn("the state file", "err", err)
	}
}

// joinTimeout bounds the search for a workerd's own record.
const joinTimeout = 20 * time.Second

// Joined finds out which member of the cluster the process is, beside the
// requests.
func (w *workerdRuntime) Joined(_ context.Context, p Process) {
	_, port, err := net.SplitHostPort(p.ClusterAddr())
	if err != nil {
		return // no member
	}
	address := net.JoinHostPort(w.advertisedHost(), port)
	w.work.Go(func() {
		ctx, cancel := context.WithTimeout(w.ctx, joinTimeout)
		defer cancel()
		key, err := findMember(ctx, w.store, stateKey+"/", address, time.Now())
		if err != nil {
			w.log.Debug("which member a workerd is was not found: after a crash its lease is waited out", "pid", p.PID(), "err", err)
			return
		}
		// It still has the address, so it had it while the records were read: the one
		// that was found is its own.
		if err := p.Healthy(ctx); err != nil {
			return
		}
		if err := w.dir.update(func(s *savedState) {
			for i := range s.Children {
				if s.Children[i].PID == p.PID() {
					s.Children[i].Record, s.Children[i].Address = key, address
				}
			}
		}); err != nil {
			w.log.Warn("the state file", "err", err)
		}
	})
}

// Reaped ends the lease of a process that this one has reaped.
func (w *workerdRuntime) Reaped(ctx context.Context, p Process, clean bool) {
	w.mu.Lock()
	if i, ok := p.(*instance.Instance); ok {
		delete(w.running, i)
	}
	w.mu.Unlock()
	var child savedChild
	if err := w.dir.update(func(s *savedState) {
		kept := s.Children[:0]
		for _, c := range s.Children {
			if c.PID == p.PID() {
				child = c
			} else {
				kept = append(kept, c)
			}
		}
		s.Children = kept
	}); err != nil {
		w.log.Warn("the state file", "err", err)
	}
	if !clean && child.Record != "" {
		w.release(ctx, child)
	}
}

// lease is how long a member of the cluster owns its objects after its last
// renewal.
const lease = 20 * time.Second

// Lapsed says how long ago leases of other members ran out.
func (w *workerdRuntime) Lapsed(ctx context.Context) ([]time.Duration, error) {
	return lapsed(ctx, w.store, stateKey+"/", lease/time.Duration(w.env.LeaseDivisor), time.Now())
}

// FirstSlot is the slot that the last workerd used.
func (w *workerdRuntime) FirstSlot() int { return w.dir.saved().Slot }

// Keep removes the local copies of other deployments.
func (w *workerdRuntime) Keep(ds ...*layout.Deployment) {
	keep := map[string]bool{}
	for _, d := range ds {
		if d != nil {
			keep[filepath.Base(d.Dir)] = true
		}
	}
	root := w.dir.file("deployments")
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.log.Warn("old deployments", "err", err)
	}
	for _, e := range entries {
		if !keep[e.Name()] {
			if err := os.RemoveAll(filepath.Join(root, e.Name())); err != nil {
				w.log.Warn("old deployments", "err", err)
			}
		}
	}
}
