// Package openapitest holds requests and answers to the OpenAPI document of the
// node API. Tests put it around a handler or a transport.
package openapitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/scafo/scafo/docs"
)

// rest marks a path parameter that stands for all the segments that follow, which
// OpenAPI has no word for.
const rest = "x-scafo-rest"

// commandExtension names the command of scafo that makes the call.
const commandExtension = "x-scafo-command"

// Document is the OpenAPI document, compiled.
type Document struct {
	T          *openapi3.T
	Operations []*Operation

	// schemas are those of answers (closed: an object has no member that is not
	// described) and of requests, by JSON pointer.
	answers, requests *schemas
}

// Operation is one operation of the document.
type Operation struct {
	Method, Path string // the path as the document has it
	ID           string
	Command      string // of scafo; empty where there is none
	*openapi3.Operation

	params   openapi3.Parameters // of the path and the operation
	segments []string
	many     bool   // the last segment stands for all that follow
	pointer  string // of the operation
}

// Load reads the document that the programs print, once.
var Load = sync.OnceValues(func() (*Document, error) { return Parse(docs.OpenAPI) })

// Parse reads a document and checks it against OpenAPI 3.1, its examples included.
func Parse(yaml []byte) (*Document, error) {
	loader := openapi3.NewLoader()
	t, err := loader.LoadFromData(yaml)
	if err != nil {
		return nil, err
	}
	if err := t.Validate(context.Background()); err != nil {
		return nil, err
	}
	if !t.IsOpenAPI31OrLater() {
		return nil, fmt.Errorf("the document is of version %s", t.OpenAPI)
	}
	d := &Document{T: t}
	plain, err := t.MarshalJSON()
	if err != nil {
		return nil, err
	}
	if d.requests, err = newSchemas(plain, false); err != nil {
		return nil, err
	}
	if d.answers, err = newSchemas(plain, true); err != nil {
		return nil, err
	}
	for path, item := range t.Paths.Map() {
		for method, op := range item.Operations() {
			d.Operations = append(d.Operations, newOperation(method, path, item, op))
		}
	}
	slices.SortFunc(d.Operations, func(a, b *Operation) int {
		return strings.Compare(a.Path+" "+a.Method, b.Path+" "+b.Method)
	})
	return d, nil
}

func newOperation(method, path string, item *openapi3.PathItem, op *openapi3.Operation) *Operation {
	o := &Operation{
		Method: method, Path: path, ID: op.OperationID, Operation: op,
		segments: strings.Split(path, "/")[1:],
		params:   slices.Concat(item.Parameters, op.Parameters),
		pointer:  "/paths/" + escapePointer(path) + "/" + strings.ToLower(method),
	}
	o.Command, _ = op.Extensions[commandExtension].(string)
	for _, p := range o.params {
		if many, _ := p.Value.Extensions[rest].(bool); many {
			o.many = true
		}
	}
	return o
}

func escapePointer(s string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(s)
}

// Find is the operation of a method and an escaped path, with the decoded
// parameters of the path. HEAD is the GET of its path.
func (d *Document) Find(method, escaped string) (*Operation, map[string]string) {
	if method == "HEAD" {
		method = "GET"
	}
	for _, o := range d.Operations {
		if o.Method != method {
			continue
		}
		if params, ok := o.match(escaped); ok {
			return o, params
		}
	}
	return nil, nil
}

func (o *Operation) match(escaped string) (map[string]string, bool) {
	path, ok := strings.CutPrefix(escaped, "/")
	if !ok {
		return nil, false
	}
	got := strings.Split(path, "/")
	n := len(o.segments)
	if o.many && len(got) > n {
		got = append(got[:n-1:n-1], strings.Join(got[n-1:], "/"))
	}
	if len(got) != n {
		return nil, false
	}
	params := map[string]string{}
	for i, want := range o.segments {
		value, err := url.PathUnescape(got[i])
		if err != nil {
			return nil, false
		}
		name, isParam := strings.CutPrefix(want, "{")
		switch {
		case !isParam && value != want, isParam && value == "" && !o.many:
			return nil, false
		case isParam:
			params[strings.TrimSuffix(name, "}")] = value
		}
	}
	return params, true
}

// schemas compiles what the document's pointers name, each once.
type schemas struct {
	mu       sync.Mutex
	compiler *jsonschema.Compiler          // guarded by mu
	compiled map[string]*jsonschema.Schema // guarded by mu
}

const resource = "https://scafo.invalid/openapi.json"

func newSchemas(document []byte, closed bool) (*schemas, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		return nil, err
	}
	if closed {
		closeObjects(doc)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource(resource, doc); err != nil {
		return nil, err
	}
	return &schemas{compiler: c, compiled: map[string]*jsonschema.Schema{}}, nil
}

// closeObjects forbids members that are not described wherever an object describes
// its own. What refers to another schema is closed there.
func closeObjects(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			closeObjects(e)
		}
	case map[string]any:
		for _, e := range v {
			closeObjects(e)
		}
		_, properties := v["properties"].(map[string]any)
		_, said := v["additionalProperties"]
		_, refers := v["$ref"]
		if properties && !said && !refers && v["type"] != nil {
			v["additionalProperties"] = false
		}
	}
}

func (s *schemas) check(pointer string, value any) error {
	s.mu.Lock()
	schema, ok := s.compiled[pointer]
	if !ok {
		var err error
		if schema, err = s.compiler.Compile(resource + "#" + (&url.URL{Path: pointer}).EscapedPath()); err != nil {
			s.mu.Unlock()
			return fmt.Errorf("the schema at %s: %w", pointer, err)
		}
		s.compiled[pointer] = schema
	}
	s.mu.Unlock()
	return schema.Validate(value)
}

func decodeJSON(b []byte) (any, error) {
	if !json.Valid(b) {
		return nil, errors.New("it is not JSON")
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(b))
}

// inline is check of a schema that no pointer leads to.
func (s *schemas) inline(schema []byte, value any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := "https://scafo.invalid/" + url.PathEscape(string(schema))
	compiled, ok := s.compiled[name]
	if !ok {
		doc, err := decodeJSON(schema)
		if err != nil {
			return err
		}
		if err := s.compiler.AddResource(name, doc); err != nil {
			return err
		}
		if compiled, err = s.compiler.Compile(name); err != nil {
			return err
		}
		s.compiled[name] = compiled
	}
	return compiled.Validate(value)
}
