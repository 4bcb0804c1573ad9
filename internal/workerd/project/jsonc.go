package project

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"
)

// ConfigError is something wrong in a project's configuration, and where.
type ConfigError struct {
	File         string // as the user knows it
	Line, Column int    // from 1; 0: the file as a whole
	Msg          string
}

func (e *ConfigError) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Msg
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Msg)
}

// value is a parsed value that knows where it stands.
type value struct {
	doc    *document
	offset int
	raw    json.RawMessage // standard JSON, compact
	kind   hujson.Kind     // { [ " 0 t f n
	fields []member        // of an object, in order
	items  []*value        // of an array
}

type member struct {
	name   string
	offset int
	value  *value
}

// document is a file of JSON with comments and trailing commas.
type document struct {
	file string
	text []byte
}

var (
	byteOrderMark = []byte("\xef\xbb\xbf")
	parserError   = regexp.MustCompile(`^hujson: line (\d+), column (\d+): `)
)

// parse reads JSON with comments. A byte-order mark is dropped; a key that stands
// twice in an object is refused, since it is not clear which one counts.
func parse(file string, text []byte) (*value, error) {
	d := &document{file: file, text: bytes.TrimPrefix(text, byteOrderMark)}
	v, err := hujson.Parse(d.text)
	if err != nil {
		e := &ConfigError{File: file, Msg: err.Error()}
		if m := parserError.FindStringSubmatch(e.Msg); m != nil {
			e.Msg = strings.TrimPrefix(e.Msg, m[0])
			e.Line, _ = strconv.Atoi(m[1])
			e.Column, _ = strconv.Atoi(m[2])
		}
		return nil, e
	}
	return d.convert(&v)
}

func (d *document) convert(h *hujson.Value) (*value, error) {
	plain := h.Clone()
	plain.Standardize()
	plain.Minimize()
	v := &value{doc: d, offset: h.StartOffset, kind: h.Value.Kind(), raw: bytes.Clone(plain.Pack())}
	switch x := h.Value.(type) {
	case *hujson.Object:
		seen := map[string]bool{}
		for i := range x.Members {
			m := &x.Members[i]
			var name string
			if err := json.Unmarshal(m.Name.Pack(), &name); err != nil {
				name = strings.TrimSpace(string(m.Name.Value.(hujson.Literal)))
			}
			if lit, ok := m.Name.Value.(hujson.Literal); ok {
				name = lit.String()
			}
			if seen[name] {
				return nil, d.errorf(m.Name.StartOffset, "%q stands twice", name)
			}
			seen[name] = true
			c, err := d.convert(&m.Value)
			if err != nil {
				return nil, err
			}
			v.fields = append(v.fields, member{name: name, offset: m.Name.StartOffset, value: c})
		}
	case *hujson.Array:
		for i := range x.Elements {
			c, err := d.convert(&x.Elements[i])
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, c)
		}
	}
	return v, nil
}

func (d *document) errorf(offset int, format string, args ...any) *ConfigError {
	before := d.text[:min(offset, len(d.text))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1) + 1
	return &ConfigError{File: d.file, Line: line, Column: column, Msg: fmt.Sprintf(format, args...)}
}

func (v *value) errorf(format string, args ...any) *ConfigError {
	return v.doc.errorf(v.offset, format, args...)
}

func (m *member) errorf(format string, args ...any) *ConfigError {
	return m.value.doc.errorf(m.offset, format, args...)
}

// kindName says what a value is, for a refusal.
func (v *value) kindName() string {
	switch v.kind {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case 'n':
		return "null"
	}
	return "a boolean"
}

// object holds v to an object whose members are handled by take; one that take
// does not know is refused.
func (v *value) object(what string, take map[string]func(*value) error) error {
	if v.kind != '{' {
		return v.errorf("%s is %s, want an object", what, v.kindName())
	}
	for i := range v.fields {
		m := &v.fields[i]
		fn, ok := take[m.name]
		if !ok {
			return m.errorf("%s has the unsupported key %q", what, m.name)
		}
		if err := fn(m.value); err != nil {
			return err
		}
	}
	return nil
}

// each calls fn for every item of the list v.
func (v *value) each(what string, fn func(*value) error) error {
	if v.kind != '[' {
		return v.errorf("%s is %s, want a list", what, v.kindName())
	}
	for _, item := range v.items {
		if err := fn(item); err != nil {
			return err
		}
	}
	return nil
}

func (v *value) string(what string) (string, error) {
	var s string
	if v.kind != '"' {
		return "", v.errorf("%s is %s, want a string", what, v.kindName())
	}
	if err := json.Unmarshal(v.raw, &s); err != nil {
		return "", v.errorf("%s is no string: %v", what, err)
	}
	return s, nil
}

func (v *value) strings(what string) ([]string, error) {
	out := []string{}
	return out, v.each(what, func(item *value) error {
		s, err := item.string("an item of " + what)
		out = append(out, s)
		return err
	})
}

func (v *value) boolean(what string) (bool, error) {
	switch v.kind {
	case 't':
		return true, nil
	case 'f':
		return false, nil
	}
	return false, v.errorf("%s is %s, want true or false", what, v.kindName())
}

// into makes a member's handler that stores a string.
func into(what string, to *string) func(*value) error {
	return func(v *value) (err error) {
		*to, err = v.string(what)
		return err
	}
}

// oneOf is into for a string out of a few.
func oneOf(what string, to *string, values ...string) func(*value) error {
	return func(v *value) error {
		s, err := v.string(what)
		if err != nil {
			return err
		}
		for _, want := range values {
			if s == want {
				*to = s
				return nil
			}
		}
		return v.errorf("%s is %q, want one of %s", what, s, strings.Join(values, ", "))
	}
}

// isConfigError reports whether err is about the configuration.
func isConfigError(err error) bool {
	var c *ConfigError
	return errors.As(err, &c)
}
