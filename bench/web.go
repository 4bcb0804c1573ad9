package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket"
	memorystore "github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/route"
	"github.com/scafo/scafo/internal/token/keyfile"
)

const (
	apiGoal  = 1.5
	pollGoal = 2
	// webBatch is how many requests are asked one after another in a round.
	webBatch = 2000
)

// timedBucket adds up how long the store takes.
type timedBucket struct {
	bucket.Bucket
	spent atomic.Int64 // nanoseconds
}

// Get implements bucket.Bucket.
func (t *timedBucket) Get(ctx context.Context, key string) (*bucket.Object, error) {
	began := time.Now()
	defer func() { t.spent.Add(int64(time.Since(began))) }()
	return t.Bucket.Get(ctx, key)
}

// GetIfChanged implements bucket.Bucket.
func (t *timedBucket) GetIfChanged(ctx context.Context, key, etag string) (*bucket.Object, error) {
	began := time.Now()
	defer func() { t.spent.Add(int64(time.Since(began))) }()
	return t.Bucket.GetIfChanged(ctx, key, etag)
}

// benchAPI asks for an application over HTTP, each time with a token of its own, in
// turns with a handler that verifies one signature and answers as many bytes.
func benchAPI(ctx context.Context, b *bench) error {
	store := &timedBucket{Bucket: memorystore.New()}
	r := registry.New(store, registry.Options{})
	k, err := keyfile.New("bench")
	if err != nil {
		return err
	}
	founder := scafo.Operator{ID: "bench", PublicKey: k.Public(), Role: scafo.RoleAdmin, Applications: scafo.Scope{"*"}}
	if _, err := r.InitFleet(ctx, founder); err != nil {
		return err
	}
	if _, _, err := r.CreateApplication(ctx, "shop", "bench", nil); err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	real, err := api.New(api.Deps{Node: "node-a", Verifier: auth.New(r, auth.Options{Log: quiet}), Applications: r, Log: quiet})
	if err != nil {
		return err
	}
	public, ok := k.Private.Public().(ed25519.PublicKey)
	if !ok {
		return errors.New("the key is not what this benchmark knows")
	}
	size := 0
	bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		dot := strings.LastIndexByte(t, '.')
		sig, err := base64.RawURLEncoding.DecodeString(t[dot+1:])
		if err != nil || !ed25519.Verify(public, []byte(t[:dot]), sig) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(bytes.Repeat([]byte("x"), size))
	})
	tokens := func() ([]string, error) {
		made := make([]string, webBatch)
		for i := range made {
			t, err := k.Token(time.Now())
			if err != nil {
				return nil, err
			}
			made[i] = "Bearer " + t
		}
		return made, nil
	}
	header := func(made []string) func(int, http.Header) {
		return func(i int, h http.Header) { h.Set("Authorization", made[i]) }
	}
	var whole, base []time.Duration
	var spent int64
	for round := range b.rounds + 1 {
		made, err := tokens()
		if err != nil {
			return err
		}
		store.spent.Store(0)
		t, n, err := askOften(ctx, real, "/v1/applications/shop", http.StatusOK, header(made))
		if err != nil {
			return err
		}
		took := store.spent.Load() / webBatch
		size = n
		if made, err = tokens(); err != nil {
			return err
		}
		z, _, err := askOften(ctx, bare, "/", http.StatusOK, header(made))
		if err != nil {
			return err
		}
		if round > 0 { // the first one warms
			whole, base, spent = append(whole, t-time.Duration(took)), append(base, z), took
		}
	}
	b.ratio("GET /v1/applications/:name, without the store, against a handler that verifies one signature",
		us(median(whole)), us(median(base)), median(ratios(whole, base)), apiGoal)
	b.number("· the store's own time (in memory)", us(time.Duration(spent)))
	return nil
}

// askOften serves the handler on loopback, asks it again and again on one
// connection, and returns the median time of a request and the bytes of an answer.
func askOften(ctx context.Context, h http.Handler, path string, want int, header func(i int, h http.Header)) (time.Duration, int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: patience}
	go func() { _ = s.Serve(l) }() // until it is closed
	defer s.Close()
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience}
	size := 0
	all := make([]time.Duration, webBatch)
	for i := range all {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Addr().String()+path, nil)
		if err != nil {
			return 0, 0, err
		}
		header(i, req.Header)
		began := time.Now()
		res, err := client.Do(req)
		if err != nil {
			return 0, 0, err
		}
		body, err := io.ReadAll(res.Body)
		all[i] = time.Since(began)
		if err = errors.Join(err, res.Body.Close()); err != nil {
			return 0, 0, err
		}
		if res.StatusCode != want {
			return 0, 0, fmt.Errorf("%s answers %s: %s", path, res.Status, body)
		}
		size = len(body)
	}
	slices.Sort(all)
	return percentile(all, 0.5), size, nil
}

// routingLoop is a loop that has nothing but a routing document.
type routingLoop struct {
	api.Loop
	p *route.Publisher
}

// RoutingBody implements api.Loop.
func (l routingLoop) RoutingBody(prefer string) ([]byte, string, bool) {
	e := l.p.Get(prefer)
	return e.Body, e.ETag, true
}

// RoutingChanged implements api.Loop.
func (l routingLoop) RoutingChanged() <-chan struct{} { return l.p.Changed() }

// benchPoll polls the routing document of a large fleet, which did not change, in
// turns with a handler that says 304 to everybody.
func benchPoll(ctx context.Context, b *bench) error {
	p := &route.Publisher{}
	doc, _ := route.Build(manyRoutes())
	if _, err := p.Publish(doc, time.Now()); err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	r := registry.New(memorystore.New(), registry.Options{})
	const secret = "ingress-token-of-the-benchmark"
	real, err := api.New(api.Deps{
		Node: "a", Verifier: auth.New(r, auth.Options{Log: quiet, IngressTokens: []string{secret}}), Loop: routingLoop{p: p}, Log: quiet,
	})
	if err != nil {
		return err
	}
	bare := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })
	etag := p.Get("a").ETag
	header := func(_ int, h http.Header) {
		h.Set("Authorization", "Bearer "+secret)
		h.Set("If-None-Match", etag)
	}
	var whole, base []time.Duration
	for range b.rounds {
		t, _, err := askOften(ctx, real, "/v1/ingress/routes?prefer=a", http.StatusNotModified, header)
		if err != nil {
			return err
		}
		z, _, err := askOften(ctx, bare, "/", http.StatusNotModified, header)
		if err != nil {
			return err
		}
		whole, base = append(whole, t), append(base, z)
	}
	b.ratio("a poll of the routes that changed nothing, against a bare 304", us(median(whole)), us(median(base)), median(ratios(whole, base)), pollGoal)
	return nil
}
