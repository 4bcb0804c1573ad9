//go:build system

package system

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"testing"

	"github.com/scafo/scafo/internal/openapitest"
)

// documented is another address of a node's API, at which every exchange is held to the
// OpenAPI document; it is open until the test ends. A node that is away, or ends in the
// middle of an answer, is so there as well.
func documented(t testing.TB, api string) (url string) {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, ExpectContinueTimeout: patience}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", api, r.In.Host
		},
		Transport: transport, FlushInterval: -1,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	s := httptest.NewServer(openapitest.Handler(t, proxy))
	t.Cleanup(func() {
		s.Close()
		transport.CloseIdleConnections()
	})
	return s.URL
}
