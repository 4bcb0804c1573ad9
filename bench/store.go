package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"

	"github.com/scafo/scafo/internal/bucket/embedded"
)

// countedStore is a store of this machine with a proxy in front that counts what it
// is asked.
type countedStore struct {
	endpoint embedded.Endpoint
	handle   *embedded.Handle
	url      string // of the proxy
	server   *http.Server

	mu     sync.Mutex
	counts map[request]int // guarded by mu
}

// request is what the proxy tells apart.
type request struct {
	own  bool   // scafo's own documents, not an application's
	kind string // write, list, read
}

func (b *bench) countedStore(ctx context.Context) (*countedStore, error) {
	dir, err := b.sub("store")
	if err != nil {
		return nil, err
	}
	s := &countedStore{counts: map[request]int{}}
	if s.endpoint, s.handle, err = embedded.Ensure(ctx, dir, b.program("scafo"), embedded.Options{}); err != nil {
		return nil, err
	}
	target, err := url.Parse(s.endpoint.URL)
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	s.url = "http://" + l.Addr().String()
	proxy := &httputil.ReverseProxy{
		// The host stays: it is part of what was signed.
		Rewrite:   func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host },
		Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
	}
	s.server = &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.count(r)
		proxy.ServeHTTP(w, r)
	})}
	go func() { _ = s.server.Serve(l) }() // until stop
	return s, nil
}

// count looks at path and method alone.
func (s *countedStore) count(r *http.Request) {
	key := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/"), s.endpoint.Bucket)
	key = strings.TrimPrefix(key, "/")
	q := request{kind: "write"}
	switch {
	case r.Method == http.MethodGet && key == "":
		q.kind, key = "list", r.URL.Query().Get("prefix")
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		q.kind = "read"
	}
	q.own = !strings.HasPrefix(key, "fleets/")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[q]++
}

// taken is what was counted since the last call.
func (s *countedStore) taken() map[request]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.counts
	s.counts = map[request]int{}
	return was
}

// lead makes a fleet use this store.
func (s *countedStore) lead(f *fleet) {
	f.flags = append(f.flags, "--bucket-url", "s3://"+s.endpoint.Bucket, "--bucket-endpoint", s.url,
		"--bucket-region", s.endpoint.Region, "--bucket-path-style")
	f.env = append(f.env, "AWS_ACCESS_KEY_ID="+s.endpoint.AccessKey, "AWS_SECRET_ACCESS_KEY="+s.endpoint.SecretKey,
		"AWS_CONFIG_FILE="+filepath.Join(f.dir, "none"), "AWS_SHARED_CREDENTIALS_FILE="+filepath.Join(f.dir, "none"))
}

func (s *countedStore) stop() error {
	if s.server != nil {
		s.server.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.handle.Stop(ctx)
}
