package route

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
)

// asJSON is what encoding/json makes of a document, with a line's end.
func asJSON(t interface{ Fatal(...any) }, doc scafo.FleetRouting) []byte {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(doc); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// filled makes every field of a value something, each another: also fields that are new.
func filled(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	if at, ok := v.Addr().Interface().(*time.Time); ok {
		*at = time.Unix(int64(*n), 12345)
		return
	}
	switch v.Kind() { //nolint:exhaustive // the rest is refused
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(strings.Repeat("x", *n))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		filled(t, v.Index(0), n)
		filled(t, v.Index(1), n)
	case reflect.Struct:
		for i := range v.NumField() {
			filled(t, v.Field(i), n)
		}
	default:
		t.Fatalf("this test does not know how to fill a %v", v.Type())
	}
}

// No member of the document is forgotten, and none is misspelled.
func TestDocumentHasEveryMember(t *testing.T) {
	var doc scafo.FleetRouting
	n := 0
	filled(t, reflect.ValueOf(&doc).Elem(), &n)
	e, err := encode(doc)
	if err != nil {
		t.Fatal(err)
	}
	if want := asJSON(t, doc); !bytes.Equal(e.Body, want) {
		t.Errorf("got  %s\nwant %s", e.Body, want)
	}
}

// Whatever a document holds, its bytes are those of encoding/json: an ETag that an
// ingress has from a node stays good at a node of another version.
func TestDocumentIsWhatEncodingJSONMakes(t *testing.T) {
	text := rapid.OneOf(rapid.StringMatching(`[a-z0-9.:/-]{0,20}`), rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"<b>&", `"\`, "\u2028\u2029", "\x7f", "\x00\t\n", "é\xff", "\ufffd"}))
	upstreams := listOf(rapid.Custom(func(t *rapid.T) scafo.Upstream {
		return scafo.Upstream{Node: text.Draw(t, "node"), URL: text.Draw(t, "url")}
	}))
	routes := listOf(rapid.Custom(func(t *rapid.T) scafo.Route {
		return scafo.Route{Host: text.Draw(t, "host"), Application: text.Draw(t, "application"), Upstreams: upstreams.Draw(t, "upstreams")}
	}))
	wildcards := listOf(rapid.Custom(func(t *rapid.T) scafo.WildcardRoute {
		return scafo.WildcardRoute{Base: text.Draw(t, "base"), Application: text.Draw(t, "application"), Upstreams: upstreams.Draw(t, "upstreams")}
	}))
	apis := listOf(rapid.Custom(func(t *rapid.T) scafo.APIHost {
		return scafo.APIHost{Host: text.Draw(t, "host"), Upstreams: upstreams.Draw(t, "upstreams")}
	}))
	unserved := listOf(rapid.Custom(func(t *rapid.T) scafo.UnservedHost {
		return scafo.UnservedHost{Host: text.Draw(t, "host"), Application: text.Draw(t, "application"), Reason: text.Draw(t, "reason")}
	}))
	rapid.Check(t, func(t *rapid.T) {
		doc := scafo.FleetRouting{
			V: rapid.Int().Draw(t, "v"), Fleet: text.Draw(t, "fleet"), Node: text.Draw(t, "node"),
			GeneratedAt: time.Unix(rapid.Int64Range(0, 200_000_000_000).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds")).UTC(),
			Routes:      routes.Draw(t, "routes"), Wildcards: wildcards.Draw(t, "wildcards"), API: apis.Draw(t, "api"), Unserved: unserved.Draw(t, "unserved"),
		}
		e, err := encode(doc)
		if err != nil {
			t.Fatal(err)
		}
		if want := asJSON(t, doc); !bytes.Equal(e.Body, want) {
			t.Fatalf("got  %s\nwant %s", e.Body, want)
		}
	})
	if _, err := encode(scafo.FleetRouting{GeneratedAt: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}); err == nil {
		t.Error("a time that JSON cannot say was encoded")
	}
}

// listOf is no list, an empty one, or one of up to three.
func listOf[T any](g *rapid.Generator[T]) *rapid.Generator[[]T] {
	return rapid.Custom(func(t *rapid.T) []T {
		if rapid.Bool().Draw(t, "nil") {
			return nil
		}
		return rapid.SliceOfN(g, 0, 3).Draw(t, "list")
	})
}
