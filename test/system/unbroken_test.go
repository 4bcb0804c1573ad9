//go:build system

package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// The length of what runs through all that can happen to a fleet. SCAFO_UNBROKEN=long
// redeploys as often, and downloads as long, as the promise says; the shorter one is for
// each change.
const (
	shortRedeploys, longRedeploys = 3, 20
	// visitorsPerSecond is how many requests are sent through each ingress, whether the
	// ones before them are answered or not.
	visitorsPerSecond = 200
	// How long each download takes.
	shortDownload, longDownload = 8, 20
)

// unbrokenWorker answers with what it was sent, and on /slow slowly, ten times a second.
const unbrokenWorker = `// version %d
const chunk = new Uint8Array(1024);
export default { async fetch(request) {
	if (new URL(request.url).pathname !== "/slow") return new Response(await request.text() + "!");
	let left = %d;
	return new Response(new ReadableStream({ async pull(to) {
		if (left-- === 0) return to.close();
		await scheduler.wait(100);
		to.enqueue(chunk);
	} }));
} };
`

// entrance is one way to the fleet with everything that is under way through it.
type entrance struct {
	t      testing.TB
	name   string
	client *http.Client
	moment *atomic.Value // what happens now, in words

	mu     sync.Mutex
	took   []time.Duration // guarded by mu
	failed []string        // guarded by mu

	ended atomic.Int64 // sockets that the other side ended
	wg    sync.WaitGroup
}

func newEntrance(t testing.TB, name, address string, moment *atomic.Value) *entrance {
	e := &entrance{t: t, name: name, moment: moment}
	e.client = &http.Client{Timeout: patience, Transport: &http.Transport{
		MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}}
	t.Cleanup(e.client.CloseIdleConnections)
	return e
}

func (e *entrance) fail(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failed = append(e.failed, fmt.Sprintf("%s: ", e.moment.Load())+fmt.Sprintf(format, args...))
}

// visit sends requests at their rate until the context ends: every fourth one is a POST.
func (e *entrance) visit(ctx context.Context) {
	tick := time.NewTicker(time.Second / visitorsPerSecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		method, body := http.MethodGet, ""
		if n%4 == 0 {
			method, body = http.MethodPost, strings.Repeat("x", 2000)
		}
		e.wg.Go(func() {
			began := time.Now()
			if err := e.ask(method, "/", body); err != nil {
				e.fail("%s: %v", method, err)
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.took = append(e.took, time.Since(began))
		})
	}
}

func (e *entrance) ask(method, path, body string) error {
	req, err := http.NewRequest(method, "http://shop.apps.test"+path, strings.NewReader(body)) // it outlives the load
	if err != nil {
		return err
	}
	res, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || string(got) != body+"!" {
		return fmt.Errorf("%d, %d bytes: %.100q %v", res.StatusCode, len(got), got, err)
	}
	return nil
}

// download reads for so many seconds.
func (e *entrance) download(seconds int) {
	res, err := (&http.Client{Transport: e.client.Transport}).Get("http://shop.apps.test/slow")
	if err != nil {
		e.fail("a download: %v", err)
		return
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if want := int64(seconds * 10 * 1024); err != nil || n != want || res.StatusCode != http.StatusOK {
		e.fail("a download: %d, %d bytes of %d, %v", res.StatusCode, n, want, err)
	}
}

// talk says a word in the chat a few times a second and hears it. A socket that the other
// side ends is opened again at once.
func (e *entrance) talk(ctx context.Context) {
	var conn *websocket.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(websocket.StatusNormalClosure, "")
		}
	}()
	for n := 0; ctx.Err() == nil; {
		if conn == nil {
			var err error
			conn, _, err = websocket.Dial(context.WithoutCancel(ctx), "ws://chat.apps.test/ws/"+e.name+"?name=someone", &websocket.DialOptions{HTTPClient: e.client})
			if err != nil {
				e.fail("a socket: %v", err)
				return
			}
		}
		word := fmt.Appendf(nil, "%p word %d.", conn, n)
		if err := hear(conn, word); err != nil {
			e.ended.Add(1)
			_ = conn.CloseNow()
			conn = nil
			continue
		}
		n++
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func hear(conn *websocket.Conn, word []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	if err := conn.Write(ctx, websocket.MessageText, word); err != nil {
		return err
	}
	for {
		_, b, err := conn.Read(ctx)
		if err != nil || bytes.Contains(b, word) {
			return err
		}
	}
}

// report says what was measured; nothing may have failed.
func (e *entrance) report() {
	e.t.Helper()
	slices.Sort(e.took)
	at := func(p float64) time.Duration {
		return e.took[int(p*float64(len(e.took)-1))].Round(100 * time.Microsecond)
	}
	e.t.Logf("%s: %d requests, p50 %s, p99 %s, the longest %s; %d sockets were ended and opened again",
		e.name, len(e.took), at(0.5), at(0.99), at(1), e.ended.Load())
	if len(e.failed) > 0 {
		e.t.Errorf("%s: %d failed:\n%s", e.name, len(e.failed), strings.Join(e.failed[:min(len(e.failed), 12)], "\n"))
	}
}

// twoIngresses serve one socket, which they inherit: one with flags alone, and one with
// a Caddyfile and an admin endpoint, which reloads it.
func twoIngresses(t testing.TB, c *cluster) (address string, one *program, reload func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	nodes := []string{"http://" + c.machines[0].api, "http://" + c.machines[1].api}
	dir := t.TempDir()
	env := []string{"SCAFO_INGRESS_TOKEN=" + clusterIngressToken, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir}
	one = startWith(t, []*os.File{socket}, append(env, "LISTEN_FDS=1", "LISTEN_FDNAMES=http"), "/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`,
		bin(t, "scafo-caddy"), "run", "--node", nodes[0], "--node", nodes[1], "--http-only", "--http-port", fmt.Sprint(freePort(t)), "--state", filepath.Join(dir, "one"))
	admin := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	config := fmt.Sprintf("{\n\tadmin %s\n\tpersist_config off\n\tauto_https off\n\tscafo {\n\t\tfleet main {\n\t\t\tnode %s\n\t\t\ttoken {env.SCAFO_INGRESS_TOKEN}\n\t\t}\n\t}\n}\nhttp:// {\n\tbind fd/3\n\tscafo\n}\n",
		admin, strings.Join(nodes, " "))
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	two := startWith(t, []*os.File{socket}, env, bin(t, "scafo-caddy"), "run", "--config", file)
	for p, line := range map[*program]string{one: "scafo-caddy: serving", two: "serving initial configuration"} {
		eventually(t, "an ingress serves", func() error {
			if !contains(p.out.String(), line) {
				return errors.New("not yet")
			}
			return nil
		})
	}
	for _, f := range []io.Closer{l, socket} { // from here on the socket is the ingresses' alone
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return l.Addr().String(), one, func() {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+admin+"/load", strings.NewReader(config))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Content-Type": {"text/caddyfile"}, "Cache-Control": {"must-revalidate"}} // also what is the same
		if status, body, err := c.do(req); err != nil || status != http.StatusOK {
			t.Errorf("the reload: %d %s %v", status, body, err)
		}
	}
}

// servedBy waits until the application has its upstreams on exactly these machines.
func (c *cluster) servedBy(application string, machines ...string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%s is served by %v", application, machines), func() error {
		r, err := c.routes(c.machines[0])
		if err != nil {
			return err
		}
		var on []string
		for _, route := range r.Routes {
			if route.Application == application {
				for _, u := range route.Upstreams {
					on = append(on, u.Node)
				}
			}
		}
		if slices.Sort(on); !slices.Equal(on, machines) {
			return fmt.Errorf("by %v", on)
		}
		return nil
	})
}

// Through all that an operator does, no request fails: 200 a second through scafo-caddy
// and as many through Traefik, with sockets and slow downloads open.
func TestNoRequestFailsWhateverTheOperatorDoes(t *testing.T) {
	redeploys, seconds := shortRedeploys, shortDownload
	if os.Getenv("SCAFO_UNBROKEN") == "long" {
		redeploys, seconds = longRedeploys, longDownload
	}
	c := newCluster(t, 2, "--node-labels", "machine={id}", "--ingress-traefik-entry-points", "websecure", "--reconcile-interval-seconds", "2")
	c.variables = []string{"AWS_ACCESS_KEY_ID=" + c.store.AccessKey, "AWS_SECRET_ACCESS_KEY=" + c.store.SecretKey}
	var shop string
	version := 0
	deploy := func() {
		t.Helper()
		version++
		source := fmt.Sprintf(unbrokenWorker, version, seconds*10)
		if shop == "" {
			shop = worker(t, "shop", source)
		} else if err := os.WriteFile(filepath.Join(shop, "index.js"), []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		c.must("deploy", shop)
	}
	deploy()
	c.must("apps", "scale", "shop", "2")
	c.must("deploy", c.example("chat"))
	c.servedBy("shop", "n1", "n2")
	address, one, reload := twoIngresses(t, c)
	behind := startTraefik(t, c.machines[0], nil, freePort(t), "{}\n")
	var moment atomic.Value
	moment.Store("the beginning")
	caddy := newEntrance(t, "scafo-caddy", address, &moment)
	entrances := []*entrance{caddy, newEntrance(t, "Traefik", fmt.Sprintf("127.0.0.1:%d", behind.https), &moment)}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, e := range entrances {
		eventually(t, e.name+" answers", func() error { return e.ask(http.MethodGet, "/", "") })
		for range 4 {
			e.wg.Go(func() { e.download(seconds) })
		}
		for range 2 {
			e.wg.Go(func() { e.talk(ctx) })
		}
		e.wg.Go(func() { e.visit(ctx) })
	}
	happens := func(what string, do func()) {
		t.Helper()
		moment.Store(what)
		began := time.Now()
		do()
		time.Sleep(500 * time.Millisecond) // the load goes on
		t.Logf("%s: %s", what, time.Since(began).Round(10*time.Millisecond))
	}
	time.Sleep(500 * time.Millisecond) // everything is under way
	happens("one of two ingresses is told to end", func() { _ = one.Process.Signal(syscall.SIGTERM) })
	happens("redeploys", func() {
		for range redeploys {
			deploy()
		}
	})
	happens("the other ingress loads its configuration anew", reload)
	happens("no upstream on one node", func() {
		c.must("apps", "select", "shop", "machine=n1")
		c.servedBy("shop", "n1")
	})
	happens("a move", func() {
		c.must("apps", "scale", "shop", "1")
		c.must("apps", "select", "shop", "machine=n2")
		c.servedBy("shop", "n2")
	})
	happens("a drain", func() {
		c.must("apps", "select", "shop", "--clear")
		c.mustNodes("drain", "n2", "--wait", "--timeout", "60s")
		c.servedBy("shop", "n1")
		c.mustNodes("undrain", "n2")
	})
	happens("an upgrade of the daemon", func() {
		m := c.machines[0]
		before := strings.Count(m.out.String(), "the node answers")
		if err := m.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the next program answers", func() error {
			if strings.Count(m.out.String(), "the node answers") == before {
				return errors.New("not yet")
			}
			return nil
		})
	})
	moment.Store("the end")
	stop()
	for _, e := range entrances {
		e.wg.Wait()
		e.report()
	}
	select {
	case <-one.done:
		if one.err != nil {
			t.Errorf("the ingress that was told to end: %v", one.err)
		}
	case <-time.After(patience / 2):
		t.Error("the ingress that was told to end goes on")
	}
	var stopped sync.WaitGroup // side by side: each waits for the other to take over what it has
	for _, m := range c.machines {
		stopped.Go(func() { m.stop(t) })
	}
	stopped.Wait()
}
