package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
)

// pipeListener accepts connections that are made in memory, so that virtual time
// holds for them too.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case l.conns <- b:
		return a, nil
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fakeProcess behaves as workerd was seen to: after SIGTERM a member of a cluster
// goes on for five seconds, hands over, and leaves; others refuse connections at
// once and leave when nothing runs.
type fakeProcess struct {
	pid     int
	version string
	cluster bool
	l       *pipeListener
	srv     *http.Server
	started time.Time

	mu       sync.Mutex
	frozen   bool
	trouble  time.Time
	running  int
	draining bool
	exit     instance.Exit
	ended    bool
	done     chan struct{}
	leaving  chan struct{}
	conns    map[net.Conn]struct{}
}

func (p *fakeProcess) Ready(context.Context) error { return nil }

func (p *fakeProcess) Dial(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	mute := p.frozen && !p.cluster // what cannot answer a knock
	p.mu.Unlock()
	if mute {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.done:
			return nil, io.EOF
		}
	}
	c, err := p.l.dial(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	return c, nil
}

func (p *fakeProcess) ClusterAddr() string {
	if p.cluster {
		return "10.0.0.1:1"
	}
	return ""
}
func (p *fakeProcess) PID() int { return p.pid }

func (p *fakeProcess) Healthy(ctx context.Context) error {
	p.mu.Lock()
	frozen, draining := p.frozen, p.draining || p.ended
	p.mu.Unlock()
	if frozen {
		<-ctx.Done()
		return ctx.Err()
	}
	if draining {
		return errors.New("503")
	}
	return nil
}

func (p *fakeProcess) Drain() error {
	p.mu.Lock()
	if p.draining || p.ended {
		p.mu.Unlock()
		return nil
	}
	p.draining = true
	p.mu.Unlock()
	go func() {
		if p.cluster && !p.lives(5*time.Second) {
			return
		}
		_ = p.l.Close()
		for {
			p.mu.Lock()
			idle := p.running == 0
			p.mu.Unlock()
			if !p.lives(10 * time.Millisecond) { // the last answer has left by then
				return
			}
			if idle {
				break
			}
		}
		p.end(instance.Exit{Code: 0})
	}()
	return nil
}

// lives waits, and is false when the process ended meanwhile.
func (p *fakeProcess) lives(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-p.done:
		return false
	}
}

func (p *fakeProcess) Kill() error {
	p.end(instance.Exit{Code: -1, Signal: "killed"})
	return nil
}

// end is the exit of the process: every connection is cut.
func (p *fakeProcess) end(e instance.Exit) {
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return
	}
	p.ended, p.exit = true, e
	conns := p.conns
	p.conns = nil
	p.mu.Unlock()
	_ = p.l.Close()
	for c := range conns {
		_ = c.Close()
	}
	_ = p.srv.Close()
	close(p.done)
}

func (p *fakeProcess) Done() <-chan struct{}    { return p.done }
func (p *fakeProcess) Exit() instance.Exit      { p.mu.Lock(); defer p.mu.Unlock(); return p.exit }
func (p *fakeProcess) Leaving() <-chan struct{} { return p.leaving }
func (p *fakeProcess) StoreTrouble() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trouble
}
func (p *fakeProcess) Stderr() string { return p.Exit().Stderr }

func (p *fakeProcess) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.running++
	frozen := p.frozen
	p.mu.Unlock()
	defer func() { p.mu.Lock(); p.running--; p.mu.Unlock() }()
	if frozen {
		<-p.done
		panic(http.ErrAbortHandler)
	}
	switch r.URL.Path {
	case "/cut":
		panic(http.ErrAbortHandler)
	case "/half":
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case "/slow":
		d, _ := time.ParseDuration(r.URL.Query().Get("for"))
		select {
		case <-time.After(d):
		case <-p.done:
			panic(http.ErrAbortHandler)
		}
	}
	w.Header().Set("X-Version", p.version)
	_ = json.NewEncoder(w).Encode(map[string]any{"uri": r.RequestURI, "host": r.Host, "headers": r.Header, "te": r.TransferEncoding})
}

// fakeRuntime is a store with one pointer, and a machine.
type fakeRuntime struct {
	mu      sync.Mutex
	pointer *layout.Pointer
	loadErr error
	prepErr error
	// leftovers: something of an earlier run is settled before anything else.
	leftovers  bool
	broken     map[string]string // version to the runtime's sentence
	durable    bool
	handler    func(p *fakeProcess) http.Handler
	started    []*fakeProcess
	reaped     []string // "pid clean"
	startErr   error
	migrations []layout.Migrations // of every deployment
	migrateErr error
	migrated   []string // versions
	loads      int
	peersServe bool
	looks      int         // for lapsed peers
	lapses     []time.Time // when peers' leases run out
}

func (f *fakeRuntime) Prepare(context.Context) (func(context.Context) error, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leftovers {
		return nil, f.prepErr
	}
	return func(context.Context) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.prepErr
	}, nil
}

func (f *fakeRuntime) Load(context.Context) (layout.Pointer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loads++
	if f.loadErr != nil {
		return layout.Pointer{}, f.loadErr
	}
	if f.pointer == nil {
		return layout.Pointer{}, layout.ErrNoPointer
	}
	return *f.pointer, nil
}

func (f *fakeRuntime) Fetch(_ context.Context, p layout.Pointer) (*layout.Deployment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := &layout.Manifest{Version: p.Version}
	if f.durable {
		m.Classes = []layout.Class{{Name: "Counter"}}
	}
	m.Migrations = f.migrations
	return &layout.Deployment{Manifest: m}, nil
}

func (f *fakeRuntime) Start(_ context.Context, d *layout.Deployment, _ int) (Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if why := f.broken[d.Version]; why != "" {
		return nil, &instance.StartError{Sentence: why}
	}
	if f.startErr != nil {
		return nil, f.startErr
	}
	return f.run(d, f.durable), nil
}

// run starts a process. Called with mu held.
func (f *fakeRuntime) run(d *layout.Deployment, cluster bool) *fakeProcess {
	p := &fakeProcess{
		pid: -1 - len(f.started), version: d.Version, cluster: cluster, l: newPipeListener(),
		done: make(chan struct{}), leaving: make(chan struct{}), conns: map[net.Conn]struct{}{}, started: time.Now(),
	}
	h := http.Handler(p)
	if f.handler != nil {
		h = f.handler(p)
	}
	p.srv = &http.Server{Handler: h}
	go func() { _ = p.srv.Serve(p.l) }()
	f.started = append(f.started, p)
	return p
}

func (f *fakeRuntime) StandIn(_ context.Context, d *layout.Deployment) (Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.run(d, false), nil
}

func (f *fakeRuntime) PeersServe(context.Context) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.peersServe
}

func (f *fakeRuntime) Migrate(_ context.Context, d *layout.Deployment, _ Process) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.migrated = append(f.migrated, d.Version)
	return f.migrateErr
}

func (f *fakeRuntime) Joined(context.Context, Process) {}
func (f *fakeRuntime) Reaped(_ context.Context, p Process, clean bool) {
	f.mu.Lock()
	f.reaped = append(f.reaped, fmt.Sprint(p.PID(), " ", clean))
	f.mu.Unlock()
}

func (f *fakeRuntime) Lapsed(context.Context) ([]time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	var out []time.Duration
	for _, at := range f.lapses {
		if ago := time.Since(at); ago > 0 {
			out = append(out, ago)
		}
	}
	return out, nil
}
func (f *fakeRuntime) FirstSlot() int             { return 0 }
func (f *fakeRuntime) Keep(...*layout.Deployment) {}

func (f *fakeRuntime) deploy(version string) {
	f.mu.Lock()
	f.pointer = &layout.Pointer{ScriptName: "s", Version: version, Prefix: "deploy/s/" + version + "/"}
	f.mu.Unlock()
}

func (f *fakeRuntime) process(n int) *fakeProcess {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.started[n]
}

// loaded is how often the pointer was read.
func (f *fakeRuntime) loaded() int { f.mu.Lock(); defer f.mu.Unlock(); return f.loads }

func (f *fakeRuntime) starts() int { f.mu.Lock(); defer f.mu.Unlock(); return len(f.started) }

// world is a running Server on listeners in memory.
type world struct {
	t        *testing.T
	rt       *fakeRuntime
	s        *Server
	public   *pipeListener
	internal *pipeListener
	client   *http.Client
	control  *http.Client
	result   chan error
}

// withServer runs f in virtual time against a Server on rt.
func withServer(t *testing.T, rt *fakeRuntime, o Options, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		if o.DeployPoll == 0 {
			o.DeployPoll = time.Hour
		}
		if o.DeployMaxAge == 0 {
			o.DeployMaxAge = DefaultDeployMaxAge
		}
		if o.ShutdownTotal == 0 {
			o.ShutdownTotal = DefaultShutdownTotal
		}
		o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
		w := &world{t: t, rt: rt, s: New(rt, o), public: newPipeListener(), internal: newPipeListener(), result: make(chan error, 1)}
		w.client, w.control = pipeClient(w.public), pipeClient(w.internal)
		go func() { w.result <- w.s.Run(w.public, w.internal) }()
		synctest.Wait()
		f(w)
		w.client.CloseIdleConnections()
		w.control.CloseIdleConnections()
		w.s.Stop()
		select {
		case <-w.result:
		case <-time.After(time.Hour):
			t.Error("the server did not end")
		}
	})
}

func pipeClient(l *pipeListener) *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx) }, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// reply is an answer, read to its end.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func (w *world) get(path string) reply { return do(w.client, http.MethodGet, path, nil) }

func do(c *http.Client, method, path string, header http.Header) reply {
	req, err := http.NewRequest(method, "http://app.test"+path, nil)
	if err != nil {
		return reply{err: err}
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := c.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(b), err}
}

// reload is POST /reload.
func (w *world) reload() (int, Outcome) {
	w.t.Helper()
	r := do(w.control, http.MethodPost, "/reload", nil)
	if r.err != nil {
		w.t.Fatal(r.err)
	}
	var o Outcome
	if err := json.Unmarshal([]byte(r.body), &o); err != nil {
		w.t.Fatalf("%s: %v", r.body, err)
	}
	return r.status, o
}

func (w *world) wantHealth(status int) {
	w.t.Helper()
	r := w.get(HealthPath)
	want := `{"ok":true}`
	if status != 200 {
		want = `{"ok":false}`
	}
	if r.status != status || r.body != want || r.err != nil {
		w.t.Errorf("health: %d %q %v, want %d", r.status, r.body, r.err, status)
	}
}

func (w *world) wantVersion(version string) {
	w.t.Helper()
	if r := w.get("/"); r.status != 200 || r.header.Get("X-Version") != version {
		w.t.Errorf("%d %s %v, want version %s", r.status, r.header.Get("X-Version"), r.err, version)
	}
}

func (w *world) wantRefused(r reply) {
	w.t.Helper()
	if r.status != 503 || r.header.Get("Retry-After") != "1" {
		w.t.Errorf("%d, Retry-After %q, %v: want 503 and 1", r.status, r.header.Get("Retry-After"), r.err)
	}
}

// raw sends bytes on a connection of its own and reads the status line.
func (w *world) raw(request string) string {
	c, err := w.public.dial(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	go func() { _, _ = io.WriteString(c, request) }()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	b, _ := io.ReadAll(resp.Body)
	return resp.Status + "\n" + string(b)
}

var errDown = &bucket.Error{Op: "get", Key: "k", Kind: bucket.ErrUnavailable}

func contains(t *testing.T, s, part string) {
	t.Helper()
	if !strings.Contains(s, part) {
		t.Errorf("%q does not contain %q", s, part)
	}
}
