package caddy

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/scafo/scafo"
)

// ending is a process that is about to end: it refuses what is new, and reads no
// body.
func ending(asked *atomic.Int32) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "ending\n")
	}
}

func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "%s %x", r.Method, sha256.Sum256(b))
}

// serving starts an ingress whose one host has these upstreams, in this order.
func serving(t *testing.T, urls ...string) func(method string, body io.Reader) (int, string, http.Header) {
	t.Helper()
	var ups []scafo.Upstream
	for _, u := range urls {
		ups = append(ups, scafo.Upstream{URL: u})
	}
	n := newNode(t, scafo.FleetRouting{Routes: []scafo.Route{{Host: "x.example", Upstreams: ups}}})
	ask := ingress(t, Options{Fleet: Fleet{Name: "main", Nodes: []string{n.URL}, Token: token, Prefer: "self"}})
	var base string
	eventually(t, "a document", func() bool {
		res := ask("x.example", "/")
		base = res.Request.URL.String()
		return res.StatusCode != http.StatusNotFound
	})
	return func(method string, body io.Reader) (int, string, http.Header) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, base, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "x.example"
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if res.Close { // the client takes the header off
			res.Header.Set("Connection", "close")
		}
		return res.StatusCode, string(b), res.Header
	}
}

func TestAProcessThatEndsCostsNoRequest(t *testing.T) {
	var refused atomic.Int32
	ask := serving(t, upstream(t, ending(&refused)), upstream(t, echo))
	bodies := map[string]io.Reader{
		"none": nil, "empty": strings.NewReader(""), "small": strings.NewReader("hello"),
		"all that is kept": bytes.NewReader(make([]byte, keptBody)), "without length": io.MultiReader(strings.NewReader("chunks"), strings.NewReader(" of it")),
		"byte by byte": iotest.OneByteReader(strings.NewReader("slowly")),
	}
	for name, body := range bodies {
		var sent bytes.Buffer
		if body != nil {
			body = io.TeeReader(body, &sent)
		}
		for _, method := range []string{http.MethodPost} {
			status, got, _ := ask(method, body)
			if want := fmt.Sprintf("%s %x", method, sha256.Sum256(sent.Bytes())); status != 200 || got != want {
				t.Errorf("%s: %d %s, want %s", name, status, got, want)
			}
		}
	}
	for range 20 {
		if status, got, _ := ask(http.MethodGet, nil); status != 200 {
			t.Errorf("%d %s", status, got)
		}
	}
	if refused.Load() == 0 {
		t.Error("nothing was refused: the test shows nothing")
	}
}

// Under load, with bodies of all sizes: a body arrives whole or not at all.
func TestARefusalNeverCutsABody(t *testing.T) {
	var refused atomic.Int32
	ask := serving(t, upstream(t, ending(&refused)), upstream(t, echo))
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for k := range 12 {
				body := bytes.Repeat([]byte{byte(i)}, 1<<(k+8))
				status, got, _ := ask(http.MethodPost, bytes.NewReader(body))
				switch {
				case status == 503 && len(body) > keptBody: // it says so, and may come again
				case status != 200 || got != fmt.Sprintf("POST %x", sha256.Sum256(body)):
					t.Errorf("%d bytes: %d %s", len(body), status, got)
				}
			}
		})
	}
	wg.Wait()
}

func TestARefusalOfAllIsPassedOn(t *testing.T) {
	var refused atomic.Int32
	ask := serving(t, upstream(t, ending(&refused)), upstream(t, ending(&refused)), upstream(t, ending(&refused)))
	refused.Store(0)
	status, body, header := ask(http.MethodPost, strings.NewReader("x"))
	if status != 503 || body != "ending\n" || header.Get("Retry-After") != "1" || refused.Load() < 3 {
		t.Errorf("%d %q %v after %d", status, body, header, refused.Load())
	}
}

// A process refuses before it has the body: what the client sends later reaches the
// other one.
func TestARefusalBeforeTheBodyCostsNothing(t *testing.T) {
	var refused atomic.Int32
	var reached atomic.Pointer[func()]
	// It begins to end once the ingress knows it: who refused is asked last for a while.
	ends := func(w http.ResponseWriter, r *http.Request) {
		f := reached.Load()
		if f == nil {
			echo(w, r)
			return
		}
		ending(&refused)(w, r)
		_ = http.NewResponseController(w).Flush()
		(*f)()
	}
	ask := serving(t, upstream(t, ends), upstream(t, echoLate(&reached)))
	for i := range 12 {
		arrived := make(chan struct{})
		f := sync.OnceFunc(func() { close(arrived) })
		reached.Store(&f)
		body := fmt.Sprintf("late %d", i)
		late := readerFunc(func(p []byte) (int, error) {
			<-arrived
			if body == "" {
				return 0, io.EOF
			}
			n := copy(p, body)
			body = body[n:]
			return n, nil
		})
		want := fmt.Sprintf("POST %x", sha256.Sum256([]byte(body)))
		if status, got, _ := ask(http.MethodPost, late); status != http.StatusOK || got != want {
			t.Errorf("%d: %d %q, want %s", i, status, got, want)
		}
	}
	if refused.Load() == 0 {
		t.Error("nothing was refused: the test shows nothing")
	}
}

// echoLate says that a request reached it before it reads the body.
func echoLate(reached *atomic.Pointer[func()]) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if f := reached.Load(); f != nil {
			(*f)()
		}
		echo(w, r)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// An application that answers before it has read the request ends the connection:
// its rest would be taken for the next request, or worse.
func TestAnEarlyAnswerEndsTheConnection(t *testing.T) {
	early := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close") // or net/http reads the request first
		_, _ = io.WriteString(w, "early")
	}
	answered := make(chan struct{})
	ask := serving(t, upstream(t, early))
	rest := strings.NewReader("the rest")
	status, body, header := ask(http.MethodPost, readerFunc(func(p []byte) (int, error) {
		<-answered
		return rest.Read(p)
	}))
	close(answered)
	if status != http.StatusOK || body != "early" || header.Get("Connection") != "close" {
		t.Errorf("%d %q %v", status, body, header)
	}
}

// What an application says is its own affair.
func TestAnApplicationsOwn503IsItsAnswer(t *testing.T) {
	var asked atomic.Int32
	busy := func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Retry-After", "7")
		http.Error(w, "busy", http.StatusServiceUnavailable)
	}
	ask := serving(t, upstream(t, busy), upstream(t, echo))
	asked.Store(0)
	status, body, header := ask(http.MethodPost, nil)
	if status != 503 || body != "busy\n" || header.Get("Retry-After") != "7" || asked.Load() != 1 {
		t.Errorf("%d %q %v after %d", status, body, header, asked.Load())
	}
}

func TestReplay(t *testing.T) {
	r := replayOf(strings.NewReader("0123456789"))
	first, err := r.start()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(io.LimitReader(first, 4)); string(b) != "0123" || err != nil {
		t.Fatalf("%q, %v", b, err)
	}
	second, err := r.start()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, errStale) {
		t.Errorf("the first one reads on: %v", err)
	}
	if b, err := io.ReadAll(second); string(b) != "0123456789" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if third, err := r.start(); err != nil {
		t.Error(err)
	} else if b, err := io.ReadAll(third); string(b) != "0123456789" || err != nil {
		t.Errorf("%q, %v", b, err)
	}

	for n, ok := range map[int]bool{keptBody: true, keptBody + 1: false} {
		r := replayOf(bytes.NewReader(make([]byte, n)))
		v, err := r.start()
		if err != nil {
			t.Fatal(err)
		}
		if read, err := io.Copy(io.Discard, v); int(read) != n || err != nil {
			t.Errorf("%d of %d bytes, %v", read, n, err)
		}
		if r.rewindable() != ok {
			t.Errorf("%d bytes can be sent again: %v", n, !ok)
		}
	}

	// What a try waits for reaches the next one, if as much can be kept.
	for asked, ok := range map[int]bool{8: true, keptBody + 1: false} {
		in, out := io.Pipe()
		r := replayOf(in)
		v, err := r.start()
		if err != nil {
			t.Fatal(err)
		}
		read := make(chan error, 1)
		go func() { _, err := v.Read(make([]byte, asked)); read <- err }()
		eventually(t, "a read that waits", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.reading })
		next, err := r.start()
		if (err == nil) != ok {
			t.Errorf("a read of %d bytes waits: %v", asked, err)
		}
		go func() { _, _ = out.Write([]byte("late")); out.Close() }()
		if !ok {
			<-read
			continue
		}
		if b, err := io.ReadAll(next); string(b) != "late" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		if err := <-read; err != nil {
			t.Error(err)
		}
	}
}

func TestAnHTTPTransportOfTheUsersIsOurs(t *testing.T) {
	b, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("http:// {\n scafo {\n transport http {\n dial_timeout 1s\n }\n }\n}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := `"transport":{"dial_timeout":1000000000,"protocol":"scafo"}`; !strings.Contains(string(b), want) {
		t.Errorf("%s\nlacks %s", b, want)
	}
	if fastcgi := json.RawMessage(`{"protocol":"fastcgi"}`); string(ours(fastcgi)) != string(fastcgi) {
		t.Error("another transport does not stay what it is")
	}
}
