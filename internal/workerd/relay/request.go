package relay

import (
	"bytes"
	"net/url"
	"strings"
)

// request is a request that this package relays by itself. Its slices lie in the
// buffer that it was read into.
type request struct {
	method, target []byte
	host           []byte // what the upstream is told
	lines          [maxLines]line
	count          int // of lines
	head           int // bytes, the empty line included
	body           int // bytes that follow
	isHead         bool
	closes         bool // the client wants the connection closed
}

// line is one header line: its bytes without the line's end.
type line struct{ name, text []byte }

// maxLines bounds the header lines of what is relayed here.
const maxLines = 64

// A byte's place in a message. RFC 9110, sections 5.5 and 5.6.2; RFC 3986 for
// targets, without what any parser could read in two ways.
const (
	inToken = 1 << iota
	inValue
	inTarget
	inHost
)

var class = func() (t [256]byte) {
	mark := func(c byte, chars string) {
		for i := range len(chars) {
			t[chars[i]] |= c
		}
	}
	const alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	mark(inToken, alnum+"!#$%&'*+-.^_`|~")
	mark(inTarget, alnum+"-._~!$&'()*+,;=:@/?%")
	mark(inHost, alnum+"-._:")
	for c := range 256 {
		if c >= ' ' && c != 0x7f || c == '\t' {
			t[c] |= inValue
		}
	}
	return t
}()

func all(b []byte, c byte) bool {
	for _, x := range b {
		if class[x]&c == 0 {
			return false
		}
	}
	return len(b) > 0
}

var (
	crlf    = []byte("\r\n")
	headEnd = []byte("\r\n\r\n")
	version = []byte(" HTTP/1.1\r\n")
)

// methods are those that are relayed here.
var methods = map[string]bool{"GET": true, "HEAD": true, "POST": true, "PUT": true, "PATCH": true, "DELETE": true, "OPTIONS": true}

// verdict is what a look at the bytes of a connection came to.
type verdict int

const (
	// other: a request that is not whole yet, is not plain, or is none at all. Whoever
	// reads it for good decides what it is; nothing of it was interpreted.
	other verdict = iota
	plain
)

// parse reads a plain request: one whose every byte has one meaning, with all of
// its body there. Whatever is unusual is none, however harmless: it costs nothing
// but time to leave it to others.
func (r *request) parse(b []byte, trust bool) verdict {
	end := bytes.Index(b, headEnd)
	if end < 0 {
		return other
	}
	*r = request{head: end + len(headEnd)}
	first := bytes.Index(b, crlf)
	if !r.firstLine(b[:first+len(crlf)]) {
		return other
	}
	var f forwarded
	lengths, hosts := 0, 0
	for rest := b[first+len(crlf) : end+len(crlf)]; len(rest) > 0; {
		i := bytes.Index(rest, crlf)
		text := rest[:i]
		rest = rest[i+len(crlf):]
		colon := bytes.IndexByte(text, ':')
		if colon <= 0 || r.count == maxLines || !all(text[:colon], inToken) {
			return other
		}
		value := trim(text[colon+1:])
		if len(value) > 0 && !all(value, inValue) {
			return other
		}
		l := line{text[:colon], text}
		switch kindOf(l.name) {
		case fieldHost:
			hosts++
			r.host = value
			continue
		case fieldLength:
			n, ok := decimal(value)
			if lengths++; !ok || n > len(b) {
				return other
			}
			r.body = n
		case fieldConnection:
			switch {
			case fold(value, "close"):
				r.closes = true
			case !fold(value, "keep-alive"):
				return other
			}
			continue
		case fieldForwardedHost:
			f.hosts++
			f.host = value
		case fieldForwardedProto:
			f.protos++
			f.proto = value
		case fieldHop, fieldEncoding:
			return other
		}
		r.lines[r.count] = l
		r.count++
	}
	if hosts != 1 || lengths > 1 || len(b)-r.head < r.body || !r.addressed(f, trust) {
		return other
	}
	return plain
}

// forwarded is what the headers of an ingress say.
type forwarded struct {
	host, proto   []byte
	hosts, protos int
}

// addressed settles the host, which an ingress that is trusted may name.
func (r *request) addressed(f forwarded, trust bool) bool {
	if !goodHost(r.host) {
		return false
	}
	if trust {
		if f.hosts > 1 || f.protos > 1 || f.protos == 1 && string(f.proto) != "http" && string(f.proto) != "https" {
			return false
		}
		if f.hosts == 1 {
			r.host = f.host
		}
	}
	return goodHost(r.host)
}

// goodHost takes a name or an IPv4 address, with or without a port.
func goodHost(h []byte) bool {
	if !all(h, inHost) {
		return false
	}
	name, port, found := bytes.Cut(h, []byte(":"))
	if !found {
		return true
	}
	n, ok := decimal(port)
	return ok && n <= 65535 && len(name) > 0
}

// firstLine reads METHOD SP target SP HTTP/1.1 CRLF.
func (r *request) firstLine(b []byte) bool {
	space := bytes.IndexByte(b, ' ')
	if space < 0 || !bytes.HasSuffix(b, version) || len(b)-len(version) <= space {
		return false
	}
	r.method, r.target = b[:space], b[space+1:len(b)-len(version)]
	r.isHead = string(r.method) == "HEAD"
	return methods[string(r.method)] && goodTarget(r.target)
}

// goodTarget reports whether it is a path of the application's, possibly with a
// query, spelled with bytes that mean the same to everybody.
func goodTarget(t []byte) bool {
	if len(t) == 0 || t[0] != '/' || len(t) > 1 && t[1] == '/' || !all(t, inTarget) {
		return false
	}
	path, _, _ := bytes.Cut(t, []byte("?"))
	if bytes.IndexByte(path, '%') >= 0 {
		plainPath, err := url.PathUnescape(string(path))
		return err == nil && !strings.HasPrefix(plainPath, reserved)
	}
	return !bytes.HasPrefix(path, []byte(reserved))
}

// reserved is where the runtime's own routes lie.
const reserved = "/.well-known/celld/"

// The kinds of header lines.
const (
	fieldPlain = iota
	fieldHost
	fieldLength
	fieldConnection
	fieldForwardedHost
	fieldForwardedProto
	fieldHop      // means something between two hops, or changes how the message is read
	fieldDate     // of answers
	fieldEncoding // Transfer-Encoding
)

func kindOf(name []byte) int {
	switch len(name) {
	case 2:
		return when(name, "te", fieldHop)
	case 4:
		if fold(name, "host") {
			return fieldHost
		}
		return when(name, "date", fieldDate)
	case 6:
		return when(name, "expect", fieldHop)
	case 7:
		return when(name, "upgrade", fieldHop) | when(name, "trailer", fieldHop)
	case 10:
		if fold(name, "connection") {
			return fieldConnection
		}
		return when(name, "keep-alive", fieldHop)
	case 14:
		return when(name, "content-length", fieldLength)
	case 16:
		if fold(name, "x-forwarded-host") {
			return fieldForwardedHost
		}
		return when(name, "proxy-connection", fieldHop)
	case 17:
		if fold(name, "x-forwarded-proto") {
			return fieldForwardedProto
		}
		return when(name, "transfer-encoding", fieldEncoding)
	case 18:
		return when(name, "proxy-authenticate", fieldHop)
	case 19:
		return when(name, "proxy-authorization", fieldHop)
	}
	return fieldPlain
}

func when(name []byte, is string, kind int) int {
	if fold(name, is) {
		return kind
	}
	return fieldPlain
}

// fold compares without case; lower is in lower case, and ASCII.
func fold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func trim(b []byte) []byte { return bytes.Trim(b, " \t") }

// decimal reads a number of plain digits, few enough to be no matter of overflow.
func decimal(b []byte) (int, bool) {
	const most = 15 // digits
	if len(b) == 0 || len(b) > most {
		return 0, false
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

// appendTo appends the request as the upstream gets it: as the client spelled it,
// without what concerns the client's connection.
func (r *request) appendTo(out, b []byte) []byte {
	out = append(out, r.method...)
	out = append(out, ' ')
	out = append(out, r.target...)
	out = append(out, " HTTP/1.1\r\nHost: "...)
	out = append(out, r.host...)
	out = append(out, crlf...)
	for _, l := range r.lines[:r.count] {
		out = append(out, l.text...)
		out = append(out, crlf...)
	}
	out = append(out, crlf...)
	return append(out, b[r.head:r.head+r.body]...)
}
