package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// answering answers each request of a connection, after its body or before.
func answering(early bool) func(net.Conn) {
	return func(c net.Conn) {
		for from := bufio.NewReader(c); ; {
			req, err := http.ReadRequest(from)
			if err != nil {
				return
			}
			if !early {
				_, _ = io.Copy(io.Discard, req.Body)
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			_, _ = io.Copy(io.Discard, req.Body)
		}
	}
}

// A Worker that answers before it has read the request ends the client's connection,
// with a word: what the client sends next is the rest of the request or another one.
func TestAnEarlyAnswerEndsTheConnection(t *testing.T) {
	w := newWays(t, Options{}, false, answering(true))
	for _, length := range []string{"Content-Length: 4", "Transfer-Encoding: chunked"} {
		c := w.dial(w.fast)
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", length)
		from := bufio.NewReader(c)
		res, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusOK || string(body) != "ok" || !res.Close || err != nil {
			t.Errorf("%s: %d %q %v, the connection ends: %t", length, res.StatusCode, body, err, res.Close)
		}
		// The rest of the request ends it, and the next one is not answered.
		rest := "rest"
		if strings.HasPrefix(length, "Transfer") {
			rest = "4\r\nrest\r\n0\r\n\r\n"
		}
		fmt.Fprintf(c, "%sGET / HTTP/1.1\r\nHost: a\r\n\r\n", rest)
		if more, _ := io.ReadAll(from); len(more) > 0 {
			t.Errorf("%s: after the end: %q", length, more)
		}
		_ = c.Close()
	}
	w.untilIdle()
}

// One that has read it leaves the connection to the next request.
func TestAnAnswerAfterTheRequestKeepsTheConnection(t *testing.T) {
	w := newWays(t, Options{}, false, answering(false))
	c := w.dial(w.fast)
	from := bufio.NewReader(c)
	for range 20 {
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
		res, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusOK || string(body) != "ok" || res.Close || err != nil {
			t.Errorf("%d %q %v, the connection ends: %t", res.StatusCode, body, err, res.Close)
		}
	}
	_ = c.Close()
	w.untilIdle()
}
