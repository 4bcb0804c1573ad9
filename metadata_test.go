package scafo_test

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/scafo/scafo"
)

func encode(doc string) string { return base64.RawURLEncoding.EncodeToString([]byte(doc)) }

func TestParseDeployHeader(t *testing.T) {
	two, all := scafo.Replicas{Count: 2}, scafo.Replicas{All: true}
	source := &scafo.Source{Provider: "github", Repo: "a/b", Ref: "refs/heads/main", Commit: "c0ffee"}
	for _, c := range []struct {
		doc  string
		want scafo.DeployMetadata
	}{
		{`{}`, scafo.DeployMetadata{}},
		{`{"nodeSelector":null,"replicas":null}`, scafo.DeployMetadata{}},
		{`{"replicas":2}`, scafo.DeployMetadata{Replicas: &two}},
		{`{"replicas":"all"}`, scafo.DeployMetadata{Replicas: &all}},
		{`{"nodeSelector":{"region":"eu","tier":"fast"}}`, scafo.DeployMetadata{NodeSelector: map[string]string{"region": "eu", "tier": "fast"}}},
		{`{"nodeSelector":{}}`, scafo.DeployMetadata{NodeSelector: map[string]string{}}},
		{`{"source":{"commit":"c0ffee","provider":"github","ref":"refs/heads/main","repo":"a/b"}}`, scafo.DeployMetadata{Source: source}},
		// Names that nobody reads are ignored, whatever their values and their case.
		{`{"Application":"x","Replicas":0,"script":{"oidc":1},"version":[1,2]}`, scafo.DeployMetadata{}},
		{`{"source":{"OidcSub":1,"commit":"c0ffee","extra":null,"provider":"github","ref":"refs/heads/main","repo":"a/b"}}`, scafo.DeployMetadata{Source: source}},
	} {
		got, err := scafo.ParseDeployHeader(encode(c.doc))
		if err != nil {
			t.Errorf("%s: %v", c.doc, err)
			continue
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.doc, got, c.want)
		}
	}
}

func TestParseDeployHeaderRefuses(t *testing.T) {
	source := func(members string) string { return encode(`{"source":{` + members + `}}`) }
	long := `{"x":"` + strings.Repeat("a", 6136) + `"}` // 6,144 bytes are 8,192 characters
	if _, err := scafo.ParseDeployHeader(encode(long)); err != nil || len(encode(long)) != scafo.MaxDeployHeader {
		t.Errorf("a header of %d characters: %v", len(encode(long)), err)
	}
	for name, value := range map[string]string{
		"absent":                       "",
		"too long":                     encode(strings.Replace(long, "a", "aa", 1)),
		"padded":                       base64.URLEncoding.EncodeToString([]byte(`{"a":1}`)),
		"standard alphabet":            "+/+/",
		"a line break inside":          encode(`{}`)[:2] + "\n" + encode(`{}`)[2:],
		"a space":                      " " + encode(`{}`),
		"impossible length":            "e30AA",
		"trailing bits":                "e31", // decodes like e30 where bits are ignored
		"not UTF-8":                    encode("{\"a\":\"\xff\"}"),
		"a byte-order mark":            encode("\ufeff{}"),
		"not JSON":                     encode(`{`),
		"two values":                   encode(`{}{}`),
		"white space":                  encode(`{ }`),
		"a line break at the end":      encode("{}\n"),
		"order":                        encode(`{"source":null,"replicas":2}`),
		"duplicate":                    encode(`{"replicas":1,"replicas":1}`),
		"escaped without need":         encode(`{"replic\u0061s":2}`),
		"escaped solidus":              encode(`{"a":"\/"}`),
		"upper-case escape":            encode(`{"a":"\u001F"}`),
		"a lone surrogate":             encode(`{"a":"\ud800"}`),
		"number with a fraction of 0":  encode(`{"replicas":2.0}`),
		"number with an exponent":      encode(`{"replicas":2e0}`),
		"negative zero":                encode(`{"a":-0}`),
		"number beyond a double":       encode(`{"a":1e400}`),
		"number beyond its precision":  encode(`{"replicas":9007199254740993}`),
		"array":                        encode(`[]`),
		"null":                         encode(`null`),
		"string":                       encode(`"all"`),
		"application":                  encode(`{"application":"shop"}`),
		"application, null":            encode(`{"application":null}`),
		"oidc":                         encode(`{"oidc":{}}`),
		"source.oidcSub":               source(`"commit":"c","oidcSub":"x","provider":"p","ref":"r","repo":"o"`),
		"source.oidcSub, null":         source(`"commit":"c","oidcSub":null,"provider":"p","ref":"r","repo":"o"`),
		"source null":                  encode(`{"source":null}`),
		"source array":                 encode(`{"source":[]}`),
		"source string":                encode(`{"source":"main"}`),
		"source without commit":        source(`"provider":"p","ref":"r","repo":"o"`),
		"source with an empty ref":     source(`"commit":"c","provider":"p","ref":"","repo":"o"`),
		"source with a numeric commit": source(`"commit":1,"provider":"p","ref":"r","repo":"o"`),
		"source with a null repo":      source(`"commit":"c","provider":"p","ref":"r","repo":null`),
		"source in another case":       source(`"Commit":"c","provider":"p","ref":"r","repo":"o"`),
		"replicas 0":                   encode(`{"replicas":0}`),
		"replicas negative":            encode(`{"replicas":-1}`),
		"replicas fraction":            encode(`{"replicas":1.5}`),
		"replicas huge":                encode(`{"replicas":1e+21}`),
		"replicas quoted number":       encode(`{"replicas":"2"}`),
		"replicas other word":          encode(`{"replicas":"ALL"}`),
		"replicas object":              encode(`{"replicas":{}}`),
		"replicas boolean":             encode(`{"replicas":true}`),
		"selector array":               encode(`{"nodeSelector":[]}`),
		"selector string":              encode(`{"nodeSelector":"eu"}`),
		"selector with a number":       encode(`{"nodeSelector":{"a":1}}`),
		"selector with null":           encode(`{"nodeSelector":{"a":null}}`),
	} {
		_, err := scafo.ParseDeployHeader(value)
		if scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("%s: %v, want %s", name, err, scafo.CodeInvalidInput)
			continue
		}
		if e := err.(*scafo.Error); e.Title != "Malformed request" || e.Detail == "" {
			t.Errorf("%s: title %q, detail %q", name, e.Title, e.Detail)
		}
	}
}

func TestDeployHeaderRoundTrip(t *testing.T) {
	m := scafo.DeployMetadata{
		Replicas:     &scafo.Replicas{Count: 3},
		NodeSelector: map[string]string{"z": "1", "a<>&\u2028": "ü\U0001F600"},
		Source:       &scafo.Source{Provider: "github", Repo: "o/r", Ref: "main", Commit: "abc"},
	}
	h, err := m.Header()
	if err != nil {
		t.Fatal(err)
	}
	got, err := scafo.ParseDeployHeader(h)
	if err != nil {
		t.Fatal(err)
	}
	if *got.Replicas != *m.Replicas || !maps.Equal(got.NodeSelector, m.NodeSelector) || *got.Source != *m.Source {
		t.Errorf("got %+v, want %+v", got, m)
	}
	if h, err := (scafo.DeployMetadata{}).Header(); err != nil || h != "e30" {
		t.Errorf("empty metadata: %q, %v", h, err)
	}
	m.NodeSelector["b"] = strings.Repeat("x", scafo.MaxDeployHeader)
	if _, err := m.Header(); scafo.CodeOf(err) != scafo.CodeInvalidInput {
		t.Errorf("metadata beyond the header's bound: %v", err)
	}
}

// The examples of RFC 8785: section 3.2.2, 3.2.3 and appendix B.
func TestCanonicalJSON(t *testing.T) {
	for in, want := range map[string]string{
		"{\"numbers\": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001], \"string\": \"\\u20ac$\\u000F\\u000aA'\\u0042\\u0022\\u005c\\\\\\\"\\/\", \"literals\": [null, true, false]}": `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
		`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew","1":"One","\ud83d\ude00":"Emoji","\u0080":"Control","\u00f6":"Latin"}`:                                                              "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin\",\"€\":\"Euro Sign\",\"😀\":\"Emoji\",\"\ufb33\":\"Hebrew\"}",
		"0":                         "0",
		"-0":                        "0",
		"5e-324":                    "5e-324",
		"1.7976931348623157e308":    "1.7976931348623157e+308",
		"9007199254740992":          "9007199254740992",
		"295147905179352830000":     "295147905179352830000",
		"9.999999999999997e22":      "9.999999999999997e+22",
		"1e23":                      "1e+23",
		"999999999999999700000":     "999999999999999700000",
		"1e21":                      "1e+21",
		"9.999999999999997e-7":      "9.999999999999997e-7",
		"0.000001":                  "0.000001",
		"0.0000001":                 "1e-7",
		"333333333.33333325":        "333333333.33333325",
		"-0.0000033333333333333333": "-0.0000033333333333333333",
		"1424953923781206.2":        "1424953923781206.2",
		"\"\\u2028\\u2029<>&\"":     "\"\u2028\u2029<>&\"",
		"\"\\b\\t\\n\\f\\r\\u000b\\u001f\\u007f\"": "\"\\b\\t\\n\\f\\r\\u000b\\u001f\u007f\"",
		"[[],{}]": "[[],{}]",
	} {
		got, err := scafo.CanonicalJSON([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", "nul", "{}x", "1e400", "[1,]", "{\"a\":1,}", "01", "\"\n\""} {
		if got, err := scafo.CanonicalJSON([]byte(in)); err == nil {
			t.Errorf("%q became %s", in, got)
		}
	}
}

func FuzzParseDeployHeader(f *testing.F) {
	for _, doc := range []string{`{}`, `{"replicas":2}`, `{"nodeSelector":{"a":"b"}}`, `{"source":{"commit":"c","provider":"p","ref":"r","repo":"o"}}`, `{"a":[1e+21,"\u001f"]}`} {
		f.Add(encode(doc))
	}
	f.Add("e31")
	f.Add("\n")
	f.Fuzz(func(t *testing.T, value string) {
		m, err := scafo.ParseDeployHeader(value)
		if err != nil {
			if scafo.CodeOf(err) != scafo.CodeInvalidInput {
				t.Fatalf("%q: %v", value, err)
			}
			return
		}
		// What was taken is canonical, and what was read can be said again.
		raw, err := base64.RawURLEncoding.DecodeString(value)
		if err != nil || !json.Valid(raw) {
			t.Fatalf("%q was taken", value)
		}
		if again := base64.RawURLEncoding.EncodeToString(raw); again != value {
			t.Fatalf("%q has another spelling, %q", value, again)
		}
		h, err := m.Header()
		if err != nil {
			t.Fatalf("%q: %v", value, err)
		}
		if back, err := scafo.ParseDeployHeader(h); err != nil || !reflect.DeepEqual(back, m) {
			t.Fatalf("%q: %+v became %+v, %v", value, m, back, err)
		}
	})
}
