package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"unicode/utf8"

	"github.com/scafo/scafo"
)

// readBody reads the body of a control request. One that is larger than the bound
// is refused as soon as that is known, and the rest of it is not read.
func (s *server) readBody(c *call) ([]byte, error) {
	if c.r.ContentLength > s.JSONBytes {
		return nil, s.tooLarge(c)
	}
	b, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, s.JSONBytes))
	if err != nil {
		var most *http.MaxBytesError
		if errors.As(err, &most) {
			return nil, s.tooLarge(c)
		}
		return nil, scafo.Wrap(err, scafo.CodeInvalidInput, "the request body ended early")
	}
	return b, nil
}

// noBody bounds the body of a control request that takes none. What is in it does
// not matter: many clients send an empty object along.
func (s *server) noBody(c *call) error {
	if c.r.ContentLength > s.JSONBytes {
		return s.tooLarge(c)
	}
	_, err := io.Copy(io.Discard, http.MaxBytesReader(c.w, c.r.Body, s.JSONBytes))
	var most *http.MaxBytesError
	if errors.As(err, &most) {
		return s.tooLarge(c)
	}
	return nil
}

func (s *server) tooLarge(c *call) error {
	// What is left of the body is not worth waiting for.
	c.w.Header().Set("Connection", "close")
	return scafo.Errorf(scafo.CodeResourceLimit, "the request body is larger than api.jsonBytes, %d bytes", s.JSONBytes)
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
