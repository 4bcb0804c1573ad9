package client

import (
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          64,
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: expectTimeout,
	}
}

// upload is a request body of a known size that tells its progress. It is no
// io.Closer: the caller closes what it opened, and a body that nobody read yet can
// go to another node.
type upload struct {
	r        io.Reader
	size     int64
	sent     atomic.Int64
	read     atomic.Bool
	progress func(sent, total int64)
}

// started reports whether any of the body may have left.
func (u *upload) started() bool { return u != nil && u.read.Load() }

func (u *upload) Read(p []byte) (int, error) {
	u.read.Store(true)
	n, err := u.r.Read(p)
	if n > 0 {
		sent := u.sent.Add(int64(n))
		if u.progress != nil {
			u.progress(sent, u.size)
		}
	}
	return n, err
}
