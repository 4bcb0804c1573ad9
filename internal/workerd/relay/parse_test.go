package relay

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"strings"
	"testing"
)

const (
	get  = "GET /a?b=%2F HTTP/1.1\r\nHost: app.test\r\n"
	post = "POST /a HTTP/1.1\r\nHost: app.test\r\n"
)

// What is not plain is left to net/http, which has its own ideas of each.
func TestPlain(t *testing.T) {
	for raw, want := range map[string]verdict{
		get + "\r\n": plain,
		get + "Accept: */*\r\nX-A: b \t c\r\nCookie: \xc3\xa4\r\n\r\n": plain,
		get + "Connection: keep-alive\r\n\r\n":                         plain,
		get + "CONNECTION: Close\r\n\r\n":                              plain,
		get + "X-Empty:\r\n\r\n":                                       plain,
		post + "Content-Length: 2\r\n\r\nok":                           plain,
		post + "Content-Length: 0\r\n\r\n":                             plain,
		post + "Content-Length: 2\r\n\r\nokGET / HTTP/1.1\r\n":         plain, // the rest is the next one's
		"GET /.well-known/other HTTP/1.1\r\nHost: a\r\n\r\n":           plain,

		"":                                   other,
		"GET / HTTP/1.1\r\n":                 other, // not whole
		"\r\n" + get + "\r\n":                other,
		post + "Content-Length: 3\r\n\r\nok": other, // not all there
		get + "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx":       other,
		get + "Content-Length: +1\r\n\r\nx":                           other,
		get + "Content-Length: 1, 1\r\n\r\nx":                         other,
		get + "Content-Length: 0x1\r\n\r\nx":                          other,
		get + "Content-Length: 99999999999999999999\r\n\r\nx":         other,
		get + "Content-Length:\r\n\r\n":                               other,
		get + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n":           other,
		get + "transfer-encoding: identity\r\n\r\n":                   other,
		get + "Content-Length: 1\r\nTransfer-Encoding: x\r\n\r\nx":    other,
		get + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n":          other,
		get + " Transfer-Encoding: chunked\r\n\r\n":                   other, // a fold
		get + "A: b\r\n\tc\r\n\r\n":                                   other, // a fold
		get + "A: b\nTransfer-Encoding: chunked\r\n\r\n":              other, // a bare LF
		get + "A: b\rc\r\n\r\n":                                       other, // a bare CR
		get + "A: b\x00c\r\n\r\n":                                     other,
		get + "A: b\x7f\r\n\r\n":                                      other,
		get + "A b\r\n\r\n":                                           other,
		get + ": b\r\n\r\n":                                           other,
		get + "A\xc3\xa4: b\r\n\r\n":                                  other,
		strings.ReplaceAll(get, "\r\n", "\n") + "\n":                  other,
		get + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n":     other,
		get + "Upgrade: websocket\r\n\r\n":                            other,
		get + "Connection: keep-alive, X-A\r\n\r\n":                   other,
		get + "Keep-Alive: timeout=5\r\n\r\n":                         other,
		get + "Proxy-Connection: keep-alive\r\n\r\n":                  other,
		get + "Proxy-Authorization: x\r\n\r\n":                        other,
		get + "TE: trailers\r\n\r\n":                                  other,
		get + "Trailer: X\r\n\r\n":                                    other,
		post + "Content-Length: 1\r\nExpect: 100-continue\r\n\r\nx":   other,
		"GET / HTTP/1.1\r\n\r\n":                                      other, // no host
		get + "Host: app.test\r\n\r\n":                                other, // two
		"GET / HTTP/1.1\r\nHost:\r\n\r\n":                             other,
		"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n":                         other,
		"GET / HTTP/1.1\r\nHost: a b\r\n\r\n":                         other,
		"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n":                         other,
		"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n":                         other,
		"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n":                    other,
		"GET / HTTP/1.0\r\nHost: a\r\n\r\n":                           other,
		"GET / HTTP/1.2\r\nHost: a\r\n\r\n":                           other,
		"GET / HTTP/2.0\r\nHost: a\r\n\r\n":                           other,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                            other,
		"GET /\r\nHost: a\r\n\r\n":                                    other,
		"GET  / HTTP/1.1\r\nHost: a\r\n\r\n":                          other,
		"GET / HTTP/1.1 \r\nHost: a\r\n\r\n":                          other,
		"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n":                        other,
		"GET /#x HTTP/1.1\r\nHost: a\r\n\r\n":                         other,
		"GET /% HTTP/1.1\r\nHost: a\r\n\r\n":                          other,
		"GET /\\ HTTP/1.1\r\nHost: a\r\n\r\n":                         other,
		"GET //a HTTP/1.1\r\nHost: a\r\n\r\n":                         other,
		"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n":                   other,
		"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n":                       other,
		"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n":                   other,
		"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n":                         other,
		"get / HTTP/1.1\r\nHost: a\r\n\r\n":                           other,
		"GET /.well-known/celld/health HTTP/1.1\r\nHost: a\r\n\r\n":   other,
		"GET /.well-known/celld%2Fhealth HTTP/1.1\r\nHost: a\r\n\r\n": other,
		get + strings.Repeat("A: b\r\n", maxLines+1) + "\r\n":         other,
		get + strings.Repeat("A: b\r\n", maxLines) + "\r\n":           plain,
	} {
		var r request
		if got := r.parse([]byte(raw), false); got != want {
			t.Errorf("%q: %v, want %v", raw, got, want)
		}
	}
}

func TestForwarded(t *testing.T) {
	for headers, want := range map[string]string{ // the host; empty: left to others
		"":                                     "app.test",
		"X-Forwarded-Host: b.test:8080\r\n":    "b.test:8080",
		"X-Forwarded-Host: a.test, b.test\r\n": "",
		"X-Forwarded-Host: a.test\r\nX-Forwarded-Host: b.test\r\n": "",
		"X-Forwarded-Host: a/b\r\n":                                "",
		"X-Forwarded-Host:\r\n":                                    "",
		"X-Forwarded-Proto: https\r\nX-Forwarded-Host: b.test\r\n": "b.test",
		"X-Forwarded-Proto: HTTPS\r\n":                             "",
		"X-Forwarded-Proto: ftp\r\n":                               "",
		"X-Forwarded-Proto: http, https\r\n":                       "",
		"X-Forwarded-Proto: http\r\nx-forwarded-proto: https\r\n":  "",
		"Forwarded: host=evil\r\nX-Forwarded-For: 1.2.3.4\r\n":     "app.test",
	} {
		var r request
		host := ""
		if r.parse([]byte(get+headers+"\r\n"), true) == plain {
			host = string(r.host)
		}
		if host != want {
			t.Errorf("%q: host %q, want %q", headers, host, want)
		}
		if r.parse([]byte(get+headers+"\r\n"), false) != plain || string(r.host) != "app.test" {
			t.Errorf("%q: not trusted, and the host is %q", headers, r.host)
		}
	}
}

// FuzzRequest: whatever is plain, net/http reads the very same way, and so does an
// upstream what is sent to it.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(get + "A: b\r\n\r\n"))
	f.Add([]byte(post + "Content-Length: 2\r\nX-a: \xff\r\n\r\nokGET"))
	f.Add([]byte(get + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var r request
		if r.parse(raw, false) != plain {
			return
		}
		sent := r.appendTo(nil, raw)
		var got [2]*http.Request
		for i, b := range [][]byte{raw[:r.head+r.body], sent} {
			buf := bufio.NewReader(bytes.NewReader(b))
			req, err := http.ReadRequest(buf)
			if err != nil {
				t.Fatalf("%q is no request: %v", b, err)
			}
			body, err := io.ReadAll(req.Body)
			if rest, _ := io.ReadAll(buf); err != nil || len(rest) > 0 || len(body) != r.body {
				t.Fatalf("%q: body %q, rest %q, %v", b, body, rest, err)
			}
			if req.Method != string(r.method) || req.RequestURI != string(r.target) || req.Host != string(r.host) || len(req.TransferEncoding) > 0 || req.ProtoMinor != 1 {
				t.Fatalf("%q: %+v", b, req)
			}
			if i == 0 && req.Close != r.closes {
				t.Fatalf("%q: closes %v", b, req.Close)
			}
			req.Header.Del("Connection")
			got[i] = req
		}
		if a, b := dump(got[0].Header), dump(got[1].Header); a != b {
			t.Fatalf("%q: the upstream gets %q, not %q", raw, b, a)
		}
	})
}

func dump(h http.Header) string {
	var b strings.Builder
	_ = h.Write(&b)
	return b.String()
}

// FuzzResponse: an answer that is understood is one that net/http understands the
// same way, before and after.
func FuzzResponse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), false)
	f.Add([]byte("HTTP/1.1 304 Not Modified\r\nETag: x\r\nConnection: close\r\n\r\n"), true)
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"), false)
	f.Fuzz(func(t *testing.T, raw []byte, toHead bool) {
		if !bytes.Contains(raw, headEnd) {
			return
		}
		var r response
		out, err := r.parse(raw, toHead, nil)
		if err != nil || r.status < 200 {
			return
		}
		req := &http.Request{Method: "GET"}
		if toHead {
			req.Method = "HEAD"
		}
		out = append(out, crlf...)
		for _, b := range [][]byte{raw, append(out, raw[r.head:]...)} {
			res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), req)
			if err != nil {
				t.Fatalf("%q is no answer: %v", b, err)
			}
			chunked := len(res.TransferEncoding) > 0
			if res.StatusCode != r.status || !r.bodyless(toHead) && (chunked != r.chunked || res.ContentLength != r.length) {
				t.Fatalf("%q: %+v is not %+v", b, res, r)
			}
		}
	})
}

// FuzzChunks: where a chunked body is said to end, net/http says so too.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("2\r\nok\r\n0\r\n\r\n"), 1)
	f.Add([]byte("a;x=y\r\n0123456789\r\n0\r\nT: v\r\n\r\nHTTP/1.1"), 3)
	f.Fuzz(func(t *testing.T, raw []byte, step int) {
		var c chunks
		used := 0
		for used < len(raw) && c.state != chunksDone {
			end := min(len(raw), used+max(1, step%64))
			n, err := c.follow(raw[used:end])
			if err != nil {
				return
			}
			used += n
		}
		if c.state != chunksDone {
			return
		}
		b := bufio.NewReader(bytes.NewReader(raw[:used]))
		if _, err := io.Copy(io.Discard, httputil.NewChunkedReader(b)); err != nil {
			t.Fatalf("%q: %v", raw[:used], err)
		}
		// Trailers, as net/http reads them: up to an empty line. Of one that goes on without
		// a line before it, which is malformed, it reads no more than it would show.
		first, _ := b.Peek(1)
		goesOn := len(first) > 0 && (first[0] == ' ' || first[0] == '\t')
		if _, err := textproto.NewReader(b).ReadMIMEHeader(); err != nil && !goesOn && !strings.Contains(err.Error(), "malformed MIME header") {
			t.Fatalf("%q: trailers: %v", raw[:used], err)
		}
	})
}
