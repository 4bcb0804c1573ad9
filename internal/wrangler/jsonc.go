// Package wrangler reads what the files of a Wrangler project say: its JSON with
// comments, its module rules and its .assetsignore. The command that packs a project
// and the runtime that builds it share it, so that both mean the same.
package wrangler

import (
	"bytes"
	"encoding/json"
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

// Value is a parsed value that knows where it stands.
type Value struct {
	Raw    json.RawMessage // standard JSON, compact
	Kind   hujson.Kind     // { [ " 0 t f n
	Fields []Member        // of an object, in order
	Items  []*Value        // of an array

	doc    *document
	offset int
}

// Member is one member of an object.
type Member struct {
	Name  string
	Value *Value

	offset int
}

// document is a file of JSON with comments and trailing commas.
type document struct {
	file string
	text []byte
}

// ByteOrderMark is what some editors put in front of UTF-8.
var ByteOrderMark = []byte("\xef\xbb\xbf")

var (
	parserError = regexp.MustCompile(`^hujson: line (\d+), column (\d+): `)
)

// Parse reads JSON with comments. A byte-order mark is dropped; a key that stands
// twice in an object is refused, since it is not clear which one counts.
func Parse(file string, text []byte) (*Value, error) {
	d := &document{file: file, text: bytes.TrimPrefix(text, ByteOrderMark)}
	if at := tooDeep(d.text); at >= 0 {
		return nil, d.errorf(at, "more than %d levels of lists and objects", maxDepth)
	}
	if last := d.text[bytes.LastIndexByte(d.text, '\n')+1:]; bytes.Contains(last, []byte("//")) {
		// The parser wants a line's end behind a comment, also behind the last one.
		d.text = append(bytes.Clone(d.text), '\n')
	}
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

// maxDepth bounds how deep lists and objects stand in each other.
const maxDepth = 64

// tooDeep is where a text goes deeper than that, or -1.
func tooDeep(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case bytes.HasPrefix(text[i:], []byte("//")):
			for i < len(text) && text[i] != '\n' {
				i++
			}
		case bytes.HasPrefix(text[i:], []byte("/*")):
			end := bytes.Index(text[i+2:], []byte("*/"))
			if end < 0 {
				return -1 // the parser says it
			}
			i += end + 3
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return i
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return -1
}

func (d *document) convert(h *hujson.Value) (*Value, error) {
	plain := h.Clone()
	plain.Standardize()
	plain.Minimize()
	v := &Value{doc: d, offset: h.StartOffset, Kind: h.Value.Kind(), Raw: bytes.Clone(plain.Pack())}
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
			v.Fields = append(v.Fields, Member{Name: name, offset: m.Name.StartOffset, Value: c})
		}
	case *hujson.Array:
		for i := range x.Elements {
			c, err := d.convert(&x.Elements[i])
			if err != nil {
				return nil, err
			}
			v.Items = append(v.Items, c)
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

func (v *Value) Errorf(format string, args ...any) *ConfigError {
	return v.doc.errorf(v.offset, format, args...)
}

func (m *Member) Errorf(format string, args ...any) *ConfigError {
	return m.Value.doc.errorf(m.offset, format, args...)
}

// KindName says what a value is, for a refusal.
func (v *Value) KindName() string {
	switch v.Kind {
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

// Object holds v to an object whose members are handled by take; one that take
// does not know is refused.
func (v *Value) Object(what string, take map[string]func(*Value) error) error {
	if v.Kind != '{' {
		return v.Errorf("%s is %s, want an object", what, v.KindName())
	}
	for i := range v.Fields {
		m := &v.Fields[i]
		fn, ok := take[m.Name]
		if !ok {
			return m.Errorf("%s has the unsupported key %q", what, m.Name)
		}
		if err := fn(m.Value); err != nil {
			return err
		}
	}
	return nil
}

// Each calls fn for every item of the list v.
func (v *Value) Each(what string, fn func(*Value) error) error {
	if v.Kind != '[' {
		return v.Errorf("%s is %s, want a list", what, v.KindName())
	}
	for _, item := range v.Items {
		if err := fn(item); err != nil {
			return err
		}
	}
	return nil
}

func (v *Value) Text(what string) (string, error) {
	var s string
	if v.Kind != '"' {
		return "", v.Errorf("%s is %s, want a string", what, v.KindName())
	}
	if err := json.Unmarshal(v.Raw, &s); err != nil {
		return "", v.Errorf("%s is no string: %v", what, err)
	}
	return s, nil
}

func (v *Value) Texts(what string) ([]string, error) {
	out := []string{}
	return out, v.Each(what, func(item *Value) error {
		s, err := item.Text("an item of " + what)
		out = append(out, s)
		return err
	})
}

func (v *Value) Bool(what string) (bool, error) {
	switch v.Kind {
	case 't':
		return true, nil
	case 'f':
		return false, nil
	}
	return false, v.Errorf("%s is %s, want true or false", what, v.KindName())
}

// Number is a whole number from least to most.
func (v *Value) Number(what string, least, most int64) (int64, error) {
	n, err := strconv.ParseInt(string(v.Raw), 10, 64)
	switch {
	case v.Kind != '0':
		return 0, v.Errorf("%s is %s, want a number", what, v.KindName())
	case err != nil || n < least || n > most:
		return 0, v.Errorf("%s is %s, want a whole number from %d to %d", what, v.Raw, least, most)
	}
	return n, nil
}

// Into makes a member's handler that stores a string.
func Into(what string, to *string) func(*Value) error {
	return func(v *Value) (err error) {
		*to, err = v.Text(what)
		return err
	}
}

// OneOf is Into for a string out of a few.
func OneOf(what string, to *string, values ...string) func(*Value) error {
	return func(v *Value) error {
		s, err := v.Text(what)
		if err != nil {
			return err
		}
		for _, want := range values {
			if s == want {
				*to = s
				return nil
			}
		}
		return v.Errorf("%s is %q, want one of %s", what, s, strings.Join(values, ", "))
	}
}
