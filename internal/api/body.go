package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/scafo/scafo"
)

// DefaultBodyTime bounds how long the body of a request may take to arrive: 1 MiB, the
// most that a route other than that of deploys takes, at 35 kB a second.
const DefaultBodyTime = 30 * time.Second

// bounded is a request whose body has a time by which it must be there, until it was
// read to its end or whoever reads it sets another one. Without a bound anybody at all
// could hold a connection for ever: a server waits for a body that was announced also
// where it has refused the request.
func (s *server) bounded(w http.ResponseWriter, r *http.Request) *http.Request {
	if r.ContentLength == 0 {
		return r
	}
	control := http.NewResponseController(w)
	if control.SetReadDeadline(time.Now().Add(s.BodyTime)) != nil {
		return r // it is read from no connection
	}
	r = r.WithContext(r.Context()) // the server looks at the body of its own request
	r.Body = &timedBody{ReadCloser: r.Body, control: control}
	return r
}

// timedBody is a body with a bound on its reads, which ends with it: a server reads on
// behind a body to see its caller leave.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// errCut is what a body came to that is not whole.
func errCut(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return scafo.Wrap(err, scafo.CodeInvalidInput, "the request body did not arrive in time")
	}
	return scafo.Wrap(err, scafo.CodeInvalidInput, "the request body ended early")
}

// readBody reads the body of a control request.
func (s *server) readBody(c *call) ([]byte, error) {
	return c.body(s.JSONBytes, "the request body is larger than api.jsonBytes,")
}

// body reads the request's body. One of more bytes is refused as soon as that is known,
// in words that the bound follows, and the rest of it is not read.
func (c *call) body(most int64, tooLarge string) ([]byte, error) {
	var b []byte
	var err error = &http.MaxBytesError{Limit: most}
	if c.r.ContentLength <= most {
		b, err = io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, most))
	}
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		// What is left of the body is not worth waiting for.
		c.w.Header().Set("Connection", "close")
		return nil, scafo.Errorf(scafo.CodeResourceLimit, "%s %d bytes", tooLarge, most)
	case err != nil:
		return nil, errCut(err)
	}
	return b, nil
}

// noBody bounds the body of a control request that takes none. What is in it does
// not matter: many clients send an empty object along.
func (s *server) noBody(c *call) error {
	_, err := s.readBody(c)
	return err
}

// readObject reads the body of a control request, which must be one JSON object.
func (s *server) readObject(c *call) (members, error) {
	b, err := s.readBody(c)
	if err != nil {
		return nil, err
	}
	return parseBody(b)
}

func parseBody(b []byte) (members, error) {
	m, err := parseObject(b)
	if err != nil {
		return nil, errNotTheDocument(err)
	}
	return m, nil
}

func errNotTheDocument(cause error) error {
	return &scafo.Error{Code: scafo.CodeInvalidInput, Title: "Malformed request", Detail: "the request body is not the JSON document that this route takes", Err: cause}
}

// members are the members of a JSON object, by name. Names count as they are
// spelled, and each stands there once: encoding/json takes any case, and the last
// one of several.
type members map[string]json.RawMessage

var (
	errNoObject = errors.New("it is no JSON object")
	errTwice    = errors.New("a name stands twice in an object")
)

func parseObject(b []byte) (members, error) {
	if !utf8.Valid(b) {
		return nil, errors.New("it is not UTF-8")
	}
	if halfCharacter(b) {
		return nil, errors.New("it has an escape that is half a character")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.Join(errNoObject, err)
	}
	m := members{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := t.(string)
		if !ok {
			return nil, errNoObject
		}
		if _, twice := m[name]; twice {
			return nil, errTwice
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, err
		}
		m[name] = v
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return m, nil
}

// halfCharacter reports whether JSON has an escape of one surrogate without the other:
// encoding/json would put another character into its place, and say nothing.
func halfCharacter(b []byte) bool {
	const escape = len(`\uFFFF`)
	unit := func(at int) (rune, bool) {
		if at+escape > len(b) || b[at] != '\\' || b[at+1] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(string(b[at+2:at+escape]), 16, 16)
		return rune(n), err == nil
	}
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		first, ok := unit(i)
		switch {
		case !ok:
			i++ // what is escaped may be a backslash
		case utf16.IsSurrogate(first):
			second, ok := unit(i + escape)
			if !ok || utf16.DecodeRune(first, second) == utf8.RuneError {
				return true
			}
			i += 2*escape - 1
		default:
			i += escape - 1
		}
	}
	return false
}

// text is a value that is a string.
func text(v json.RawMessage) (string, bool) {
	var s string
	if len(v) == 0 || v[0] != '"' || json.Unmarshal(v, &s) != nil {
		return "", false
	}
	return s, true
}

// texts is a value that is an array of strings.
func texts(v json.RawMessage) ([]string, bool) {
	var list []json.RawMessage
	if len(v) == 0 || v[0] != '[' || json.Unmarshal(v, &list) != nil {
		return nil, false
	}
	out := make([]string, len(list))
	for i, e := range list {
		s, ok := text(e)
		if !ok {
			return nil, false
		}
		out[i] = s
	}
	return out, true
}

// textMap is a value that is an object of strings.
func textMap(v json.RawMessage) (map[string]string, bool) {
	m, err := parseObject(v)
	if err != nil {
		return nil, false
	}
	out := make(map[string]string, len(m))
	for name, e := range m {
		s, ok := text(e)
		if !ok {
			return nil, false
		}
		out[name] = s
	}
	return out, true
}
