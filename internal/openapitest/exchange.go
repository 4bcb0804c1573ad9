package openapitest

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

const (
	jsonType    = "application/json"
	problemType = "application/problem+json"
)

// Pending are the operations that the document describes and that no node serves
// yet. A test of the API forbids those that it serves.
var Pending []string

// Exchange is a request and what it was answered.
type Exchange struct {
	Method string
	Path   string // escaped
	Query  string
	Header http.Header
	Body   []byte
	// HasBody is whether the request had a body at all. Partial says that Body is not
	// all of it: then it is not looked into.
	HasBody, Partial bool

	Status       int
	AnswerHeader http.Header
	Answer       []byte
}

// Check holds an exchange to the document. An answer must be one that its operation
// describes; a request may break the document, but then it must not succeed. A
// request that no operation describes is refused with 404, or 405 and what its path
// takes.
func (d *Document) Check(x *Exchange) error {
	o, params := d.Find(x.Method, x.Path)
	if o == nil {
		return d.checkUnknown(x)
	}
	if err := d.checkAnswer(o, x); err != nil {
		return fmt.Errorf("%s %s answered %d: %w\n%s", x.Method, x.Path, x.Status, err, clip(x.Answer))
	}
	if x.Status >= http.StatusBadRequest {
		return nil
	}
	if err := d.checkRequest(o, params, x); err != nil {
		return fmt.Errorf("%s %s succeeded with %d: %w", x.Method, x.Path, x.Status, err)
	}
	return nil
}

func clip(b []byte) string {
	const most = 2000
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}

func (d *Document) checkUnknown(x *Exchange) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s %s is no operation, and answered %d: %s\n%s", x.Method, x.Path, x.Status, fmt.Sprintf(format, args...), clip(x.Answer))
	}
	var allowed []string
	for _, o := range d.Operations {
		if _, ok := o.match(x.Path); ok && !slices.Contains(Pending, o.Method+" "+o.Path) {
			allowed = append(allowed, o.Method)
		}
	}
	want := http.StatusNotFound
	if len(allowed) > 0 {
		want = http.StatusMethodNotAllowed
		for _, m := range allowed {
			if !strings.Contains(x.AnswerHeader.Get("Allow"), m) {
				return fail("Allow %q lacks %s", x.AnswerHeader.Get("Allow"), m)
			}
		}
	}
	if x.Status != want {
		return fail("it ought to be %d", want)
	}
	if x.Method == http.MethodHead {
		return nil
	}
	doc, err := decodeJSON(x.Answer)
	if err != nil || mediaType(x.AnswerHeader) != problemType {
		return fail("it is no problem document")
	}
	if err := d.answers.check("/components/schemas/Problem", doc); err != nil {
		return fail("%v", err)
	}
	return nil
}

func mediaType(h http.Header) string {
	t, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return t
}

func (d *Document) checkAnswer(o *Operation, x *Exchange) error {
	ref := o.Responses.Value(strconv.Itoa(x.Status))
	if ref == nil {
		return errors.New("the document does not know this status")
	}
	pointer := o.pointer + "/responses/" + strconv.Itoa(x.Status)
	if ref.Ref != "" {
		pointer = strings.TrimPrefix(ref.Ref, "#")
	}
	for name, h := range ref.Value.Headers {
		at := pointer + "/headers/" + name
		if h.Ref != "" {
			at = strings.TrimPrefix(h.Ref, "#")
		}
		values := x.AnswerHeader.Values(name)
		switch {
		case len(values) == 0 && h.Value.Required:
			return fmt.Errorf("the header %s is missing", name)
		case len(values) > 1:
			return fmt.Errorf("the header %s is there %d times", name, len(values))
		case len(values) == 1 && h.Value.Schema != nil:
			if err := d.answers.check(at+"/schema", values[0]); err != nil {
				return fmt.Errorf("the header %s: %w", name, err)
			}
		}
	}
	if x.Method == http.MethodHead {
		return nil
	}
	if len(ref.Value.Content) == 0 {
		if len(x.Answer) != 0 || x.AnswerHeader.Get("Content-Type") != "" {
			return errors.New("the document knows of no body")
		}
		return nil
	}
	media := mediaType(x.AnswerHeader)
	content, ok := ref.Value.Content[media]
	if !ok {
		return fmt.Errorf("the document does not know the content type %q", x.AnswerHeader.Get("Content-Type"))
	}
	if content.Schema == nil {
		return nil
	}
	value, err := decodeJSON(x.Answer)
	if err != nil {
		return err
	}
	if media == problemType && x.AnswerHeader.Get("X-Content-Type-Options") != "nosniff" {
		return errors.New("X-Content-Type-Options is not nosniff")
	}
	return d.answers.check(pointer+"/content/"+escapePointer(media)+"/schema", value)
}

// checkRequest is for requests that succeeded.
func (d *Document) checkRequest(o *Operation, path map[string]string, x *Exchange) error {
	query, err := url.ParseQuery(x.Query)
	if err != nil {
		return fmt.Errorf("the query: %w", err)
	}
	for _, p := range o.params {
		var values []string
		switch p.Value.In {
		case openapi3.ParameterInPath:
			values = []string{path[p.Value.Name]}
		case openapi3.ParameterInQuery:
			values = query[p.Value.Name]
		case openapi3.ParameterInHeader:
			values = x.Header.Values(p.Value.Name)
		}
		if len(values) == 0 {
			if p.Value.Required {
				return fmt.Errorf("the parameter %s is missing", p.Value.Name)
			}
			continue
		}
		if err := d.checkParameter(p, values[0]); err != nil {
			return fmt.Errorf("the parameter %s: %w", p.Value.Name, err)
		}
	}
	return d.checkRequestBody(o, x)
}

func (d *Document) checkParameter(p *openapi3.ParameterRef, value string) error {
	if p.Value.Schema == nil {
		return nil
	}
	// The value of a parameter is text, whatever its schema looks like.
	if p.Value.Schema.Ref != "" {
		return d.requests.check(strings.TrimPrefix(p.Value.Schema.Ref, "#"), value)
	}
	b, err := p.Value.Schema.Value.MarshalJSON()
	if err != nil {
		return err
	}
	return d.requests.inline(b, value)
}

func (d *Document) checkRequestBody(o *Operation, x *Exchange) error {
	if o.RequestBody == nil {
		return nil // what is in it does not matter
	}
	if !x.HasBody {
		if o.RequestBody.Value.Required {
			return errors.New("a body is required")
		}
		return nil
	}
	content, ok := o.RequestBody.Value.Content[jsonType]
	if !ok || content.Schema == nil || x.Partial {
		return nil
	}
	if len(x.Body) == 0 && !o.RequestBody.Value.Required {
		return nil
	}
	value, err := decodeJSON(x.Body)
	if err != nil {
		return fmt.Errorf("the body: %w", err)
	}
	if err := d.requests.check(o.pointer+"/requestBody/content/"+escapePointer(jsonType)+"/schema", value); err != nil {
		return fmt.Errorf("the body: %w", err)
	}
	return nil
}
