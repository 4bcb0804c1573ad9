// Package instance runs one workerd: it writes the configuration for a
// deployment, starts the process, knows when it is ready, follows its output,
// and ends it. It decides nothing about when: the server above it does.
package instance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/scafo/scafo/internal/workerd/layout"
)

// MinKey is the least length of a cluster's key that the runtime takes.
const MinKey = 32

// DefaultStopTimeout is how long an instance of a cluster takes to stop, from
// SIGTERM to exit, when nothing else is asked for.
const DefaultStopTimeout = 40 * time.Second

// Spec is everything that a workerd needs.
type Spec struct {
	Workerd    string             // the program
	Deployment *layout.Deployment // what it serves
	// Run is a directory of its own for configuration and credentials; made with
	// mode 0700, removed at the exit.
	Run string
	// Disk is the local disk of the Durable Objects, made when missing. A process
	// has it alone, held by a lock beside it. Needed with Cluster alone.
	Disk string
	// Cluster joins the application's cluster. Needed when the deployment is
	// durable, except in a trial or a stand-in; ignored when it is not durable.
	Cluster *Cluster
	// Trial starts it without cluster, network, crons and queues, its objects on a
	// disk that goes with it: to see whether it starts.
	Trial bool
	// StandIn starts it without cluster, crons, queues and state: what asks for state
	// fails. It serves while the store is away.
	StandIn bool
	// Cache is where the Worker's caches are; nil: they fail.
	Cache *Cache
	// ForwardedProto makes request.url follow X-Forwarded-Proto.
	ForwardedProto bool
	// Network is what the Worker may connect to; nil is the Internet alone. Ignored in
	// a trial, which has none.
	Network *Network
	// Limits are what the kernel holds it to; the zero value to nothing.
	Limits Limits
	// Log gets every line of output, in order for each stream; calls for the two
	// streams may overlap. It must not block.
	Log func(Line)
}

// Cluster is how an instance finds its peers and its state.
type Cluster struct {
	Bucket              string // s3://name[/prefix]
	Endpoint            string // empty: AWS
	Region              string
	Credentials         Credentials
	Listen              string        // IP:port for peers; port 0 takes a free one
	Advertise           string        // what peers are told; empty: Listen
	UnsafePublicAddress bool          // admits a public Listen or Advertise
	Key                 string        // shared by the application's instances, 32 bytes or more
	StopTimeout         time.Duration // from SIGTERM to exit at the most; 0: DefaultStopTimeout
	// TimeDivisor is for tests: it divides the lease and its rounds, and with them
	// the 2 s by which the store's Date header may be off. 0: 1.
	TimeDivisor int
}

func (c *Cluster) stopTimeout() time.Duration {
	if c.StopTimeout > 0 {
		return c.StopTimeout
	}
	return DefaultStopTimeout
}

// Credentials are what the bucket is opened with. They can be changed while the
// instance runs.
type Credentials struct {
	AccessKey, SecretKey, SessionToken string
}

// Network is what a Worker may connect to, as workerd takes it: networks, or its names
// for groups of them. What is denied is so whatever is allowed.
type Network struct {
	Allow, Deny []string
}

// Line is one line of output.
type Line struct {
	Stderr bool
	Level  string // log, info, debug, warn, error; empty: not structured
	Text   string // the message
	// Runtime says that workerd itself wrote it, and not the Worker.
	Runtime bool
	// Exception says that Text is an exception that no code caught, with its stack.
	Exception bool
}

// Exit is how an instance ended.
type Exit struct {
	Code   int    // -1 when a signal ended it
	Signal string // its name, or empty
	Stderr string // the last lines of standard error and of the runtime's own
}

// StartError is a workerd that did not start.
type StartError struct {
	Sentence string // the runtime's own words, with file and line where it has them
	Exit     Exit
}

func (e *StartError) Error() string { return e.Sentence }

// Instance is a started workerd.
type Instance struct {
	spec    Spec
	cmd     *exec.Cmd
	control *os.File
	tail    tail
	trouble atomic.Int64  // when the store last failed it, in nanoseconds; 0: never
	leaving chan struct{} // closed once it said that it leaves the cluster
	leave   sync.Once     // closes it
	starved sync.Once     // it was said what its lines about memory mean
	bound   chan struct{} // closed once every port was reported
	done    chan struct{}

	mu          sync.Mutex // guards all below
	addr        string
	clusterPort int
	migrations  string // where migrations are applied
	exited      bool
	exit        Exit
}

// Start writes the configuration and starts the process. It returns once the
// process runs; Ready waits for its ports. The process ends when this one does,
// however it ends. ctx bounds the start alone.
func Start(ctx context.Context, s Spec) (*Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	i := &Instance{spec: s, bound: make(chan struct{}), leaving: make(chan struct{}), done: make(chan struct{})}
	err := i.prepare()
	if err == nil {
		err = i.launch(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.Run))
	}
	return i, nil
}

// launch starts the process, which gets the lock of its disk.
func (i *Instance) launch(ctx context.Context) error {
	if !i.spec.clustered() {
		return i.spawn(nil)
	}
	lock, err := lockDisk(ctx, i.spec.Disk)
	if err != nil {
		return err
	}
	return errors.Join(i.spawn(lock), lock.Close())
}

func (s *Spec) check() error {
	switch {
	case s.Deployment == nil || s.Deployment.Manifest == nil:
		return errors.New("instance: no deployment")
	case s.Run == "":
		return errors.New("instance: no run directory")
	case s.keepsState() && !s.Trial && s.Cluster == nil:
		return fmt.Errorf("instance: %s keeps state and was given no cluster", s.Deployment.ScriptName)
	case s.clustered() && (s.Disk == "" || s.Cluster.Bucket == "" || s.Cluster.Listen == ""):
		return errors.New("instance: a cluster needs a disk, a bucket and an address")
	case s.clustered() && len(s.Cluster.Key) < MinKey:
		return fmt.Errorf("instance: the cluster's key has fewer than %d bytes", MinKey)
	}
	return nil
}

func (i *Instance) configFile() string      { return filepath.Join(i.spec.Run, "workerd.capnp") }
func (i *Instance) credentialsFile() string { return filepath.Join(i.spec.Run, "credentials") }

// prepare makes the directories and writes the configuration.
func (i *Instance) prepare() error {
	if err := os.MkdirAll(i.spec.Run, 0o700); err != nil {
		return err
	}
	// Relative paths would be those of the working directory, or of the file.
	for _, p := range []*string{&i.spec.Run, &i.spec.Disk} {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	d := *i.spec.Deployment
	abs, err := filepath.Abs(d.Dir)
	if err != nil {
		return err
	}
	d.Dir = abs
	i.spec.Deployment = &d
	if i.spec.Trial {
		i.spec.Disk = filepath.Join(i.spec.Run, "disk")
	}
	if i.spec.keepsState() {
		if err := os.MkdirAll(i.spec.Disk, 0o700); err != nil {
			return err
		}
	}
	if i.spec.Trial && len(d.KV) > 0 {
		if err := os.Mkdir(i.spec.valuesDir(), 0o700); err != nil {
			return err
		}
	}
	if i.spec.clustered() {
		if err := i.SetCredentials(i.spec.Cluster.Credentials); err != nil {
			return err
		}
	}
	body, err := config(&i.spec, i.credentialsFile())
	if err != nil {
		return err
	}
	return os.WriteFile(i.configFile(), body, 0o600)
}

// inherited are the variables that the process gets of this one's: where the
// certificates of the store's authority are.
var inherited = []string{"SSL_CERT_FILE", "SSL_CERT_DIR"}

// environment is made from nothing: credentials and the key are in files.
func environment() []string {
	env := []string{"TZ=UTC", "LANG=C.UTF-8"}
	for _, name := range inherited {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// spawn starts the process and everything that follows it. The process keeps lock
// open, if there is one.
func (i *Instance) spawn(lock *os.File) error {
	control, controlW, err := os.Pipe()
	if err != nil {
		return err
	}
	stdout, stdoutW, err := os.Pipe()
	if err != nil {
		return errors.Join(err, control.Close(), controlW.Close())
	}
	stderr, stderrW, err := os.Pipe()
	if err != nil {
		return errors.Join(err, control.Close(), controlW.Close(), stdout.Close(), stdoutW.Close())
	}
	i.cmd = &exec.Cmd{
		Path: i.spec.Workerd,
		Args: []string{
			"workerd", "serve", "--experimental", "--control-fd", "3",
			"--verbose", // or the stacks of exceptions would not be told
			"-I", i.spec.Deployment.Dir, i.configFile(), configName,
		},
		Env:        environment(),
		Dir:        i.spec.Run,
		Stdout:     stdoutW,
		Stderr:     stderrW,
		ExtraFiles: []*os.File{controlW},
		SysProcAttr: &syscall.SysProcAttr{
			Pdeathsig: syscall.SIGKILL,
			// A terminal's Ctrl-C goes to the whole group, and workerd does not
			// drain on SIGINT.
			Setpgid: true,
		},
	}
	if lock != nil {
		i.cmd.ExtraFiles = append(i.cmd.ExtraFiles, lock)
	}
	if err = start(i.cmd); err == nil {
		err = i.restrain()
	}
	closed := errors.Join(controlW.Close(), stdoutW.Close(), stderrW.Close())
	if err = errors.Join(err, closed); err != nil {
		if i.cmd.Process != nil {
			_ = i.cmd.Process.Kill()
			_ = i.cmd.Wait()
		}
		return errors.Join(fmt.Errorf("start %s: %w", i.spec.Workerd, err), control.Close(), stdout.Close(), stderr.Close())
	}
	i.control = control
	go i.follow(stdout, stderr)
	return nil
}

// follow owns the process to its end.
func (i *Instance) follow(stdout, stderr *os.File) {
	var out sync.WaitGroup
	out.Go(func() { i.readControl() })
	out.Go(func() { i.read(stdout, false) })
	out.Go(func() { i.read(stderr, true) })
	out.Wait()
	_ = i.cmd.Wait() // what it says is in ProcessState
	i.mu.Lock()
	i.exited = true
	i.exit = Exit{Code: i.cmd.ProcessState.ExitCode(), Stderr: i.tail.String()}
	if ws, ok := i.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		i.exit.Signal = ws.Signal().String()
	}
	i.mu.Unlock()
	_ = os.RemoveAll(i.spec.Run)
	close(i.done)
}

// storeFailed reports whether workerd says that a request to the store failed, or had
// no answer.
func storeFailed(line string) bool {
	return strings.Contains(line, "bucket: ") || strings.HasPrefix(line, "cluster: ") &&
		(strings.Contains(line, " had no answer in ") || strings.Contains(line, "timed out"))
}

// LeaseLost is how workerd begins to say that it fenced itself: its lease lapsed, or a
// renewal had no answer in time.
const LeaseLost = "leaving the cluster: "

// Leaving is closed as soon as the process says that it leaves the cluster without its
// lease. It ends some milliseconds later.
func (i *Instance) Leaving() <-chan struct{} { return i.leaving }

// StoreTrouble is when the process last said that the store failed it; zero: never.
func (i *Instance) StoreTrouble() time.Time {
	if n := i.trouble.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

func (i *Instance) read(f *os.File, stderr bool) {
	defer func() { _ = f.Close() }()
	lines(f, func(b []byte) {
		l, r := parseLine(b, stderr)
		if r.chatter() {
			return
		}
		// What the runtime itself says of a running instance goes to standard
		// output, among the Worker's own lines.
		if l.Runtime && storeFailed(l.Text) {
			i.trouble.Store(time.Now().UnixNano())
		}
		if l.Runtime && strings.HasPrefix(l.Text, LeaseLost) {
			i.leave.Do(func() { close(i.leaving) })
		}
		if !l.Exception && (stderr || r.Source != "") {
			i.tail.add(l, r)
		}
		i.explain(l, r)
		if i.spec.Log != nil {
			i.spec.Log(l)
		}
	})
}

// event is a line of the control descriptor.
type event struct {
	Event  string `json:"event"`
	Socket string `json:"socket"`
	Port   int    `json:"port"`
}

// readControl learns the ports. Each is reported once, when all that it serves
// is up: in a cluster, after the lease was taken.
func (i *Instance) readControl() {
	defer func() { _ = i.control.Close() }()
	announced := false
	s := bufio.NewScanner(i.control)
	for s.Scan() {
		var e event
		if json.Unmarshal(s.Bytes(), &e) != nil {
			continue
		}
		i.mu.Lock()
		switch {
		case e.Event == "listen" && e.Socket == socketName:
			i.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(e.Port))
		case e.Event == "listen" && e.Socket == migrationsSocket:
			i.migrations = net.JoinHostPort("127.0.0.1", strconv.Itoa(e.Port))
		case e.Event == "listen-cluster":
			i.clusterPort = e.Port
		}
		all := i.addr != "" && (i.clusterPort != 0 || !i.spec.clustered()) && (i.migrations != "" || !i.spec.migrates())
		i.mu.Unlock()
		if all && !announced {
			announced = true
			i.tighten()
			close(i.bound)
		}
	}
	_, _ = io.Copy(io.Discard, i.control)
}

// Ready waits until every port is bound and, in a cluster, until the instance
// holds its lease. It fails when the process exits before, with the runtime's
// sentence, as a *StartError.
func (i *Instance) Ready(ctx context.Context) error {
	select {
	case <-i.bound:
	case <-i.done:
		return i.startError()
	case <-ctx.Done():
		return ctx.Err()
	}
	err := i.Healthy(ctx)
	if err == nil {
		return nil
	}
	// If it is about to end, its own words say more.
	t := time.NewTimer(lastWords)
	defer t.Stop()
	select {
	case <-i.done:
		return i.startError()
	case <-t.C:
	case <-ctx.Done():
	}
	return err
}

// lastWords is how long Ready waits for the end of a process that does not answer
// though its ports are bound.
const lastWords = 500 * time.Millisecond

func (i *Instance) startError() error {
	e := &StartError{Exit: i.Exit(), Sentence: plainly(i.tail.sentence())}
	if e.Sentence == "" {
		e.Sentence = "workerd ended at its start with " + e.Exit.String()
	}
	return e
}

func (e Exit) String() string {
	if e.Signal != "" {
		return "signal " + e.Signal
	}
	return "exit code " + strconv.Itoa(e.Code)
}

// Addr is where it answers requests, IP:port on loopback; valid after Ready.
func (i *Instance) Addr() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.addr
}

// Dial opens a connection to its public socket; valid after Ready.
func (i *Instance) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", i.Addr())
}

// ClusterAddr is where its peers reach it on this machine, and where GET /ready
// answers; empty outside a cluster; valid after Ready.
func (i *Instance) ClusterAddr() string {
	if !i.spec.clustered() {
		return ""
	}
	host, _, err := net.SplitHostPort(i.spec.Cluster.Listen)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return net.JoinHostPort(host, strconv.Itoa(i.clusterPort))
}

// PID is the process id.
func (i *Instance) PID() int { return i.cmd.Process.Pid }

// Spec is what it was started with.
func (i *Instance) Spec() Spec { return i.spec }

// readyClient asks /ready on a connection of its own each time: a kept one could
// answer for a listener that is gone.
var readyClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}

// Healthy asks GET /ready of the cluster port: 200 while the instance serves,
// holds its lease and is not stopping. Outside a cluster it opens a connection.
func (i *Instance) Healthy(ctx context.Context) error {
	if !i.spec.clustered() {
		c, err := i.Dial(ctx)
		if err != nil {
			return err
		}
		return c.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+i.ClusterAddr()+"/ready", nil)
	if err != nil {
		return err
	}
	resp, err := readyClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the cluster port answers %s", resp.Status)
	}
	return nil
}

// SetCredentials replaces the bucket's credentials; the process reads them anew
// by itself.
func (i *Instance) SetCredentials(c Credentials) error {
	var b strings.Builder
	for _, l := range [][2]string{
		{"AWS_ACCESS_KEY_ID", c.AccessKey}, {"AWS_SECRET_ACCESS_KEY", c.SecretKey}, {"AWS_SESSION_TOKEN", c.SessionToken},
	} {
		if strings.ContainsAny(l[1], "\r\n") {
			return fmt.Errorf("%s has a line break", l[0])
		}
		if l[1] != "" {
			fmt.Fprintf(&b, "%s=%s\n", l[0], l[1])
		}
	}
	// By rename: the process may be reading it.
	tmp, err := os.CreateTemp(i.spec.Run, ".credentials-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.WriteString(b.String())
	if err = errors.Join(err, tmp.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return os.Rename(tmp.Name(), i.credentialsFile())
}

// Drain asks the process to finish: objects are handed over, running requests
// end, then it exits, within the stop timeout of its cluster. It does not wait;
// see Done. A process that did not report its ports yet dies of it.
func (i *Instance) Drain() error { return i.signal(syscall.SIGTERM) }

// Kill ends the process at once.
func (i *Instance) Kill() error { return i.signal(syscall.SIGKILL) }

func (i *Instance) signal(sig os.Signal) error {
	err := i.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Done is closed when the process was reaped, its output read to the end, and
// its run directory removed.
func (i *Instance) Done() <-chan struct{} { return i.done }

// Exit is how it ended; valid after Done.
func (i *Instance) Exit() Exit {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.exit
}

// Stderr is the last lines of standard error, and of the runtime's own, so far.
func (i *Instance) Stderr() string { return i.tail.String() }

// Warnings are what the runtime itself warned of so far, a class that is not
// exported for one.
func (i *Instance) Warnings() []string { return i.tail.warned() }
