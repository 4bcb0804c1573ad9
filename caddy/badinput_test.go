package caddy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// roundTripper makes a function one.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// idlePoller is a poller that asks when the test lets it, and what it logs.
func idlePoller(rt roundTripper, nodes ...string) (*poller, *observer.ObservedLogs) {
	core, said := observer.New(zapcore.DebugLevel)
	return &poller{
		fleet: Fleet{Name: "main", Nodes: nodes, Token: token}, log: zap.New(core), etags: map[string]string{},
		http: &http.Client{Transport: rt, Timeout: pollTimeout},
	}, said
}

func response(status int, body io.Reader, header ...string) *http.Response {
	res := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(body)}
	for i := 0; i < len(header); i += 2 {
		res.Header.Set(header[i], header[i+1])
	}
	return res
}

// stalling blocks until whoever reads it has no more patience.
type stalling struct{ ctx context.Context }

func (s stalling) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

// endless has so many bytes and counts those that were read.
type endless struct{ left, read int }

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), e.left)
	for i := range p[:n] {
		p[i] = ' '
	}
	e.left -= n
	e.read += n
	return n, nil
}

// A node that lies, stalls or answers something else costs nothing: the last good
// document stays, and another node is asked in the same round.
func TestNodesThatAnswerNonsense(t *testing.T) {
	huge := &endless{left: 200 << 20}
	for name, bad := range map[string]roundTripper{
		"HTML": func(*http.Request) (*http.Response, error) {
			return response(200, strings.NewReader("<!doctype html><p>Welcome to nginx"), "Content-Type", "text/html"), nil
		},
		"nothing":          func(*http.Request) (*http.Response, error) { return response(200, strings.NewReader("")), nil },
		"another document": func(*http.Request) (*http.Response, error) { return response(200, strings.NewReader(`{"v":1}`)), nil },
		"routes of strings": func(*http.Request) (*http.Response, error) {
			return response(200, strings.NewReader(`{"v":1,"routes":"none"}`)), nil
		},
		"half a document": func(*http.Request) (*http.Response, error) {
			return response(200, io.MultiReader(strings.NewReader(shopDocument[:40]), errReader{io.ErrUnexpectedEOF})), nil
		},
		"a redirect": func(*http.Request) (*http.Response, error) {
			return response(302, strings.NewReader(""), "Location", "http://good/v1/ingress/routes"), nil
		},
		"no content":                func(*http.Request) (*http.Response, error) { return response(204, strings.NewReader("")), nil },
		"nothing changed, unasked":  func(*http.Request) (*http.Response, error) { return response(304, strings.NewReader("")), nil },
		"200 MB":                    func(*http.Request) (*http.Response, error) { return response(200, huge), nil },
		"no answer":                 func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() },
		"an answer that never ends": func(r *http.Request) (*http.Response, error) { return response(200, stalling{r.Context()}), nil },
		"an answer that stops short": func(r *http.Request) (*http.Response, error) {
			return response(200, io.MultiReader(strings.NewReader(shopDocument[:40]), stalling{r.Context()})), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				good := true
				p, said := idlePoller(func(r *http.Request) (*http.Response, error) {
					switch {
					case r.URL.Host == "bad":
						return bad(r)
					case good:
						return response(200, strings.NewReader(shopDocument), "ETag", `"1"`), nil
					}
					return response(503, strings.NewReader("")), nil
				}, "http://bad", "http://good")
				began := time.Now()
				if !p.poll(t.Context()) || p.table.Load() == nil || p.table.Load().lookup("shop.example") == nil {
					t.Fatal("the other node was not heard")
				}
				if took := time.Since(began); took > pollTimeout {
					t.Errorf("the other node was heard after %s", took)
				}
				// Alone, it takes nothing away.
				good, p.at = false, 0
				if p.poll(t.Context()) || p.table.Load().lookup("shop.example") == nil {
					t.Error("the last good document is gone")
				}
				if n := said.FilterLevelExact(zapcore.ErrorLevel).Len(); n != 1 {
					t.Errorf("said %d times: %v", n, said.All())
				}
			})
		})
	}
	if most := 2 * (maxDocument + 1<<20); huge.read > most {
		t.Errorf("%d bytes were read of a document of 200 MB, twice", huge.read)
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

// A token that the nodes refuse is said once, as an error that names it, while the
// routes stay; and once more that it is good again.
func TestAWrongTokenIsSaidOnce(t *testing.T) {
	status := http.StatusOK
	p, said := idlePoller(func(r *http.Request) (*http.Response, error) {
		return response(status, strings.NewReader(shopDocument), "ETag", `"1"`), nil
	}, "http://a", "http://b")
	p.poll(t.Context())
	status = http.StatusUnauthorized
	for range 10 {
		p.poll(t.Context())
	}
	errs := said.FilterLevelExact(zapcore.ErrorLevel).All()
	if len(errs) != 1 || !strings.Contains(errs[0].ContextMap()["cause"].(string), "refuses the ingress token (401)") {
		t.Errorf("ten refused polls said %v", errs)
	}
	if p.table.Load().lookup("shop.example") == nil {
		t.Error("the routes are gone")
	}
	status = http.StatusOK
	p.poll(t.Context())
	p.poll(t.Context())
	if n := said.FilterMessage("following the fleet again").Len(); n != 1 {
		t.Errorf("said %d times that it is good again", n)
	}
}

// A failure that is the same each second is the same in words, although the connection
// is another one.
func TestTheSameFailureIsSaidOnce(t *testing.T) {
	port := 40000
	p, said := idlePoller(func(*http.Request) (*http.Response, error) {
		port++
		return nil, &net.OpError{
			Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port},
			Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7420}, Err: syscall.ECONNRESET,
		}
	}, "http://a")
	for range 5 {
		p.poll(t.Context())
	}
	if said.Len() != 1 {
		t.Errorf("%d lines for one failure: %v", said.Len(), said.All())
	}
	if got := cause(&url.Error{Op: "Get", URL: "http://a", Err: errors.New("why")}); got != "why" {
		t.Errorf("the cause is %q", got)
	}
}

// Of a host that is named twice the first one has it, who serves it before one who does
// not, and each of the others is reported.
func TestHostsThatAreNamedTwice(t *testing.T) {
	up := func(port string) string { return `"upstreams":[{"url":"http://127.0.0.1:` + port + `"}]` }
	tab, skipped, err := parseDocument([]byte(`{"v":1,
		"routes":[{"host":"a.example",` + up("1") + `},{"host":"A.example",` + up("2") + `},{"host":"b.example",` + up("3") + `}],
		"wildcards":[{"base":"a.example",` + up("4") + `},{"base":"a.example",` + up("5") + `}],
		"api":[{"host":"b.example",` + up("6") + `},{"host":"api.example",` + up("7") + `},{"host":"api.example",` + up("8") + `}],
		"unserved":[{"host":"a.example"},{"host":"down.example"},{"host":"down.example"}]}`))
	if err != nil || len(skipped) != 4 || tab.leftOut != 4 {
		t.Errorf("%v %v", skipped, err)
	}
	for host, want := range map[string]string{"a.example": "1", "b.example": "3", "x.a.example": "4", "api.example": "7"} {
		if e := tab.lookup(host); e == nil || len(e.dials) != 1 || e.dials[0] != "127.0.0.1:"+want {
			t.Errorf("%s leads to %+v, want port %s", host, e, want)
		}
	}
	if e := tab.lookup("down.example"); e == nil || e.unserved == "" {
		t.Errorf("down.example: %+v", e)
	}
}
