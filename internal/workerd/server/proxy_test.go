package server

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestFailuresOfWorkerdAre503(t *testing.T) {
	withServer(t, deployed("v1"), Options{}, func(w *world) {
		w.wantRefused(w.get("/cut"))
		if r := w.get("/half"); r.err == nil {
			t.Errorf("a cut answer looks whole: %d %q", r.status, r.body)
		}
		w.wantVersion("v1")
	})
}

// A Worker that names no type of its answer sent none.
func TestNoTypeIsGuessed(t *testing.T) {
	rt := deployed("v1")
	rt.handler = func(*fakeProcess) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Content-Type"] = nil
			if r.URL.Path == "/typed" {
				w.Header().Set("Content-Type", "a/b")
			}
			_, _ = io.WriteString(w, "<html>")
		})
	}
	withServer(t, rt, Options{}, func(w *world) {
		for path, want := range map[string]string{"/": "", "/typed": "a/b"} {
			r := w.get(path)
			if got := r.header.Values("Content-Type"); r.status != 200 || strings.Join(got, "|") != want {
				t.Errorf("%s: %d %q", path, r.status, got)
			}
		}
	})
}

func TestACutRequestIsNotSentTwice(t *testing.T) {
	var seen atomic.Int64
	rt := deployed("v1")
	rt.handler = func(p *fakeProcess) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/count" {
				seen.Add(1)
				panic(http.ErrAbortHandler)
			}
		})
	}
	withServer(t, rt, Options{}, func(w *world) {
		for i := range int64(10) {
			if r := w.get("/"); r.status != 200 { // leaves a connection to use again
				t.Fatal(r)
			}
			w.wantRefused(w.get("/count"))
			if seen.Load() != i+1 {
				t.Fatalf("%d requests arrived, %d were sent", seen.Load(), i+1)
			}
		}
	})
}

// What an answer consists of has no type unless the Worker says one.
func TestAnAnswerWithoutATypeStaysSo(t *testing.T) {
	rt := deployed("v1")
	rt.handler = func(*fakeProcess) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Content-Type"] = r.Header["X-Type"]
			_, _ = io.WriteString(w, "<html>")
		})
	}
	withServer(t, rt, Options{}, func(w *world) {
		for _, types := range [][]string{nil, {"text/own"}} {
			if r := do(w.client, http.MethodGet, "/", http.Header{"X-Type": types}); r.err != nil || !slices.Equal(r.header["Content-Type"], types) {
				t.Errorf("%q, %v, want %q", r.header["Content-Type"], r.err, types)
			}
		}
	})
}

type seen struct {
	URI     string      `json:"uri"`
	Host    string      `json:"host"`
	Headers http.Header `json:"headers"`
	TE      []string    `json:"te"`
}

func (w *world) seen(method, path string, h http.Header) seen {
	w.t.Helper()
	r := do(w.client, method, path, h)
	var s seen
	if err := json.Unmarshal([]byte(r.body), &s); err != nil {
		w.t.Fatalf("%d %s %v", r.status, r.body, r.err)
	}
	return s
}

func TestForwardedHeaders(t *testing.T) {
	h := http.Header{
		"X-Forwarded-Host":  {"first.example", "a.example, shop.example:8443"},
		"X-Forwarded-Proto": {"http, HTTPS"},
		"X-Forwarded-For":   {"192.0.2.1"},
		"Forwarded":         {"for=192.0.2.1"},
	}
	t.Run("not trusted", func(t *testing.T) {
		withServer(t, deployed("v1"), Options{}, func(w *world) {
			s := w.seen("GET", "/", h)
			if s.Host != "app.test" {
				t.Error(s.Host)
			}
			for name := range h {
				if len(s.Headers[name]) != len(h[name]) || s.Headers[name][0] != h[name][0] {
					t.Errorf("%s: %q", name, s.Headers[name])
				}
			}
		})
	})
	t.Run("trusted", func(t *testing.T) {
		withServer(t, deployed("v1"), Options{Trust: true}, func(w *world) {
			s := w.seen("GET", "/", h)
			if s.Host != "shop.example:8443" || s.Headers.Get("X-Forwarded-Proto") != "https" || len(s.Headers["X-Forwarded-Proto"]) != 1 {
				t.Errorf("%+v", s)
			}
			s = w.seen("GET", "/", http.Header{"X-Forwarded-Host": {"a b"}, "X-Forwarded-Proto": {"ftp"}})
			if s.Host != "app.test" || s.Headers.Get("X-Forwarded-Proto") != "" {
				t.Errorf("%+v", s)
			}
		})
	})
}

func TestRequestsArriveAsSent(t *testing.T) {
	withServer(t, deployed("v1"), Options{}, func(w *world) {
		for _, uri := range []string{"/", "/a%2Fb/../c", "/a|b", "//x/y", "/?", "/?a=1;b=2&c=%zz", "/a%20b?x=y?z", "/%E2%82%AC/./x//y"} {
			got := w.raw("GET " + uri + " HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n")
			contains(t, got, `"uri":`+quoted(uri))
		}
		s := w.seen("GET", "/", http.Header{"User-Agent": {""}})
		if len(s.TE) != 0 || s.Headers["User-Agent"] != nil || s.Headers["Accept-Encoding"] != nil || s.Headers["X-Forwarded-For"] != nil {
			t.Errorf("something was added: %+v", s)
		}
		if s := w.seen("POST", "/", nil); len(s.TE) != 0 || s.Headers.Get("Content-Length") != "0" {
			t.Errorf("%+v", s)
		}
	})
}

// quoted is JSON as json.Encoder writes it.
func quoted(s string) string { b, _ := json.Marshal(s); return string(b) }

func TestStreamsBothWays(t *testing.T) {
	rt := deployed("v1")
	rt.handler = func(p *fakeProcess) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			buf := make([]byte, 100)
			for {
				n, err := r.Body.Read(buf)
				_, _ = w.Write(buf[:n])
				_ = http.NewResponseController(w).Flush()
				if err != nil {
					return
				}
			}
		})
	}
	withServer(t, rt, Options{}, func(w *world) {
		pr, pw := io.Pipe()
		req, _ := http.NewRequest("POST", "http://a/", pr)
		resp, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		buf := make([]byte, 100)
		for range 3 {
			// Longer than any bound of the supervisor: what lives is not cut.
			time.Sleep(2 * time.Minute)
			if _, err := io.WriteString(pw, "ping"); err != nil {
				t.Fatal(err)
			}
			n, err := resp.Body.Read(buf)
			if string(buf[:n]) != "ping" {
				t.Fatalf("%q %v", buf[:n], err)
			}
		}
		pw.Close()
	})
}

// A peer that vanished without a word leaves requests hanging that were on their
// way to its objects; a request that merely takes long is left alone.
func TestRequestsThatWaitForAGonePeer(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{}, func(w *world) {
		before := make(chan reply, 1)
		go func() { before <- w.get("/slow?for=10m") }()
		time.Sleep(time.Minute)
		rt.mu.Lock()
		rt.lapses = []time.Time{time.Now().Add(20 * time.Second), time.Now().Add(-time.Hour)}
		rt.mu.Unlock()
		time.Sleep(30 * time.Second)
		after := make(chan reply, 1)
		go func() { after <- w.get("/slow?for=10m") }()
		select {
		case r := <-before:
			w.wantRefused(r)
		case <-time.After(waitPatience + waitAgain):
			t.Error("the request hangs")
		}
		if r := <-after; r.status != 200 {
			t.Errorf("a request that began after the peer's end: %d %v", r.status, r.err)
		}
	})
	if most := int(11 * time.Minute / waitAgain); rt.looks > most {
		t.Errorf("the store was asked %d times", rt.looks)
	}
}

func TestQuickRequestsCostNoLook(t *testing.T) {
	rt := deployed("v1")
	withServer(t, rt, Options{}, func(w *world) {
		for range 100 {
			w.get("/slow?for=5s")
		}
	})
	if rt.looks != 0 {
		t.Errorf("%d looks", rt.looks)
	}
}

func TestLastOfAList(t *testing.T) {
	for _, c := range []struct {
		in   []string
		want string
	}{{nil, ""}, {[]string{""}, ""}, {[]string{"a"}, "a"}, {[]string{"a, b"}, "b"}, {[]string{"a,b", " c "}, "c"}, {[]string{"a,"}, ""}} {
		if got := last(c.in); got != c.want {
			t.Errorf("last(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

func TestHostsThatMayStandInAnAddress(t *testing.T) {
	for _, h := range []string{"a", "a.example", "a.example:8443", "127.0.0.1:1", "[::1]:80"} {
		if !validHost(h) {
			t.Errorf("%q is refused", h)
		}
	}
	for _, h := range []string{"", "a/b", "a b", "u@h", "a?b", "a#b", "a:port", "[::1", "a\\b", "a%2f"} {
		if validHost(h) {
			t.Errorf("%q is taken", h)
		}
	}
	rapid.Check(t, func(t *rapid.T) { validHost(rapid.String().Draw(t, "host")) })
}
