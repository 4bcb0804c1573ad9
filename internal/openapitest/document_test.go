package openapitest_test

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/openapitest"
	"github.com/scafo/scafo/internal/problem"
)

func load(t *testing.T) *openapitest.Document {
	t.Helper()
	d, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDocument(t *testing.T) {
	d := load(t)
	if d.T.Info.Version != scafo.Version {
		t.Errorf("the document is of %s, the program of %s", d.T.Info.Version, scafo.Version)
	}
	if len(d.Operations) < 30 {
		t.Errorf("%d operations", len(d.Operations))
	}
	seen := map[string]bool{}
	for _, o := range d.Operations {
		if o.ID == "" || seen[o.ID] || o.Summary == "" || len(o.Tags) != 1 || o.Security == nil {
			t.Errorf("%s %s: id %q, summary %q, tags %v, security %v", o.Method, o.Path, o.ID, o.Summary, o.Tags, o.Security)
		}
		seen[o.ID] = true
	}
}

// Every code has one status, and the document gives it that one.
func TestCodes(t *testing.T) {
	d := load(t)
	var codes []string
	for _, v := range d.T.Components.Schemas["Code"].Value.Enum {
		codes = append(codes, v.(string))
	}
	var want []string
	for _, c := range scafo.Codes() {
		want = append(want, string(c))
	}
	slices.Sort(codes)
	slices.Sort(want)
	if !slices.Equal(codes, want) {
		t.Errorf("codes %v\nwant %v", codes, want)
	}
	named := 0
	for _, o := range d.Operations {
		for status, r := range o.Responses.Map() {
			content := r.Value.Content["application/problem+json"]
			if status < "400" != (content == nil) {
				t.Errorf("%s %s: %s and problem documents do not go together", o.Method, o.Path, status)
			}
			if content == nil {
				continue
			}
			list := content.Schema.Value.Properties["code"].Value.Enum
			// What stands beside a $ref is among the schemas that all must hold.
			for _, all := range content.Schema.Value.AllOf {
				if p := all.Value.Properties["code"]; p != nil {
					list = p.Value.Enum
				}
			}
			if len(list) == 0 || len(list) == len(codes) {
				t.Errorf("%s %s: %s names no codes of its own", o.Method, o.Path, status)
			}
			for _, c := range list {
				named++
				if got := strconv.Itoa(problem.Status(scafo.Code(c.(string)))); got != status {
					t.Errorf("%s %s: %s under %s, and it is %s", o.Method, o.Path, c, status, got)
				}
			}
		}
	}
	if named < 100 {
		t.Errorf("%d codes", named)
	}
}

const goodState = `{"node":null,"lease":null,"coordinator":null,"processes":[],"placements":[]}`

func exchange(change func(x *openapitest.Exchange)) *openapitest.Exchange {
	x := &openapitest.Exchange{
		Method: "GET", Path: "/v1/state", Header: http.Header{}, Status: 200,
		AnswerHeader: http.Header{"Content-Type": {"application/json"}}, Answer: []byte(goodState),
	}
	change(x)
	return x
}

func labels(body string) func(x *openapitest.Exchange) {
	return func(x *openapitest.Exchange) {
		x.Method, x.Path, x.HasBody, x.Body = "POST", "/v1/applications/shop/labels", true, []byte(body)
		x.Answer = []byte(`{"application":{"v":1,"name":"shop","uid":"u","createdAt":"2026-11-01T00:00:00Z","createdBy":"a","replicas":"all","deploySeq":0}}`)
	}
}

func refusal(status int, code string) func(x *openapitest.Exchange) {
	return func(x *openapitest.Exchange) {
		x.Status, x.Answer = status, []byte(`{"type":"/reference/errors#`+code+`","title":"x","status":`+strconv.Itoa(status)+`,"code":"`+code+`"}`)
		x.AnswerHeader = http.Header{"Content-Type": {"application/problem+json"}, "X-Content-Type-Options": {"nosniff"}, "Www-Authenticate": {"Bearer"}}
	}
}

// The check finds what is wrong, and nothing where nothing is.
func TestCheck(t *testing.T) {
	d := load(t)
	cases := map[string]struct {
		change func(x *openapitest.Exchange)
		wrong  string // part of the complaint; empty where there is none
	}{
		"a state":                  {func(*openapitest.Exchange) {}, ""},
		"a HEAD":                   {func(x *openapitest.Exchange) { x.Method, x.Answer = "HEAD", nil }, ""},
		"no member more":           {func(x *openapitest.Exchange) { x.Answer = []byte(goodState[:len(goodState)-1] + `,"more":1}`) }, "more"},
		"a member is missing":      {func(x *openapitest.Exchange) { x.Answer = []byte(`{"node":null}`) }, "lease"},
		"not JSON":                 {func(x *openapitest.Exchange) { x.Answer = []byte(`x`) }, "not JSON"},
		"another content type":     {func(x *openapitest.Exchange) { x.AnswerHeader.Set("Content-Type", "text/plain") }, "content type"},
		"a status nobody knows":    {func(x *openapitest.Exchange) { x.Status = 418 }, "status"},
		"scoped is true or absent": {func(x *openapitest.Exchange) { x.Answer = []byte(goodState[:len(goodState)-1] + `,"scoped":false}`) }, "scoped"},
		"a refusal":                {refusal(401, "auth-invalid"), ""},
		"a header is missing": {func(x *openapitest.Exchange) {
			refusal(401, "auth-invalid")(x)
			x.AnswerHeader.Del("WWW-Authenticate")
		}, "WWW-Authenticate"},
		"a code of another status": {refusal(401, "auth-scope"), "code"},
		"no operation, refused":    {func(x *openapitest.Exchange) { x.Path = "/v1/stat"; refusal(404, "not-found")(x) }, ""},
		"no operation, and served": {func(x *openapitest.Exchange) { x.Path = "/v1/stat" }, "no operation"},
		"another method": {func(x *openapitest.Exchange) {
			refusal(405, "method-not-allowed")(x)
			x.Method = "PUT"
			x.AnswerHeader.Set("Allow", "GET, HEAD")
		}, ""},
		"another method without Allow": {func(x *openapitest.Exchange) { x.Method = "PUT"; refusal(405, "method-not-allowed")(x) }, "Allow"},
		"a body":                       {labels(`{"labels":{"a":"b"},"other":1}`), ""},
		"a bad body succeeded":         {labels(`{"labels":{"a":1}}`), "succeeded"},
		"a bad body was refused":       {func(x *openapitest.Exchange) { labels(`{"labels":7}`)(x); refusal(400, "invalid-input")(x) }, ""},
		"no body succeeded":            {func(x *openapitest.Exchange) { labels(``)(x); x.HasBody = false }, "required"},
		"a bad name succeeded":         {func(x *openapitest.Exchange) { labels(`{"labels":{}}`)(x); x.Path = "/v1/applications/Shop/labels" }, "name"},
		"a key of several segments": {func(x *openapitest.Exchange) {
			x.Path, x.AnswerHeader, x.Answer = "/v1/storage/objects/a/b%20c/d", http.Header{"Content-Type": {"application/octet-stream"}}, []byte("\xff")
		}, ""},
		"a version that is not spoken": {func(x *openapitest.Exchange) {
			x.Path, x.AnswerHeader = "/v1/storage/objects/a", http.Header{"Content-Type": {"application/octet-stream"}}
			x.Header.Set("X-Scafo-Storage-Version", "2")
		}, "X-Scafo-Storage-Version"},
		"204 has no body": {func(x *openapitest.Exchange) { x.Method, x.Path, x.Status = "PUT", "/v1/storage/objects/a", 204 }, "no body"},
		"304 names its content": {func(x *openapitest.Exchange) {
			x.Path, x.Status, x.AnswerHeader, x.Answer = "/v1/ingress/routes", 304, http.Header{}, nil
		}, "ETag"},
	}
	for name, c := range cases {
		err := d.Check(exchange(c.change))
		switch {
		case err == nil && c.wrong != "":
			t.Errorf("%s: nothing was found", name)
		case err != nil && (c.wrong == "" || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s: %v", name, err)
		}
	}
}
