package bundle

import "testing"

func TestSourceMapRefusesGarbage(t *testing.T) {
	for _, s := range []string{``, `{"version": 2}`, `{"version": 3, "mappings": "!!!!"}`, `{"version": 3, "mappings": "g"}`, `{"version": 3, "mappings": "gggggggggggggA"}`} {
		if _, err := ParseSourceMap("index.js", []byte(s)); err == nil {
			t.Errorf("%s was taken", s)
		}
	}
	m, err := ParseSourceMap("index.js", []byte(`{"version": 3, "sources": ["a"], "mappings": ";AAAA,CEAA,EFDD"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Rewrite("index.js:1:1 index.js:2:1 index.js:3:1"); got != "index.js:1:1 a:1:1 index.js:3:1" {
		t.Errorf("got %q", got)
	}
	var none *SourceMap
	if got := none.Rewrite("index.js:1:1"); got != "index.js:1:1" {
		t.Errorf("got %q", got)
	}
}
