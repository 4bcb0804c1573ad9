package oidc

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"
)

// objects are texts that are hard to take apart.
var objects = []string{
	`{}`, ` { } `, "\t{\r\n}\n", `{"a":1}`, `{"a":-1.5e+3,"b":true,"c":null,"d":false}`, `{ "a" : 1 , "b" : [ ] , "c" : { } }`,
	`{"a":"}","b":"]","c":",","d":":","e":"{["}`, `{"a\"b":"c\\","d":"\\\"","e\\":"\u0022"}`, `{"\u0061":"x"}`, `{"a":[{"b":["}",{"c":"\"]"}]},1],"d":{"e":{"f":"}"}}}`,
	`{"":""}`, `{"é":"ü","\ud83d\ude00":"\ud800"}`, `{"a":1 }`, `{"a":[1,2] ,"b":2}`,
}

// What the object is taken apart into is what encoding/json makes of it, wherever
// its names differ by more than case.
func checkObject(t *testing.T, b []byte) {
	t.Helper()
	o, err := parseObject(b)
	if err != nil {
		return
	}
	var want map[string]json.RawMessage
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatalf("%q was taken: %v", b, err)
	}
	got := map[string]string{}
	for _, m := range o {
		got[m.name] = m.value
	}
	if len(got) != len(o) || !maps.EqualFunc(got, want, func(a string, b json.RawMessage) bool { return a == string(b) }) {
		t.Errorf("%q\ngot  %q\nwant %q", b, o, want)
	}
	for name, value := range got {
		if o.get(name) != value {
			t.Errorf("%q: %q is found as %q", b, name, o.get(name))
		}
		var s *string
		isText := json.Unmarshal(want[name], &s) == nil && s != nil
		if got, ok := o.text(name); ok != isText || ok && got != *s {
			t.Errorf("%q: %q is read as %q, %v", b, name, got, ok)
		}
	}
}

func TestObject(t *testing.T) {
	for _, s := range objects {
		if _, err := parseObject([]byte(s)); err != nil {
			t.Errorf("%s: %v", s, err)
		}
		checkObject(t, []byte(s))
	}
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(`,"m` + strings.Repeat("x", i) + `":1`)
		}
		return "{" + b.String()[1:] + "}"
	}
	if _, err := parseObject([]byte(many(maxMembers))); err != nil {
		t.Errorf("%d members: %v", maxMembers, err)
	}
	for _, s := range []string{
		``, ` `, `[]`, `"a"`, `1`, `null`, `{`, `{}{}`, `{"a":1,}`, `{"a":1,"a":1}`, `{"a":1,"A":2}`, `{"a":1,"\u0061":2}`, `{"Alg":1}`, `{"\u0041lg":"x"}`, `{a:1}`, many(maxMembers + 1),
	} {
		if _, err := parseObject([]byte(s)); err == nil {
			t.Errorf("%.60s was taken", s)
		}
	}
}

func FuzzObject(f *testing.F) {
	for _, s := range objects {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if utf8.Valid(b) { // what is not was refused before
			checkObject(t, b)
		}
	})
}
