package scafo_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
)

// anyJSON is a JSON value as encoding/json decodes it.
func anyJSON(depth int) *rapid.Generator[any] {
	plain := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.String().AsAny(),
		rapid.Float64().AsAny(), rapid.Map(rapid.Int64Range(-1<<53, 1<<53), func(n int64) any { return float64(n) }),
	}
	if depth == 0 {
		return rapid.OneOf(plain...)
	}
	inner := anyJSON(depth - 1)
	return rapid.OneOf(append(plain,
		rapid.Map(rapid.SliceOfN(inner, 0, 4), func(l []any) any { return append([]any{}, l...) }),
		rapid.Map(rapid.MapOfN(rapid.String(), inner, 0, 4), func(m map[string]any) any { return m }),
	)...)
}

// Whatever the value and however it is spelled: the canonical form says the same, has
// one spelling, which is its own canonical form, and its members are in the order of
// RFC 8785, that of UTF-16.
func TestCanonicalJSONRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := anyJSON(3).Draw(t, "value")
		plain, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var wide bytes.Buffer
		if err := json.Indent(&wide, plain, " ", "\t"); err != nil {
			t.Fatal(err)
		}
		one, err := scafo.CanonicalJSON(plain)
		if err != nil {
			t.Fatalf("%s: %v", plain, err)
		}
		for _, other := range [][]byte{wide.Bytes(), one} {
			if again, err := scafo.CanonicalJSON(other); err != nil || !bytes.Equal(again, one) {
				t.Fatalf("%s is %s, and %s is %s, %v", plain, one, other, again, err)
			}
		}
		var was, is any
		if json.Unmarshal(plain, &was) != nil || json.Unmarshal(one, &is) != nil || !reflect.DeepEqual(was, is) {
			t.Fatalf("%s became %s", plain, one)
		}
		inOrder(t, json.NewDecoder(bytes.NewReader(one)))
	})
}

// inOrder reads one value and checks the order of the members of all its objects.
func inOrder(t *rapid.T, d *json.Decoder) {
	token, err := d.Token()
	if err != nil {
		t.Fatal(err)
	}
	switch token {
	case json.Delim('['):
		for d.More() {
			inOrder(t, d)
		}
	case json.Delim('{'):
		var before []uint16
		for first := true; d.More(); first = false {
			name, err := d.Token()
			if err != nil {
				t.Fatal(err)
			}
			at := utf16.Encode([]rune(name.(string)))
			if !first && slices.Compare(before, at) >= 0 {
				t.Fatalf("the member %q is out of order", name)
			}
			before = at
			inOrder(t, d)
		}
	default:
		return
	}
	if _, err := d.Token(); err != nil { // its end
		t.Fatal(err)
	}
}
