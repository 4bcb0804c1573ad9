//go:build system

package system

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/scafo/scafo/internal/paralleltest"
	"github.com/scafo/scafo/internal/workerd/workerdtest"
)

// semanticCase is one Worker, asked the same under a bare workerd and as a deployed
// application.
type semanticCase struct {
	// config has the members of wrangler.jsonc beyond name and compatibility date.
	config string
	files  map[string]string
	// bare replaces files for the bare workerd, whose configuration knows fewer keys. A
	// config.capnp among them is its configuration.
	bare map[string]string
	asks []ask
}

// ask is one request. Its answers must be the same; status and part hold both of them
// to what they should be.
type ask struct {
	method string // GET when empty
	path   string // as it is sent: nothing is cleaned or escaped anew
	header map[string]string
	body   string
	// chunked sends the body without saying how long it is.
	chunked bool
	// except are headers of the answer, or the body, that may differ.
	except []string

	status int
	part   string // the body has it

	// socket sends these messages over a WebSocket, after what the Worker says first,
	// and compares what comes back, the close included.
	socket []string
	// slow: the first part of the body arrives well before its end.
	slow bool
	// eventually: asked again until the answer has the part.
	eventually bool
}

// answer is what is compared.
type answer struct {
	Status int
	Header http.Header
	Body   string
	Socket []string
}

// transportHeaders belong to a connection and not to the answer.
var transportHeaders = []string{"Date", "Connection", "Keep-Alive", "Transfer-Encoding", "Via", "Server", "Alt-Svc"}

var fileTag = regexp.MustCompile(`^"[0-9a-f]+-[0-9a-f]+-[0-9a-f]+"$`)

// slowGap is less than what a slow body waits between its parts.
const slowGap = 300 * time.Millisecond

// minutesEnd is longer than it takes until a minute is over and what is due then is done.
const minutesEnd = patience + 20*time.Second

// target is where a case is asked.
type target struct {
	client *http.Client
	host   string
	addr   string // host and port to connect to
}

func newTarget(t testing.TB, addr, host string) *target {
	tr := &http.Transport{
		DisableCompression: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &target{addr: addr, host: host, client: &http.Client{
		Transport: tr, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// request builds a request whose path goes out as it is written.
func (a *ask) request(ctx context.Context, host string) (*http.Request, error) {
	method := a.method
	if method == "" {
		method = http.MethodGet
	}
	var body io.Reader
	if a.body != "" {
		body = strings.NewReader(a.body)
		if a.chunked {
			body = struct{ io.Reader }{body}
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+host+"/", body)
	if err != nil {
		return nil, err
	}
	path, query, hasQuery := strings.Cut(a.path, "?")
	req.URL = &url.URL{Scheme: "http", Host: host, Opaque: "//" + host + path, RawQuery: query, ForceQuery: hasQuery && query == ""}
	for k, v := range a.header {
		req.Header.Set(k, v)
	}
	return req, nil
}

func (g *target) ask(t testing.TB, a *ask) (answer, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if a.socket != nil {
		return g.talk(ctx, a)
	}
	req, err := a.request(ctx, g.host)
	if err != nil {
		return answer{}, err
	}
	res, err := g.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	began := time.Now()
	first := make([]byte, 1)
	n, err := io.ReadFull(res.Body, first)
	if err != nil && !errors.Is(err, io.EOF) {
		return answer{}, err
	}
	rest, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, fmt.Errorf("the body: %w", err)
	}
	if took := time.Since(began); a.slow && took < slowGap {
		return answer{}, fmt.Errorf("the body came at once, in %s", took)
	}
	out := answer{Status: res.StatusCode, Header: res.Header.Clone(), Body: string(first[:n]) + string(rest)}
	for _, h := range slices.Concat(transportHeaders, a.except) {
		out.Header.Del(h)
	}
	// The runtime makes an asset's ETag of its file's time.
	if fileTag.MatchString(out.Header.Get("Etag")) {
		out.Header.Set("Etag", "of a file")
	}
	if slices.Contains(a.except, "body") {
		out.Body = ""
	}
	return out, nil
}

// talk opens a WebSocket, sends the messages and listens until it is closed.
func (g *target) talk(ctx context.Context, a *ask) (answer, error) {
	header := http.Header{}
	for k, v := range a.header {
		header.Set(k, v)
	}
	c, res, err := websocket.Dial(ctx, "ws://"+g.addr+a.path, &websocket.DialOptions{Host: g.host, HTTPHeader: header})
	if res != nil && err != nil {
		return answer{Status: res.StatusCode}, nil
	}
	if err != nil {
		return answer{}, err
	}
	defer c.CloseNow()
	c.SetReadLimit(1 << 21)
	out := answer{Status: res.StatusCode}
	for _, m := range a.socket {
		kind := websocket.MessageText
		if strings.HasPrefix(m, "\x00") {
			kind = websocket.MessageBinary
		}
		if err := c.Write(ctx, kind, []byte(m)); err != nil {
			return out, err
		}
	}
	for {
		kind, m, err := c.Read(ctx)
		var end websocket.CloseError
		switch {
		case errors.As(err, &end):
			out.Socket = append(out.Socket, fmt.Sprintf("closed %d %s", end.Code, end.Reason))
			return out, nil
		case err != nil:
			return out, err
		}
		out.Socket = append(out.Socket, fmt.Sprintf("%s %s", kind, brief(string(m))))
	}
}

// brief is a text, or a digest of a long one.
func brief(s string) string {
	const most = 2000
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%d bytes, %x", len(s), sha256.Sum256([]byte(s)))
}

// bareWorkerd serves a project by workerd alone, as its own documentation says.
func bareWorkerd(t testing.TB, dir, esbuild string) string {
	t.Helper()
	config := "config.capnp" // of workerd's own, where the case has one
	if _, err := os.Stat(filepath.Join(dir, config)); err != nil {
		config = "wrangler.jsonc"
	}
	c := exec.Command(workerdtest.Path(t), "serve", config, "--experimental", "--control-fd=1", "-s", "http=127.0.0.1:0")
	c.Dir, c.Env = dir, append(environment(), "WORKERD_ESBUILD="+esbuild)
	var errs logBuffer
	c.Stderr = &errs
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			t.Logf("the bare workerd said:\n%s", tail(errs.String(), 2000))
		}
	})
	for d := json.NewDecoder(out); ; {
		var m struct {
			Event, Socket string
			Port          int
		}
		if err := d.Decode(&m); err != nil {
			t.Fatalf("the bare workerd does not start: %v\n%s", err, errs.String())
		}
		if m.Event == "listen" && m.Socket == "http" {
			return "127.0.0.1:" + strconv.Itoa(m.Port)
		}
	}
}

// esbuildDir is removed at the end, where it was made.
var esbuildDir atomic.Pointer[string]

// esbuildProgram builds the bundler that the bare workerd calls, of the very module
// that the build here uses.
var esbuildProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "scafo-esbuild-")
	if err != nil {
		return "", err
	}
	esbuildDir.Store(&dir)
	p := filepath.Join(dir, "esbuild")
	c := exec.Command("go", "build", "-o", p, "github.com/evanw/esbuild/cmd/esbuild")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return p, nil
})

// The same requests to a bare workerd and to the deployed application get the same
// answers.
func TestSemantics(t *testing.T) {
	paralleltest.Waits(t)
	esbuild, err := esbuildProgram()
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t)
	t.Run("cases", func(t *testing.T) {
		for _, name := range slices.Sorted(maps.Keys(semantics)) {
			t.Run(name, func(t *testing.T) {
				c := semantics[name]
				if strings.Contains(c.config, `"crons"`) {
					paralleltest.Waits(t) // for the end of a minute
				} else {
					paralleltest.Beside(t)
				}
				compare(t, f, name, &c, esbuild)
			})
		}
	})
}

func compare(t *testing.T, f *fleet, name string, c *semanticCase, esbuild string) {
	date := `, "compatibility_date": "2026-11-01"`
	if strings.Contains(c.config, "compatibility_date") {
		date = ""
	}
	config := fmt.Sprintf(`{"name": %q%s%s}`, name, date, c.config)
	files := map[string]string{"wrangler.jsonc": config}
	maps.Copy(files, c.files)
	out, errs, err := f.scafo("deploy", project(t, files))
	if err != nil {
		t.Fatalf("%v %s", err, errs)
	}
	deployed, err := url.Parse(strings.TrimSpace(out))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(files, c.bare)
	// The same host, so that what a Worker says of its address is the same.
	bare := newTarget(t, bareWorkerd(t, project(t, files), esbuild), deployed.Host)
	ours := newTarget(t, "127.0.0.1:"+deployed.Port(), deployed.Host)
	for i := range c.asks {
		a := &c.asks[i]
		what := strings.TrimSpace(a.method + " " + a.path)
		want := settled(t, "bare workerd", what, bare, a)
		got := settled(t, "deployed", what, ours, a)
		if a.status != want.Status || !strings.Contains(want.Body+strings.Join(want.Socket, "\n"), a.part) {
			t.Errorf("%s: the bare workerd answers %d %q %q, the table says %d %q", what, want.Status, brief(want.Body), want.Socket, a.status, a.part)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: deployed it answers\n\t%s\nand under the bare workerd\n\t%s", what, got, want)
		}
	}
}

func (a answer) String() string {
	var h bytes.Buffer
	_ = a.Header.Write(&h)
	return fmt.Sprintf("%d %q %q %q", a.Status, h.String(), brief(a.Body), a.Socket)
}

// settled is the answer, waited for where a case says that it takes its time.
func settled(t *testing.T, who, what string, g *target, a *ask) answer {
	t.Helper()
	var out answer
	var err error
	try := func() error {
		if out, err = g.ask(t, a); err == nil && a.eventually && !strings.Contains(out.Body, a.part) {
			return fmt.Errorf("it answers %s", out)
		}
		return err
	}
	if a.eventually {
		eventuallyWithin(t, minutesEnd, who+" answers "+what, try)
	} else if err := try(); err != nil {
		t.Fatalf("%s: %s: %v", who, what, err)
	}
	return out
}
