package wrangler

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestDepth(t *testing.T) {
	nest := func(n int) string {
		return strings.Repeat(`[{"[{":`, n/2) + `"]]}}" /* [[ */` + strings.Repeat("}]", n/2) + "// ["
	}
	if _, err := Parse("x", []byte(nest(maxDepth))); err != nil {
		t.Errorf("%d levels: %v", maxDepth, err)
	}
	_, err := Parse("x", []byte("["+nest(maxDepth)+"\n]"))
	if err == nil || err.Error() != "x:1:220: more than 64 levels of lists and objects" {
		t.Errorf("%d levels: %v", maxDepth+1, err)
	}
	for _, s := range []string{strings.Repeat("[", 1<<20), `"\`, `/*`, `"`} {
		if _, err := Parse("x", []byte(s)); err == nil {
			t.Errorf("%.10q is read", s)
		}
	}
}

func TestACommentAtTheEnd(t *testing.T) {
	for _, s := range []string{"{} // end", "{}//", `{"a": "//"}`, "{\n}\n// end"} {
		if _, err := Parse("x", []byte(s)); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// What was read is written as the same, and every part of it leads back.
func FuzzEncode(f *testing.F) {
	for _, s := range []string{`{"a": [1, {"b": null,}, "\u00e9"], /* c */ "d": {}}`, `[]`, `"x"`, `{`, `{"a": 1e400}`, "\xef\xbb\xbf{}", `{"": {"": ""}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := Parse("f", []byte(s))
		if err != nil {
			return
		}
		out, positions := Encode(v)
		again, err := Parse("f", out)
		if err != nil {
			t.Fatalf("%q is written as %q: %v", s, out, err)
		}
		if same, _ := Encode(again); string(same) != string(out) {
			t.Errorf("%q is written as %q, then as %q", s, out, same)
		}
		var one, two any
		if json.Unmarshal(v.Raw, &one) == nil && (json.Unmarshal(out, &two) != nil || !reflect.DeepEqual(one, two)) {
			t.Errorf("%q is written as %q", v.Raw, out)
		}
		for line := 1; line < 4; line++ {
			if _, ok := positions.Origin(line, 1); !ok {
				t.Errorf("%d:1 leads nowhere", line)
			}
		}
	})
}
