package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
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
	"syscall"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/token/keyfile"
)

const (
	// patience bounds every wait: what has not come by then never will.
	patience = 90 * time.Second
	// look is how often a condition is looked at that nobody tells.
	look = time.Millisecond
	// runtimePorts is how many ports a fleet gets for its runtimes.
	runtimePorts = 200
)

// fleet is a whole fleet on this machine, as `scafo up` runs it.
type fleet struct {
	b       *bench
	dir     string
	state   string
	profile string
	api     string // host:port
	http    int
	ports   string
	env     []string // added to the node's
	flags   []string // added to `up`

	up      *exec.Cmd
	done    chan struct{}
	err     error
	web     *http.Client
	client  *client.Client
	mu      sync.Mutex // guards what follows
	events  []event
	waiting chan struct{} // closed at the next event
	said    []string
}

// event is a line of the node's log.
type event struct {
	Time        time.Time `json:"time"`
	Msg         string    `json:"msg"`
	Event       string    `json:"event"`
	Application string    `json:"application"`
	Deploy      string    `json:"deploy"`
	Source      string    `json:"source"`
}

// newFleet prepares a fleet; start starts it.
func (b *bench) newFleet() (*fleet, error) {
	dir, err := b.sub("fleet")
	if err != nil {
		return nil, err
	}
	api, err := freePort()
	if err != nil {
		return nil, err
	}
	web, err := freePort()
	if err != nil {
		return nil, err
	}
	first := 22000 + os.Getpid()%30*runtimePorts
	f := &fleet{
		b: b, dir: dir, state: filepath.Join(dir, "state"), profile: filepath.Join(dir, "profile.json"),
		api: "127.0.0.1:" + strconv.Itoa(api), http: web, waiting: make(chan struct{}),
		ports: fmt.Sprintf("%d-%d", first, first+runtimePorts-1),
	}
	f.web = &http.Client{Timeout: patience, Transport: &http.Transport{
		// Names below localhost lead here, whatever the resolver thinks.
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, "127.0.0.1:"+strconv.Itoa(web))
		},
	}}
	return f, nil
}

// started makes a fleet and starts it.
func (b *bench) startedFleet(ctx context.Context) (*fleet, error) {
	f, err := b.newFleet()
	if err != nil {
		return nil, err
	}
	return f, f.start(ctx)
}

// freePort is a port that nobody listens on at the moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// environment is this process's own, less what could lead to another fleet.
func environment(more ...string) []string {
	var out []string
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "SCAFO_") || strings.HasPrefix(e, "AWS_") || strings.HasPrefix(e, "CELLD_") {
			continue
		}
		out = append(out, e)
	}
	return append(append(out, "AWS_EC2_METADATA_DISABLED=true"), more...)
}

// start runs `scafo up` and waits for its greeting.
func (f *fleet) start(ctx context.Context) error {
	if err := f.launch(); err != nil {
		return err
	}
	for {
		f.mu.Lock()
		next, said := f.waiting, strings.Join(f.said, "\n")
		f.mu.Unlock()
		if strings.Contains(said, "  Deploy ") {
			break
		}
		select {
		case <-next:
		case <-f.done:
			return fmt.Errorf("scafo up ended: %w: %s", f.err, tail(said))
		case <-ctx.Done():
			return errors.Join(ctx.Err(), f.stop())
		}
	}
	key, _, err := keyfile.Load(filepath.Join(f.state, "admin.jwk"))
	if err != nil {
		return errors.Join(err, f.stop())
	}
	f.client, err = client.New(client.Config{
		URLs:       []string{"http://" + f.api},
		Credential: client.CredentialFunc(func(context.Context) (string, error) { return key.Token(time.Now()) }),
	})
	if err != nil {
		return errors.Join(err, f.stop())
	}
	return nil
}

// launch starts `scafo up` and follows what it says.
func (f *fleet) launch() error {
	args := append([]string{
		"up", "--state", f.state, "--listen", f.api, "--http-port", strconv.Itoa(f.http),
		"--celld-ports", f.ports, "--log-level", "info", "--log-format", "json",
	}, f.flags...)
	cmd := exec.Command(f.b.program("scafo"), args...)
	cmd.Env = append(environment("SCAFO_PROFILE="+f.profile), f.env...)
	out, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		return errors.Join(err, w.Close(), out.Close())
	}
	w.Close()
	f.up, f.done = cmd, make(chan struct{})
	f.mu.Lock()
	f.said = nil
	f.mu.Unlock()
	read := make(chan struct{})
	go func() {
		defer close(read)
		f.follow(out)
	}()
	go func() {
		f.err = cmd.Wait()
		out.Close() // others may have inherited the writing end
		<-read
		close(f.done)
	}()
	return nil
}

// follow reads the log until its end.
func (f *fleet) follow(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, mib)
	for lines.Scan() {
		var e event
		isEvent := json.Unmarshal(lines.Bytes(), &e) == nil
		f.mu.Lock()
		if isEvent {
			f.events = append(f.events, e)
		}
		if f.said = append(f.said, lines.Text()); len(f.said) > 200 {
			f.said = f.said[100:]
		}
		close(f.waiting)
		f.waiting = make(chan struct{})
		f.mu.Unlock()
	}
}

// find is the first event that matches, after a moment.
func (f *fleet) find(after time.Time, match func(event) bool) (event, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if !e.Time.Before(after) && match(e) {
			return e, true
		}
	}
	return event{}, false
}

// await waits for such an event.
func (f *fleet) await(ctx context.Context, after time.Time, match func(event) bool) (event, error) {
	for {
		f.mu.Lock()
		next := f.waiting
		f.mu.Unlock()
		if e, ok := f.find(after, match); ok {
			return e, nil
		}
		select {
		case <-next:
		case <-f.done:
			return event{}, errors.New("scafo up ended")
		case <-ctx.Done():
			return event{}, ctx.Err()
		}
	}
}

func tail(s string) string {
	const most = 4000
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

// stop ends the fleet as Ctrl-C does.
func (f *fleet) stop() error {
	if f.up == nil {
		return nil
	}
	f.web.CloseIdleConnections()
	select {
	case <-f.done:
		return nil
	default:
	}
	if err := f.up.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-f.done:
		return nil
	case <-time.After(patience):
		_ = f.up.Process.Kill()
		<-f.done
		return errors.New("scafo up did not stop")
	}
}

// program is one of scafo's programs.
func (b *bench) program(name string) string { return filepath.Join(b.bin, name) }

// address is where an application answers.
func (f *fleet) address(app string) string {
	return fmt.Sprintf("http://%s.localhost:%d/", app, f.http)
}

// deploy runs the command on a folder and returns what it printed.
func (f *fleet) deploy(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, f.b.program("scafo"), append([]string{"deploy", dir, "--json"}, args...)...)
	cmd.Env = environment("SCAFO_PROFILE=" + f.profile)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("scafo deploy %s: %w: %s%s", dir, err, out.String(), errs.String())
	}
	return out.String(), nil
}

// publishArtifact deploys through the API alone and waits until it is deployed.
func (f *fleet) publishArtifact(ctx context.Context, app string, body io.Reader, size int64) error {
	st, err := f.client.Deploy(ctx, app, scafo.DeployMetadata{}, client.Upload{Body: body, Size: size})
	for err == nil && !st.State.Terminal() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		st, err = f.client.DeployStatus(ctx, st.ID)
	}
	if err != nil {
		return err
	}
	if st.State != scafo.DeployDeployed {
		return fmt.Errorf("the deploy of %s failed: %s", app, st.Detail)
	}
	return nil
}

// largeArtifact is a project of random assets of that size, which no compression
// shrinks, in files below what the runtime takes.
func largeArtifact(size int) ([]byte, error) {
	const file = 20 * mib
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name string, content []byte) error {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	err := add("wrangler.jsonc", []byte(`{"name":"large","compatibility_date":"2026-11-01","assets":{"directory":"public"}}`))
	for i := 0; err == nil && size > 0; i++ {
		content := make([]byte, min(size, file))
		if _, err = rand.Read(content); err == nil {
			err = add(fmt.Sprintf("public/%d.bin", i), content)
		}
		size -= len(content)
	}
	err = errors.Join(err, w.Close()) // which writes the end of the archive
	return b.Bytes(), err
}

func (f *fleet) get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := f.web.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", res.StatusCode, b)
	}
	return string(b), err
}
