package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo"
)

// MaxDocument bounds a document of the registry, in bytes.
const MaxDocument = 4 << 20

// maxDepth bounds how deep a document nests.
const maxDepth = 64

// tombstone is what is left of a document that was removed: it reads as absent
// and is written over by compare-and-swap, since no store promises a conditional
// delete.
type tombstone struct {
	scafo.Header
	Removed time.Time `json:"removed"`
	Gone    bool      `json:"tombstone"`
}

// tree is a JSON object with the numbers as they were spelled.
type tree = map[string]any

// parse reads a document strictly: one JSON object, no name twice in an object,
// and a format that this release knows.
func parse(key string, body []byte) (tree, error) {
	corrupt := func(err error) error { return &CorruptError{Key: key, Err: err} }
	if len(body) > MaxDocument {
		return nil, corrupt(fmt.Errorf("it is longer than %d bytes", MaxDocument))
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	v, err := parseValue(dec, 0)
	if err != nil {
		return nil, corrupt(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, corrupt(errors.New("something follows the object"))
	}
	doc, ok := v.(tree)
	if !ok {
		return nil, corrupt(errors.New("it is no object"))
	}
	n, ok := doc["v"].(json.Number)
	if !ok {
		return nil, corrupt(errors.New("it has no format version"))
	}
	version, err := n.Int64()
	if err != nil || version < 1 {
		return nil, corrupt(fmt.Errorf("its format version is %q", n))
	}
	if version > scafo.FormatVersion {
		return nil, &NewerError{Key: key, V: int(min(version, 1<<30))}
	}
	return doc, nil
}

func parseValue(dec *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("it nests too deep")
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('{'):
		return parseObject(dec, depth)
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := parseValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := dec.Token()
		return list, err
	}
	return tok, nil
}

func parseObject(dec *json.Decoder, depth int) (any, error) {
	obj := tree{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := tok.(string)
		if !ok {
			return nil, errors.New("a name is no string")
		}
		if _, twice := obj[name]; twice {
			return nil, fmt.Errorf("the name %q stands twice in one object", name)
		}
		v, err := parseValue(dec, depth+1)
		if err != nil {
			return nil, err
		}
		obj[name] = v
	}
	_, err := dec.Token()
	return obj, err
}

// decode reads a document into a value. gone says that it is a tombstone.
func decode(key string, body []byte, into any) (gone bool, err error) {
	doc, err := parse(key, body)
	if err != nil {
		return false, err
	}
	if doc["tombstone"] == true {
		return true, nil
	}
	known, changed := keepKnown(doc, reflect.TypeOf(into).Elem())
	if changed {
		if body, err = marshal(known); err != nil {
			return false, &CorruptError{Key: key, Err: err}
		}
	}
	if err := json.Unmarshal(body, into); err != nil {
		return false, &CorruptError{Key: key, Err: err}
	}
	return false, nil
}

// encode writes a value as a document, with the members of the earlier document
// that this release does not know.
func encode(value any, earlier []byte) ([]byte, error) {
	body, err := marshal(value)
	if err != nil {
		return nil, err
	}
	var before tree
	if earlier != nil {
		if before, err = parse("", earlier); err != nil {
			return nil, err
		}
	}
	if before != nil || zoned.Match(body) {
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.UseNumber()
		now, err := parseValue(dec, 0)
		if err != nil {
			return nil, err
		}
		t := reflect.TypeOf(value)
		now, changed := inUTC(now, t)
		if carryUnknown(now, before, t) || changed {
			if body, err = marshal(now); err != nil {
				return nil, err
			}
		}
	}
	if len(body) > MaxDocument {
		return nil, scafo.Errorf(scafo.CodeResourceLimit, "the document would be longer than %d bytes", MaxDocument)
	}
	return body, nil
}

// zoned finds what may be a time in another zone than UTC.
var zoned = regexp.MustCompile(`\d[+-]\d\d:\d\d"`)

// inUTC is v with its times in UTC: a document looks the same whatever zone its
// writer lives in.
func inUTC(v any, t reflect.Type) (out any, changed bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	s := shapeOf(t)
	switch v := v.(type) {
	case string:
		if t != timeType {
			break
		}
		if at, err := time.Parse(time.RFC3339Nano, v); err == nil {
			u := at.UTC().Format(time.RFC3339Nano)
			return u, u != v
		}
	case tree:
		for name, e := range v {
			et := s.of
			if s.members != nil {
				et = s.members[name]
			}
			if et == nil {
				continue
			}
			u, c := inUTC(e, et)
			v[name], changed = u, changed || c
		}
	case []any:
		for i, e := range v {
			if s.of == nil {
				break
			}
			u, c := inUTC(e, s.of)
			v[i], changed = u, changed || c
		}
	}
	return v, changed
}

// marshal is json.Marshal without the escapes for HTML.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

var (
	unmarshalerType = reflect.TypeFor[json.Unmarshaler]()
	timeType        = reflect.TypeFor[time.Time]()
)

// shape is how a type looks in JSON: a struct's members, or what a list or a map
// is made of. All others are values of their own.
type shape struct {
	members map[string]reflect.Type // a struct's
	of      reflect.Type            // what a list or a map holds
	list    bool
}

// shapes are the shapes of the types seen so far, by type.
var shapes sync.Map

func shapeOf(t reflect.Type) shape {
	if s, ok := shapes.Load(t); ok {
		return s.(shape) //nolint:errcheck // nothing else is stored
	}
	s := newShape(t)
	shapes.Store(t, s)
	return s
}

func newShape(t reflect.Type) shape {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == timeType || t.Implements(unmarshalerType) || reflect.PointerTo(t).Implements(unmarshalerType) {
		return shape{}
	}
	switch t.Kind() {
	case reflect.Struct:
		m := map[string]reflect.Type{}
		addMembers(m, t)
		return shape{members: m}
	case reflect.Slice, reflect.Array:
		return shape{of: t.Elem(), list: true}
	case reflect.Map:
		return shape{of: t.Elem()}
	default:
		return shape{}
	}
}

func addMembers(m map[string]reflect.Type, t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case f.Anonymous && name == "":
			e := f.Type
			if e.Kind() == reflect.Pointer {
				e = e.Elem()
			}
			addMembers(m, e)
		case !f.IsExported():
		case name == "":
			m[f.Name] = f.Type
		default:
			m[name] = f.Type
		}
	}
}

// keepKnown is v less the members whose names the type does not have exactly:
// encoding/json would take "Blocked" for "blocked".
func keepKnown(v any, t reflect.Type) (known any, changed bool) {
	s := shapeOf(t)
	switch v := v.(type) {
	case tree:
		out := make(tree, len(v))
		for name, e := range v {
			et := s.of
			if s.members != nil {
				var ok bool
				if et, ok = s.members[name]; !ok {
					changed = true
					continue
				}
			}
			if et == nil || s.list {
				return v, false // a value of its own
			}
			k, c := keepKnown(e, et)
			out[name], changed = k, changed || c
		}
		return out, changed
	case []any:
		if !s.list {
			return v, false
		}
		out := make([]any, len(v))
		for i, e := range v {
			k, c := keepKnown(e, s.of)
			out[i], changed = k, changed || c
		}
		return out, changed
	}
	return v, false
}

// carryUnknown copies into now what before has and the type does not know. It
// says whether there was anything.
func carryUnknown(now, before any, t reflect.Type) (carried bool) {
	s := shapeOf(t)
	switch now := now.(type) {
	case tree:
		before, ok := before.(tree)
		if !ok {
			return false
		}
		for name, b := range before {
			et := s.of
			if s.members != nil {
				if et, ok = s.members[name]; !ok {
					now[name], carried = b, true
					continue
				}
			}
			if n, there := now[name]; there && et != nil && !s.list && carryUnknown(n, b, et) {
				carried = true
			}
		}
	case []any:
		before, ok := before.([]any)
		if !ok || !s.list {
			return false
		}
		for _, n := range now {
			if b := counterpart(n, before, s.of); b != nil && carryUnknown(n, b, s.of) {
				carried = true
			}
		}
	}
	return carried
}

// names are the members by which an element of a list is known to be the same
// one after it changed.
var names = []string{"id", "host", "key", "node", "issuer", "uid"}

// counterpart finds the element of a list as it was before.
func counterpart(now any, before []any, t reflect.Type) any {
	n, ok := now.(tree)
	if !ok {
		return nil
	}
	for _, name := range names {
		id, ok := n[name].(string)
		if !ok {
			continue
		}
		for _, b := range before {
			if o, ok := b.(tree); ok && o[name] == id {
				return b
			}
		}
		return nil
	}
	for _, b := range before {
		if known, _ := keepKnown(b, t); reflect.DeepEqual(known, now) {
			return b
		}
	}
	return nil
}
