package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/reconcile"
	"github.com/scafo/scafo/internal/supervise"
)

// Bounds of the metrics' listener. Nobody has to prove anything there, so that what
// one caller may take is small.
const (
	headerTimeout = 5 * time.Second
	answerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
	maxScrapes    = 4
)

// Buckets of the histograms, in seconds: a pass takes milliseconds, the bucket
// milliseconds to a few seconds, a deploy a second to its bound of five minutes.
var (
	passBuckets   = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	bucketBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	deployBuckets = []float64{.25, .5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600}
)

// Metrics counts what a node tells it of, and asks the node for the rest when
// somebody reads.
type Metrics struct {
	registry *prometheus.Registry
	page     http.Handler

	passes, processEvents, deploys, refused, tokens, outcomes *prometheus.CounterVec
	placed                                                    prometheus.Counter
	lastGood                                                  prometheus.Gauge
	passSeconds                                               prometheus.Histogram
	deploySeconds, bucketSeconds                              *prometheus.HistogramVec
}

// New makes the metrics of a node; those that Watch adds are not among them yet.
func New() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		passes:   counter(passes), processEvents: counter(processEvents), deploys: counter(deploys),
		refused: counter(deploysRefused), tokens: counter(tokens), outcomes: counter(bucketOutcomes),
		placed:        prometheus.NewCounter(prometheus.CounterOpts{Name: placed.Name, Help: placed.Help}),
		lastGood:      prometheus.NewGauge(prometheus.GaugeOpts{Name: lastGoodPass.Name, Help: lastGoodPass.Help}),
		passSeconds:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: passSeconds.Name, Help: passSeconds.Help, Buckets: passBuckets}),
		deploySeconds: histogram(deploySeconds, deployBuckets), bucketSeconds: histogram(bucketSeconds, bucketBuckets),
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.passes, m.processEvents, m.deploys, m.refused, m.tokens, m.outcomes, m.placed, m.lastGood,
		m.passSeconds, m.deploySeconds, m.bucketSeconds,
	)
	// A counter that is there from the start can be compared with what it is later.
	for _, result := range []string{"ok", "failed"} {
		m.passes.WithLabelValues(result)
	}
	for _, h := range supervise.Happenings() {
		m.processEvents.WithLabelValues(string(h))
	}
	m.deploys.WithLabelValues(string(scafo.DeployDeployed), "")
	m.tokens.WithLabelValues("accepted")
	m.page = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes, Timeout: answerTimeout,
		ErrorHandling: promhttp.ContinueOnError, // one number that cannot be told hides no other
	})
	return m
}

func counter(d Definition) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.Name, Help: d.Help}, d.Labels)
}

func histogram(d Definition, buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.Name, Help: d.Help, Buckets: buckets}, d.Labels)
}

// The methods below are what the parts of a node call. Each may be called on a nil
// *Metrics, which counts nothing, and at any time.

// Pass counts a pass of the reconcile loop.
func (m *Metrics) Pass(p reconcile.Pass) {
	if m == nil {
		return
	}
	result := "ok"
	if p.Failed {
		result = "failed"
	} else {
		m.lastGood.SetToCurrentTime()
	}
	m.passes.WithLabelValues(result).Inc()
	m.passSeconds.Observe(p.Took.Seconds())
	m.placed.Add(float64(p.Placed))
}

// Process counts what happened to a runtime process.
func (m *Metrics) Process(h supervise.Happening) {
	if m != nil {
		m.processEvents.WithLabelValues(string(h)).Inc()
	}
}

// Deploy counts a deploy that has ended.
func (m *Metrics) Deploy(s scafo.DeployStatus, took time.Duration) {
	if m == nil {
		return
	}
	m.deploys.WithLabelValues(string(s.State), string(s.Code)).Inc()
	m.deploySeconds.WithLabelValues(string(s.State)).Observe(took.Seconds())
}

// DeployRefused counts a deploy that was not taken in.
func (m *Metrics) DeployRefused(c scafo.Code) {
	if m != nil {
		m.refused.WithLabelValues(string(c)).Inc()
	}
}

// Token counts how a token was judged.
func (m *Metrics) Token(verdict string) {
	if m != nil {
		m.tokens.WithLabelValues(verdict).Inc()
	}
}

// Bucket counts an answer of the bucket.
func (m *Metrics) Bucket(op meter.Op, o meter.Outcome, took time.Duration) {
	if m == nil {
		return
	}
	m.outcomes.WithLabelValues(string(op), string(o)).Inc()
	m.bucketSeconds.WithLabelValues(string(op)).Observe(took.Seconds())
}

// Handler answers GET /metrics, and nothing else.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.page)
	return mux
}

// Server serves metrics on a listener of their own.
type Server struct {
	http   *http.Server
	served chan struct{}
}

// Serve answers on the listener until Close. What goes wrong there is said, and ends
// nothing else.
func (m *Metrics) Serve(l net.Listener, log *slog.Logger) *Server {
	s := &Server{served: make(chan struct{}), http: &http.Server{
		Handler: m.Handler(), ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: 2 * answerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	go func() { // ends with Close
		defer close(s.served)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics are not served any more", "cause", err)
		}
	}()
	return s
}

// Close ends the server, and gives a scrape that runs until ctx ends.
func (s *Server) Close(ctx context.Context) {
	if err := s.http.Shutdown(ctx); err != nil {
		s.http.Close()
	}
	<-s.served
}

// Listen opens the metrics' listener.
func Listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics cannot be served on %s: %w (metrics.listen)", address, err)
	}
	return l, nil
}
