package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// A Worker that answers and does not read what is uploaded: workerd closes the
// connection on the rest, and its answer is still the one that the client gets.
func TestAnUploadThatIsAnsweredEarly(t *testing.T) {
	const answer = "not that large"
	w := newWays(t, Options{}, false, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		// The body comes while nobody reads, and the answer goes out just before the
		// connection is reset.
		time.Sleep(20 * time.Millisecond)
		fmt.Fprintf(c, "HTTP/1.1 413 Payload Too Large\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
	})
	for i := range 20 {
		req, err := http.NewRequest(http.MethodPost, "http://"+w.fast+"/", io.LimitReader(zeros{}, 32<<20))
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(i, err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusRequestEntityTooLarge || string(body) != answer || err != nil {
			t.Fatalf("%d: %d %q %v", i, res.StatusCode, body, err)
		}
	}
	w.untilIdle()
}

// One that ends amidst an upload without an answer is a failure at once.
func TestAnUploadThatIsCut(t *testing.T) {
	w := newWays(t, Options{}, false, func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		time.Sleep(20 * time.Millisecond) // as above
	})
	for range 5 {
		c := w.dial(w.fast)
		// Its client has more to say, and does not say it.
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", 64<<20)
		if _, err := io.CopyN(c, zeros{}, 64<<10); err != nil {
			t.Fatal(err)
		}
		go io.CopyN(c, zeros{}, 16<<20) //nolint:errcheck // until it is closed
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") != "1" {
			t.Errorf("%d %q", res.StatusCode, res.Header)
		}
		_ = c.Close()
	}
	w.untilIdle()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
