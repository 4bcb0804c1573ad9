package cacheapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

type asker struct {
	t *testing.T
	c *Cache
}

func (a asker) do(method, path, body string, header ...string) *httptest.ResponseRecorder {
	a.t.Helper()
	r := httptest.NewRequest(method, "http://example.com"+path, strings.NewReader(body))
	r.RequestURI = path
	r.Header.Set(SecretHeader, "s")
	r.Header.Set(SchemeHeader, "https")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	a.c.ServeHTTP(w, r)
	return w
}

func (a asker) put(path, head, body string, want int) {
	a.t.Helper()
	if w := a.do(http.MethodPut, path, "HTTP/1.1 "+head+"\r\n\r\n"+body); w.Code != want {
		a.t.Errorf("put %s %q: %d, want %d", path, head, w.Code, want)
	}
}

// match is what a lookup finds; empty is a miss.
func (a asker) match(path string, header ...string) string {
	a.t.Helper()
	w := a.do(http.MethodGet, path, "", header...)
	switch {
	case w.Code == http.StatusGatewayTimeout && w.Header().Get(statusHeader) == "MISS":
		return ""
	case w.Header().Get(statusHeader) != "HIT":
		a.t.Errorf("%s: %d %v", path, w.Code, w.Header())
	}
	return fmt.Sprint(w.Code, " ", w.Body)
}

func TestLifetimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for head, want := range map[string]time.Duration{
			"200 OK\r\nCache-Control: max-age=60":                                        time.Minute,
			"200 OK\r\nCache-Control: Max-Age=9, S-MaxAge=60":                            time.Minute,
			"200 OK\r\nCache-Control: public\r\nCache-Control: max-age=5":                5 * time.Second,
			"200 OK\r\nCache-Control: max-age=0":                                         0,
			"200 OK\r\nCache-Control: max-age=nope":                                      0,
			"200 OK\r\nCache-Control: no-store, max-age=60":                              0,
			"200 OK\r\nCache-Control: no-cache":                                          0,
			"200 OK\r\nCache-Control: private, max-age=60":                               0,
			"200 OK\r\nVary: *":                                                          0,
			"200 OK\r\nSet-Cookie: a=b":                                                  0,
			"200 OK\r\nSet-Cookie: a=b\r\nCache-Control: private=Set-Cookie, max-age=60": time.Minute,
			"200 OK\r\nX: y":                           2 * time.Hour,
			"404 Not Found\r\nX: y":                    3 * time.Minute,
			"302 Found\r\nLocation: /a":                20 * time.Minute,
			"500 Broken\r\nX: y":                       0,
			"500 Broken\r\nCache-Control: max-age=60":  time.Minute,
			"206 Partial\r\nCache-Control: max-age=60": 0,
			"200 OK\r\nExpires: IN-A-MINUTE":           time.Minute,
			"200 OK\r\nExpires: A-MINUTE-AGO":          0,
			"200 OK\r\nExpires: -1":                    0,
		} {
			a := asker{t, New("s")}
			at := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
			head = strings.NewReplacer("IN-A-MINUTE", at(time.Minute), "A-MINUTE-AGO", at(-time.Minute)).Replace(head)
			if want == 0 {
				a.put("/a", head, "body", http.StatusRequestEntityTooLarge)
				if got := a.match("/a"); got != "" {
					t.Errorf("%q is kept: %s", head, got)
				}
				continue
			}
			a.put("/a", head, "body", http.StatusNoContent)
			time.Sleep(want - time.Second)
			w := a.do(http.MethodGet, "/a", "")
			if age := fmt.Sprint(int((want - time.Second) / time.Second)); w.Body.String() != "body" || w.Header().Get("Age") != age || w.Header().Get("Set-Cookie") != "" {
				t.Errorf("%q: %d %v", head, w.Code, w.Header())
			}
			time.Sleep(time.Second)
			if got := a.match("/a"); got != "" || len(a.c.entries) != 0 || a.c.bytes != 0 {
				t.Errorf("%q is kept too long: %s", head, got)
			}
		}
	})
}

func TestKeysAndConditions(t *testing.T) {
	a := asker{t, New("s")}
	a.put("/a?x=1", "200 OK\r\nTransfer-Encoding: chunked\r\nETag: \"e\"\r\nX-A: b", "abcdef", http.StatusNoContent)
	for _, miss := range [][]string{{"/a"}, {"/a?x=1", SchemeHeader, "http"}, {"/a?x=1", namespaceHeader, "n"}} {
		if got := a.match(miss[0], miss[1:]...); got != "" {
			t.Errorf("%v: %s", miss, got)
		}
	}
	for want, header := range map[string][]string{
		"200 abcdef": nil, "206 bcd": {"Range", "bytes=1-3"}, "304 ": {"If-None-Match", `"e"`}, "416 invalid range: failed to overlap\n": {"Range", "bytes=100-"},
	} {
		if got := a.match("/a?x=1", header...); got != want {
			t.Errorf("%v: %q, want %q", header, got, want)
		}
	}
	w := a.do(http.MethodGet, "/a?x=1", "")
	if w.Header().Get("X-A") != "b" || w.Header().Values("Content-Type") != nil || w.Header().Get("Transfer-Encoding") != "" {
		t.Errorf("headers %v", w.Header())
	}
	for _, want := range []int{200, 404} {
		if w := a.do("PURGE", "/a?x=1", ""); w.Code != want {
			t.Errorf("purge: %d, want %d", w.Code, want)
		}
	}
	for _, garbage := range []string{"", "HTTP/1.1", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", maxHead) + "\r\n\r\n"} {
		if w := a.do(http.MethodPut, "/g", garbage); w.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("%.40q: %d", garbage, w.Code)
		}
	}
	if w := a.do(http.MethodGet, "/a", "", SecretHeader, "other"); w.Code != http.StatusForbidden {
		t.Errorf("a stranger: %d", w.Code)
	}
}

func TestBounds(t *testing.T) {
	a := asker{t, New("s")}
	const head = "200 OK\r\nX: y"
	a.put("/n", head, strings.Repeat("x", MaxEntry), http.StatusNoContent)
	a.put("/n+1", head, strings.Repeat("x", MaxEntry+1), http.StatusRequestEntityTooLarge)
	const fits = MaxTotal/MaxEntry - 1 // each is a little more than its body
	for i := range fits - 1 {
		a.put(fmt.Sprint("/", i), head, strings.Repeat("x", MaxEntry), http.StatusNoContent)
	}
	if a.match("/n") == "" { // and with it the last used
		t.Error("dropped before the cache is full")
	}
	a.put("/more", head, strings.Repeat("x", MaxEntry), http.StatusNoContent)
	if a.match("/n") == "" || a.match("/0") != "" || a.match("/1") == "" || a.match("/more") == "" || a.c.bytes > MaxTotal || len(a.c.entries) != fits {
		t.Errorf("%d entries, %d bytes", len(a.c.entries), a.c.bytes)
	}
}
