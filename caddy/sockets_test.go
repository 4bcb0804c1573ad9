package caddy

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/scafo/scafo"
)

// A socket that was handed on belongs to whoever handed it on: a visitor who comes while
// nobody accepts is not refused, and answered by the next one that does.
func TestASocketThatIsHandedOn(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "up") })
	n := newNode(t, scafo.FleetRouting{Routes: []scafo.Route{{Host: "x.example", Upstreams: []scafo.Upstream{{URL: up}}}}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	// Kept to the end: a File that nobody refers to is closed by the collector, and its number
	// is the next file's, while Caddy still listens on that number.
	defer socket.Close()
	o := Options{
		Fleet: Fleet{Name: "main", Nodes: []string{n.URL}, Token: token}, HTTPOnly: true, LogLevel: "ERROR",
		HTTPPort: freePort(t), HTTPSocket: int(socket.Fd()), //nolint:gosec // a file descriptor is an int
	}
	run := func() {
		t.Helper()
		if err := caddy.Run(o.Config()); err != nil {
			t.Fatal(err)
		}
	}
	stop := func() {
		t.Helper()
		if err := caddy.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	ask := func() string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String(), nil)
		if err != nil {
			return err.Error()
		}
		req.Host = "x.example"
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
		res, err := client.Do(req)
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		return text(t, res)
	}
	run()
	if got := ask(); got != "up" {
		t.Errorf("over the socket: %s", got)
	}
	stop()
	answer := make(chan string)
	go func() { answer <- ask() }()
	conn, err := net.Dial("tcp", l.Addr().String()) // behind that one, so it has come
	if err != nil {
		t.Errorf("refused while nobody accepts: %v", err)
	} else {
		conn.Close()
	}
	run()
	defer stop()
	if got := <-answer; got != "up" {
		t.Errorf("asked while nobody accepted: %s", got)
	}
}
