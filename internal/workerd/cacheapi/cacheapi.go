// Package cacheapi keeps what a Worker puts into its caches (`caches.default`,
// `caches.open`) in memory, as workerd asks for it: a GET looks up, a PUT stores an
// answer that it carries as HTTP, a PURGE deletes. Like at Cloudflare the cache is of
// this place alone, may forget anything, and survives a new version of the Worker.
package cacheapi

import (
	"bufio"
	"bytes"
	"container/list"
	"crypto/subtle"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The bounds of one application's cache, in bytes.
const (
	MaxTotal = 32 << 20
	MaxEntry = 4 << 20
	// maxHead bounds the head of an answer that is stored.
	maxHead = 64 << 10
	// entryCost is what an entry takes beside its key, head and body, about.
	entryCost = 512
)

// The headers that workerd and its cache speak to each other with.
const (
	// SecretHeader shows that it is the application's own workerd that asks.
	SecretHeader = "X-Cache-Secret"
	// SchemeHeader is the scheme of the address.
	SchemeHeader    = "X-Forwarded-Proto"
	namespaceHeader = "Cf-Cache-Namespace"
	statusHeader    = "Cf-Cache-Status"
)

// Cache is one application's cache. It serves workerd's requests.
type Cache struct {
	secret []byte
	now    func() time.Time

	mu      sync.Mutex // guards all below
	entries map[string]*list.Element
	recent  list.List // of *entry, the last used first
	bytes   int64
}

type entry struct {
	key     string
	status  int
	header  http.Header
	body    []byte
	stored  time.Time
	expires time.Time
}

func (e *entry) size() int64 {
	n := len(e.key) + len(e.body) + entryCost
	for k, vv := range e.header {
		for _, v := range vv {
			n += len(k) + len(v)
		}
	}
	return int64(n)
}

// New makes an empty cache for who knows the secret.
func New(secret string) *Cache {
	return &Cache{secret: []byte(secret), now: time.Now, entries: map[string]*list.Element{}}
}

// ServeHTTP answers one request of workerd's.
func (c *Cache) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["Content-Type"] = nil // none that was not stored
	if subtle.ConstantTimeCompare([]byte(r.Header.Get(SecretHeader)), c.secret) != 1 {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	key := strings.Join([]string{r.Header.Get(namespaceHeader), r.Header.Get(SchemeHeader), r.Host, r.RequestURI}, "\x00")
	switch r.Method {
	case http.MethodGet:
		c.match(w, r, key)
	case http.MethodPut:
		w.WriteHeader(c.put(r.Body, key))
	case "PURGE":
		if !c.remove(key) {
			w.WriteHeader(http.StatusNotFound)
		}
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// match answers with what is stored, or with a miss.
func (c *Cache) match(w http.ResponseWriter, r *http.Request, key string) {
	e := c.find(key)
	h := w.Header()
	if e == nil {
		h.Set(statusHeader, "MISS")
		w.WriteHeader(http.StatusGatewayTimeout)
		return
	}
	for k, v := range e.header {
		h[k] = v
	}
	h.Set(statusHeader, "HIT")
	h.Set("Age", strconv.FormatInt(int64(c.now().Sub(e.stored)/time.Second), 10))
	if e.status == http.StatusOK {
		// It knows ranges and conditions.
		modified, _ := http.ParseTime(e.header.Get("Last-Modified")) // the zero time is none
		http.ServeContent(w, r, "", modified, bytes.NewReader(e.body))
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(e.body)))
	w.WriteHeader(e.status)
	_, _ = w.Write(e.body) // who asked may be gone
}

func (c *Cache) find(key string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.entries[key]
	if at == nil {
		return nil
	}
	e := at.Value.(*entry)
	if !c.now().Before(e.expires) {
		c.drop(at)
		return nil
	}
	c.recent.MoveToFront(at)
	return e
}

func (c *Cache) remove(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.entries[key]
	if at == nil {
		return false
	}
	alive := c.now().Before(at.Value.(*entry).expires)
	c.drop(at)
	return alive
}

// drop takes an entry out. c.mu is held.
func (c *Cache) drop(at *list.Element) {
	e := c.recent.Remove(at).(*entry)
	delete(c.entries, e.key)
	c.bytes -= e.size()
}

// put stores an answer; 204 says that it did, 413 that it did not, which is no error
// to a Worker.
func (c *Cache) put(body io.Reader, key string) int {
	e, ok := read(body)
	if !ok {
		return http.StatusRequestEntityTooLarge
	}
	e.key, e.stored = key, c.now()
	life, ok := lifetime(e.status, e.header, e.stored)
	if !ok {
		return http.StatusRequestEntityTooLarge
	}
	e.expires = e.stored.Add(life)
	e.header.Del("Set-Cookie") // only with private=Set-Cookie does it come here
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.entries[key]; old != nil {
		c.drop(old)
	}
	c.entries[key] = c.recent.PushFront(e)
	c.bytes += e.size()
	for c.bytes > MaxTotal {
		c.drop(c.recent.Back())
	}
	return http.StatusNoContent
}

// read reads an answer as workerd writes it: its body is plain, also where its head
// says that it comes in chunks.
func read(body io.Reader) (*entry, bool) {
	in := bufio.NewReader(io.LimitReader(body, maxHead+MaxEntry))
	head := textproto.NewReader(bufio.NewReader(io.LimitReader(headOf(in), maxHead)))
	line, err := head.ReadLine()
	if err != nil {
		return nil, false
	}
	_, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	if err != nil || status < 200 || status > 599 {
		return nil, false
	}
	header, err := head.ReadMIMEHeader()
	if err != nil {
		return nil, false
	}
	e := &entry{status: status, header: http.Header(header)}
	for _, h := range []string{"Transfer-Encoding", "Content-Length", "Connection", statusHeader} {
		e.header.Del(h)
	}
	e.body, err = io.ReadAll(io.LimitReader(in, MaxEntry+1))
	return e, err == nil && len(e.body) <= MaxEntry
}

// headOf reads lines up to the empty one that ends a head, and leaves what follows.
func headOf(in *bufio.Reader) io.Reader {
	var head bytes.Buffer
	for head.Len() <= maxHead {
		line, err := in.ReadSlice('\n')
		head.Write(line)
		if err != nil || len(bytes.TrimRight(line, "\r\n")) == 0 {
			break
		}
	}
	return &head
}

// unsaid are the lifetimes of answers that do not say theirs.
var unsaid = map[int]time.Duration{
	200: 2 * time.Hour, 203: 2 * time.Hour, 301: 2 * time.Hour, 302: 20 * time.Minute, 303: 20 * time.Minute, 404: 3 * time.Minute, 410: 3 * time.Minute,
}

// lifetime is for how long an answer may be kept; false: not at all.
func lifetime(status int, h http.Header, now time.Time) (time.Duration, bool) {
	said := directives(h)
	_, noStore := said["no-store"]
	_, noCache := said["no-cache"]
	private, isPrivate := said["private"]
	cookies := h.Get("Set-Cookie") != "" && !strings.EqualFold(private, "set-cookie")
	if status == http.StatusPartialContent || noStore || noCache || isPrivate && private == "" || cookies || h.Get("Vary") == "*" {
		return 0, false
	}
	for _, d := range []string{"s-maxage", "max-age"} {
		if v, ok := said[d]; ok {
			seconds, err := strconv.ParseInt(v, 10, 32)
			return time.Duration(seconds) * time.Second, err == nil && seconds > 0
		}
	}
	if at := h.Get("Expires"); at != "" {
		t, err := http.ParseTime(at)
		return t.Sub(now), err == nil && t.After(now)
	}
	life, ok := unsaid[status]
	return life, ok
}

// directives are those of Cache-Control, in lower case.
func directives(h http.Header) map[string]string {
	out := map[string]string{}
	for _, line := range h.Values("Cache-Control") {
		for part := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			out[strings.ToLower(name)] = strings.Trim(value, `"`)
		}
	}
	return out
}
