package caddy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

const (
	// pollEvery is how often a node is asked for its routing document that answers at
	// once, and how soon after a failure.
	pollEvery = time.Second
	// pollWait is for how long a node is asked to keep its answer back while the
	// document is the one that is known here: a change comes without a delay then.
	pollWait = 5 * time.Second
	// pollTimeout bounds one such request.
	pollTimeout = pollWait + 3*time.Second
	// pollPause lies between a change and the next request, so that a node whose
	// document never rests is not asked without a rest.
	pollPause = 20 * time.Millisecond
	// maxDocument bounds the document, in bytes: 10,000 applications need about 3 MB.
	maxDocument = 64 << 20
)

// Fleet names one fleet and how its routing document is reached.
type Fleet struct {
	// Name tells fleets apart in logs and metrics.
	Name string `json:"name"`
	// Nodes are base URLs of nodes' APIs. One is asked at a time; the next one
	// when it does not answer.
	Nodes []string `json:"nodes"`
	// Token is the ingress token. Placeholders are replaced.
	Token string `json:"token,omitempty"`
	// Prefer puts that node's upstreams first; "self" means the node that is asked.
	Prefer string `json:"prefer,omitempty"`
	// Cache is a file that keeps the last good document across restarts.
	Cache string `json:"cache,omitempty"`
}

func (f *Fleet) validate() error {
	if len(f.Nodes) == 0 {
		return fmt.Errorf("fleet %q names no node", f.Name)
	}
	for _, n := range f.Nodes {
		u, err := url.Parse(n)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return fmt.Errorf("fleet %q: node %q is no base URL", f.Name, n)
		}
	}
	if f.Token == "" {
		return fmt.Errorf("fleet %q has no token", f.Name)
	}
	return nil
}

// key identifies a poller: a reload of Caddy's configuration that leaves the
// fleet as it is keeps its table.
func (f *Fleet) key() string {
	b, _ := json.Marshal(f) // a struct of strings always encodes
	return string(b)
}

// poller follows one fleet's document until it is destructed.
type poller struct {
	fleet  Fleet
	log    *zap.Logger
	http   *http.Client
	table  atomic.Pointer[table]
	cancel context.CancelFunc
	done   chan struct{}
	first  chan struct{} // closed once there is a table or the first round has failed

	changed, unchanged, failed atomic.Uint64 // answers of nodes
	heard                      atomic.Int64  // when a node last gave or confirmed the document, in nanoseconds of Unix time

	mu          sync.Mutex
	subscribers map[chan<- struct{}]bool // guarded by mu

	// What follows is the poll loop's alone.
	at       int // the node that is asked
	etags    map[string]string
	lastSaid string // the last failure that was logged
}

func newPoller(f Fleet, log *zap.Logger) *poller {
	ctx, cancel := context.WithCancel(context.Background())
	p := &poller{
		fleet: f, log: log, cancel: cancel,
		done: make(chan struct{}), first: make(chan struct{}), etags: map[string]string{},
		http: &http.Client{
			Timeout:       pollTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	p.restore()
	go p.run(ctx)
	return p
}

// Destruct ends the poller when no configuration uses it any more.
func (p *poller) Destruct() error {
	p.cancel()
	<-p.done
	return nil
}

func (p *poller) run(ctx context.Context) {
	defer close(p.done)
	pause := time.NewTimer(pollEvery)
	defer pause.Stop()
	for first := true; ; first = false {
		began := time.Now()
		news := p.poll(ctx)
		if first {
			close(p.first)
		}
		rest := pollPause
		if !news {
			rest = max(rest, pollEvery-time.Since(began))
		}
		pause.Reset(rest)
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// poll asks the current node, and the others in turn when it fails. It reports
// whether one gave another document than the one before.
func (p *poller) poll(ctx context.Context) (news bool) {
	var failures []string
	for range p.fleet.Nodes {
		node := p.fleet.Nodes[p.at]
		news, err := p.ask(ctx, node)
		if err == nil {
			p.confirmed(news)
			if p.lastSaid != "" {
				p.log.Info("following the fleet again", zap.String("fleet", p.fleet.Name), zap.String("node", node))
				p.lastSaid = ""
			}
			return news
		}
		if ctx.Err() != nil {
			return false
		}
		p.failed.Add(1)
		failures = append(failures, node+": "+cause(err))
		p.at = (p.at + 1) % len(p.fleet.Nodes)
	}
	// The same failure is said once, not each second.
	if said := strings.Join(failures, "; "); said != p.lastSaid {
		p.lastSaid = said
		p.log.Error("no node gives a routing document; the last good one stays",
			zap.String("fleet", p.fleet.Name), zap.Bool("has_document", p.table.Load() != nil), zap.String("cause", said))
	}
	return false
}

// cause is an error without what differs each time: the local port of a connection.
func cause(err error) string {
	var lost *net.OpError
	if errors.As(err, &lost) {
		return lost.Op + ": " + lost.Err.Error()
	}
	var asked *url.Error
	if errors.As(err, &asked) {
		return asked.Err.Error()
	}
	return err.Error()
}

// confirmed notes that a node gave a document, or confirmed the one that is known.
func (p *poller) confirmed(news bool) {
	p.heard.Store(time.Now().UnixNano())
	if news {
		p.changed.Add(1)
	} else {
		p.unchanged.Add(1)
	}
}

var errToken = errors.New("the node refuses the ingress token (401)")

func (p *poller) ask(ctx context.Context, node string) (news bool, err error) {
	u := strings.TrimRight(node, "/") + "/v1/ingress/routes"
	if p.fleet.Prefer != "" {
		u += "?prefer=" + url.QueryEscape(p.fleet.Prefer)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", "Bearer "+p.fleet.Token)
	if etag := p.etags[node]; etag != "" && p.table.Load() != nil {
		req.Header.Set("If-None-Match", etag)
	}
	// RFC 7240, section 4.3. A node that does not know it answers at once.
	req.Header.Set("Prefer", "wait="+strconv.Itoa(int(pollWait/time.Second)))
	res, err := p.http.Do(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusNotModified:
		if req.Header.Get("If-None-Match") == "" {
			return false, errors.New("it says that nothing has changed to one who knows nothing yet")
		}
		return false, nil
	case http.StatusOK:
	case http.StatusUnauthorized:
		return false, errToken
	default:
		return false, fmt.Errorf("it answered %d", res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	if err != nil {
		return false, err
	}
	if len(body) > maxDocument {
		return false, fmt.Errorf("its document is larger than %d bytes", maxDocument)
	}
	t, skipped, err := parseDocument(body)
	if err != nil {
		return false, err
	}
	for _, s := range skipped {
		p.log.Warn("left out of the routing", zap.String("fleet", p.fleet.Name), zap.String("node", node), zap.Error(s))
	}
	p.table.Store(t)
	p.tell()
	// Only the node that gave the table may say "not modified" of it.
	clear(p.etags)
	p.etags[node] = res.Header.Get("ETag")
	p.save(body)
	return true, nil
}

// subscribe lets c, which has room for one, hear of each other document.
func (p *poller) subscribe(c chan<- struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.subscribers == nil {
		p.subscribers = map[chan<- struct{}]bool{}
	}
	p.subscribers[c] = true
}

func (p *poller) unsubscribe(c chan<- struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.subscribers, c)
}

// tell tells the subscribers; who has not yet listened to the last time hears it once.
func (p *poller) tell() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.subscribers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (p *poller) save(body []byte) {
	if p.fleet.Cache == "" {
		return
	}
	tmp := p.fleet.Cache + ".new"
	err := os.MkdirAll(filepath.Dir(p.fleet.Cache), 0o700)
	if err == nil {
		err = os.WriteFile(tmp, body, 0o600)
	}
	if err == nil {
		err = os.Rename(tmp, p.fleet.Cache)
	}
	if err != nil {
		p.log.Warn("the routing document could not be kept on disk", zap.String("fleet", p.fleet.Name), zap.Error(err))
	}
}

// restore begins with the document of the last run, so that an ingress that
// starts while its nodes are away serves what it knew.
func (p *poller) restore() {
	if p.fleet.Cache == "" {
		return
	}
	b, err := os.ReadFile(p.fleet.Cache)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			p.log.Warn("the kept routing document cannot be read", zap.String("fleet", p.fleet.Name), zap.Error(err))
		}
		return
	}
	t, _, err := parseDocument(b)
	if err != nil {
		p.log.Warn("the kept routing document is damaged", zap.String("fleet", p.fleet.Name), zap.Error(err))
		return
	}
	p.table.Store(t)
}
