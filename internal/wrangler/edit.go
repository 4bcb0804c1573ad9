package wrangler

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Field is the value of a member of an object, or nil.
func (v *Value) Field(name string) *Value {
	for i := range v.Fields {
		if v.Fields[i].Name == name {
			return v.Fields[i].Value
		}
	}
	return nil
}

// Set replaces the value of a member, or adds it at the end. Like every edit it
// leaves the Raw of what is around it as it was.
func (v *Value) Set(name string, to *Value) {
	for i := range v.Fields {
		if v.Fields[i].Name == name {
			v.Fields[i].Value = to
			return
		}
	}
	v.Fields = append(v.Fields, Member{Name: name, Value: to, offset: to.offset})
}

// Delete removes a member.
func (v *Value) Delete(name string) {
	v.Fields = slices.DeleteFunc(v.Fields, func(m Member) bool { return m.Name == name })
}

// Empty reports whether the value asks for nothing: null, or a list or an object
// with nothing else in it.
func (v *Value) Empty() bool {
	switch v.Kind {
	case 'n':
		return true
	case '[':
		return !slices.ContainsFunc(v.Items, func(i *Value) bool { return !i.Empty() })
	case '{':
		return !slices.ContainsFunc(v.Fields, func(m Member) bool { return !m.Value.Empty() })
	}
	return false
}

// Made is a value that stands in no file. Where at is not nil it takes the place
// of that value.
func Made(x any, at *Value) *Value {
	raw, err := json.Marshal(x)
	if err != nil {
		panic(err) // callers give strings, booleans, and maps and lists of them
	}
	parsed, err := Parse("", raw)
	if err != nil {
		panic(err)
	}
	parsed.place(at)
	return parsed
}

// place gives v and all below it the place of at.
func (v *Value) place(at *Value) {
	v.doc, v.offset = nil, 0
	if at != nil {
		v.doc, v.offset = at.doc, at.offset
	}
	for i := range v.Fields {
		v.Fields[i].offset = v.offset
		v.Fields[i].Value.place(at)
	}
	for _, item := range v.Items {
		item.place(at)
	}
}

// Positions lead from places in an encoded text back to where its values stood.
type Positions struct{ list []position }

type position struct {
	line, column int
	doc          *document
	offset       int
}

// Origin is where what stands at a place of the text, or begins last before it,
// came from: FILE:LINE:COLUMN.
func (p *Positions) Origin(line, column int) (string, bool) {
	i := sort.Search(len(p.list), func(i int) bool {
		q := p.list[i]
		return q.line > line || q.line == line && q.column > column
	}) - 1
	if i < 0 || p.list[i].doc == nil {
		return "", false
	}
	e := p.list[i].doc.errorf(p.list[i].offset, "")
	return fmt.Sprintf("%s:%d:%d", e.File, e.Line, e.Column), true
}

// Encode renders a value as indented JSON, the same for the same value, and says
// where its parts came from.
func Encode(v *Value) ([]byte, *Positions) {
	e := encoder{positions: new(Positions), line: 1, column: 1}
	e.value(v, 1)
	e.text("\n")
	return e.out.Bytes(), e.positions
}

type encoder struct {
	out          bytes.Buffer
	positions    *Positions
	line, column int
}

func (e *encoder) text(s string) {
	e.out.WriteString(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		e.line += strings.Count(s, "\n")
		e.column = len(s) - i
		return
	}
	e.column += len(s)
}

func (e *encoder) mark(d *document, offset int) {
	e.positions.list = append(e.positions.list, position{e.line, e.column, d, offset})
}

func (e *encoder) value(v *Value, depth int) {
	e.mark(v.doc, v.offset)
	indent := "\n" + strings.Repeat("  ", depth)
	list := func(brackets string, n int, item func(int)) {
		e.text(brackets[:1])
		for i := range n {
			if i > 0 {
				e.text(",")
			}
			e.text(indent)
			item(i)
		}
		if n > 0 {
			e.text(indent[:len(indent)-2])
		}
		e.text(brackets[1:])
	}
	switch v.Kind {
	case '{':
		list("{}", len(v.Fields), func(i int) {
			m := &v.Fields[i]
			name, _ := json.Marshal(m.Name) // a string can be marshalled
			e.mark(m.Value.doc, m.offset)
			e.text(string(name))
			e.text(": ")
			e.value(m.Value, depth+1)
		})
	case '[':
		list("[]", len(v.Items), func(i int) { e.value(v.Items[i], depth+1) })
	default:
		e.text(string(v.Raw))
	}
}

// SetMember is Set with the member's own place.
func (v *Value) SetMember(m Member) {
	for i := range v.Fields {
		if v.Fields[i].Name == m.Name {
			v.Fields[i] = m
			return
		}
	}
	v.Fields = append(v.Fields, m)
}
